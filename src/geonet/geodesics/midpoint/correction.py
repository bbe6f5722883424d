"""Newton's method for the potential at t = ½, from a good first guess.

What the source brings to t = ½ should equal what the target sends back, ρ0 = ρ1. With u + δ
for u their difference changes to first order by −div(A∇δ), with the positive matrix

    A = ½[ρ0·(I − ½D²u)⁻¹ + ρ1·(I + ½D²u)⁻¹],

so δ solves ∫∇φ·A∇δ = ∫φ(ρ1 − ρ0) for all φ: a symmetric elliptic problem, here in the span of
cosines (Galerkin), solved by Cholesky's factors.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields import packed
from geonet.fields.matrices import series_matrices
from geonet.fields.potential import STEEPEST
from geonet.geodesics.midpoint.ends import Ends
from geonet.geodesics.midpoint.halfway import Sides, both_sides

CELLS_PER_MODE = {1: 4, 2: 2, 3: 2}  # along each axis, where the integrals are summed
FLOOR = 0.03  # added to A, relative to uniform: where there is no mass δ stays flat
LARGEST = 2048  # unknowns; larger systems are left as they are
RIDGE = 1e-6  # added to the system, whose diagonal is scaled to one
ENOUGH = 0.9  # a pair stops once a step leaves more than this share of its mismatch
HALVINGS = 6  # of a step that makes things worse


def corrected(coefficients: Tensor, ends: Ends, steps: int) -> Tensor:
    """Potentials (B, modes, …) after at most `steps` of Newton's method, with no larger mismatch.

    A pair stops once a step lowers its mismatch by less than a tenth: its modes can do no better.
    """
    if coefficients[0].numel() > LARGEST:
        return coefficients
    cells = cells_per_axis(coefficients)
    sides = both_sides(coefficients, ends, cells)
    stopped = torch.zeros(len(coefficients), dtype=torch.bool)
    for _ in range(steps):
        direction = _newton_direction(sides, cells, coefficients.shape[1:])
        direction[stopped] = 0.0  # whatever other pairs of the batch still do
        before = sides.mismatch()
        coefficients, sides = _damped(coefficients, direction, ends, cells, sides)
        stopped |= sides.mismatch() > ENOUGH * before
        if bool(stopped.all()):
            break
    return coefficients


def attached(coefficients: Tensor, ends: Ends) -> Tensor:
    """Potentials that `corrected` found, in double precision, with the gradient of the equation.

    It is that of one more of Newton's steps, whose matrix counts as constant: at a solution, the
    gradient of the solution.
    """
    cells = cells_per_axis(coefficients)
    sides = both_sides(coefficients, ends, cells)
    step = _newton_direction(sides, cells, coefficients.shape[1:]).double()
    return coefficients.double() + (step - step.detach())


def cells_per_axis(coefficients: Tensor) -> int:
    """Cells along each axis of the grid on which the integrals are summed."""
    return CELLS_PER_MODE[coefficients.ndim - 1] * coefficients.shape[-1]


def _damped(
    coefficients: Tensor, direction: Tensor, ends: Ends, cells: int, before: Sides
) -> tuple[Tensor, Sides]:
    """The step, halved pair by pair while it folds the map or does not lower the mismatch."""
    size = coefficients.new_ones(len(coefficients), *(1,) * (coefficients.ndim - 1))
    trial, sides = coefficients, before
    for k in range(HALVINGS + 2):
        trial = coefficients + size * direction
        sides = both_sides(trial, ends, cells)
        lower = sides.mismatch() <= before.mismatch()
        worse = ~(lower & (sides.steepness <= STEEPEST))  # NaN counts as worse
        if not bool(worse.any()):
            break
        size[worse] = size[worse] / 2 if k < HALVINGS else 0.0  # at last, no step at all
    return trial, sides


def _newton_direction(sides: Sides, cells: int, shape: tuple[int, ...]) -> Tensor:
    """δ of the module's equation, (B, *shape); autograd follows ρ1 − ρ0, but not A."""
    d = len(shape)
    value, gradients = _basis(d, cells, shape[0])
    source, target = (side.detach().float() for side in (sides.source, sides.target))
    weight = [
        0.5 * (source * before + target * after)
        for before, after in zip(
            packed.inverse(sides.hessian, -0.5), packed.inverse(sides.hessian, 0.5), strict=True
        )
    ]
    stiffness = value.new_zeros(len(source), *2 * value.shape[1:])
    for k, (i, j) in enumerate(torch.triu_indices(d, d).T.tolist()):
        floored = weight[k] + FLOOR if i == j else weight[k]
        part = gradients[i].T @ (floored[..., None] * gradients[j])
        stiffness += part if i == j else part + part.mT
    right = (sides.target - sides.source).float() @ value
    # The constant is free; the others are scaled to a diagonal of ones, for single precision.
    diagonal = stiffness.diagonal(dim1=1, dim2=2)[:, 1:].rsqrt()
    scaled = diagonal[:, :, None] * stiffness[:, 1:, 1:] * diagonal[:, None]
    identity = torch.eye(scaled.shape[-1], dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(scaled.double() + RIDGE * identity)
    solution = torch.cholesky_solve((diagonal * right[:, 1:]).double()[..., None], factor)[..., 0]
    delta = torch.cat([torch.zeros_like(right[:, :1]), diagonal * solution.float()], dim=1)
    delta[failed > 0] = 0.0  # the map folds between the cells
    return delta.nan_to_num(0.0, 0.0, 0.0).reshape(-1, *shape)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _basis(d: int, cells: int, modes: int) -> tuple[Tensor, list[Tensor]]:
    """The cosines at the cells, (cells^d, modes^d), and their gradients, d of the same."""
    value, slope, _ = series_matrices(cells, modes)

    def product(axis: int | None) -> Tensor:
        matrix = torch.ones(1, 1, dtype=torch.float32)
        for i in range(d):
            matrix = torch.kron(matrix, slope if i == axis else value)
        return matrix

    return product(None), [product(i) for i in range(d)]
