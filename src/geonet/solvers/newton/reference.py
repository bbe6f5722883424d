"""Reference implementation of the Newton system in torch; see `system` for the equations.

It is used without the compiled kernels, for gradients, and by the tests of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from geonet.numerics import symmetric_matrices as symmetric
from geonet.numerics.splines import (
    Jet,
    Periodic,
    average_over_boxes,
    average_over_wide_boxes,
    evaluate_along_axis_transpose,
    evaluate_at_half_cells,
    half_cell_centres,
    is_periodic,
    level_shapes,
)
from geonet.solvers.newton import compiled
from geonet.solvers.newton.compiled import BALANCED_PAIR, Formulation
from geonet.solvers.newton.multigrid import build_levels, run_v_cycle


class TorchHierarchy:
    """`Hierarchy` in torch."""

    def __init__(
        self,
        shape: Sequence[int],
        sides: Sequence[float],
        formulation: Formulation = BALANCED_PAIR,
    ):
        self.sides, self.formulation = tuple(sides), formulation
        self.shapes = level_shapes(shape, sides)

    def __getitem__(self, level: int) -> TorchNewtonSystem:
        return TorchNewtonSystem(self.shapes[level:], self.sides, self.formulation)


class TorchNewtonSystem:
    """`NewtonSystem` in torch, in double precision."""

    def __init__(
        self,
        shapes: list[tuple[int, ...]],
        sides: Sequence[float],
        formulation: Formulation = BALANCED_PAIR,
    ):
        self.shapes, self.shape, self.formulation = shapes, shapes[0], formulation
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        self.iterations = 0
        self.half_cell_volume = math.prod(self.step) / 2 ** len(self.shape)

    def set_densities(self, densities: Sequence[Tensor], min_width: float) -> None:
        self.densities = [values.double().reshape(self.shape) for values in densities]
        self.min_width = min_width

    def scale_densities(self, factors: Sequence[float]) -> None:
        self.densities = [f * values for f, values in zip(factors, self.densities, strict=True)]

    def evaluate(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        weights = self.formulation.weights
        if weights is None:
            residual, self.weights, mass, integrals = self._evaluate_field(
                coefficients, self.densities
            )
            self.mass = mass
            return residual, integrals
        parts = [
            self._evaluate_field(c, [values])
            for c, values in zip(coefficients, self.densities, strict=True)
        ]
        w = torch.tensor(weights, dtype=torch.float64)
        own = w.reshape(-1, *(1,) * len(self.shape))
        residual = compiled.subtract_weighted_mean(
            own * torch.stack([p[0] for p in parts]), weights
        )
        self.weights = torch.stack(
            [weight * p[1] for weight, p in zip(weights, parts, strict=True)]
        )
        self.mass = None if parts[0][2] is None else own * torch.stack([p[2] for p in parts])  # pyright: ignore
        return residual, [number for part in parts for number in part[3]]

    def _evaluate_field(
        self, coefficients: Tensor, densities: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None, list[float]]:
        """Return residual, weights, mass and integrals of one potential."""
        jet = evaluate_at_half_cells(coefficients.double(), self.step, self.formulation.periodic)
        folded_mass, cofactors = 0.0, 0.0
        rho = [torch.zeros_like(jet.value)] * (2 - len(densities))
        growth = [0.0] * len(rho)
        for values, s in zip(densities, self.formulation.positions, strict=True):
            density, jacobian = pull_back_density(
                values, jet, s, self.step, self.min_width, self.formulation
            )
            det, cofactor, folds = signed_det_and_cofactor(jacobian)
            rho.append(density * det)
            growth.append(0.0)
            if self.formulation.reach is not None:
                change = torch.expm1(-weight_exponent(jet, s, self.formulation))
                growth[-1] = float((rho[-1] * change).sum())
            cofactors = cofactors + abs(s) * density[..., None, None] * cofactor
            folded_mass = folded_mass + float((density * folds).sum())
        steps = torch.tensor(self.step, dtype=torch.float64)
        weights = self.half_cell_volume * cofactors / (steps[:, None] * steps)
        if len(self.shape) == 3:
            weights = weights.mean((0, 1, 2), keepdim=True)
        difference = rho[1] - rho[0]
        square = (jet.gradient**2).sum(-1)
        sums = (
            difference.abs().sum(),
            rho[0].sum(),
            rho[1].sum(),
            (square * (rho[0] + rho[1])).sum(),
            (jet.value * difference).sum(),
            folded_mass,
            *growth,
        )
        integrals = [self.half_cell_volume * float(total) for total in sums]
        residual = project_onto_splines(
            self.half_cell_volume * difference, self.formulation.periodic
        )
        mass = None
        if self.formulation.reach is not None:
            total = (rho[0].clamp(min=0) + rho[1].clamp(min=0)) / self.formulation.penalty
            mass = self.half_cell_volume * total.sum(tuple(range(len(self.shape))))
        return residual, weights, mass, integrals

    def mean_density(self, coefficients: Tensor) -> tuple[Tensor, float]:
        weights = self.formulation.weights
        assert weights is not None
        mean = total = size = torch.zeros((), dtype=torch.float64)
        rho = []
        for weight, c, values in zip(weights, coefficients, self.densities, strict=True):
            jet = evaluate_at_half_cells(c.double(), self.step, self.formulation.periodic)
            density, jacobian = pull_back_density(
                values, jet, 1.0, self.step, self.min_width, self.formulation
            )
            det = signed_det_and_cofactor(jacobian)[0]
            carried = pull_back_smoothly(values, jet, self.step, self.formulation) * det
            if self.formulation.reach is None:
                share = weight * det.clamp(min=0) ** 2
            else:
                carried, share = carried.clamp(min=0), weight * torch.ones_like(det)
            rho.append(density * det)
            mean, total, size = mean + weight * rho[-1], total + share * carried, size + share
        mismatch = sum(
            w * float((values - mean).abs().sum()) for w, values in zip(weights, rho, strict=True)
        )
        result = torch.where(size > 0, total / size, 0.0)
        cells = result.mean(tuple(range(len(self.shape))))
        return cells, self.half_cell_volume * mismatch

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
        periodic, weights = self.formulation.periodic, self.formulation.weights
        diagonal = torch.diag(self.half_cell_volume / steps**2)
        fields, masses = [], []
        for k in range(self.formulation.fields):
            own = residual.double() if weights is None else residual[k].double()
            weight = 1.0 if weights is None else weights[k]
            densities = own.abs() / math.prod(self.step)
            field = weight * damping + local_damping * _neighbour_maximum(densities, periodic)
            matrices = self.weights if weights is None else self.weights[k]
            fields.append(matrices + field[..., None, None] * diagonal)
            if self.mass is not None:
                mass = self.mass if weights is None else self.mass[k]
                masses.append(_integrate_splines(mass, periodic))
        self.levels = build_levels(fields, masses, self.shapes, periodic, weights)
        return self.solve(residual, tolerance, max_iterations)

    def solve(self, right: Tensor, tolerance: float, max_iterations: int) -> Tensor:
        """Solve by conjugate gradients with a V-cycle as the preconditioner."""
        finest, b = self.levels[0], right.double()
        g = b if self.formulation.weights is not None else b[None]
        if not finest.masses:
            g = g - g.flatten(1).mean(1).reshape(-1, *(1,) * len(self.shape))
        x, p, gz = torch.zeros_like(g), torch.zeros_like(g), 1.0
        start, self.iterations = finest.residual_norm(g), 0
        while self.iterations < max_iterations and finest.residual_norm(g) > tolerance * start > 0:
            z = run_v_cycle(self.levels, 0, g)
            now = float((g * z).sum())
            p = z + (now / gz if self.iterations else 0.0) * p
            gz = now
            q = finest.apply(p)
            curvature = float((p * q).sum())
            if not (curvature > 0 and gz > 0):
                break
            x, g = x + gz / curvature * p, g - gz / curvature * q
            self.iterations += 1
        return x.reshape(right.shape)


def _neighbour_maximum(values: Tensor, periodic: Periodic) -> Tensor:
    """Return the maximum over each cell and its neighbours, corners included, (*shape)."""
    for axis in range(values.ndim):
        mode = "circular" if is_periodic(periodic, axis) else "replicate"
        lines = values.movedim(axis, -1).reshape(1, -1, values.shape[axis])
        padded = torch.nn.functional.pad(lines, (1, 1), mode=mode)
        largest = torch.nn.functional.max_pool1d(padded, 3, stride=1)
        values = largest.view(values.movedim(axis, -1).shape).movedim(-1, axis)
    return values


def _integrate_splines(values: Tensor, periodic: Periodic) -> Tensor:
    """Return integrals against the splines from integrals over cells, (*shape)."""
    for axis in range(values.ndim):
        mode = "circular" if is_periodic(periodic, axis) else "replicate"
        lines = values.movedim(axis, -1).reshape(1, -1, values.shape[axis])
        padded = torch.nn.functional.pad(lines, (1, 1), mode=mode)
        sums = (padded[..., :-2] + 4 * padded[..., 1:-1] + padded[..., 2:]) / 6
        values = sums.view(values.movedim(axis, -1).shape).movedim(-1, axis)
    return values


def pull_back_density(
    values: Tensor,
    jet: Jet,
    s: float,
    step: Sequence[float],
    min_width: float = 0.0,
    formulation: Formulation = BALANCED_PAIR,
    is_weighted: bool = True,
) -> tuple[Tensor, Tensor]:
    """Pull a density back to all half-cells by y + s∇u.

    Args:
        values: the density, (*cells).
        jet: the potential at the half-cells.
        s: position of the density.
        step: side lengths of a cell.
        min_width: smallest width in cells over which the density is averaged.
        formulation: boundary and growth.
        is_weighted: whether a density with a reach is weighted.

    Returns:
        μ(y + s∇u), (2, …, *cells), and I + sD²u, (2, …, *cells, d, d).
    """
    centres = half_cell_centres(values.shape)
    gradient, hessian = jet.gradient, jet.hessian
    identity = factor = None
    if formulation.is_shortened:
        assert formulation.reach is not None
        gradient, stretch, identity, factor = shorten(gradient, formulation.reach)
        hessian = stretch[..., None] * hessian
    boxes, width, jacobian = displaced_boxes(centres, gradient, hessian, s, step)
    if identity is not None:
        jacobian = identity + s * jet.hessian
    width = width.clamp(min=min_width)
    density = average_over_boxes(values, boxes, width, formulation.periodic)
    if formulation.weights is not None:
        wide = (0.5 * jacobian.diagonal(dim1=-2, dim2=-1)).clamp(min=min_width)
        means = average_over_wide_boxes(values, boxes, wide, formulation.periodic)
        density = torch.where((wide > 1).any(-1), means, density)
    if factor is not None:
        density = density * factor
    if formulation.reach is not None and is_weighted:
        density = density * torch.exp(weight_exponent(jet, s, formulation))
    return density, jacobian


def pull_back_smoothly(
    values: Tensor,
    jet: Jet,
    step: Sequence[float],
    formulation: Formulation,
    smooth_difference: float = 0.25,
) -> Tensor:
    """Pull a density back to a barycenter, interpolated linearly where it is smooth.

    At jumps, where linear interpolation differs by more than `smooth_difference`, the density is
    constant in its cells.
    """
    sharp, smooth = (
        pull_back_density(values, jet, 1.0, step, width, formulation, is_weighted=False)[0]
        for width in (0.0, 1.0)
    )
    return torch.where((smooth - sharp).abs() < smooth_difference * smooth, smooth, sharp)


def shorten(gradient: Tensor, reach: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return G∇u, the diagonal of G, G⁻¹ and det G for Wasserstein–Fisher–Rao.

    Args:
        gradient: ∇u, (..., d).
        reach: the reach.
    """
    d, square = gradient.shape[-1], (gradient**2).sum(-1)
    q = (square / reach**2).clamp(min=1e-12).sqrt()
    across, along = torch.atan(q) / q, 1 / (1 + q**2)
    direction = gradient / square.clamp(min=1e-300).sqrt()[..., None]
    outer = direction[..., :, None] * direction[..., None, :]
    stretch = across[..., None] + (along - across)[..., None] * direction**2
    eye = torch.eye(d, dtype=torch.float64)
    inverse = eye / across[..., None, None] + (1 / along - 1 / across)[..., None, None] * outer
    return across[..., None] * gradient, stretch, inverse, along * across ** (d - 1)


def weight_exponent(jet: Jet, s: float, formulation: Formulation, largest: float = 20.0) -> Tensor:
    """Return −φ/λ, with the potential φ at the end y + s∇u, limited as in the kernels."""
    square = (jet.gradient**2).sum(-1)
    if formulation.growth == "wfr":
        assert formulation.reach is not None
        cost = 0.5 * torch.log1p(square / formulation.reach**2)
    else:
        cost = 0.5 * abs(s) * square / formulation.penalty
    exponent = -math.copysign(1.0, s) * jet.value / formulation.penalty - cost
    return exponent.clamp(-4 * largest, largest)


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


def project_onto_splines(values: Tensor, periodic: Periodic = ()) -> Tensor:
    """Return Σ over half-cells of B_i times values (2, …, *cells), (*cells)."""
    d = values.ndim // 2
    for axis in reversed(range(d)):
        wraps = is_periodic(periodic, axis)
        values = evaluate_along_axis_transpose(values.movedim(axis, 0), 2 * axis, 0, wraps)
    return values
