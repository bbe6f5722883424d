"""How far a density is from what it should be.

Per pair: tensors of shape (batch?, times?). `truth` is the reference.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from geonet.density import Density, check_density
from geonet.errors import GridError, InputError
from geonet.paths import Geodesic, check_path, check_times
from geonet.solvers.registry import make_solver

DIRECTIONS = 64  # of the sliced distance, equally spaced over the half circle
BLOCKS = 16  # along each axis, over which `block_l1` averages


def l1(density: Density, truth: Density) -> Tensor:
    """∫|μ − ν| / ∫|ν|, the paper's error: 0 for equal densities, 2 for disjoint ones."""
    _same_grid(density, truth)
    return _norm(density.tensor - truth.tensor, truth, 1) / _norm(truth.tensor, truth, 1)


def block_l1(density: Density, truth: Density, blocks: int = BLOCKS) -> Tensor:
    """`l1` of the means over `blocks` equal blocks along each axis.

    Detail finer than a block does not count, so the two may lie on different cells of one box.
    """
    check_density(density)
    check_density(truth, "truth")
    coarse = truth.grid.with_shape(blocks)
    return l1(density.resample(coarse), truth.resample(coarse))


def l2(density: Density, truth: Density) -> Tensor:
    """‖μ − ν‖₂ / ‖ν‖₂."""
    _same_grid(density, truth)
    return _norm(density.tensor - truth.tensor, truth, 2) / _norm(truth.tensor, truth, 2)


def w1(density: Density, truth: Density) -> Tensor:
    """Wasserstein-1 distance in 1D, ∫|F − G| dx."""
    _same_grid(density, truth)
    if truth.grid.dimension != 1:
        raise GridError("w1 is for 1D densities; use sliced_w1 in 2D or w2 in any dimension.")
    h = truth.grid.cell_volume
    return ((density.tensor - truth.tensor).cumsum(-1) * h).abs().sum(-1) * h


def sliced_w1(density: Density, truth: Density) -> Tensor:
    """Mean over directions θ of the 1D W1 distance between the projections onto θ, in 2D.

    Cells count as atoms at their centres.
    """
    _same_grid(density, truth)
    if truth.grid.dimension != 2:
        raise GridError("sliced_w1 is for 2D densities; use w1 in 1D or w2 in any dimension.")
    angles = torch.arange(DIRECTIONS, dtype=torch.float64) * (math.pi / DIRECTIONS)
    directions = torch.stack([angles.cos(), angles.sin()])
    projected, order = (truth.grid.points().reshape(-1, 2) @ directions).sort(dim=0)
    gaps = projected.diff(dim=0)
    difference = (density.tensor - truth.tensor).flatten(-2) * truth.grid.cell_volume
    total = torch.zeros(difference.shape[:-1], dtype=torch.float64)
    for k in range(DIRECTIONS):  # one direction at a time: memory stays that of the densities
        excess = difference[..., order[:, k]].cumsum(-1)[..., :-1]
        total = total + (excess.abs() * gaps[:, k]).sum(-1)
    return total / DIRECTIONS


def mass_error(density: Density) -> Tensor:
    """|∫μ − 1|."""
    check_density(density)
    return (_integral(density.tensor, density) - 1).abs()


def negativity(density: Density) -> Tensor:
    """∫max(−μ, 0): the mass below zero."""
    check_density(density)
    return _integral((-density.tensor).clamp(min=0), density)


def _norm(values: Tensor, like: Density, power: int) -> Tensor:
    return _integral(values.abs() ** power, like) ** (1 / power)


def _integral(values: Tensor, like: Density) -> Tensor:
    return values.flatten(-like.grid.dimension).sum(-1) * like.grid.cell_volume


def _same_grid(density: Density, truth: Density) -> None:
    check_density(density)
    check_density(truth, "truth")
    if density.leading != truth.leading:
        raise InputError(
            f"The densities have leading axes {density.leading} and {truth.leading}; "
            "compare as many times and pairs on either side."
        )
    if density.grid.shape != truth.grid.shape or not density.grid.same_box(truth.grid):
        raise GridError(
            f"The densities lie on {density.grid} and {truth.grid}; "
            "ask the path for the reference's grid: path.density(t, grid=truth.grid)."
        )


# ---- How far a density, or a path, is from what it should be.
#
# Density against density, per pair: tensors of shape (batch?, times?). `truth` is the reference.


def w2(density: Density, truth: Density, solver: str = "auto") -> Tensor:
    """W2(μ, ν), (batch?), by an exact solver; negative values are cut off first."""
    return make_solver(solver)(_cut_off(density), _cut_off(truth, "truth")).distance


def end_point_errors(path: Geodesic) -> tuple[Tensor, Tensor]:
    """The L1 errors of the path at t = 0 and t = 1, each (batch?)."""
    check_path(path)
    return l1(path.density(0.0), path.source), l1(path.density(1.0), path.target)


def constant_speed_defect(path: Geodesic, s: float, t: float, solver: str = "auto") -> Tensor:
    """|W2(μ_s, μ_t) − |t − s|·W2(μ_0, μ_1)|, zero along a geodesic."""
    check_path(path)
    for time in (s, t):
        if not check_times(time)[1]:
            raise InputError(f"A time is {time!r}; give one number for s and one for t.")
    between = w2(path.density(s), path.density(t), solver)
    return (between - abs(t - s) * w2(path.source, path.target, solver)).abs()


def _cut_off(density: Density, name: str = "density") -> Density:
    check_density(density, name)
    return Density(density.tensor.clamp(min=0), density.grid)
