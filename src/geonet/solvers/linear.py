"""The mixture (1−t)·μ_0 + t·μ_1: no transport, a baseline for every other method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.density import Density
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo


@dataclass(frozen=True)
class Linear(Solver):
    """Mixture (1 − t)·μ0 + t·μ1: one density fades into the other, and no mass moves.

    Every method must beat it. Both ends are exact, and so is the path for μ0 = μ1. It takes any
    dimension and solves batches at once. It is wrong as soon as mass has to move.
    """

    info = SolverInfo(
        name="linear",
        summary="any dimension, the mixture (1 − t)μ0 + tμ1 without transport: a baseline",
        family="baseline",
        provides=("density",),
        differentiable=("density",),
        periodic=True,
        transports=False,
        menu=MenuEntry("No transport: one density fades into the other"),
    )

    def _solve(self, source: Density, target: Density) -> LinearPath:
        return LinearPath(source, target, self.name, {})

    _solve_pair = _solve


class LinearPath(Geodesic):
    """The geodesic of L2, not of W2; it has no velocity."""

    kind = "linear"

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        first, second = self.source.resample(grid).tensor, self.target.resample(grid).tensor
        dtype = torch.promote_types(first.dtype, second.dtype)
        axis = len(self.batch)
        first, second = (end.to(dtype).unsqueeze(axis) for end in (first, second))
        return torch.lerp(first, second, times.to(dtype).reshape(-1, *(1,) * grid.dimension))

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> LinearPath:
        return cls(source, target, solver, info)
