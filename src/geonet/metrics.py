"""Errors of densities and paths against a reference, and the discontinuity of maps.

Results have the shape (batch?, times?) and the array type of the densities: a float for a single
pair of NumPy densities, a tensor if either is a torch tensor. `truth` is the reference.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from geonet.density import Array, Density, check_density, to_user_array
from geonet.errors import GridError, InputError, UnavailableError
from geonet.grid import Grid
from geonet.paths import BatchedGeodesic, Geodesic, check_path, check_times
from geonet.solvers.registry import find_info, make_solver


def l1(density: Density, truth: Density) -> Array:
    """Return ∫|μ − ν| / ∫|ν|: 0 for equal densities, 2 for disjoint ones."""
    return _to_user(l1_tensor(density, truth), density, truth)


def l2(density: Density, truth: Density) -> Array:
    """Return ‖μ − ν‖₂ / ‖ν‖₂."""
    return _to_user(_relative_norm(density, truth, 2), density, truth)


def block_l1(density: Density, truth: Density, blocks: int = 16) -> Array:
    """Return `l1` of the means over `blocks` equal blocks along each axis.

    Detail finer than a block does not count, so the two may lie on different cells of one box.
    """
    check_density(density)
    check_density(truth, "truth")
    coarse = truth.grid.with_shape(blocks)
    return l1(density.resample(coarse), truth.resample(coarse))


def w1(density: Density, truth: Density) -> Array:
    """Return the Wasserstein-1 distance in 1D, ∫|F − G| dx.

    On a periodic axis it is the smallest ∫|F − G − α| dx, and α the median of F − G.
    """
    _check_same_grid(density, truth)
    if truth.grid.dimension != 1:
        raise GridError("w1 is for 1D densities; use sliced_w1 in 2D or w2 in any dimension.")
    h = truth.grid.cell_volume
    excess = (density.tensor - truth.tensor).cumsum(-1) * h
    if truth.grid.is_periodic:
        excess = excess - excess.median(-1, keepdim=True).values
    distance = excess.abs().sum(-1) * h
    return _to_user(distance, density, truth)


def sliced_w1(density: Density, truth: Density, directions: int = 64) -> Array:
    """Return the mean over directions θ of the W1 distance between the projections onto θ, in 2D.

    Directions are equally spaced over the half circle. Cells count as atoms at their centres.
    """
    _check_same_grid(density, truth)
    if truth.grid.dimension != 2:
        raise GridError("sliced_w1 is for 2D densities; use w1 in 1D or w2 in any dimension.")
    if truth.grid.is_periodic:
        raise GridError(f"sliced_w1 has no projections of {truth.grid}; use w2 for periodic axes.")
    angles = torch.arange(directions, dtype=torch.float64) * (math.pi / directions)
    axes = torch.stack([angles.cos(), angles.sin()])
    projected, order = (truth.grid.points().reshape(-1, 2) @ axes).sort(dim=0)
    gaps = projected.diff(dim=0)
    difference = (density.tensor - truth.tensor).flatten(-2) * truth.grid.cell_volume
    total = torch.zeros(difference.shape[:-1], dtype=torch.float64)
    for k in range(directions):  # one direction at a time, to save memory
        excess = difference[..., order[:, k]].cumsum(-1)[..., :-1]
        total = total + (excess.abs() * gaps[:, k]).sum(-1)
    return _to_user(total / directions, density, truth)


def w2(density: Density, truth: Density, solver: str = "auto") -> Array:
    """Return W2(μ, ν), (batch?), by an exact solver; negative values are clipped first."""
    return make_solver(solver)(_clip(density), _clip(truth, "truth")).distance


def mass_error(density: Density) -> Array:
    """Return |∫μ − 1|."""
    check_density(density)
    return _to_user((_integral(density.tensor, density) - 1).abs(), density)


def negativity(density: Density) -> Array:
    """Return ∫max(−μ, 0), the mass below zero."""
    check_density(density)
    return _to_user(_integral((-density.tensor).clamp(min=0), density), density)


def end_point_errors(path: Geodesic) -> tuple[Array, Array]:
    """Return the L1 errors of the path at t = 0 and t = 1, each (batch?)."""
    check_path(path)
    return l1(path.density(0.0), path.source), l1(path.density(1.0), path.target)


def constant_speed_defect(path: Geodesic, s: float, t: float, solver: str = "auto") -> Array:
    """Return |W2(μ_s, μ_t) − |t − s|·W2(μ_0, μ_1)|, zero along a geodesic."""
    check_path(path)
    for time in (s, t):
        if not check_times(time)[1]:
            raise InputError(f"A time is {time!r}; give one number for s and one for t.")
    between = w2(path.density(s), path.density(t), solver)
    return abs(between - abs(t - s) * w2(path.source, path.target, solver))


def l1_tensor(density: Density, truth: Density) -> Tensor:
    """Return `l1` as a tensor, whatever the array type of the densities."""
    return _relative_norm(density, truth, 1)


def measure_discontinuity(path: Geodesic) -> Tensor | None:
    """Return the share of the mass with a neighbour that ends elsewhere, (batch?).

    The source is resampled to at most 64 cells in 1D, 32² in 2D and 16³ in 3D, so that the share
    does not depend on the resolution. None if the path has no trajectories, or only
    trajectories of noisy particles or single cells.
    """
    if isinstance(path, BatchedGeodesic):
        shares = [measure_discontinuity(pair) for pair in path.paths]
        if all(share is None for share in shares):
            return None
        nan = torch.tensor(torch.nan, dtype=torch.float64)
        return torch.stack([nan if share is None else share for share in shares])
    if find_info(path.solver).less_blur is not None:
        return None
    max_cells = {1: 64, 2: 32, 3: 16}.get(path.grid.dimension)
    if max_cells is None:
        return None
    grid = path.grid.with_shape([min(n, max_cells) for n in path.grid.shape])
    density = path.source.resample(grid).tensor.to(torch.float64)
    try:
        ends = path._final_positions(grid)
    except UnavailableError:
        return None
    displacement = (ends - grid.points()).reshape(-1, *grid.shape, grid.dimension).double()
    densities = density.reshape(-1, *grid.shape)
    shares = [_share_torn(*pair, grid) for pair in zip(densities, displacement, strict=True)]
    return torch.stack(shares).reshape(path.batch)


def _share_torn(
    density: Tensor,
    displacement: Tensor,
    grid: Grid,
    min_gap: float = 0.1,
    max_stretch: float = 3.0,
) -> Tensor:
    """Return the share of the mass in cells that move away from a neighbour.

    Args:
        density: (*shape).
        displacement: (*shape, d).
        grid: the cells.
        min_gap: smallest difference of displacements of neighbours that separates them, relative
            to the longest side of the box.
        max_stretch: multiple of the median difference that counts as uniform stretching.
    """
    has_mass = density > 1e-3 * density.max()
    pairs = []
    for axis, wraps in enumerate(grid.periodic):
        both = has_mass & has_mass.roll(-1, axis)
        if not wraps:  # the last cell has no neighbour
            both.narrow(axis, -1, 1).fill_(False)
        steps = grid.shorten(displacement.roll(-1, axis) - displacement)
        pairs.append((axis, both, steps.norm(dim=-1)))
    gaps = torch.cat([gap[both] for _, both, gap in pairs])
    is_torn = torch.zeros_like(has_mass)
    if len(gaps):
        limit = max(min_gap * grid.max_side, max_stretch * float(gaps.median()))
        for axis, both, gap in pairs:
            separated = both & (gap > limit)
            is_torn |= separated | separated.roll(1, axis)
    return density[is_torn].sum() / density[has_mass].sum()


def _relative_norm(density: Density, truth: Density, power: int) -> Tensor:
    _check_same_grid(density, truth)
    error, size = (
        _integral(values.abs() ** power, truth) ** (1 / power)
        for values in (density.tensor - truth.tensor, truth.tensor)
    )
    return error / size


def _integral(values: Tensor, like: Density) -> Tensor:
    return values.flatten(-like.grid.dimension).sum(-1) * like.grid.cell_volume


def _to_user(result: Tensor, *densities: Density) -> Array:
    return to_user_array(result, any(density.is_torch for density in densities))


def _check_same_grid(density: Density, truth: Density) -> None:
    check_density(density)
    check_density(truth, "truth")
    if density.batch_shape != truth.batch_shape:
        raise InputError(
            f"The densities have batch axes {density.batch_shape} and {truth.batch_shape}; "
            "give the same numbers of pairs and times."
        )
    if density.grid.shape != truth.grid.shape or not density.grid.same_box(truth.grid):
        raise GridError(
            f"The densities lie on {density.grid} and {truth.grid}; "
            "evaluate the path on the reference's grid: path.density(t, grid=truth.grid)."
        )


def _clip(density: Density, name: str = "density") -> Density:
    check_density(density, name)
    clipped = Density(density.tensor.clamp(min=0), density.grid)
    clipped.is_torch = density.is_torch
    return clipped
