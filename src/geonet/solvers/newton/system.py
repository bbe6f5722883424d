"""The equation of a geodesic's potential at t = ½, and the elliptic problem of Newton's step.

The source brings ρ0 to t = ½ and the target sends back ρ1,

    ρ0(y) = μ0(y − ½∇u)·det(I − ½D²u)        ρ1(y) = μ1(y + ½∇u)·det(I + ½D²u),

and u is right where ρ0 = ρ1. In quadratic splines B_i: ∫B_i(ρ1 − ρ0) = 0. With u + δ for u the
difference changes to first order by div(A∇δ), so that Newton's step is K δ = r with

    K_ij = ∫∇B_i·A∇B_j    A = ½[μ0·cof(I − ½D²u) + μ1·cof(I + ½D²u)] + λI    r_i = ∫B_i(ρ1 − ρ0).

The floor λ is Levenberg's and Marquardt's: it shortens a step where the equation is far from
linear. Where a map folds its determinant counts as negative. So the mass of ρ stays one and the
fold is pushed apart again; cofactors have their negative eigenvalues set to zero.

Densities are relative to Lebesgue's measure on a box that begins at zero and has mass one. This
module does it in torch; `compiled.elliptic` does the same with multigrid.c and halfway.c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.splines import (
    along_axis,
    along_axis_back,
    at_half_cells,
    box_means,
    half_cell_means,
    half_cell_places,
    level_shapes,
    refinement,
)
from geonet.solvers.newton import compiled

SMOOTHING = 2  # steps before and after a coarser level
SHARE = 0.25  # of the spectrum that smoothing leaves to coarser levels
MARGIN = 1.15  # of an eigenvalue that is found from below
POWER_STEPS = 6
NARROWEST = 1e-6  # cells: the width of a box that is folded


class Elliptic(Protocol):
    """The equation on one grid.

    Attributes:
        shape: of the grid.
        step: the sides of a cell.
        iterations: of conjugate gradients for the last step.
    """

    shape: tuple[int, ...]
    step: tuple[float, ...]
    iterations: int

    def between(self, source: Tensor, target: Tensor, softness: float) -> None:
        """Set the ends, (*shape), and the least width, in cells, over which they are averaged."""
        ...

    def look(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        """The residual r, (*shape), and totals, as in `Totals`; K is kept for `step_for`."""
        ...

    def step_for(self, residual: Tensor, floor: float, tolerance: float, most: int) -> Tensor:
        """δ, (*shape), for K with a floor, up to a tolerance of |r|; after it, `look` again."""
        ...

    def solved(self, right: Tensor, tolerance: float, most: int) -> Tensor:
        """x, (*shape), with K x = right, for the K of the last step."""
        ...


class Levels(Protocol):
    """The equation on a grid and on all coarser ones, the finest first."""

    shapes: list[tuple[int, ...]]

    def at(self, k: int) -> Elliptic:
        """The equation on the k-th grid."""
        ...


class Totals(NamedTuple):
    """Integrals over all points.

    Attributes:
        mismatch: of |ρ1 − ρ0|.
        source: of ρ0.
        target: of ρ1.
        energy: of |∇u|²(ρ0 + ρ1).
        gain: of u(ρ1 − ρ0).
        folding: of μ where the map to it folds.
    """

    mismatch: float
    source: float
    target: float
    energy: float
    gain: float
    folding: float

    @property
    def distance(self) -> float:
        """W2 = (½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0))^½, Kantorovich's dual value of u."""
        return math.sqrt(max(0.0, self.energy / 2 + 2 * self.gain))


def levels_on(shape: Sequence[int], sides: Sequence[float], threads: int) -> Levels:
    """The equation on a grid and all coarser ones, compiled if possible."""
    if compiled.available():
        return compiled.Levels(shape, sides, threads)
    return PlainLevels(shape, sides)


class PlainLevels:
    """`Levels` in torch."""

    def __init__(self, shape: Sequence[int], sides: Sequence[float]):
        self.sides = tuple(sides)
        self.shapes = level_shapes(shape, sides)

    def at(self, k: int) -> PlainElliptic:
        """The equation on the k-th grid."""
        return PlainElliptic(self.shapes[k:], self.sides)


class PlainElliptic:
    """`Elliptic` in torch, in double precision."""

    def __init__(self, shapes: list[tuple[int, ...]], sides: Sequence[float]):
        self.shapes, self.shape = shapes, shapes[0]
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        self.iterations = 0
        self.share = math.prod(self.step) / 2 ** len(self.shape)

    def between(self, source: Tensor, target: Tensor, softness: float) -> None:
        """Set the ends."""
        self.ends = source.double().reshape(self.shape), target.double().reshape(self.shape)
        self.softness = softness

    def look(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        """The residual and the totals; the weights are kept."""
        jet = at_half_cells(coefficients.double(), self.step)
        rho, folding, cofactors = [], 0.0, 0.0
        for end, s in zip(self.ends, (-0.5, 0.5), strict=True):
            density, matrix = brought(end, jet.gradient, jet.hessian, s, self.step, self.softness)
            det, cof, folds = signed(matrix)
            rho.append(density * det)
            cofactors = cofactors + 0.5 * density[..., None, None] * cof
            folding = folding + float((density * folds).sum())
        steps = torch.tensor(self.step, dtype=torch.float64)
        self.weights = self.share * cofactors / (steps[:, None] * steps)
        apart = rho[1] - rho[0]
        square = (jet.gradient**2).sum(-1)
        sums = (
            apart.abs().sum(),
            rho[0].sum(),
            rho[1].sum(),
            (square * (rho[0] + rho[1])).sum(),
            (jet.value * apart).sum(),
            folding,
        )
        return spread_back(self.share * apart), [self.share * float(total) for total in sums]

    def mean_weight(self) -> Tensor:
        """trace A/d."""
        d = len(self.shape)
        own = sum(self.weights[..., k, k] * self.step[k] ** 2 for k in range(d))
        return own.sum(tuple(range(d))) / (d * 2**d * self.share)  # pyright: ignore

    def step_for(self, residual: Tensor, floor: float, tolerance: float, most: int) -> Tensor:
        """Newton's step."""
        steps = torch.tensor(self.step, dtype=torch.float64)
        more = torch.diag(floor * self.share / steps**2)
        self.levels = _prepared(self.weights + more, self.shapes)
        return self.solved(residual, tolerance, most)

    def solved(self, right: Tensor, tolerance: float, most: int) -> Tensor:
        """Conjugate gradients, with a V-cycle as the preconditioner."""
        g = right.double() - right.double().mean()
        x, p, gz = torch.zeros_like(g), torch.zeros_like(g), 1.0
        start, self.iterations = float(g.norm()), 0
        while self.iterations < most and float(g.norm()) > tolerance * start > 0:
            z = _cycle(self.levels, 0, g)
            now = float((g * z).sum())
            p = z + (now / gz if self.iterations else 0.0) * p
            gz = now
            q = stiffness(self.levels[0].weights, p)
            curvature = float((p * q).sum())
            if not (curvature > 0 and gz > 0):
                break
            x, g = x + gz / curvature * p, g - gz / curvature * q
            self.iterations += 1
        return x


def brought(
    end: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    s: float,
    step: Sequence[float],
    softness: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """μ(y + s∇u) at all half-cells, (2, …, *cells), and I + sD²u, (2, …, *cells, d, d)."""
    place, width, matrix = moved_boxes(half_cell_places(end.shape), gradient, hessian, s, step)
    return box_means(end, place, width.clamp(min=softness)), matrix


def moved_boxes(
    place: Tensor, gradient: Tensor, hessian: Tensor, s: float, step: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Half-cells at places (..., d) after y + s∇u: where they are, how wide, and I + sD²u.

    Places and widths, (..., d), are in cells; no box is wider than one.
    """
    matrix = torch.eye(place.shape[-1], dtype=torch.float64) + s * hessian
    width = (0.5 * matrix.diagonal(dim1=-2, dim2=-1)).clamp(NARROWEST, 1.0)
    return place + s * gradient / torch.tensor(step, dtype=torch.float64), width, matrix


def signed(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Determinants, cofactors and where it folds, of symmetric matrices (..., d, d).

    Where one is not positive: minus the product of |eigenvalues|, and the cofactors with negative
    eigenvalues set to zero.
    """
    d = matrix.shape[-1]
    eye = torch.eye(d, dtype=matrix.dtype)
    entries = packed.entries(matrix - eye)  # LAPACK takes each alone; only folds are worth it
    det = packed.determinant(entries, 1.0)
    cof = packed.unpacked([det * entry for entry in packed.inverse(entries, 1.0)], d)
    folds = (matrix[..., 0, 0] <= 0) | (det <= 0)
    if d == 3:
        folds |= matrix[..., 0, 0] * matrix[..., 1, 1] <= matrix[..., 0, 1] ** 2
    if d > 1 and bool(folds.any()):
        values, vectors = torch.linalg.eigh(matrix[folds])
        det, cof = det.clone(), cof.clone()
        det[folds] = -values.abs().prod(-1)
        kept = values.clamp(min=0)
        others = [kept[..., [j for j in range(d) if j != k]].prod(-1) for k in range(d)]
        cof[folds] = (vectors * torch.stack(others, -1)[..., None, :]) @ vectors.mT
    if d == 1:
        cof = torch.ones_like(matrix)
    return det, cof, folds


def spread_back(values: Tensor) -> Tensor:
    """Σ over half-cells of B_i times values (2, …, *cells), (*cells)."""
    d = values.ndim // 2
    for axis in reversed(range(d)):
        values = along_axis_back(values.movedim(axis, 0), 2 * axis, 0)
    return values


def stiffness(weights: Tensor, x: Tensor) -> Tensor:
    """K x, (*cells), with weights (2, …, *cells, d, d)."""
    d = x.ndim

    def derivative(direction: int) -> Tensor:
        values = x
        for axis in range(d):
            values = along_axis(values, 2 * axis, int(axis == direction)).movedim(0, axis)
        return values

    flux = (weights @ torch.stack([derivative(i) for i in range(d)], -1)[..., None])[..., 0]
    total = torch.zeros_like(x)
    for direction in range(d):
        values = flux[..., direction]
        for axis in reversed(range(d)):
            values = along_axis_back(values.movedim(axis, 0), 2 * axis, int(axis == direction))
        total = total + values
    return total


class _Level(NamedTuple):
    """Weights, one over the diagonal of K, and the largest eigenvalue of their product."""

    weights: Tensor
    diagonal: Tensor
    largest: float
    shape: tuple[int, ...]
    inverse: Tensor | None  # of K itself, on the coarsest level


def _prepared(weights: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[_Level]:
    levels = []
    for k, shape in enumerate(shapes):
        if k:
            weights = _coarsened(weights, shapes[k - 1], shape)
        if k == len(shapes) - 1:
            levels.append(_Level(weights, torch.ones(()), 1.0, shape, _inverse(weights, shape)))
            break
        diagonal = 1 / _diagonal(weights, shape)
        levels.append(_Level(weights, diagonal, _largest(weights, diagonal), shape, None))
    return levels


def _coarsened(weights: Tensor, fine: Sequence[int], coarse: Sequence[int]) -> Tensor:
    """Means over half-cells of the coarser level, in its units."""
    ratios = torch.tensor([n / m for n, m in zip(fine, coarse, strict=True)], dtype=torch.float64)
    for axis, (n, m) in enumerate(zip(fine, coarse, strict=True)):
        if n != m:
            weights = _merged_means(weights, axis, n, m)
    return weights * ratios.prod() / (ratios[:, None] * ratios)


def _merged_means(weights: Tensor, axis: int, fine: int, coarse: int) -> Tensor:
    """`half_cell_means` along one axis of weights (2, …, *cells, d, d)."""
    d = weights.shape[-1]
    cells = weights.movedim((axis, d + axis), (-1, -2))  # (..., cells, 2)
    means = half_cell_means(fine, coarse).applied(cells.flatten(-2), -1)
    return means.unflatten(-1, (coarse, 2)).movedim((-1, -2), (axis, d + axis))


def _diagonal(weights: Tensor, shape: Sequence[int]) -> Tensor:
    """Of K: K applied to every ninth spline at once, which do not meet."""
    total = torch.zeros(shape, dtype=torch.float64)
    strides = [min(5, n) for n in shape]
    for first in torch.cartesian_prod(*[torch.arange(k) for k in strides]).reshape(-1, len(shape)):
        comb = torch.zeros(shape, dtype=torch.float64)
        some = tuple(slice(int(f), None, k) for f, k in zip(first, strides, strict=True))
        comb[some] = 1
        total[some] = stiffness(weights, comb)[some]
    return total


def _largest(weights: Tensor, diagonal: Tensor) -> float:
    """The largest eigenvalue of D⁻¹K, by the power method."""
    generator = torch.Generator().manual_seed(0)
    mode, value = torch.rand(diagonal.shape, generator=generator, dtype=torch.float64) - 0.5, 1.0
    for _ in range(POWER_STEPS):
        image = stiffness(weights, mode)
        value = float(((image**2 * diagonal).sum() / (mode**2 / diagonal).sum()).sqrt())
        mode = image * diagonal
        mode = mode / mode.norm()
    return MARGIN * value


def _inverse(weights: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of the coarsest level's K, whose constant is fixed."""
    n = math.prod(shape)
    columns = [stiffness(weights, unit.reshape(shape)).flatten() for unit in torch.eye(n).double()]
    matrix = torch.stack(columns)
    return torch.linalg.inv(matrix + matrix.diagonal().mean() / n)


def _cycle(levels: list[_Level], k: int, b: Tensor) -> Tensor:
    """One V-cycle from zero."""
    level = levels[k]
    if level.inverse is not None:
        return (level.inverse @ b.flatten()).reshape(b.shape)
    x = _smoothed(level, b, None)
    r, coarse = b - stiffness(level.weights, x), levels[k + 1].shape
    bands = [refinement(m, n) for m, n in zip(coarse, level.shape, strict=True)]
    for axis, band in enumerate(bands):
        r = band.applied_back(r, axis)
    update = _cycle(levels, k + 1, r)
    for axis, band in enumerate(bands):
        update = band.applied(update, axis)
    return _smoothed(level, b, x + update)


def _smoothed(level: _Level, b: Tensor, x: Tensor | None) -> Tensor:
    """Chebyshev's steps with Jacobi's on the upper part of the spectrum."""
    top, bottom = level.largest, SHARE * level.largest
    theta, delta = (top + bottom) / 2, (top - bottom) / 2
    rho, step = delta / theta, torch.zeros_like(b)
    for k in range(SMOOTHING):
        r = b if x is None else b - stiffness(level.weights, x)
        if k == 0:
            step = level.diagonal * r / theta
        else:
            following = 1 / (2 * theta / delta - rho)
            step = following * rho * step + 2 * following / delta * level.diagonal * r
            rho = following
        x = step if x is None else x + step
    assert x is not None
    return x


# ---- What potentials leave unbalanced halfway, for batches of pairs on the unit cube.
#
# The same as `fields.elliptic` has for one pair, in the units of networks: lengths in cells,
# densities relative to the uniform one.


LEAST = 1e-6  # of what is divided by: a potential may lead everything to empty cells


class Looked(NamedTuple):
    """The equation at given potentials.

    Attributes:
        residual: Σ over half-cells of B_i(ρ1 − ρ0), (B, *cells), relative to the uniform density.
        weight: trace A/d, (B, *cells), likewise.
        totals: as in `fields.elliptic.Totals`, (B, 6).
        potentials: in the unit cube, (B, *cells).
    """

    residual: Tensor
    weight: Tensor
    totals: Tensor
    potentials: Tensor

    @property
    def dual(self) -> Tensor:
        """Kantorovich's dual value of the potentials, (B,): at most W2² where no map folds.

        Sums over half-cells give both ends masses that differ a little. A constant in the potential
        would count with this difference, and could make the value as large as one likes. So the
        potentials are taken with mean zero where the mass is.
        """
        source, target, energy, gain = (
            self.totals[:, Totals._fields.index(name)]
            for name in ("source", "target", "energy", "gain")
        )
        where = self.weight.flatten(1).double()
        mean = (self.potentials.flatten(1) * where).sum(1) / where.sum(1).clamp(min=LEAST)
        return energy / 2 + 2 * (gain - mean * (target - source))

    @property
    def gradient(self) -> Tensor:
        """Half the derivative of `dual` in the potentials, (B, *cells): the residual of mean zero.

        What both masses differ by is taken away where the mass is; that they depend on the
        potentials is left out.
        """
        cells = tuple(range(1, self.residual.ndim))
        mass = self.weight.mean(cells, keepdim=True).clamp(min=LEAST)
        return self.residual - self.residual.mean(cells, keepdim=True) / mass * self.weight


@torch.no_grad()
def looked(coefficients: Tensor, source: Tensor, target: Tensor, threads: int) -> Looked:
    """Look at potentials, (B, *cells) in squared cells, between densities (B, *cells) of mean one.

    Pairs are shared out among the threads; a single pair has them all.
    """
    shape = coefficients.shape[1:]
    potentials = coefficients.double() / max(shape) ** 2
    sides = [n / max(shape) for n in shape]
    if compiled.available():
        found = compiled.looks(potentials, source, target, sides, threads)
    else:
        found = _plainly(potentials, source, target, sides)
    residual, weight, totals = found
    return Looked(residual * math.prod(shape), weight, totals, potentials)


def _plainly(
    potentials: Tensor, source: Tensor, target: Tensor, sides: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pair by pair in torch."""
    residual, weight = torch.empty_like(source), torch.empty_like(source)
    totals = potentials.new_empty(len(source), len(Totals._fields))
    equation = PlainLevels(source.shape[1:], sides).at(0)
    for k, ends in enumerate(zip(source, target, strict=True)):
        equation.between(*ends, 0.0)
        residual[k], sums = equation.look(potentials[k])
        weight[k], totals[k] = equation.mean_weight(), potentials.new_tensor(sums)
    return residual, weight, totals
