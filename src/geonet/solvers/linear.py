"""The mixture (1−t)·μ_0 + t·μ_1: no transport at all, the floor every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.density import Density
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo

# ---- The mixture (1−t)·μ_0 + t·μ_1.


class LinearPath(Geodesic):
    """Not a geodesic of W2 but of L2; it has no velocity."""

    kind = "linear"

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        first, second = (end.resample(grid).tensor for end in (self.source, self.target))
        dtype = torch.promote_types(first.dtype, second.dtype)
        first, second = first.to(dtype), second.to(dtype)
        axis = len(self.batch)
        t = times.to(first.dtype).reshape(-1, *(1,) * grid.dimension)
        return torch.lerp(first.unsqueeze(axis), second.unsqueeze(axis), t)

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> LinearPath:
        return cls(source, target, solver, info)


@dataclass(frozen=True)
class Linear(Solver):
    """Fades one density into the other, (1 − t)·μ0 + t·μ1, and moves nothing.

    Every method must beat it. Both ends are exact, and so is the path for μ0 = μ1. It takes any
    dimension and solves batches at once. It is wrong as soon as mass has to move.
    """

    info = SolverInfo(
        name="linear",
        summary="any dimension, the mixture (1 − t)μ0 + tμ1 without transport: a baseline",
        family="baseline",
        provides=("density",),
        differentiable=("density",),
        transports=False,
        menu=MenuEntry("No transport: one density fades into the other"),
    )

    def _solve(self, source: Density, target: Density) -> LinearPath:
        return LinearPath(source, target, self.name, {})

    _solve_pair = _solve
