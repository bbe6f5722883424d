"""A geodesic given by its potential at t = 0: everything else follows along straight lines.

A particle goes from x_0 to x_t = x_0 + t∇u_0(x_0), and with it goes the density,

    μ_t(x_t) = μ_0(x_0) / det(I + tD²u_0(x_0))
             = μ_1(x_1) · det(I + D²u_0(x_0)) / det(I + tD²u_0(x_0)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.fields.characteristics import Characteristics, Origin
from geonet.fields.cosine_series import CosineSeries
from geonet.geodesics.base import Geodesic
from geonet.geodesics.gradients import wanted, with_dual_gradient
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline


class PotentialGeodesic(Geodesic):
    """The geodesic whose potential at t = 0 is a cosine series u_0 with I + D²u_0 > 0."""

    kind = "potential"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        series: CosineSeries,
    ):
        super().__init__(source, target, solver, notes)
        self.series = series
        self.characteristics = Characteristics(series)
        self._source_at, self._target_at = (positive_interpolant(end) for end in (source, target))

    def _distance(self) -> Tensor:
        """W2² = ∫|∇u_0|² dμ_0."""
        with torch.no_grad():
            gradient, _ = self.series.derivatives_on(self.grid)
            squared = ((gradient**2).sum(0) * self.source.values * self.grid.cell_volume).sum()
        return with_dual_gradient(squared.sqrt(), self.source, self.target, self._kantorovich)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """(1−t)·(carried from the source) + t·(carried from the target): exact at both ends."""
        points = grid.points().reshape(-1, grid.dimension)
        frames = []
        for t, origin in self._along(times, points):
            from_source = self._source_at(origin.point)
            from_target = self._target_at(origin.point + origin.gradient) * origin.determinant(1.0)
            frames.append(torch.lerp(from_source, from_target, t) / origin.determinant(t))
        return torch.stack(frames).reshape(len(times), *grid.shape)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([origin.gradient for _, origin in self._along(times, points)])

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        along = self._along(times, points)
        return torch.stack([o.value + 0.5 * t * (o.gradient**2).sum(-1) for t, o in along])

    def _along(self, times: Tensor, points: Tensor) -> list[tuple[float, Origin]]:
        origins = self.characteristics.origins(times, points)
        return list(zip(times.tolist(), origins, strict=True))

    def _state(self) -> dict[str, np.ndarray]:
        return {"coefficients": self.series.coefficients.detach().numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> PotentialGeodesic:
        series = CosineSeries(torch.from_numpy(state["coefficients"]), source.grid)
        return cls(source, target, solver, notes, series)


def positive_interpolant(density: Density) -> Callable[[Tensor], Tensor]:
    """Values of a positive density at points (N, d): its formula, or exp of a spline of log."""
    # Values may be varied apart from the formula, which is then not what is asked about.
    varied = wanted(density) and not (density.mixture and wanted(density.mixture))
    if density.mixture is not None and not varied:
        return density.at
    spline = CubicSpline(density.values.to(torch.float64).log(), density.grid)
    return lambda points: spline(points).exp()
