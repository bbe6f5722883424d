"""The error against exact solutions, on pairs that training never sees."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from geonet.geodesics.base import QUARTERS
from geonet.measures.metrics import l1
from geonet.measures.unit_box import unit_box
from geonet.operators.model import Model
from geonet.solvers.registry import make_solver
from geonet.training.config import TrainingConfig
from geonet.training.kept_truths import KeptTruths
from geonet.training.problem import Problem

HALFWAY = QUARTERS.index(0.5)


class Validation:
    """Pairs with their exact paths at the quarters.

    Attributes:
        truth: the frames of the exact paths, (pairs, 5, *cells).
        linear: the error of the linear mixture at t = ½ in percent, mean over the pairs.
    """

    def __init__(self, config: TrainingConfig, problem: Problem, truths: KeptTruths):
        settings = config.validation
        generator = torch.Generator().manual_seed(settings.seed)
        self.source, self.target = problem.densities(settings.pairs, generator)
        self.epsilon = config.loss.epsilon
        self.truth = truths.of(self.source, self.target, self.epsilon).frames
        mixture = make_solver("linear")(self.source, self.target).density(QUARTERS)
        self.linear = _percent(l1(mixture, self.truth))[HALFWAY]

    def measured(self, model: Model) -> dict[str, Any]:
        """What goes into the model's file: the errors, and what the form makes of them."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        unit = unit_box(self.source.grid).to_potential(self.epsilon)
        path = model.path(self.source, self.target, model.settings.kind, {"epsilon": unit})
        errors = l1(path.density(QUARTERS), self.truth)
        quarters = _percent(errors)
        return {
            "validation_l1_percent": quarters,
            "halfway_l1_percent": {"model": quarters[HALFWAY], "linear": self.linear},
            **model.calibration(path, errors),
        }


def halfway_text(model: float | None, linear: float | None) -> str:
    """How errors in percent are shown: at t = ½, for the ends of some forms are always exact."""
    if model is None:
        return ""
    beside = "" if linear is None else f" (linear mixture {linear:.3g} %)"
    return f"L1 at t = ½: {model:.3g} %{beside}"


def _percent(errors: torch.Tensor) -> list[float]:
    """The mean over pairs of errors (pairs, 5), in percent."""
    return [round(100 * error, 4) for error in errors.mean(0).tolist()]
