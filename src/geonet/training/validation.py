"""The error against exact solutions, on pairs that training never sees."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from geonet.evaluation.truth import exact_path
from geonet.geodesics.base import QUARTERS
from geonet.measures.metrics import l1
from geonet.measures.unit_box import unit_box
from geonet.operators.model import Model
from geonet.training.config import TrainingConfig
from geonet.training.problem import Problem


class Validation:
    """Pairs with their exact paths at the quarters."""

    def __init__(self, config: TrainingConfig, problem: Problem):
        settings = config.validation
        generator = torch.Generator().manual_seed(settings.seed)
        self.source, self.target = problem.densities(settings.pairs, generator)
        self.epsilon = config.loss.epsilon
        self.truth = exact_path(self.source, self.target, self.epsilon)

    def measured(self, model: Model) -> dict[str, Any]:
        """What goes into the model's file: the errors, and what the form makes of them."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        unit = unit_box(self.source.grid).to_potential(self.epsilon)
        path = model.path(self.source, self.target, model.settings.kind, {"epsilon": unit})
        errors = l1(path.density(QUARTERS), self.truth)
        return {
            "validation_l1_percent": [round(100 * e, 4) for e in errors.mean(0).tolist()],
            **model.calibration(path, errors),
        }
