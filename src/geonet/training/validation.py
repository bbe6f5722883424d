"""The error against exact solutions, on pairs that training never sees."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from geonet.evaluation.metrics import l1
from geonet.measures.density import Density
from geonet.operators.deeponet import GeONet
from geonet.solvers.learned.geonet import GeONetPath, Operator
from geonet.solvers.registry import make_solver
from geonet.training.config import TrainingConfig
from geonet.training.problem import Problem

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Validation:
    """Pairs with their exact paths at the quarters."""

    def __init__(self, config: TrainingConfig, problem: Problem):
        settings = config.validation
        generator = torch.Generator().manual_seed(settings.seed)
        self.source, self.target = problem.densities(settings.pairs, generator)
        self.epsilon = config.loss.epsilon
        self.truth = exact_path(self.source, self.target, self.epsilon)

    def errors(self, model: GeONet) -> Tensor:
        """Mean L1 error in percent at t = 0, ¼, ½, ¾, 1."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        operator = Operator(model, self.epsilon / max(self.source.grid.lengths) ** 2)
        coefficients = operator.coefficients(self.source, self.target)
        path = GeONetPath(self.source, self.target, "geonet", {}, operator, coefficients)
        return 100 * l1(path.density(TIMES), self.truth).mean(0)


def exact_path(source: Density, target: Density, epsilon: float) -> Density:
    """The truth at the quarters: the Schrödinger bridge for ε > 0, else what `auto` picks."""
    solver = make_solver("schrodinger", epsilon=epsilon) if epsilon else make_solver("auto")
    return solver(source, target).density(TIMES)
