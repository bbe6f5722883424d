"""A geodesic given by its potential at t = ½, for a batch of pairs at once.

With s = t − ½, the particle that is at y halfway is at x = y + s∇u(y) at time t, all along a straight
line at constant speed, so Hamilton–Jacobi holds by construction:

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|²

and the density there is known from either end,

    ρ0 = μ0(x − t v)·det(I − t Dv)            ρ1 = μ1(x + (1 − t)v)·det(I + (1 − t)Dv),

which agree where u is right. The answer is (1 − t)ρ0 + tρ1: exact at both ends whatever u is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.geodesic import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators import packed
from geonet.solvers.exact.characteristics import Characteristics, Origin
from geonet.solvers.exact.cosine_series import CosineSeries
from geonet.solvers.learned.lookup import (
    Fields,
    along,
    density_table,
    look_up,
    node_matrix,
    places,
    refinement,
    series_matrix,
)

NODES = {1: 1024, 2: 128, 3: 64}  # of the tables of ∇u and D²u, along each axis
CELLS = {1: 512, 2: 32, 3: 24}  # per axis, where the velocity is solved for before refinement
MISS = 1e-3  # |y + s∇u(y) − x| before the last of Newton's steps, which squares it
STEPS = 12  # of it, at most
POINTS = 2**18  # answered at a time: memory stays bounded, and near the processor


class MidpointGeodesic(Geodesic):
    """The path of a batch of pairs from its potentials at t = ½.

    Args:
        source: one density, or a batch of B.
        target: likewise.
        solver: the name.
        notes: for the report.
        coefficients: c, (B, modes, …, modes), of u(x) = Σ_k c_k Π_i cos(k_i π x_i) in the unit cube
            around the box, with |eigenvalues of ½D²u| < 1.
    """

    kind = "midpoint"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        coefficients: Tensor,
    ):
        super().__init__(source, target, solver, notes)
        self.coefficients = coefficients

    @property
    def length(self) -> float:
        """L, the side of the cube around the box."""
        return max(self.grid.lengths)

    # ---- densities: single precision, on grids

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        answer = torch.empty(len(self.coefficients), len(times), grid.size)
        for pairs, ends in self.chunks(grid.size * len(times)):
            step = max(1, POINTS // (grid.size * len(ends[0])))
            for k in range(0, len(times), step):
                t = times[k : k + step].float()
                answer[pairs, k : k + step] = self._frames(pairs, ends, t, grid)
        answer /= self.length**grid.dimension
        return answer.reshape(*self.batch, len(times), *grid.shape).to(torch.float64)

    def chunks(self, points: int) -> Iterator[tuple[slice, tuple[Tensor, Tensor]]]:
        """Pairs, as many as `points` of each allow at a time, with the tables of their ends."""
        step = max(1, POINTS // points)
        ends = [end.values.reshape(-1, *self.grid.shape) for end in (self.source, self.target)]
        for start in range(0, len(self.coefficients), step):
            pairs = slice(start, start + step)
            tables = [density_table(end[pairs], self.grid) for end in ends]
            yield pairs, (tables[0], tables[1])

    def _frames(
        self, pairs: slice, ends: tuple[Tensor, Tensor], times: Tensor, grid: Grid
    ) -> Tensor:
        """(1 − t)ρ0 + tρ1 in the unit cube, (B, T, cells)."""
        coarse = velocity_on_cube(self.coefficients[pairs], times)
        velocity, slope = refined(coarse, grid)
        points, t = unit_points(self.grid, grid.points()), times[:, None]
        spread = packed.invariants(slope)
        source, target = (
            look_up(end, places(points, velocity, s))[0] * packed.characteristic(spread, -s)
            for end, s in zip(ends, (t, t - 1), strict=True)
        )
        return torch.lerp(source, target, t).clamp_(min=0)

    # ---- at scattered points: double precision, one pair after the other

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._each(times, points, lambda _, origin: origin.gradient)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return self._each(
            times, points, lambda t, o: o.value + 0.5 * (t - 0.5) * (o.gradient**2).sum(-1)
        )

    def _each(
        self, times: Tensor, points: Tensor, answer: Callable[[float, Origin], Tensor]
    ) -> Tensor:
        """What `answer` makes of where the particles at `points` are halfway."""
        lower = self.grid.lower
        cube = Grid((2,) * len(lower), lower, [a + self.length for a in lower])
        answers = []
        for own in self.coefficients:
            lines = Characteristics(CosineSeries(own.to(torch.float64) * self.length**2, cube))
            origins = lines.origins(times - 0.5, points)
            moments = zip(times.tolist(), origins, strict=True)
            answers.append(torch.stack([answer(t, origin) for t, origin in moments]))
        return torch.stack(answers) if self.batch else answers[0]

    def _state(self) -> dict[str, np.ndarray]:
        return {"coefficients": self.coefficients.numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> MidpointGeodesic:
        return cls(source, target, solver, notes, torch.from_numpy(state["coefficients"]))


def unit_points(box: Grid, points: Tensor) -> Tensor:
    """Points (*shape, d) of a box in the unit cube around it, (d, points), single precision."""
    unit = (points - box.corner("lower")) / max(box.lengths)
    return unit.reshape(-1, box.dimension).T.float().contiguous()


def velocity_on_cube(coefficients: Tensor, times: Tensor) -> Fields:
    """v at the centres of CELLS cells per axis of the unit cube, d of (B, T, cells).

    Newton's method for y + s∇u(y) = x at all points at once.
    """
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    grid = Grid((CELLS[d],) * d)
    gradient, hessian = derivatives(coefficients, lambda k: series_matrix(CELLS[d], modes, k))
    table = potential_table(coefficients)
    x, s = unit_points(grid, grid.points()), (times - 0.5)[:, None]
    velocity = [  # to second order in s
        g.flatten(1)[:, None] - s * h.flatten(1)[:, None]
        for g, h in zip(gradient, packed.product(hessian, gradient), strict=True)
    ]
    for _ in range(STEPS):
        found = look_up(table, places(x, velocity, s))
        y = [(x[i] - s * velocity[i]).clamp_(0, 1) for i in range(d)]
        gradient, bent, hessian = found.split([d, d, d * (d + 1) // 2])
        curved = packed.product(hessian, y)
        moved = [torch.add(g, c - b, alpha=0.5) for g, b, c in zip(gradient, bent, curved, strict=True)]
        miss = [(y[i] - x[i]).add_(s * moved[i]) for i in range(d)]
        # Newton's step moves y by −(I + sD²u)⁻¹ miss; ∇u follows to first order.
        steps = packed.product(hessian, packed.solve(hessian, s, miss))
        velocity = [m - step for m, step in zip(moved, steps, strict=True)]
        if max(float(m.abs().max()) for m in miss) < MISS:
            break
    return velocity


def potential_table(coefficients: Tensor) -> Tensor:
    """∇u, D²u·x and D²u at nodes of the unit cube, (B, channels, *nodes).

    With them ∇u(x) = Σ_j w_j (∇u_j + ½D²u_j (x − x_j)) over the nodes around x with linear weights
    w, which is exact for quadratic fields; linear interpolation alone is exact for linear ones.
    """
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    nodes = NODES[d]
    gradient, hessian = derivatives(coefficients, lambda k: node_matrix(nodes, modes, k))
    x = torch.meshgrid(*[torch.arange(nodes + 1) / nodes] * d, indexing="ij")
    return torch.stack([*gradient, *packed.product(hessian, x), *hessian], dim=1)


def derivatives(coefficients: Tensor, matrix: Callable[[int], Tensor]) -> tuple[Fields, Fields]:
    """∇u, d of (B, *n), and D²u, packed, where matrix(k) has the k-th derivatives of cosines."""
    d = coefficients.ndim - 1

    def derivative(*directions: int) -> Tensor:
        return along([matrix(directions.count(axis)) for axis in range(d)], coefficients)

    gradient = [derivative(i) for i in range(d)]
    hessian = [derivative(i, j) for i in range(d) for j in range(i, d)]
    return gradient, hessian


def refined(velocity: Fields, grid: Grid) -> tuple[Fields, Fields]:
    """v of `velocity_on_cube`, and Dv packed, on a grid of the box in the cube: each (B, T, P).

    v_i is odd at the faces across axis i and even at the others.
    """
    d = len(velocity)
    shares = [side / max(grid.lengths) for side in grid.lengths]

    def field(i: int, j: int | None) -> Tensor:
        """v_i, or its derivative along axis j."""
        matrices = [
            refinement(CELLS[d], cells, share, odd=axis == i, order=int(axis == j))
            for axis, (cells, share) in enumerate(zip(grid.shape, shares, strict=True))
        ]
        return along(matrices, velocity[i].unflatten(-1, (CELLS[d],) * d)).flatten(2)

    slope = [field(i, j) for i in range(d) for j in range(i, d)]
    return [field(i, None) for i in range(d)], slope
