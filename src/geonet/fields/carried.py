"""Densities between the ends, cell means in and cell means out.

A half-cell y of the potential's grid holds the mass of ρ0 and ρ1 there. At time t it is the box
around y + (t − ½)∇u(y), stretched by I + (t − ½)D²u, whose mass is shared out evenly among the
cells that it meets. Since −2 ≤ D²u ≤ 2 no box is more than twice as wide as its half-cell: nothing
has holes. Where u is linear, a frame is the density itself, moved, and as sharp.

What an end brings is off by an error in D²u over its determinant, so ρ0 and ρ1 count with (1 − t)
and t times the square of theirs. Frames are scaled to mass one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from geonet.fields.compiled import elliptic as compiled
from geonet.fields.elliptic import brought, signed
from geonet.fields.quadratic import at_half_cells, half_cell_places

NARROWEST = 1e-3  # cells of a frame


def carried(
    coefficients: Tensor,
    ends: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    threads: int,
) -> Tensor:
    """Densities (T, *shape) of mass one at times (T,), on the cells of a box that begins at zero.

    Args:
        coefficients: of the potential at t = ½, (*cells).
        ends: source and target on the same cells.
        sides: of the box.
        times: between 0 and 1.
        shape: of the frames.
        threads: how many may work on it.
    """
    traced = coefficients.requires_grad or any(end.requires_grad for end in ends)
    if compiled.available() and not (traced and torch.is_grad_enabled()):
        frames = compiled.carried(coefficients, ends, sides, times, shape, threads)
    else:
        frames = plainly_carried(coefficients, ends, sides, times, shape)
    volume = math.prod(sides) / math.prod(shape)
    # No density on a geodesic is higher than both ends: what is, comes from folds.
    highest = max(float(end.detach().max()) for end in ends)
    return _normalised(_normalised(frames, volume).clamp(max=highest), volume)


def _normalised(frames: Tensor, volume: float) -> Tensor:
    """Frames (T, *shape) scaled to mass one."""
    mass = frames.flatten(1).sum(1) * volume
    return frames / mass.reshape(-1, *(1,) * (frames.ndim - 1))


def plainly_carried(
    coefficients: Tensor,
    ends: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
) -> Tensor:
    """The same in torch, up to a factor; autograd follows the potential and both ends."""
    own = coefficients.shape
    step = [side / n for side, n in zip(sides, own, strict=True)]
    jet = at_half_cells(coefficients.double(), step)
    rho, trust = [], []
    for end, s in zip(ends, (-0.5, 0.5), strict=True):
        density, matrix = brought(end.double(), jet.gradient, jet.hessian, s, step)
        det = determinants(matrix)
        rho.append(density * det)
        trust.append(det.clamp(min=0) ** 2)
    scale = torch.tensor([m / n for m, n in zip(shape, own, strict=True)], dtype=torch.float64)
    moved = jet.gradient / torch.tensor(step, dtype=torch.float64)
    stretch = jet.hessian.diagonal(dim1=-2, dim2=-1)
    frames = []
    for t in times.tolist():
        first, second = (1 - t) * trust[0], t * trust[1]
        weight = (first + second).clamp(min=torch.finfo(torch.float64).tiny)
        mass = ((first * rho[0] + second * rho[1]) / weight).clamp(min=0)
        place = (half_cell_places(own) + (t - 0.5) * moved) * scale
        width = (0.5 + 0.5 * (t - 0.5) * stretch) * scale
        frames.append(_put(mass.flatten(), place.flatten(0, -2), width.flatten(0, -2), shape))
    return torch.stack(frames)


def determinants(matrix: Tensor) -> Tensor:
    """Of I ∓ ½D²u, (...), as `signed` has them; autograd follows those that do not fold."""
    det, _, folds = signed(matrix.detach())
    return torch.where(folds, det, torch.linalg.det(matrix)) if matrix.requires_grad else det


def _put(mass: Tensor, place: Tensor, width: Tensor, shape: Sequence[int]) -> Tensor:
    """Masses (N,) shared out over boxes of width (N, d) around places (N, d), in cells."""
    most = torch.tensor(shape, dtype=torch.float64)
    width = torch.minimum(width.clamp(min=NARROWEST), most)
    low = torch.minimum(place - width / 2, most - width).clamp(min=0)
    high = torch.minimum(low + width, most)
    first = torch.minimum(low.detach().floor(), most - 1)
    reach = [int(k) for k in (high.detach().ceil() - first).amax(0)]
    frame = mass.new_zeros(math.prod(shape))
    density = mass / (high - low).prod(1)
    for corner in product(*(range(k) for k in reach)):
        index, share = torch.zeros(len(mass), dtype=torch.long), density
        for axis, k in enumerate(corner):
            cell = first[:, axis] + k
            over = torch.minimum(high[:, axis], cell + 1) - torch.maximum(low[:, axis], cell)
            share = share * over.clamp(min=0)
            index = index * shape[axis] + cell.clamp(max=shape[axis] - 1).long()
        frame = frame.index_add(0, index, share)
    return frame.reshape(tuple(shape))
