"""Pairs with a known optimal map: the truth for tests and suites, in any dimension.

Choose μ_0 and a convex φ = ½|x|² + u with ∂u/∂n = 0 on the box, and set μ_1 = (∇φ)#μ_0. By
Brenier's theorem ∇φ is the optimal map, so no solver is needed:
μ_t(x_0 + t∇u(x_0)) = μ_0(x_0)/det(I + tD²u(x_0)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.errors import InputError
from geonet.fields.characteristics import Characteristics
from geonet.fields.cosine_series import CosineSeries
from geonet.geodesics.potential import PotentialGeodesic, positive_interpolant
from geonet.measures.density import Density
from geonet.measures.grid import Grid


def known_map_geodesic(source: Density, potential: CosineSeries) -> KnownMapGeodesic:
    """The geodesic from `source` along u; its `target` is (id + ∇u)#source on the source's grid.

    Exact where the source is a Gaussian mixture (its formula is used off the grid); otherwise as
    good as the cubic interpolation of its logarithm.
    """
    if source.leading or not source.grid.same_box(potential.grid):
        raise InputError("A known map takes one density and a potential on the same box.")
    if bool((source.values <= 0).any()):
        raise InputError("A known map takes a positive source; use source.with_floor(fraction).")
    one = torch.ones(1, dtype=torch.float64)
    frames = _carried(Characteristics(potential), source, one, source.grid)
    target = Density(frames[0], source.grid)
    return KnownMapGeodesic(source, target, "known-map", {}, potential)


def random_potential(
    grid: Grid, generator: torch.Generator, modes: int = 4, strength: float = 0.6
) -> CosineSeries:
    """u with random low modes, scaled so that |eigenvalues of D²u| reach `strength` < 1."""
    if not 0 < strength < 1:
        raise InputError(f"strength is {strength:g}; I + D²u > 0 needs it in (0, 1).")
    shape = (modes,) * grid.dimension
    frequency = torch.stack(
        torch.meshgrid(*[torch.arange(modes, dtype=torch.float64)] * grid.dimension, indexing="ij")
    )
    decay = 1 / (1 + (frequency**2).sum(0)) ** 1.5
    series = CosineSeries(
        torch.randn(shape, dtype=torch.float64, generator=generator) * decay, grid
    )
    _, hessian = series.derivatives_on(grid.with_shape(8 * modes))
    matrices = hessian.reshape(grid.dimension, grid.dimension, -1).movedim(-1, 0)
    largest = torch.linalg.eigvalsh(matrices).abs().max()
    return CosineSeries(series.coefficients * (strength / largest), grid)


class KnownMapGeodesic(PotentialGeodesic):
    """Carries the source alone: the target was made from it and is known only on the grid."""

    kind = "known-map"

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        return _carried(self.characteristics, self.source, times, grid)


def _carried(lines: Characteristics, source: Density, times: Tensor, grid: Grid) -> Tensor:
    """μ_0(x_0)/det(I + tD²u_0(x_0)) on the grid, (T, *shape)."""
    points = grid.points().reshape(-1, grid.dimension)
    source_at = positive_interpolant(source)
    frames = [
        source_at(origin.point) / origin.determinant(t)
        for t, origin in zip(times.tolist(), lines.origins(times, points), strict=True)
    ]
    return torch.stack(frames).reshape(len(times), *grid.shape)
