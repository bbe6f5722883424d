"""The error against exact solutions, on pairs that training never sees."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from geonet.evaluation.truth import exact_path
from geonet.fields.potential import unfolded
from geonet.geodesics.base import QUARTERS, Geodesic
from geonet.geodesics.midpoint.calibration import calibrated
from geonet.geodesics.midpoint.path import MidpointGeodesic
from geonet.measures.metrics import l1
from geonet.operators.build import Model
from geonet.operators.transport import TransportNet
from geonet.solvers.learned.deeponet import DeepONetPath, Operator
from geonet.solvers.learned.transport import potential_of
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
        """What goes into the model's file: the errors, and what a mismatch means."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        path = self._path(model)
        errors = l1(path.density(QUARTERS), self.truth)
        measured: dict[str, Any] = {
            "validation_l1_percent": [round(100 * e, 4) for e in errors.mean(0).tolist()]
        }
        if isinstance(path, MidpointGeodesic):
            measured["calibration"] = calibrated(path.halfway.mismatch, errors)._asdict()
        return measured

    def _path(self, model: Model) -> Geodesic:
        ends = (self.source, self.target)
        if isinstance(model, TransportNet):
            coefficients = unfolded(potential_of(model, *ends))
            return MidpointGeodesic(*ends, "transport", {}, coefficients)
        operator = Operator(model, self.epsilon / max(self.source.grid.lengths) ** 2)
        coefficients = operator.coefficients(*ends)  # only those of the density are asked for
        return DeepONetPath(*ends, model.settings.kind, {}, operator, coefficients)
