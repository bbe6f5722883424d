"""The error against exact solutions, on pairs that training never sees."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from geonet.evaluation.metrics import l1
from geonet.geodesic import Geodesic
from geonet.measures.density import Density
from geonet.operators.build import Model
from geonet.operators.transport import TransportNet
from geonet.solvers.learned.geonet import GeONetPath, Operator
from geonet.solvers.learned.midpoint import MidpointGeodesic
from geonet.solvers.learned.transport import potential_of
from geonet.solvers.registry import make_solver
from geonet.training.config import TrainingConfig
from geonet.training.problem import Problem

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)
FINER = 21  # cells for one, an odd number


class Validation:
    """Pairs with their exact paths at the quarters."""

    def __init__(self, config: TrainingConfig, problem: Problem):
        settings = config.validation
        generator = torch.Generator().manual_seed(settings.seed)
        self.source, self.target = problem.densities(settings.pairs, generator)
        self.epsilon = config.loss.epsilon
        self.truth = exact_path(self.source, self.target, self.epsilon)

    def errors(self, model: Model) -> Tensor:
        """Mean L1 error in percent at t = 0, ¼, ½, ¾, 1."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        return 100 * l1(self._path(model).density(TIMES), self.truth).mean(0)

    def _path(self, model: Model) -> Geodesic:
        ends = (self.source, self.target)
        if isinstance(model, TransportNet):
            return MidpointGeodesic(*ends, "transport", {}, potential_of(model, *ends))
        operator = Operator(model, self.epsilon / max(self.source.grid.lengths) ** 2)
        return GeONetPath(*ends, "geonet", {}, operator, operator.coefficients(*ends))


def exact_path(source: Density, target: Density, epsilon: float) -> Density:
    """The truth at the quarters: the Schrödinger bridge for ε > 0, else what is exact."""
    if epsilon:
        return make_solver("schrodinger", epsilon=epsilon)(source, target).density(TIMES)
    if source.grid.dimension > 1:
        return make_solver("auto", learned=False)(source, target).density(TIMES)
    # In 1D paths are means over cells: much finer ones, whose middle is the cell's centre.
    fine = source.grid.with_shape(FINER * source.grid.size)
    ends = [Density(end.at(fine.points()).clamp(min=0), fine) for end in (source, target)]
    path = make_solver("quantile")(*ends).density(TIMES)
    return Density.as_computed(path.values[..., FINER // 2 :: FINER], source.grid)
