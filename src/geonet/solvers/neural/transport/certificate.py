"""What a geodesic given halfway proves about itself, without any reference.

At t = ½ the source brings ρ0 and the target sends back ρ1, both of mass one; they should be equal.
For any potential u whose map does not fold, whatever ρ0 and ρ1 are:

    W2² ≥ ½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0)                                    (lower)
    W2  ≤ (∫|∇u|²ρ0)^½ + Λ·W2(ρ0, ρ1)          Λ the largest eigenvalue of I + ½D²u    (upper)

The first is Kantorovich's dual value of the pair (−u_0, u_1), which is feasible: u_1 is the
c-transform of u_0, since x ↦ u_0(x) + ½|x − y|² is convex. The second is the triangle inequality
through (id + ∇u_0)#μ0, to which that map is optimal. W2(ρ0, ρ1) is bounded by Benamou and Brenier's
action of any flow from one to the other; here −∇Δ⁻¹(ρ0 − ρ1), along the straight mixture of both.
Integrals are sums over cells, of densities that are known at cells: both bounds allow `SLACK` for
that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import (
    CosineSeries,
    along,
    cosine_transform,
    frequencies,
    series_matrices,
    unit_centres,
)
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.potential import potential_on, steepest, steepness
from geonet.solvers.neural.transport.splines import Fields, Splines

# ---- Paths that autograd can follow back to both ends: torch alone, in double precision.
#
# The formulas are those of `frames`, but v and Dv are found at the cells of the grid themselves,
# along the characteristics, and densities are read as cubic splines.


ROUNDING = 1e-6  # of the cube, by which a place may be outside the box


@dataclass(frozen=True)
class Traced:
    """Cubic splines of densities (B, *grid.shape), with their gradients."""

    tensor: Tensor
    grid: Grid

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, some: slice) -> Traced:
        return Traced(self.tensor[some], self.grid)

    def at(self, points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
        """As `Splines.at`."""
        box = unit_box(self.grid)
        back = torch.as_tensor(s)[..., None] * torch.stack(list(velocity), -1)
        places = points.T - back
        spline = CubicSpline(box.to_density(self.tensor), box.cells)
        found = spline(places.double().flatten(1, 2)).reshape(places.shape[:-1])
        outside = (places < -ROUNDING) | (places > box.cells.corner("upper") + ROUNDING)
        return found.clamp(min=0).masked_fill(outside.any(-1), 0.0)


def traced(density: Density) -> Traced:
    """One density as a batch of one, or a batch."""
    return Traced(density.tensor.reshape(-1, *density.grid.shape), density.grid)


def traced_frames(
    coefficients: Tensor, ends: tuple[Traced, Traced], times: Tensor, grid: Grid
) -> Tensor:
    """Densities at times (T,) on a grid, in the units of its box, (B, T, cells).

    From potentials (B, modes, …) at t = ½ in the unit cube.
    """
    box, d = unit_box(grid), grid.dimension
    points = box.to_points(grid.points()).reshape(-1, d)
    velocity, before, after = [], [], []
    for own in coefficients:
        lines = Characteristics(CosineSeries(own, Grid((2,) * d)))
        for t, origin in zip(times.tolist(), lines.origins(times - 0.5, points), strict=True):
            spread = origin.determinant(t - 0.5)
            velocity.append(origin.gradient)
            before.append(origin.determinant(-0.5) / spread)
            after.append(origin.determinant(0.5) / spread)
    shape = (len(coefficients), len(times), len(points))
    fields = torch.stack(velocity).reshape(*shape, d).unbind(-1)
    determinants = (torch.stack(side).reshape(shape) for side in (before, after))
    t = times[:, None]
    source, target = (
        end.at(points.T, fields, s) * determinant
        for end, s, determinant in zip(ends, (t, t - 1), determinants, strict=True)
    )
    return box.from_density(torch.lerp(source, target, t).clamp(min=0))


# ---- The densities at either end of a path, read between their cells, a batch of them at once.


# Source and target, B of each.
Ends = tuple[Splines, Splines] | tuple[Traced, Traced]


def ends_of(source: Tensor, target: Tensor, grid: Grid) -> Ends:
    """Densities (B, *grid.shape) in a form to be read between their cells."""
    both = Splines.through(torch.cat([source, target]), grid)
    return both[: len(source)], both[len(source) :]


def compiled_ends(ends: Ends) -> tuple[Splines, Splines] | None:
    """The ends, if the compiled loops take them."""
    first, second = ends
    if isinstance(first, Splines) and isinstance(second, Splines) and compiled.takes(first.grid):
        return first, second
    return None


def density_at(
    end: Splines | Traced, points: Tensor, velocity: Fields, s: float | Tensor
) -> Tensor:
    """Densities at x − s·v, (B, T, P), relative to uniform; see `Splines.at`."""
    if isinstance(end, Splines) and compiled.takes(end.grid):
        return compiled.look_up(end, points, velocity, s)
    return end.at(points, velocity, s)


# ---- Pairs of densities in the unit cube, ready to be read between their cells, some at a time.


KEPT = 2**23  # numbers that are held on to, 32 MB for each end
POINTS = 2**19  # answered at a time: memory stays bounded, and near the processor


class Pairs:
    """The ends of one path, or of a batch of them.

    Attributes:
        grid: where the densities live.
        box: of the grid in the unit cube.
    """

    def __init__(self, source: Density, target: Density):
        self.grid = source.grid
        self.box = unit_box(self.grid)
        self.ends = [end.tensor.reshape(-1, *self.grid.shape) for end in (source, target)]
        self._kept: Ends | None = None

    def __len__(self) -> int:
        return len(self.ends[0])

    def chosen(self, which: Tensor) -> tuple[Density, Density]:
        """The ends of some pairs, which (B,) is true for, as a batch."""
        source, target = (Density(end[which], self.grid) for end in self.ends)
        return source, target

    def chunks(self, points: int) -> Iterator[tuple[slice, Ends]]:
        """As many pairs at a time as `points` of each allow, with their ends."""
        step = max(1, POINTS // max(points, self.grid.size))
        for start in range(0, len(self), step):
            some = slice(start, min(start + step, len(self)))
            yield some, self._ends(some)

    def _ends(self, some: slice) -> Ends:
        """The ends of some pairs; kept if those of all pairs are not too large."""
        if len(self) * self.grid.size > KEPT:
            return self._make(some)
        if self._kept is None:
            self._kept = self._make(slice(None))
        if some == slice(0, len(self)):
            return self._kept
        return self._kept[0][some], self._kept[1][some]  # pyright: ignore[reportReturnType]

    def _make(self, some: slice) -> Ends:
        source, target = self.ends
        return ends_of(source[some], target[some], self.grid)


SLACK = 1e-3  # relative, of sums over cells
UNSEEN = 0.5  # share of the mass that the cells may miss
MOST = {1: 1024, 2: 128, 3: 32}  # cells per axis where it is looked at


@dataclass(frozen=True)
class Halfway:
    """Per pair, (B,), in the unit cube.

    Attributes:
        mismatch: ∫|ρ0 − ρ1|.
        distance: W2 as the dual value has it; it is off by the square of an error in u, while
            (½∫|∇u|²(ρ0 + ρ1))^½ is off by the error itself.
        lower: the lower bound on W2.
        upper: the upper bound on W2.
        determinant: the smallest of det(I ∓ ½D²u).
    """

    mismatch: Tensor
    distance: Tensor
    lower: Tensor
    upper: Tensor
    determinant: Tensor


def look_halfway(pairs: Pairs, coefficients: Tensor) -> Halfway:
    """Look at all pairs with their potentials at t = ½."""
    d, modes = pairs.grid.dimension, coefficients.shape[-1]
    across = max(pairs.grid.shape) / min(pairs.box.sides)
    cells = min(MOST[d], max(4 * modes, math.ceil(across)))
    found = [_look(coefficients[some], ends, cells) for some, ends in pairs.chunks(cells**d)]
    columns = zip(*(vars(part).values() for part in found), strict=True)
    return Halfway(*(torch.cat(column) for column in columns))


def _look(coefficients: Tensor, ends: Ends, cells: int) -> Halfway:
    sides = both_sides(coefficients, ends, cells)
    source, target = sides.source.double(), sides.target.double()
    squares = torch.stack([g.double() ** 2 for g in sides.gradient]).sum(0)
    energies = [(squares * side).mean(1) for side in (source, target)]
    gain = 2 * (sides.value.double() * (target - source)).mean(1)
    distance = ((energies[0] + energies[1]) / 2 + gain).clamp(min=0).sqrt()
    nearer = torch.minimum(energies[0], energies[1]).sqrt()
    apart = flow_bound(source, target, cells, coefficients.ndim - 1)
    steep = steepest(coefficients).double()
    # On cells too coarse for the densities the masses are not one; ∫uρ may be off by as much.
    height = sides.value.double().amax(1) - sides.value.double().amin(1)
    unsure = 2 * sides.missing.double() * height
    lower = (distance**2 - unsure).clamp(min=0).sqrt()
    return Halfway(
        mismatch=sides.mismatch().double(),
        distance=distance,
        lower=torch.where(steep < 1, (1 - SLACK) * lower, 0.0),
        upper=torch.where(steep < 1, (1 + SLACK) * (nearer + (1 + steep) * apart), torch.inf),
        determinant=sides.determinant.double(),
    )


@dataclass(frozen=True)
class Sides:
    """u, ∇u, D²u (packed), ρ0 and ρ1 of mean one at cells of the cube, each (B, cells).

    Attributes:
        determinant: the smallest of det(I ∓ ½D²u), (B,).
        steepness: the largest |eigenvalue| of ½D²u, (B,).
        missing: how far the sums of ρ0 and ρ1 were from one before they were scaled to it, (B,).
    """

    value: Tensor
    gradient: Fields
    hessian: Fields
    source: Tensor
    target: Tensor
    determinant: Tensor
    steepness: Tensor
    missing: Tensor

    def mismatch(self) -> Tensor:
        """∫|ρ0 − ρ1|, (B,); two, as for disjoint densities, where hardly any of them is seen."""
        apart = (self.source - self.target).abs().mean(1)
        return torch.where(self.missing < UNSEEN, apart, 2.0)


def both_sides(coefficients: Tensor, ends: Ends, cells: int) -> Sides:
    """What both ends bring to t = ½, at cells^d cells of the unit cube."""
    if (splines := compiled_ends(ends)) is not None:
        planes, (source, target), (smallest, steepest) = compiled.halfway(
            coefficients, *splines, cells
        )
        value, gradient, hessian = planes[0], list(planes[1:3]), list(planes[3:])
    else:
        value, gradient, hessian = potential_on(coefficients, cells)
        source, target, smallest = _brought(gradient, hessian, ends, cells)
        steepest = steepness(hessian)
    sums = torch.stack([source, target]).mean(2)
    missing = (sums - 1).abs().amax(0)
    scale = 1 / sums.clamp_(min=torch.finfo(sums.dtype).tiny)[..., None]
    source, target = source * scale[0], target * scale[1]
    return Sides(value, gradient, hessian, source, target, smallest, steepest, missing)


def _brought(
    gradient: Fields, hessian: Fields, ends: Ends, cells: int
) -> tuple[Tensor, Tensor, Tensor]:
    """ρ0 and ρ1, (B, cells^d), and the smallest determinant, (B,)."""
    spread, velocity = packed.invariants(hessian), [g[:, None] for g in gradient]
    before, after = (packed.characteristic(spread, s) for s in (-0.5, 0.5))
    points = unit_centres(len(gradient), cells)
    source, target = (
        (density_at(end, points, velocity, s)[:, 0] * determinant).clamp(min=0)
        for end, s, determinant in zip(ends, (0.5, -0.5), (before, after), strict=True)
    )
    return source, target, torch.minimum(before, after).amin(1)


def flow_bound(source: Tensor, target: Tensor, cells: int, d: int) -> Tensor:
    """An upper bound on W2 between densities (B, cells^d) of mean one on the unit cube, (B,).

    ∫∫|w|²/ρ_s dx ds with ρ_s = (1 − s)ρ0 + sρ1 and div w = ρ1 − ρ0, so at most
    ∫½(1/ρ0 + 1/ρ1)|w|² dx; or, where that is worse, what is not shared goes across the cube.
    """
    difference = (source - target).reshape(-1, *(cells,) * d)
    series = along([cosine_transform(cells)] * d, difference)
    squares = torch.stack(torch.meshgrid(*[frequencies(cells) ** 2] * d, indexing="ij")).sum(0)
    squares.view(-1)[0] = torch.inf  # the mean, which is zero
    plain, slope, _ = series_matrices(cells, cells).double()
    flow = [
        along([slope if i == axis else plain for axis in range(d)], series / squares)
        for i in range(d)
    ]
    action = sum(w.flatten(1) ** 2 for w in flow) * 0.5 * (1 / source + 1 / target)
    not_shared = 0.5 * (source - target).abs().mean(1)
    return torch.minimum(action.mean(1).nan_to_num(torch.inf), d * not_shared).sqrt()


# ---- What a mismatch at t = ½ means for the error of a path.


CURVATURE = 0.35  # of the error over the mismatch, by experience
UNUSUAL = 4.0  # standard deviations


class Calibration(NamedTuple):
    """What a solver's mismatch means, as measured on pairs with a known answer.

    Attributes:
        slope: the largest L1 error along the path over the mismatch, where both are small.
        limit: the mismatch up to which a pair is like those the solver was made for.
    """

    slope: float
    limit: float

    def error(self, mismatch: Tensor) -> Tensor:
        """The L1 error to expect.

        Of small errors of both sides most cancels in their mean; of large ones nothing does.
        """
        return (self.slope * mismatch + CURVATURE * mismatch**2).clamp(max=2.0)


def calibrated(mismatch: Tensor, errors: Tensor) -> Calibration:
    """From mismatches (n,) and L1 errors (n, times) of pairs like those of the training.

    The slope is the median of the largest error along the path over the mismatch. The limit is four
    standard deviations above the mean of the mismatch's logarithm.
    """
    mismatch = mismatch.clamp(min=1e-12)  # equal ends have none
    logs = mismatch.log()
    slope = (errors.amax(1) / mismatch).median()
    limit = (logs.mean() + UNUSUAL * logs.std(correction=0)).exp()
    return Calibration(float(slope), float(limit))
