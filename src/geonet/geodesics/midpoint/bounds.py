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

from geonet.fields.compiled.transforms import Lattice, minimisers
from geonet.fields.elliptic import moved_boxes, signed
from geonet.fields.levels import refined
from geonet.fields.quadratic import at_half_cells, at_points, box_shares, half_cell_places

SLACK = 1e-3  # relative, of the lower bound: its integrals are sums over points
PARTS = 2  # of a cell, where the minimum is looked for
GAUSS = 0.5 / math.sqrt(3)  # from a cell's centre, in cells
POLISHING = 3  # of Newton's steps in a valley
LEAST = 1e-3  # of the eigenvalues of the Hessian in a valley
SPREAD = 0.01  # of W2²: what spreading over cells may add to the upper bound
MOST = 2**18  # cells that a plan may have where they are refined
ROUNDS = 3  # of the flow between neighbours
AT_ONCE = 2**18  # half-cells, or points, that are worked on together


def lower_bound(
    coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float]
) -> float:
    """W2 is at least this. Potential (*cells) and densities (*own cells) in a box from zero on."""
    value = _dual_integral(coefficients, target, sides) + _dual_integral(
        -coefficients, source, sides
    )
    return (1 - SLACK) * math.sqrt(max(0.0, 2 * value))


def _dual_integral(coefficients: Tensor, end: Tensor, sides: Sequence[float]) -> float:
    """∫(min_y u(y) + |x − y|²) dμ(x), by two of Gauss's points an axis and cell of μ."""
    step = [side / n for side, n in zip(sides, coefficients.shape, strict=True)]
    fine = [PARTS * n + 1 for n in coefficients.shape]
    lattices = [Lattice(0.0, side / (n - 1), n) for side, n in zip(sides, fine, strict=True)]
    values = _on_lattice(coefficients, step, lattices)
    cell = [side / n for side, n in zip(sides, end.shape, strict=True)]
    total = 0.0
    for offsets in product((-GAUSS, GAUSS), repeat=end.ndim):
        where = [
            Lattice((0.5 + o) * h, h, n) for o, h, n in zip(offsets, cell, end.shape, strict=True)
        ]
        _, index = minimisers(values, lattices, where)
        y = torch.stack([lat.points()[index[a]] for a, lat in enumerate(lattices)], -1).reshape(
            -1, end.ndim
        )
        axes = torch.meshgrid(*(lat.points() for lat in where), indexing="ij")
        x, mass = torch.stack(axes, -1).reshape(-1, end.ndim), end.double().flatten()
        full = mass > 0  # nothing else counts
        least = _at_the_bottom(coefficients, step, y[full], x[full], sides)
        total += float((mass[full] * least).sum()) * math.prod(cell) / 2**end.ndim
    return total


def _on_lattice(coefficients: Tensor, step: Sequence[float], lattices: Sequence[Lattice]) -> Tensor:
    """The spline at the points of a lattice, one axis after the other."""
    values = coefficients.double()
    for axis, (h, lattice) in enumerate(zip(step, lattices, strict=True)):
        n = values.shape[axis]
        place = (lattice.points() / h).clamp(0, n)
        cell = place.floor().clamp(max=n - 1)
        s = place - cell - 0.5
        taps = (cell.long()[:, None] + torch.arange(-1, 2)).clamp(0, n - 1)
        weights = torch.stack([0.5 * (0.5 - s) ** 2, 0.75 - s**2, 0.5 * (0.5 + s) ** 2], -1)
        values = (values.movedim(axis, -1)[..., taps] * weights).sum(-1).movedim(-1, axis)
    return values


def _at_the_bottom(
    coefficients: Tensor, step: Sequence[float], y: Tensor, x: Tensor, sides: Sequence[float]
) -> Tensor:
    """The least of u(y) + |x − y|² near y (N, d), (N,), by Newton's method; at most that at y."""
    best = None
    upper = torch.tensor(sides, dtype=torch.float64)
    for start in range(0, len(y), AT_ONCE):
        here, there = y[start : start + AT_ONCE], x[start : start + AT_ONCE]
        least = torch.full((len(here),), torch.inf, dtype=torch.float64)
        for _ in range(POLISHING + 1):
            jet = at_points(coefficients, step, here)
            least = torch.minimum(least, jet.value + ((there - here) ** 2).sum(-1))
            slope = jet.gradient - 2 * (there - here)
            bend = jet.hessian + 2 * torch.eye(len(sides), dtype=torch.float64)
            values, vectors = torch.linalg.eigh(bend)
            back = vectors @ ((vectors.mT @ slope[..., None]) / values.clamp(min=LEAST)[..., None])
            here = torch.minimum((here - back[..., 0]).clamp(min=0), upper)
        best = least if best is None else torch.cat([best, least])
    assert best is not None
    return best


def upper_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float,
) -> float:
    """W2 is at most this; `distance` is about W2. All on the same cells, (*cells)."""
    ends = [source.double(), target.double()]
    c, shape, d = coefficients, coefficients.shape, coefficients.ndim
    while _spread(shape, sides) > SPREAD * distance**2 and math.prod(shape) * 2**d <= MOST:
        shape = tuple(2 * n for n in shape)
    c = refined(c, shape)
    for axis in range(d):
        ends = [end.repeat_interleave(shape[axis] // end.shape[axis], axis) for end in ends]
    parts = list(_half_cells(c, ends, sides))
    total = sum(float(mass.sum()) for mass, _ in parts)
    mended = []
    for k, end in enumerate(ends):
        held = torch.zeros(end.numel(), dtype=torch.float64)
        for mass, boxes in parts:
            for cell, share in boxes[k]:
                held.index_add_(0, cell, mass * share / total)
        wanted = end / end.sum()
        mended.append(_mended(held.reshape(shape), wanted, sides))
    cost = 0.0
    for mass, boxes in parts:
        means = []
        for (mean, second), own in zip(mended, boxes, strict=True):
            places = sum(share[:, None] * mean[cell] for cell, share in own)
            squares = sum(share * second[cell] for cell, share in own)
            means.append(places)
            cost += float((mass / total * (squares - (places**2).sum(-1))).sum())  # pyright: ignore
        cost += float((mass / total * ((means[1] - means[0]) ** 2).sum(-1)).sum())
    return math.sqrt(cost)


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


def _mended(held: Tensor, wanted: Tensor, sides: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Where the mass of each cell ends up: E x, (cells, d), and E|x|², (cells,).

    Masses (*shape) that are held become those that are wanted.
    """
    d, rounds = held.ndim, []
    for _ in range(ROUNDS):
        shares = _flow(held, wanted, sides)
        held = held + sum(_arrivals(held * share, a, way) for a, way, share in shares)
        rounds.append(shares)
    moments = _mended_in_blocks(held, wanted, sides)
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


def _mended_in_blocks(held: Tensor, wanted: Tensor, sides: Sequence[float]) -> Tensor:
    """E x and E|x|² of the mass of each cell, (*shape, d + 1).

    Surplus goes to what is missing in the smallest block of 2^k cells an axis that has room for it.
    """
    shape = held.shape
    step = torch.tensor([s / n for s, n in zip(sides, shape, strict=True)], dtype=torch.float64)
    axes = [torch.arange(n, dtype=torch.float64) + 0.5 for n in shape]
    centre = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1) * step
    surplus, missing = (held - wanted).clamp(min=0), (wanted - held).clamp(min=0)
    share = torch.where(held > 0, surplus / held, 0.0)
    # Of what is missing: its mass, its first and its second moment. Of what is sent: the moments.
    moments = torch.cat([torch.ones_like(centre[..., :1]), centre, _square(centre)], -1)
    left, sent = torch.ones_like(held), torch.zeros_like(moments[..., 1:])
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
    centre_moments = moments[..., 1:]
    final = (1 - share)[..., None] * centre_moments
    final += share[..., None] * (sent + left[..., None] * centre_moments)
    final[..., -1] += float((step**2).sum()) / 12  # spread over the cell
    return final


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
