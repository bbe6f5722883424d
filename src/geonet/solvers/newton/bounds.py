"""Bounds on W2 from a potential at t = ½, valid for any: wrong, folded or half-way to its solution.

Below: Kantorovich's dual value of the pair that u makes admissible,

    ½W2² ≥ ∫u_1 dμ1 − ∫u_0 dμ0,
    u_1(x) = min_y u(y) + |x − y|²,        u_0(x) = max_y u(y) − |x − y|².

The minimum is taken over a lattice and then followed to the bottom of its valley.

Above: the cost of a plan that has the ends as its marginals. The half-cells y of a measure ν go
from y − ½∇u to y + ½∇u; what arrives in a cell is spread evenly over it. Cells then hold too much
or too little. That is mended at first between neighbours, by some rounds of a flow that would
balance all, as far as cells hold what it takes from them; then scale by scale: in blocks of 2, 4,
8, … cells an axis surplus goes to what is missing in the same block, in proportion. The cost of all
this together is known exactly, not only by the triangle inequality, so that what is mended over
short ways costs little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch
from scipy.fft import dctn, idctn
from torch import Tensor
from torch.nn.functional import pad

from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.c_transform import Lattice, minimisers
from geonet.numerics.splines import (
    at_half_cells,
    at_points,
    axis_taps,
    box_shares,
    half_cell_places,
    refined,
)
from geonet.solvers.newton.system import moved_boxes, signed

SLACK = 1e-3  # relative, of the lower bound: its integrals are sums over points
PARTS = 2  # of a cell, where the minimum is looked for
GAUSS = 0.5 / math.sqrt(3)  # from a cell's centre, in cells
POLISHING = 2  # of Newton's steps in a valley
POINTS = 2**15  # of which integrals and minima are taken; where there are fewer, cells are cut
LONGEST = 2**11  # of them along an axis
FEW = 2**14  # cells up to which they have several points
FAR = 8.0  # cells that mass goes where they have one
SPREAD = 0.01  # of W2²: what spreading over cells may add to the upper bound
UNSEEN = 0.001  # of W2²: what it adds where larger cells do
LEAST = 2**12  # cells that a plan has at least
MOST, PIECES = 2**18, 16  # cells that a plan may have, and parts of one along an axis
ROUNDS = 3  # of the flow between neighbours
AT_ONCE = 2**18  # half-cells, or points, that are worked on together


def lower_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float = 0.0,
) -> float:
    """W2 is at least this. Potential (*cells) and densities (*own cells) in a box from zero on.

    `distance` is about W2, if that is known.
    """
    far = distance > FAR * max(side / n for side, n in zip(sides, source.shape, strict=True))
    below, above = (
        _dual_integral(sign * coefficients, end, sides, far)
        for sign, end in ((-1.0, source), (1.0, target))
    )
    return (1 - SLACK) * math.sqrt(max(0.0, 2 * (below + above)))


def _dual_integral(coefficients: Tensor, end: Tensor, sides: Sequence[float], far: bool) -> float:
    """∫(min_y u(y) + |x − y|²) dμ(x), by two of Gauss's points an axis and cell of μ.

    On large grids, where mass goes far, by the centres of cells: u_1 − |x|² is concave, so that
    this is too much, by some hundredths of a cell squared.
    """
    while (
        int((end > 0).sum()) * 4**end.ndim <= POINTS
        and end.numel() * 2**end.ndim <= FEW
        and 2 * max(end.shape) <= LONGEST
    ):
        for axis in range(end.ndim):  # few points would miss what a map does inside of a cell
            end = end.repeat_interleave(2, axis)
    few = end.numel() <= FEW or not far
    step = [side / n for side, n in zip(sides, coefficients.shape, strict=True)]
    parts = PARTS if few else 1
    while (
        coefficients.numel() * (2 * parts) ** end.ndim <= POINTS
        and 2 * parts * max(coefficients.shape) <= LONGEST
    ):
        parts *= 2
    lattices = [
        Lattice(0.0, h / parts, parts * n + 1)
        for h, n in zip(step, coefficients.shape, strict=True)
    ]
    values = _on_lattice(coefficients, step, lattices)
    cell = [side / n for side, n in zip(sides, end.shape, strict=True)]
    full = end.flatten() > 0  # nothing else counts
    mass = end.double().flatten()[full] * math.prod(cell)
    total, points = 0.0, list(product((-GAUSS, GAUSS) if few else (0.0,), repeat=end.ndim))
    for offsets in points:
        where = [
            Lattice((0.5 + o) * h, h, n) for o, h, n in zip(offsets, cell, end.shape, strict=True)
        ]
        _, index = minimisers(values, lattices, where)
        y = torch.stack([lat.points()[index[a]] for a, lat in enumerate(lattices)], -1)
        x = torch.stack(torch.meshgrid(*(lat.points() for lat in where), indexing="ij"), -1)
        starts, goals = (part.reshape(-1, end.ndim)[full] for part in (y, x))
        least = _at_the_bottom(coefficients, step, starts, goals, sides)
        total += float((mass * least).sum()) / len(points)
    return total


def _on_lattice(coefficients: Tensor, step: Sequence[float], lattices: Sequence[Lattice]) -> Tensor:
    """The spline at the points of a lattice, one axis after the other."""
    values = coefficients.double()
    for axis, (h, lattice) in enumerate(zip(step, lattices, strict=True)):
        taps, weights = axis_taps(lattice.points(), h, values.shape[axis])
        values = (values.movedim(axis, -1)[..., taps] * weights[0]).sum(-1).movedim(-1, axis)
    return values


def _at_the_bottom(
    coefficients: Tensor, step: Sequence[float], y: Tensor, x: Tensor, sides: Sequence[float]
) -> Tensor:
    """The least of u(y) + |x − y|² near y (N, d), (N,), by Newton's method; at most that at y."""
    upper = torch.tensor(sides, dtype=torch.float64)
    found = []
    for here, there in zip(y.split(AT_ONCE), x.split(AT_ONCE), strict=True):
        least = torch.full((len(here),), torch.inf, dtype=torch.float64)
        for _ in range(POLISHING + 1):
            jet = at_points(coefficients, step, here)
            least = torch.minimum(least, jet.value + ((there - here) ** 2).sum(-1))
            slope = (jet.gradient - 2 * (there - here)).unbind(-1)
            back = packed.solved(packed.entries(jet.hessian), 0.5, slope)  # 2I + D²u = 2(I + ½D²u)
            moved = here - 0.5 * torch.stack(back, -1).nan_to_num(0.0, 0.0, 0.0)
            here = torch.minimum(moved.clamp(min=0), upper)
        found.append(least)
    return torch.cat(found)


def upper_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float,
) -> float:
    """W2 is at most this; `distance` is about W2. All on the same cells, (*cells)."""
    shape, d = coefficients.shape, coefficients.ndim
    pieces = 1
    while _spread(shape, sides) > SPREAD * distance**2 and 2 * pieces <= PIECES:
        if math.prod(shape) * 2**d > MOST:
            break
        shape, pieces = tuple(2 * n for n in shape), 2 * pieces
    while pieces == 1 and all(n % 2 == 0 for n in shape) and math.prod(shape) > LEAST:
        half = tuple(n // 2 for n in shape)
        if math.prod(shape) <= MOST and _spread(half, sides) > UNSEEN * distance**2:
            break
        shape = half
    c = refined(coefficients, shape)
    ends = [_on_blocks(end.double(), shape, sides) for end in (source, target)]
    densities = [end[..., 0] for end in ends]
    total, held = 0.0, [torch.zeros(math.prod(shape), dtype=torch.float64) for _ in ends]
    for mass, boxes in _half_cells(c, densities, sides):
        total += float(mass.sum())
        for own, side in zip(held, boxes, strict=True):
            for cell, share in side:
                own.index_add_(0, cell, mass * share)
    mended = [
        _mended(own.reshape(shape) / total, end, sides) for own, end in zip(held, ends, strict=True)
    ]
    cost = 0.0
    for mass, boxes in _half_cells(c, densities, sides):
        means, spread = [], torch.zeros_like(mass)
        for (mean, second), side in zip(mended, boxes, strict=True):
            places = sum(share[:, None] * mean[cell] for cell, share in side)
            squares = sum(share * second[cell] for cell, share in side)
            means.append(places)
            spread += squares - (places**2).sum(-1)  # pyright: ignore
        cost += float((mass * (spread + ((means[1] - means[0]) ** 2).sum(-1))).sum()) / total
    return math.sqrt(cost)


def _on_blocks(density: Tensor, shape: Sequence[int], sides: Sequence[float]) -> Tensor:
    """A density on other cells, and where the mass is in each, E x and E|x|²: (*shape, d + 2).

    The other cells are parts or blocks of its own; the density is constant in its own.
    """
    for axis, n in enumerate(shape):
        density = density.repeat_interleave(max(1, n // density.shape[axis]), axis)
    step = torch.tensor([s / n for s, n in zip(sides, density.shape, strict=True)]).double()
    axes = [torch.arange(n, dtype=torch.float64) + 0.5 for n in density.shape]
    centre = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1) * step
    square = _square(centre) + float((step**2).sum()) / 12
    moments = torch.cat([torch.ones_like(square), centre, square], -1)
    size = density.shape[0] // shape[0]
    none = (0,) * density.ndim
    weighted = _block_sums(density[..., None] * moments, size, none)
    plain = _block_sums(moments, size, none)
    inside = torch.where(
        weighted[..., :1] > 0, weighted / weighted[..., :1], plain / plain[..., :1]
    )
    return torch.cat([weighted[..., :1] / size**density.ndim, inside[..., 1:]], -1)


def _spread(shape: Sequence[int], sides: Sequence[float]) -> float:
    """What spreading over the cells of both ends adds to the cost."""
    return sum((side / n) ** 2 for side, n in zip(sides, shape, strict=True)) / 6


Boxes = list[tuple[Tensor, Tensor]]  # cells (N,) and shares (N,)


def _half_cells(
    c: Tensor, ends: Sequence[Tensor], sides: Sequence[float]
) -> Iterator[tuple[Tensor, tuple[Boxes, Boxes]]]:
    """Some half-cells at a time: masses (N,), and which cells they meet in source and target."""
    shape, d = c.shape, c.ndim
    step = [side / n for side, n in zip(sides, shape, strict=True)]
    rows = max(1, AT_ONCE // (2**d * math.prod(shape[1:])))
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        low, high = max(first - 1, 0), min(last + 1, shape[0])
        jet = at_half_cells(c[low:high], step)
        own = (slice(None),) * d + (slice(first - low, last - low),)
        gradient, hessian = jet.gradient[own], jet.hessian[own]
        place = half_cell_places((last - first, *shape[1:]))
        place[..., 0] += first
        total, trust, boxes = 0.0, 0.0, []
        for end, s in zip(ends, (-0.5, 0.5), strict=True):
            where, width, matrix = moved_boxes(place, gradient, hessian, s, step)
            met = [(cell.flatten(), part) for cell, part in box_shares(where, width, shape)]
            density = sum(part * end.flatten()[cell].reshape(part.shape) for cell, part in met)
            det = signed(matrix)[0].clamp(min=0)
            total, trust = total + det**2 * density * det, trust + det**2
            boxes.append([(cell, part.flatten()) for cell, part in met])
        mass = torch.as_tensor(total / trust).nan_to_num(0.0).flatten()
        full = mass > 0
        source, target = ([(cell[full], part[full]) for cell, part in side] for side in boxes)
        yield mass[full], (source, target)


def _mended(held: Tensor, end: Tensor, sides: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Where the mass of each cell ends up: E x, (cells, d), and E|x|², (cells,).

    Masses (*shape) that are held become those of an end, as `_on_blocks` has it.
    """
    d, rounds = held.ndim, []
    wanted = end[..., 0] / end[..., 0].sum()
    for _ in range(ROUNDS):
        shares = _flow(held, wanted, sides)
        held = held + sum(_arrivals(held * share, a, way) for a, way, share in shares)
        rounds.append(shares)
    moments = _mended_in_blocks(held, wanted, end[..., 1:])
    for shares in reversed(rounds):
        moments = moments + sum(
            share[..., None] * (moments.roll(-way, a) - moments) for a, way, share in shares
        )
    return moments[..., :d].flatten(0, -2), moments[..., d].flatten()


Shares = list[tuple[int, int, Tensor]]  # axis, way along it, and the share of each cell that goes


def _flow(held: Tensor, wanted: Tensor, sides: Sequence[float]) -> Shares:
    """What goes from each cell to its neighbours, along −∇Δ⁻¹ of the excess, of what it holds."""
    shape = held.shape
    waves = sum(
        (n / side) ** 2
        * (2 - 2 * torch.cos(math.pi * torch.arange(n).double() / n)).reshape(
            [-1 if k == a else 1 for k in range(held.ndim)]
        )
        for a, (n, side) in enumerate(zip(shape, sides, strict=True))
    )
    waves = torch.as_tensor(waves)
    waves.view(-1)[0] = torch.inf  # the mean, which is zero
    series = torch.from_numpy(np.asarray(dctn((held - wanted).numpy(), norm="ortho"))) / waves
    potential = torch.from_numpy(np.asarray(idctn(series.numpy(), norm="ortho")))
    flows = []
    for a, (n, side) in enumerate(zip(shape, sides, strict=True)):
        down = -potential.diff(dim=a) * (n / side) ** 2  # across the face to the next cell
        none = torch.zeros_like(potential.narrow(a, 0, 1))
        flows += [(a, 1, torch.cat([down.clamp(min=0), none], a))]
        flows += [(a, -1, torch.cat([none, (-down).clamp(min=0)], a))]
    going = sum(flow for _, _, flow in flows)
    part = 1 / torch.maximum(torch.as_tensor(going), held).clamp(min=torch.finfo(held.dtype).tiny)
    return [(a, way, torch.where(held > 0, flow * part, 0.0)) for a, way, flow in flows]


def _arrivals(mass: Tensor, axis: int, way: int) -> Tensor:
    """What each cell gains when its neighbours' mass comes and its own goes."""
    return mass.roll(way, axis) - mass


def _mended_in_blocks(held: Tensor, wanted: Tensor, inside: Tensor) -> Tensor:
    """E x and E|x|² of the mass of each cell, (*shape, d + 1), where `inside` has those of its own.

    Surplus goes to what is missing in the smallest block of 2^k cells an axis that has room for it.
    """
    shape = held.shape
    surplus, missing = (held - wanted).clamp(min=0), (wanted - held).clamp(min=0)
    share = torch.where(held > 0, surplus / held, 0.0)
    moments = torch.cat([torch.ones_like(inside[..., :1]), inside], -1)
    left, sent = torch.ones_like(held), torch.zeros_like(inside)
    for size, offsets in _tilings(shape):
        sums = [
            _block_sums(part, size, offsets)
            for part in (surplus[..., None], missing[..., None] * moments)
        ]
        over, room = sums[0][..., 0], sums[1][..., 0]
        moved = torch.minimum(over, room)
        part = _on_cells(torch.where(over > 0, moved / over, 0.0), size, offsets, shape)
        goal = torch.where(room[..., None] > 0, sums[1][..., 1:] / room[..., None], 0.0)
        sent += (left * part)[..., None] * _on_cells(goal, size, offsets, shape)
        filled = _on_cells(torch.where(room > 0, moved / room, 0.0), size, offsets, shape)
        left, surplus, missing = left * (1 - part), surplus * (1 - part), missing * (1 - filled)
    return (1 - share)[..., None] * inside + share[..., None] * (sent + left[..., None] * inside)


def _tilings(shape: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Blocks from small to large, 2^k cells an axis, each tiling moved by half a block or not."""
    size = 2
    while size < 2 * max(shape):
        whole = size >= max(shape)
        for offsets in product((0, size // 2), repeat=len(shape)):
            if not (whole and any(offsets)):
                yield size, offsets
        size *= 2


def _square(points: Tensor) -> Tensor:
    return (points**2).sum(-1, keepdim=True)


def _block_sums(values: Tensor, size: int, offsets: Sequence[int]) -> Tensor:
    """Sums over blocks, of values (*shape, k): (*blocks, k)."""
    for axis, offset in enumerate(offsets):
        n = values.shape[axis]
        behind = -(n + offset) % size
        if offset or behind:
            values = pad(values, [0, 0] * (values.ndim - 1 - axis) + [offset, behind])
        values = values.unflatten(axis, (-1, size)).sum(axis + 1)
    return values


def _on_cells(values: Tensor, size: int, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Values of blocks (*blocks, ...) in all of their cells, (*shape, ...)."""
    for axis, (offset, n) in enumerate(zip(offsets, shape, strict=True)):
        values = values.repeat_interleave(size, axis).narrow(axis, offset, n)
    return values
