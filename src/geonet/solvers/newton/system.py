"""Equation for the potential at t = ½ and the linear system of a Newton step.

With maps y ∓ ½∇u from the midpoint to source and target, the pulled-back densities are

    ρ0(y) = μ0(y − ½∇u)·det(I − ½D²u)        ρ1(y) = μ1(y + ½∇u)·det(I + ½D²u),

and u is the Kantorovich potential at t = ½ if ρ0 = ρ1. Tested with quadratic B-splines B_i the
equation is r_i = ∫B_i(ρ1 − ρ0) = 0. Its linearisation is the elliptic operator div(A∇·), so that a
Newton step solves K δ = r with

    K_ij = ∫∇B_i·A∇B_j    A = ½[μ0·cof(I − ½D²u) + μ1·cof(I + ½D²u)] + λI.

λ is a Levenberg–Marquardt damping, larger if the residual nearby is large: if A is small, D²δ is
about r/λ, and a step with |D²δ| above one folds the maps. In 3D A is replaced by its mean in each
cell: steps are as good, and take an eighth of the memory. If a map folds, its determinant counts as
negative, which keeps the mass of ρ at one and pushes the fold apart; cofactors are those of
|eigenvalues|.

Densities are relative to the Lebesgue measure on a box with corner zero, and have mass one.
`TorchNewtonSystem` is the reference implementation, `compiled.CompiledNewtonSystem` the fast one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from geonet.numerics import symmetric_matrices as symmetric
from geonet.numerics.splines import (
    average_over_boxes,
    averaging_matrix,
    evaluate_along_axis,
    evaluate_along_axis_transpose,
    evaluate_at_half_cells,
    half_cell_centres,
    level_shapes,
    prolongation_matrix,
)
from geonet.solvers.newton import compiled


class NewtonSystem(Protocol):
    """The discrete equation on one grid.

    Attributes:
        shape: cells of the grid.
        step: side lengths of a cell.
        iterations: conjugate gradient iterations of the last solve.
    """

    shape: tuple[int, ...]
    step: tuple[float, ...]
    iterations: int

    def set_densities(self, source: Tensor, target: Tensor, min_width: float) -> None:
        """Set source and target, (*shape), averaged over at least `min_width` cells."""
        ...

    def scale_densities(self, source_factor: float, target_factor: float) -> None:
        """Multiply source and target by a number each."""
        ...

    def evaluate(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        """Return the residual r, (*shape), and `ResidualIntegrals`; keep the weights A."""
        ...

    def compute_step(
        self,
        residual: Tensor,
        damping: float,
        tolerance: float,
        max_iterations: int,
        local_damping: float = 0.0,
    ) -> Tensor:
        """Return the Newton step δ, (*shape), at the potential of the last `evaluate`.

        λ is `damping` plus `local_damping` times the largest |residual| per volume in a cell and
        its neighbours. It is added to the stored weights: call `evaluate` again before the next
        step.
        """
        ...

    def solve(self, right: Tensor, tolerance: float, max_iterations: int) -> Tensor:
        """Return x, (*shape), with K x = right, for the K of the last step."""
        ...


class Hierarchy(Protocol):
    """Newton systems on a grid and on all coarser grids of its box, the finest first."""

    shapes: list[tuple[int, ...]]

    def __getitem__(self, level: int) -> NewtonSystem: ...


class ResidualIntegrals(NamedTuple):
    """Integrals over the box at t = ½.

    Attributes:
        mismatch: ∫|ρ1 − ρ0|.
        source_mass: ∫ρ0.
        target_mass: ∫ρ1.
        kinetic_energy: ∫|∇u|²(ρ0 + ρ1).
        dual_term: ∫u(ρ1 − ρ0).
        folded_mass: mass of both densities at points at which the map to them folds.
    """

    mismatch: float
    source_mass: float
    target_mass: float
    kinetic_energy: float
    dual_term: float
    folded_mass: float

    @property
    def distance(self) -> float:
        """W2 = (½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0))^½, from the Kantorovich dual value of u."""
        return math.sqrt(max(0.0, self.kinetic_energy / 2 + 2 * self.dual_term))


def build_hierarchy(shape: Sequence[int], sides: Sequence[float], threads: int) -> Hierarchy:
    """Return the Newton systems on a grid and all coarser ones, compiled if possible."""
    if compiled.is_available():
        return compiled.CompiledHierarchy(shape, sides, threads)
    return TorchHierarchy(shape, sides)


# ---- Residuals of batches, in the units of networks


class ResidualState(NamedTuple):
    """The equation at a batch of potentials; lengths in cells, densities relative to uniform.

    Attributes:
        residual: ∫B_i(ρ1 − ρ0) by cell, (B, *cells).
        weight: trace A/d, (B, *cells).
        integrals: `ResidualIntegrals`, (B, 6).
        potentials: potentials in the unit cube, (B, *cells).
    """

    residual: Tensor
    weight: Tensor
    integrals: Tensor
    potentials: Tensor

    @property
    def dual(self) -> Tensor:
        """Kantorovich dual value of the potentials, (B,): at most W2² if no map folds.

        Quadrature gives source and target slightly different masses, so that a constant in the
        potential would change the value without bound. Potentials are therefore centred with
        respect to the mass.
        """
        integrals = ResidualIntegrals(*self.integrals.unbind(1))  # pyright: ignore
        mass = self.weight.flatten(1).double()
        mean = (self.potentials.flatten(1) * mass).sum(1) / mass.sum(1).clamp(min=1e-6)
        excess = integrals.target_mass - integrals.source_mass
        return integrals.kinetic_energy / 2 + 2 * (integrals.dual_term - mean * excess)  # pyright: ignore

    @property
    def gradient(self) -> Tensor:
        """Half the derivative of `dual` with respect to the potentials, (B, *cells), of mean zero.

        The difference of the masses is subtracted in proportion to the mass; its dependence on
        the potentials is neglected.
        """
        cells = tuple(range(1, self.residual.ndim))
        mass = self.weight.mean(cells, keepdim=True).clamp(min=1e-6)
        return self.residual - self.residual.mean(cells, keepdim=True) / mass * self.weight


@torch.no_grad()
def evaluate_residual(
    coefficients: Tensor, source: Tensor, target: Tensor, threads: int
) -> ResidualState:
    """Evaluate the equation at a batch of potentials on the unit cube.

    Args:
        coefficients: spline coefficients in squared cells, (B, *cells).
        source: densities of mean one, (B, *cells).
        target: likewise.
        threads: number of threads, each with its own pairs; a single pair takes all of them.
    """
    shape = coefficients.shape[1:]
    potentials = coefficients.double() / max(shape) ** 2
    sides = [n / max(shape) for n in shape]
    evaluate = compiled.evaluate_pairs if compiled.is_available() else _evaluate_pairs_torch
    residual, weight, integrals = evaluate(potentials, source, target, sides, threads)
    return ResidualState(residual * math.prod(shape), weight, integrals, potentials)


def _evaluate_pairs_torch(
    potentials: Tensor, source: Tensor, target: Tensor, sides: Sequence[float], threads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate pair by pair in torch."""
    residual, weight = torch.empty_like(source), torch.empty_like(source)
    integrals = potentials.new_empty(len(source), len(ResidualIntegrals._fields))
    system = TorchHierarchy(source.shape[1:], sides)[0]
    for k, densities in enumerate(zip(source, target, strict=True)):
        system.set_densities(*densities, 0.0)
        residual[k], sums = system.evaluate(potentials[k])
        weight[k], integrals[k] = system.mean_weight(), potentials.new_tensor(sums)
    return residual, weight, integrals


# ---- Reference implementation in torch


class TorchHierarchy:
    """`Hierarchy` in torch."""

    def __init__(self, shape: Sequence[int], sides: Sequence[float]):
        self.sides = tuple(sides)
        self.shapes = level_shapes(shape, sides)

    def __getitem__(self, level: int) -> TorchNewtonSystem:
        return TorchNewtonSystem(self.shapes[level:], self.sides)


class TorchNewtonSystem:
    """`NewtonSystem` in torch, in double precision."""

    def __init__(self, shapes: list[tuple[int, ...]], sides: Sequence[float]):
        self.shapes, self.shape = shapes, shapes[0]
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        self.iterations = 0
        self.half_cell_volume = math.prod(self.step) / 2 ** len(self.shape)

    def set_densities(self, source: Tensor, target: Tensor, min_width: float) -> None:
        self.densities = source.double().reshape(self.shape), target.double().reshape(self.shape)
        self.min_width = min_width

    def scale_densities(self, source_factor: float, target_factor: float) -> None:
        source, target = self.densities
        self.densities = source_factor * source, target_factor * target

    def evaluate(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        jet = evaluate_at_half_cells(coefficients.double(), self.step)
        rho, folded_mass, cofactors = [], 0.0, 0.0
        for values, s in zip(self.densities, (-0.5, 0.5), strict=True):
            density, jacobian = pull_back_density(
                values, jet.gradient, jet.hessian, s, self.step, self.min_width
            )
            det, cofactor, folds = signed_det_and_cofactor(jacobian)
            rho.append(density * det)
            cofactors = cofactors + 0.5 * density[..., None, None] * cofactor
            folded_mass = folded_mass + float((density * folds).sum())
        steps = torch.tensor(self.step, dtype=torch.float64)
        self.weights = self.half_cell_volume * cofactors / (steps[:, None] * steps)
        if len(self.shape) == 3:
            self.weights = self.weights.mean((0, 1, 2), keepdim=True)
        difference = rho[1] - rho[0]
        square = (jet.gradient**2).sum(-1)
        sums = (
            difference.abs().sum(),
            rho[0].sum(),
            rho[1].sum(),
            (square * (rho[0] + rho[1])).sum(),
            (jet.value * difference).sum(),
            folded_mass,
        )
        integrals = [self.half_cell_volume * float(total) for total in sums]
        return project_onto_splines(self.half_cell_volume * difference), integrals

    def mean_weight(self) -> Tensor:
        """Return trace A/d, averaged over each cell."""
        d = len(self.shape)
        own = sum(self.weights[..., k, k] * self.step[k] ** 2 for k in range(d))
        return own.mean(tuple(range(d))) / (d * self.half_cell_volume)  # pyright: ignore

    def compute_step(
        self,
        residual: Tensor,
        damping: float,
        tolerance: float,
        max_iterations: int,
        local_damping: float = 0.0,
    ) -> Tensor:
        steps = torch.tensor(self.step, dtype=torch.float64)
        densities = residual.double().abs() / math.prod(self.step)
        field = damping + local_damping * _neighbour_maximum(densities)
        diagonal = torch.diag(self.half_cell_volume / steps**2)
        self.levels = _build_levels(self.weights + field[..., None, None] * diagonal, self.shapes)
        return self.solve(residual, tolerance, max_iterations)

    def solve(self, right: Tensor, tolerance: float, max_iterations: int) -> Tensor:
        """Solve by conjugate gradients with a V-cycle as the preconditioner."""
        g = right.double() - right.double().mean()
        x, p, gz = torch.zeros_like(g), torch.zeros_like(g), 1.0
        start, self.iterations = float(g.norm()), 0
        while self.iterations < max_iterations and float(g.norm()) > tolerance * start > 0:
            z = _v_cycle(self.levels, 0, g)
            now = float((g * z).sum())
            p = z + (now / gz if self.iterations else 0.0) * p
            gz = now
            q = apply_stiffness(self.levels[0].weights, p)
            curvature = float((p * q).sum())
            if not (curvature > 0 and gz > 0):
                break
            x, g = x + gz / curvature * p, g - gz / curvature * q
            self.iterations += 1
        return x


def _neighbour_maximum(values: Tensor) -> Tensor:
    """Return the maximum over each cell and its neighbours, corners included, (*shape)."""
    for axis in range(values.ndim):
        lines = values.movedim(axis, -1).reshape(1, -1, values.shape[axis])
        largest = torch.nn.functional.max_pool1d(lines, 3, stride=1, padding=1)
        values = largest.view(values.movedim(axis, -1).shape).movedim(-1, axis)
    return values


def pull_back_density(
    values: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    s: float,
    step: Sequence[float],
    min_width: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return μ(y + s∇u) at all half-cells, (2, …, *cells), and I + sD²u, (2, …, *cells, d, d)."""
    centres = half_cell_centres(values.shape)
    boxes, width, jacobian = displaced_boxes(centres, gradient, hessian, s, step)
    return average_over_boxes(values, boxes, width.clamp(min=min_width)), jacobian


def displaced_boxes(
    centres: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    s: float,
    step: Sequence[float],
    min_width: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Map half-cells by y + s∇u; return centres and widths of the boxes, and I + sD²u.

    Centres and widths, (..., d), are in cells. Boxes are at most one cell wide, and at least
    `min_width`, which is the width of folded ones.
    """
    jacobian = torch.eye(centres.shape[-1], dtype=torch.float64) + s * hessian
    width = (0.5 * jacobian.diagonal(dim1=-2, dim2=-1)).clamp(min_width, 1.0)
    return centres + s * gradient / torch.tensor(step, dtype=torch.float64), width, jacobian


def signed_det_and_cofactor(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return determinants, cofactors and folds of symmetric matrices (..., d, d).

    A matrix that is not positive definite is a fold: its determinant is minus the product of
    |eigenvalues|, and its cofactor is that of the matrix with |eigenvalues|.
    """
    d = matrix.shape[-1]
    eye = torch.eye(d, dtype=matrix.dtype)
    entries = symmetric.pack(matrix - eye)  # closed forms: LAPACK would take each matrix alone
    det = symmetric.determinant(entries, 1.0)
    cofactor = symmetric.unpack([det * entry for entry in symmetric.inverse(entries, 1.0)], d)
    folds = (matrix[..., 0, 0] <= 0) | (det <= 0)
    if d == 3:
        folds |= matrix[..., 0, 0] * matrix[..., 1, 1] <= matrix[..., 0, 1] ** 2
    if d > 1 and bool(folds.any()):
        values, vectors = torch.linalg.eigh(matrix[folds])
        det, cofactor = det.clone(), cofactor.clone()
        det[folds] = -values.abs().prod(-1)
        kept = values.abs()
        others = [kept[..., [j for j in range(d) if j != k]].prod(-1) for k in range(d)]
        cofactor[folds] = (vectors * torch.stack(others, -1)[..., None, :]) @ vectors.mT
    if d == 1:
        cofactor = torch.ones_like(matrix)
    return det, cofactor, folds


def project_onto_splines(values: Tensor) -> Tensor:
    """Return Σ over half-cells of B_i times values (2, …, *cells), (*cells)."""
    d = values.ndim // 2
    for axis in reversed(range(d)):
        values = evaluate_along_axis_transpose(values.movedim(axis, 0), 2 * axis, 0)
    return values


# ---- Multigrid in torch


def apply_stiffness(weights: Tensor, x: Tensor) -> Tensor:
    """Return K x, (*cells), with weights (2, …, *cells, d, d), or one matrix A for each cell."""
    d = x.ndim

    def derivative(direction: int) -> Tensor:
        values = x
        for axis in range(d):
            values = evaluate_along_axis(values, 2 * axis, int(axis == direction)).movedim(0, axis)
        return values

    flux = (weights @ torch.stack([derivative(i) for i in range(d)], -1)[..., None])[..., 0]
    total = torch.zeros_like(x)
    for direction in range(d):
        values = flux[..., direction]
        for axis in reversed(range(d)):
            order = int(axis == direction)
            values = evaluate_along_axis_transpose(values.movedim(axis, 0), 2 * axis, order)
        total = total + values
    return total


class _Level(NamedTuple):
    """One multigrid level: weights, 1/diagonal D of K, largest eigenvalue of D⁻¹K.

    The coarsest level has the inverse of K instead of diagonal and eigenvalue.
    """

    weights: Tensor
    inverse_diagonal: Tensor
    largest_eigenvalue: float
    shape: tuple[int, ...]
    inverse: Tensor | None


def _build_levels(weights: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[_Level]:
    levels = []
    for k, shape in enumerate(shapes):
        if k:
            weights = _coarsen_weights(weights, shapes[k - 1], shape)
        if k == len(shapes) - 1:
            inverse = _invert_coarsest(weights, shape)
            levels.append(_Level(weights, torch.ones(()), 1.0, shape, inverse))
            break
        diagonal = 1 / _stiffness_diagonal(weights, shape)
        eigenvalue = _largest_eigenvalue(weights, diagonal)
        levels.append(_Level(weights, diagonal, eigenvalue, shape, None))
    return levels


def _coarsen_weights(weights: Tensor, fine: Sequence[int], coarse: Sequence[int]) -> Tensor:
    """Average weights over half-cells of the coarser level, in its units."""
    d = len(fine)
    ratios = torch.tensor([n / m for n, m in zip(fine, coarse, strict=True)], dtype=torch.float64)
    for axis, (n, m) in enumerate(zip(fine, coarse, strict=True)):
        if n != m:
            parts = weights.shape[axis]  # 2, or 1 if A is constant in cells
            cells = weights.movedim((axis, d + axis), (-1, -2))  # (..., cells, parts)
            means = averaging_matrix(n, m, parts).apply(cells.flatten(-2), -1)
            weights = means.unflatten(-1, (m, parts)).movedim((-1, -2), (axis, d + axis))
    return weights * ratios.prod() / (ratios[:, None] * ratios)


def _stiffness_diagonal(weights: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the diagonal of K, from K applied to many splines with disjoint support at once."""
    total = torch.zeros(shape, dtype=torch.float64)
    strides = [min(5, n) for n in shape]
    for first in torch.cartesian_prod(*[torch.arange(k) for k in strides]).reshape(-1, len(shape)):
        comb = torch.zeros(shape, dtype=torch.float64)
        subset = tuple(slice(int(f), None, k) for f, k in zip(first, strides, strict=True))
        comb[subset] = 1
        total[subset] = apply_stiffness(weights, comb)[subset]
    return total


def _largest_eigenvalue(
    weights: Tensor, inverse_diagonal: Tensor, steps: int = 6, margin: float = 1.15
) -> float:
    """Estimate the largest eigenvalue of D⁻¹K from above.

    The power method estimates it from below; the margin compensates for few steps.
    """
    generator, shape = torch.Generator().manual_seed(0), inverse_diagonal.shape
    mode, value = torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5, 1.0
    for _ in range(steps):
        image = apply_stiffness(weights, mode)
        square = (image**2 * inverse_diagonal).sum() / (mode**2 / inverse_diagonal).sum()
        value = float(square.sqrt())
        mode = image * inverse_diagonal
        mode = mode / mode.norm()
    return margin * value


def _invert_coarsest(weights: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the inverse of K plus a constant matrix, which removes its null space."""
    n = math.prod(shape)
    units = torch.eye(n).double()
    matrix = torch.stack([apply_stiffness(weights, e.reshape(shape)).flatten() for e in units])
    return torch.linalg.inv(matrix + matrix.diagonal().mean() / n)


def _v_cycle(levels: list[_Level], k: int, b: Tensor) -> Tensor:
    """Run one V-cycle for K x = b on level k, from zero."""
    level = levels[k]
    if level.inverse is not None:
        return (level.inverse @ b.flatten()).reshape(b.shape)
    x = _smooth(level, b, None)
    r, coarse = b - apply_stiffness(level.weights, x), levels[k + 1].shape
    matrices = [prolongation_matrix(m, n) for m, n in zip(coarse, level.shape, strict=True)]
    for axis, matrix in enumerate(matrices):
        r = matrix.apply_transpose(r, axis)
    update = _v_cycle(levels, k + 1, r)
    for axis, matrix in enumerate(matrices):
        update = matrix.apply(update, axis)
    return _smooth(level, b, x + update)


def _smooth(
    level: _Level, b: Tensor, x: Tensor | None, steps: int = 2, smallest: float = 0.25
) -> Tensor:
    """Run Chebyshev–Jacobi steps for the upper part of the spectrum of D⁻¹K.

    Args:
        level: level of the system.
        b: right-hand side, (*shape).
        x: start, (*shape); None for zero.
        steps: number of steps.
        smallest: smallest eigenvalue that is damped, as a share of the largest.
    """
    top, bottom = level.largest_eigenvalue, smallest * level.largest_eigenvalue
    theta, delta = (top + bottom) / 2, (top - bottom) / 2
    rho, step = delta / theta, torch.zeros_like(b)
    for k in range(steps):
        r = b if x is None else b - apply_stiffness(level.weights, x)
        if k == 0:
            step = level.inverse_diagonal * r / theta
        else:
            following = 1 / (2 * theta / delta - rho)
            step = following * rho * step + 2 * following / delta * level.inverse_diagonal * r
            rho = following
        x = step if x is None else x + step
    assert x is not None
    return x
