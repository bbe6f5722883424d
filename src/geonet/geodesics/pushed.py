"""Paths that push both ends along maps: those of Kantorovich potentials known at the cells.

With c(x, y) = ½|x − y|², potentials ψ at the source and φ at the target with φ(y) + ψ(x) ≤ c give

    W2² ≥ 2∫ψ dμ_0 + 2∫φ dμ_1,        T(x) = x − ∇ψ(x),   T⁻¹(y) = y − ∇φ(y).
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.fields.compiled.transforms import centres, nodes, push, transform
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box

PARTS = 2  # of a cell along each axis, where one of the potentials is found for the distance


class PushedGeodesic(Geodesic):
    """Both ends, pushed towards each other: (1−t)·(T_t)#μ_0 + t·(T⁻¹_{1−t})#μ_1.

    T_t(x) = x + t(T(x) − x), and likewise backwards. So mass and both ends are exact. Where the
    potentials are exact the two parts agree; the lattice makes both noisy in their own way, and
    `report.mismatch` tells how far they are apart halfway.

    Potentials are in the unit box (see `UnitBox`).
    """

    kind = "pushed"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        psi: Tensor,
        phi: Tensor,
    ):
        super().__init__(source, target, solver, notes)
        self._unit = unit_box(source.grid)
        self._psi, self._phi = psi, phi  # (*grid.shape), at source and target

    def _distance(self) -> Tensor:
        """By the dual value; see `dual_squares`."""
        return self._unit.from_velocity(self._squares[1].clamp(min=0).sqrt())

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = [torch.lerp(*self._both(t, grid), t) for t in times.tolist()]
        return torch.stack(frames)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """x + t(T(x) − x), with the map that pushes the source."""
        start = self._unit.to_points(points)
        step = _between_corners(self._displacements[0], start, self._unit.cells)
        sides = torch.tensor(self._unit.sides, dtype=torch.float64)
        end = (start + step).clamp(torch.zeros_like(sides), sides)
        return self._unit.from_points(torch.lerp(start, end, times[:, None, None]))

    def _checks(self) -> dict[str, Tensor]:
        forward, backward = self._both(0.5, self.grid)
        unknown = torch.tensor(math.nan, dtype=torch.float64)
        return {
            "distance_lower_bound": self._unit.from_velocity(self._squares[0].clamp(min=0).sqrt()),
            "distance_upper_bound": unknown,
            "mismatch": (forward - backward).abs().sum() * self.grid.cell_volume,
        }

    def _both(self, t: float, grid: Grid) -> tuple[Tensor, Tensor]:
        """What either end becomes at time t, (*grid.shape) each."""
        first, second = (
            pushed(cell_masses(end), t * step, self._unit.cells, grid.shape) / grid.cell_volume
            for end, t, step in zip(
                (self.source, self.target), (t, 1 - t), self._displacements, strict=True
            )
        )
        return first, second

    @cached_property
    def _displacements(self) -> tuple[Tensor, Tensor]:
        cells = self._unit.cells
        return displacement(self._psi, cells), displacement(self._phi, cells)

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """W2² at least, and W2² as estimated, in the unit box; the larger of both directions."""
        first, second = cell_masses(self.source), cell_masses(self.target)
        both = (
            dual_squares(first, second, self._phi, self._unit.cells),
            dual_squares(second, first, self._psi, self._unit.cells),
        )
        return torch.maximum(both[0][0], both[1][0]), torch.maximum(both[0][1], both[1][1])

    def _state(self) -> dict[str, np.ndarray]:
        return {"psi": self._psi.numpy(), "phi": self._phi.numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> PushedGeodesic:
        potentials = (torch.from_numpy(state[key]) for key in ("psi", "phi"))
        return cls(source, target, solver, notes, *potentials)


def cell_masses(density: Density) -> Tensor:
    """The mass of each cell in float64; they sum to one to rounding."""
    values = density.values.detach().to(torch.float64)
    return values / values.sum()


# ---- maps


def displacement(potential: Tensor, cells: Grid) -> Tensor:
    """−∇ψ at the corners of the cells, (d, *(shape + 1)), for ψ at their centres.

    Differences of neighbours, averaged over those that meet in a corner, and linear beyond.
    """
    slopes = []
    for axis, h in enumerate(cells.spacing):
        slope = _continued(potential.diff(dim=axis) / -h, axis)
        for other in range(potential.ndim):
            if other != axis:
                wide = _continued(slope, other)
                n = wide.shape[other] - 1
                slope = (wide.narrow(other, 0, n) + wide.narrow(other, 1, n)) / 2
        slopes.append(slope)
    return torch.stack(slopes)


def _continued(values: Tensor, axis: int) -> Tensor:
    """One value more at either end of an axis, linearly where there are two to go by."""
    last = values.shape[axis] - 1
    first, final = values.narrow(axis, 0, 1), values.narrow(axis, last, 1)
    if last > 0:
        first = 2 * first - values.narrow(axis, 1, 1)
        final = 2 * final - values.narrow(axis, last - 1, 1)
    return torch.cat([first, values, final], axis)


def pushed(mass: Tensor, step: Tensor, cells: Grid, shape: tuple[int, ...]) -> Tensor:
    """Masses (*shape) of the cells of the same box after their corners went by `step`."""
    edges = torch.meshgrid(*cells.edges(), indexing="ij")
    corners = [
        (edge + along - low) * (n / length) - 0.5
        for edge, along, low, n, length in zip(
            edges, step, cells.lower, shape, cells.lengths, strict=True
        )
    ]
    return push(mass, torch.stack(corners), shape)


def _between_corners(field: Tensor, points: Tensor, cells: Grid) -> Tensor:
    """A field (d, *(shape + 1)) at corners, multilinear between them, at points (N, d): (N, d)."""
    spacing = torch.tensor(cells.spacing, dtype=torch.float64)
    most = torch.tensor(cells.shape) - 1
    place = (points - cells.corner("lower")) / spacing
    low = torch.minimum(place.long().clamp(min=0), most)
    share = (place - low).clamp(0, 1)
    found = torch.zeros_like(points)
    for corner in product((0, 1), repeat=cells.dimension):
        up = torch.tensor(corner)
        weight = torch.where(up == 1, share, 1 - share).prod(-1)
        found += weight[:, None] * field[(slice(None), *(low + up).unbind(-1))].T
    return found


# ---- the distance


def dual_squares(first: Tensor, second: Tensor, phi: Tensor, cells: Grid) -> tuple[Tensor, Tensor]:
    """W2² at least, and W2² as estimated, by a potential φ at the centres of the second's cells.

    Both are for densities that are constant in each cell, with masses `first` and `second`, and not
    for atoms at the centres, whose W2² is larger by about h²/6 an axis.

    **At least.** ψ is the c-transform of φ at the corners of the first's cells and PARTS − 1 places
    between; φ that of ψ at the centres of the second's, and one cell beyond. Where φ + ψ ≤ c holds
    on two lattices it holds between their points too, if ½|x|² − ψ and ½|y|² − φ are multilinear
    there: a linear function below such values at the corners of a cell is below them inside too.
    Compared with φ and ψ that are multilinear themselves, that costs Σh²/12 for φ and
    Σ(h/PARTS)²/12 for ψ. Only cells with mass take part.

    **Estimated.** Between its points φ need not be as low as that: a smooth φ through these values
    has a mean over a cell that is higher by (h² − δ²φ)/24 an axis, δ² being the second difference,
    which is at most h². For equal ends the estimate is zero to rounding.
    """
    fine, wide = nodes(cells, PARTS), centres(cells, beyond=1)
    psi = transform(torch.where(second > 0, -phi, torch.inf), centres(cells), fine, 0.5)
    phi = transform(torch.where(_corners_of(first > 0), -psi, torch.inf), fine, wide, 0.5)
    squares = sum(h**2 for h in cells.spacing)
    mean, curvature = phi, torch.zeros_like(second)
    for axis in range(second.ndim):
        psi = _mean_of_parts(psi, axis)
        mean = mean + _second_difference(mean, axis) / 8
        curvature += _inner(_second_difference(phi, axis))
    half = (first * psi).sum() + (second * _inner(mean)).sum()
    half = half - squares * (1 + PARTS**-2) / 12
    return 2 * half, 2 * half + (squares - (second * curvature).sum()) / 12


def _corners_of(filled: Tensor) -> Tensor:
    """Which of the places of `nodes(cells, PARTS)` belong to a cell that is filled."""
    for axis in range(filled.ndim):
        parts = filled.repeat_interleave(PARTS, axis)
        none = torch.zeros_like(parts.narrow(axis, 0, 1))
        filled = torch.cat([parts, none], axis) | torch.cat([none, parts], axis)
    return filled


def _mean_of_parts(values: Tensor, axis: int) -> Tensor:
    """Means over cells along an axis of what is linear between the places of `nodes`."""
    n = values.shape[axis] - 1
    middle = (values.narrow(axis, 0, n) + values.narrow(axis, 1, n)) / 2
    return middle.unflatten(axis, (n // PARTS, PARTS)).mean(axis + 1)


def _second_difference(values: Tensor, axis: int) -> Tensor:
    """f(k − 1) − 2f(k) + f(k + 1) along an axis; zero at both ends."""
    none = torch.zeros_like(values.narrow(axis, 0, 1))
    return torch.cat([none, values.diff(n=2, dim=axis), none], axis)


def _inner(values: Tensor) -> Tensor:
    """Without the first and the last along every axis."""
    return values[(slice(1, -1),) * values.ndim]
