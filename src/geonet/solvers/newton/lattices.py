"""Potentials on lattices: values of splines, c-transforms and integrals against densities.

Cells of a density are divided into `parts` per axis, with sides δ. The vertices and the centres of
the parts are two lattices. Between their points a function is interpolated linearly, so that its
integral over a density that is constant in cells is a sum with a stencil along each axis. Periodic
axes have one period of the points, without the copies at the other face.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.numerics.c_transform import Lattice, transform
from geonet.numerics.kernels import compatible_library
from geonet.numerics.splines import spline_stencil
from geonet.solvers.newton.bounds_kernels import RadialStructure, count_threads, declare

VERTEX_STENCIL = (0.5, 0.5)
CENTRE_STENCIL = (0.125, 0.75, 0.125)


@dataclass(frozen=True)
class PartLattices:
    """Vertices and centres of the parts of cells.

    Attributes:
        shape: cells of the densities.
        sides: side lengths of the box.
        parts: parts of a cell along each axis.
        periodic: whether each axis is periodic.
    """

    shape: tuple[int, ...]
    sides: tuple[float, ...]
    parts: int
    periodic: tuple[bool, ...]

    @property
    def steps(self) -> list[float]:
        """Side lengths of a part."""
        return [side / (self.parts * n) for side, n in zip(self.sides, self.shape, strict=True)]

    @property
    def vertices(self) -> list[Lattice]:
        """Vertices along each axis."""
        axes = zip(self.steps, self.shape, self.periodic, strict=True)
        return [Lattice(0.0, h, self.parts * n + (not wraps)) for h, n, wraps in axes]

    @property
    def centres(self) -> list[Lattice]:
        """Centres along each axis, and one more beyond both faces of axes that do not wrap."""
        axes = zip(self.steps, self.shape, self.periodic, strict=True)
        return [
            Lattice(h / 2, h, self.parts * n) if wraps else Lattice(-h / 2, h, self.parts * n + 2)
            for h, n, wraps in axes
        ]

    def evaluate(self, coefficients: Tensor, lattices: Sequence[Lattice]) -> Tensor:
        """Return a spline at the points of a lattice; periodic splines wrap."""
        coefficients, sides = coefficients.double(), list(self.sides)
        lattices = list(lattices)
        for axis, wraps in enumerate(self.periodic):
            if not wraps:
                continue
            n, side, own = coefficients.shape[axis], sides[axis], lattices[axis]
            coefficients = wrap(coefficients, axis, 2, 2)
            margin = 2 * side / n
            sides[axis] = side + 2 * margin
            lattices[axis] = Lattice(own.first + margin, own.spacing, own.count)
        return evaluate_on_lattice(coefficients, sides, lattices)

    def transform(
        self, values: Tensor, at: Sequence[Lattice], to: Sequence[Lattice], weight: float = 0.5
    ) -> Tensor:
        """Return min_y f(y) + weight·d²(x, y); the leading axes of f, if any, are a batch.

        d is the distance on the torus: the nearest copy of a point is at most half a period away.
        """
        at, first = list(at), values.ndim - len(self.shape)
        for axis, wraps in enumerate(self.periodic):
            if not wraps:
                continue
            own, more = at[axis], at[axis].count // 2 + 1
            values = wrap(values, first + axis, more, more)
            at[axis] = Lattice(own.first - more * own.spacing, own.spacing, own.count + 2 * more)
        return transform(values, at, to, weight)

    def integrate_vertices(
        self, values: Tensor, masses: Tensor, stencil: Sequence[Sequence[float]] | None = None
    ) -> Tensor:
        """Return Σ masses·(mean over the parts of a cell of the stencil applied to values).

        Args:
            values: at the vertices, (..., *counts).
            masses: of cells, (..., *shape).
            stencil: two weights for each axis; those of linear interpolation by default.

        Returns:
            Integrals, (...).
        """
        first = values.ndim - len(self.shape)
        for axis, wraps in enumerate(self.periodic):
            values = wrap(values, first + axis, 0, 1) if wraps else values
        return self._integrate(values, masses, stencil or [VERTEX_STENCIL] * len(self.shape))

    def integrate_centres(
        self, values: Tensor, masses: Tensor, stencil: Sequence[Sequence[float]] | None = None
    ) -> Tensor:
        """Integrate values at the centres like `integrate_vertices`, with three weights."""
        first = values.ndim - len(self.shape)
        for axis, wraps in enumerate(self.periodic):
            values = wrap(values, first + axis, 1, 1) if wraps else values
        return self._integrate(values, masses, stencil or [CENTRE_STENCIL] * len(self.shape))

    def average_at_parts(self, values: Tensor, is_vertex: bool) -> Tensor:
        """Return the interpolation at the centres of the parts of values on one of the lattices."""
        for axis, (n, wraps) in enumerate(zip(self.shape, self.periodic, strict=True)):
            size = self.parts * n
            if is_vertex:
                values = wrap(values, axis, 0, 1) if wraps else values
                values = (values.narrow(axis, 0, size) + values.narrow(axis, 1, size)) / 2
            elif not wraps:
                values = values.narrow(axis, 1, size)
        return values

    def touch_vertices(self, masses: Tensor) -> Tensor:
        """Return the vertices whose values matter for integrals over masses, (*counts), bool."""
        return self._touch(masses, 2)

    def touch_centres(self, masses: Tensor) -> Tensor:
        """Return the centres whose values matter for integrals over masses, (*counts), bool."""
        return self._touch(masses, 3)

    def _touch(self, masses: Tensor, width: int) -> Tensor:
        """Return the points with mass in one of the parts around them, `width` along each axis."""
        touched, before = masses > 0, width - 1
        for axis, wraps in enumerate(self.periodic):
            touched = touched.repeat_interleave(self.parts, axis)
            if wraps:
                touched = wrap(touched, axis, 1, width - 2)
            else:
                blank = torch.zeros_like(touched.narrow(axis, 0, 1))
                touched = torch.cat([blank] * before + [touched] + [blank] * before, axis)
            count = touched.shape[axis] - width + 1
            windows = [touched.narrow(axis, k, count) for k in range(width)]
            touched = torch.stack(windows).any(0)
        return touched

    def _integrate(
        self, values: Tensor, masses: Tensor, stencil: Sequence[Sequence[float]]
    ) -> Tensor:
        first = values.ndim - len(self.shape)
        for axis, (n, weights) in enumerate(zip(self.shape, stencil, strict=True), start=first):
            size = self.parts * n
            part = sum(w * values.narrow(axis, k, size) for k, w in enumerate(weights))
            values = part.unflatten(axis, (n, self.parts)).mean(axis + 1)  # pyright: ignore
        return (masses * values).flatten(first).sum(-1)


class RadialTransform:
    """c-transforms between the lattices with a cost that grows with the distance.

    Args:
        lattices: vertices and centres.
        cost: function of squared distances.
    """

    blocks = ((1, 1, 64), (1, 8, 16), (4, 4, 8))  # points of a block along each axis, in 1D to 3D

    def __init__(self, lattices: PartLattices, cost: Callable[[Tensor], Tensor]):
        self.lattices, self.cost = lattices, cost
        self._tables: dict[bool, tuple[Tensor, Tensor]] = {}

    def to_centres(self, values: Tensor) -> Tensor:
        """Return min_p f(p) + c(p, q) over vertices p at each centre q."""
        return self._transform(values, self.lattices.vertices, self.lattices.centres, True)

    def to_vertices(self, values: Tensor) -> Tensor:
        """Return min_q f(q) + c(p, q) over centres q at each vertex p."""
        return self._transform(values, self.lattices.centres, self.lattices.vertices, False)

    def _transform(
        self, values: Tensor, at: list[Lattice], to: list[Lattice], is_forward: bool
    ) -> Tensor:
        for axis, wraps in enumerate(self.lattices.periodic):
            if wraps:
                own, more = at[axis], at[axis].count // 2 + 1
                values = wrap(values, axis, more, more)
                first = own.first - more * own.spacing
                at[axis] = Lattice(first, own.spacing, own.count + 2 * more)
        library = compatible_library(declare)
        if library is None:
            return self._transform_torch(values, at, to)
        missing, values = 3 - len(at), values.contiguous()
        counts = [[1] * missing + [own.count for own in lattice] for lattice in (at, to)]
        block = [min(b, max(n)) for b, *n in zip(self.blocks[len(at) - 1], *counts, strict=True)]
        if is_forward not in self._tables:
            self._tables[is_forward] = self._tabulate(at, to, block[missing:])
        tables = self._tables[is_forward]
        blocks = math.prod(-(-n // b) for n, b in zip(counts[0], block, strict=True))
        triple, threads = ctypes.c_int32 * 3, count_threads(math.prod(counts[1]), 2**11)
        radial = RadialStructure(
            triple(*counts[0]), triple(*counts[1]), triple(*block), threads,
            *(table.data_ptr() for table in tables),
        )  # fmt: skip
        assert list(values.shape) == counts[0][missing:] and values.dtype == torch.float64
        result = torch.empty(counts[1][missing:], dtype=torch.float64)
        lows = torch.empty(blocks, dtype=torch.float64)
        candidates = torch.empty(threads, blocks, 2, dtype=torch.float64)
        arrays = (one.data_ptr() for one in (values, lows, candidates, result))
        library.geonet_radial_transform(radial, *arrays)
        return result

    def _tabulate(
        self, at: list[Lattice], to: list[Lattice], block: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the costs of all offsets between points, and least costs between blocks."""
        points, least = [], []
        for own, other, size in zip(at, to, block, strict=True):
            first, h = other.first - own.first, own.spacing
            offsets = torch.arange(1 - own.count, other.count, dtype=torch.float64)
            points.append((first + h * offsets) ** 2)
            counts = [-(-lattice.count // size) for lattice in (own, other)]
            middle = first + h * size * torch.arange(1 - counts[0], counts[1], dtype=torch.float64)
            least.append((middle.abs() - h * (size - 1)).clamp(min=0) ** 2)
        squares = (sum(torch.meshgrid(*one, indexing="ij")) for one in (points, least))
        costs = [self.cost(torch.as_tensor(one)).contiguous() for one in squares]
        return costs[0], costs[1]

    def _transform_torch(
        self, values: Tensor, at: list[Lattice], to: list[Lattice], chunk: int = 2**20
    ) -> Tensor:
        places = [
            torch.stack(torch.meshgrid(*(own.points() for own in lattice), indexing="ij"), -1)
            for lattice in (at, to)
        ]
        shape = places[1].shape[:-1]
        points, flat = (place.reshape(-1, len(at)) for place in places)
        rows = flat.split(max(1, chunk // len(points)))
        parts = []
        for row in rows:
            squares = ((row[:, None] - points) ** 2).sum(-1)
            parts.append((values.flatten() + self.cost(squares)).amin(-1))
        return torch.cat(parts).reshape(shape)


def exclude(potential: Tensor, touched: Tensor) -> Tensor:
    """Return −potential for a c-transform, without points whose values do not matter."""
    return torch.where(touched, -potential, torch.inf)


def wrap(values: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Continue a periodic axis by some points before and after one period."""
    n = values.shape[axis]
    index = torch.arange(-before, n + after) % n
    return values.index_select(axis, index)


def evaluate_at_vertices(
    coefficients: Tensor, sides: Sequence[float], periodic: Sequence[bool]
) -> tuple[Tensor, list[Lattice]]:
    """Return a spline at the vertices of its cells, and their lattices; periods count once."""
    c, wide, inner, vertices = coefficients, [], [], []
    for axis, (side, wraps) in enumerate(zip(sides, periodic, strict=True)):
        n, beyond = coefficients.shape[axis], int(wraps)
        h = side / n
        c = wrap(c, axis, beyond, beyond)
        wide.append((n + 2 * beyond) * h)
        inner.append(Lattice(beyond * h, h, n + 1 - beyond))
        vertices.append(Lattice(0.0, h, n + 1 - beyond))
    return evaluate_on_lattice(c, wide, inner), vertices


def evaluate_on_lattice(
    coefficients: Tensor, sides: Sequence[float], lattices: Sequence[Lattice]
) -> Tensor:
    """Return the spline at the points of a lattice; constant beyond the faces."""
    library = compatible_library(declare)
    values = coefficients.double()
    for axis, (side, lattice) in enumerate(zip(sides, lattices, strict=True)):
        n, step = values.shape[axis], side / values.shape[axis]
        if library is None:
            taps, weights = spline_stencil(lattice.points(), step, n)
            view = [-1 if k == axis else 1 for k in range(values.ndim)]
            values = torch.stack(
                [
                    weights[0][:, k].reshape(view) * values.index_select(axis, taps[:, k])
                    for k in range(3)
                ]
            ).sum(0)
            continue
        values, shape = values.contiguous(), list(values.shape)
        shape[axis] = lattice.count
        result = torch.empty(shape, dtype=torch.float64)
        library.geonet_spline_axis(
            values.data_ptr(),
            result.data_ptr(),
            math.prod(shape[:axis]),
            math.prod(shape[axis + 1 :]),
            n,
            lattice.count,
            lattice.first / step,
            lattice.spacing / step,
            count_threads(result.numel()),
        )
        values = result
    return values
