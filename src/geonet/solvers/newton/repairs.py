"""Repairs of masses that differ from required ones, over short distances.

Rounds of flow between neighbours follow the gradient of a Poisson problem. The rest of the surplus
goes to deficits in blocks of 2, 4, 8, … cells. The mass of a cell is split, so its final position
is random: functions of it are pulled back through the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from scipy.fft import dctn, fftn, idctn, ifftn
from torch import Tensor

from geonet.numerics.kernels import library as kernel_library
from geonet.solvers.newton.bounds_kernels import (
    PlanStructure,
    address,
    count_threads,
    declare,
    is_available,
)
from geonet.solvers.newton.compiled import make_grid_structure
from geonet.solvers.newton.system import bound_rebalancing, sum_blocks


class Flows(Protocol):
    """Flows between the cells of one lattice."""

    def push(self, potential: Tensor, held: Tensor) -> Tensor:
        """Return masses after a flow between neighbours along the descent of a potential."""
        ...

    def pull(self, potential: Tensor, held: Tensor, means: Tensor) -> Tensor:
        """Return means before that flow of functions of the final position, (d, *shape)."""
        ...

    def repair_blocks(self, held: Tensor, required: Tensor) -> Tensor:
        """Return means of final positions if surplus goes to deficits of the same block."""
        ...


def build_flows(shape: Sequence[int], step: Sequence[float]) -> Flows:
    """Return flows on a lattice, compiled if possible.

    Args:
        shape: cells of the lattice.
        step: side lengths of a cell.
    """
    return (CompiledFlows if is_available() else TorchFlows)(shape, step)


def cell_positions(shape: Sequence[int], step: Sequence[float]) -> Tensor:
    """Return the centres of cells, (d, *shape)."""
    axes = [cell_centres(n, h) for n, h in zip(shape, step, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


def cell_centres(n: int, step: float) -> Tensor:
    """Return the centres of cells along an axis, (n,)."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) * step


def second_moment(masses: Tensor, step: Sequence[float]) -> float:
    """Return E|x|² of masses at the centres of cells."""
    total = 0.0
    for axis, (n, h) in enumerate(zip(masses.shape, step, strict=True)):
        others = [k for k in range(masses.ndim) if k != axis]
        marginal = masses.sum(others) if others else masses
        total += float((marginal * cell_centres(n, h) ** 2).sum())
    return total


def repair_marginal(
    held: Tensor,
    required: Tensor,
    step: Sequence[float],
    rounds: int,
    error: float,
    cost: float = math.inf,
) -> Tensor:
    """Return the mean final position of each cell's mass, (d, *shape).

    Args:
        held: masses of the cells, (*shape).
        required: masses of the cells with the same sum.
        step: side lengths of a cell.
        rounds: largest number of rounds of flow.
        error: error of the masses up to which blocks suffice.
        cost: cost up to which blocks suffice, unless flows hardly lower it.
    """
    if torch.equal(held, required):
        return cell_positions(required.shape, step)
    flows, log, suffices = build_flows(held.shape, step), [], _BlockTest(step, error, cost)
    for _ in range(rounds):
        if suffices(held - required):
            break
        potential = solve_poisson(held - required, step)
        log.append((potential, held))
        held = flows.push(potential, held)
    means = flows.repair_blocks(held, required)
    for potential, before in reversed(log):
        means = flows.pull(potential, before, means)
    return means


class _BlockTest:
    """Test whether the rest of an excess can be left to blocks.

    Args:
        step: side lengths of a cell.
        error: largest sum of absolute values.
        cost: largest cost, unless the last round of flow has hardly lowered it.
    """

    def __init__(self, step: Sequence[float], error: float, cost: float):
        self.step, self.error, self.cost, self.last = step, error, cost, math.inf

    def __call__(self, excess: Tensor, sufficient_reduction: float = 0.9) -> bool:
        if float(excess.abs().sum()) > self.error:
            return False
        if self.cost == math.inf:
            return True
        before, self.last = self.last, bound_rebalancing(excess, self.step)
        return self.last <= self.cost or self.last > sufficient_reduction * before


class Moments(NamedTuple):
    """Means of the final position of each cell's mass and of its squares, (d, *shape) each."""

    first: Tensor
    second: Tensor


def repair_on_torus(
    held: Tensor,
    required: Tensor,
    step: Sequence[float],
    periodic: Sequence[bool],
    rounds: int,
    error: float,
    cost: float = math.inf,
) -> Moments:
    """Repair masses like `repair_marginal`; flows may cross the faces of periodic axes.

    A final position beyond a face is not moved back into the box.
    """
    flow = _FlowLog(held.shape, step, periodic)
    held = flow.run(held, required, rounds, error, cost)
    return flow.pull_back(_repair_blocks(held, required, step))


def improve_on_torus(
    held: Tensor,
    required: Tensor,
    step: Sequence[float],
    periodic: Sequence[bool],
    rounds: int,
    error: float,
    levels: int,
) -> tuple[Tensor, Moments]:
    """Repair masses in part, without long moves and between cells with required mass only.

    Args:
        held: masses of the cells, (*shape), zero where `required` is.
        required: masses of the cells with the same sum.
        step: side lengths of a cell.
        periodic: whether each axis is periodic.
        rounds: largest number of rounds of flow.
        error: error of the masses up to which blocks suffice.
        levels: blocks have up to 2^levels cells along each axis.

    Returns:
        Final masses, and moments of the final positions.
    """
    flow = _FlowLog(held.shape, step, periodic, required > 0)
    held = flow.run(held, required, rounds, error)
    centres = cell_positions(held.shape, step)
    powers = torch.cat([centres, centres**2])
    surplus, deficit = (held - required).clamp(min=0), (required - held).clamp(min=0)
    goal, moved, filled = _match_nearby(
        surplus, torch.cat([deficit[None], deficit * powers]), levels
    )
    share = torch.where(held > 0, surplus / held, 0.0)
    moments = Moments(*(powers + share * (goal - moved * powers)).chunk(2))
    return held - surplus * moved + deficit * filled, flow.pull_back(moments)


class _FlowLog:
    """Rounds of flow on a torus.

    Args:
        shape: cells of the lattice.
        step: side lengths of a cell.
        periodic: whether each axis is periodic.
        allowed: cells that may receive mass, (*shape); all by default.
    """

    def __init__(
        self,
        shape: Sequence[int],
        step: Sequence[float],
        periodic: Sequence[bool],
        allowed: Tensor | None = None,
    ):
        self.step, self.periodic, self.allowed = step, periodic, allowed
        self.margins = [2 if wraps else 0 for wraps in periodic]  # push needs neighbours' rates
        padded = [n + 2 * margin for n, margin in zip(shape, self.margins, strict=True)]
        self._flows, self._log = build_flows(padded, step), []

    def run(
        self, held: Tensor, required: Tensor, rounds: int, error: float, cost: float = math.inf
    ) -> Tensor:
        """Return masses after rounds of flow."""
        suffices = _BlockTest(self.step, error, cost)
        for _ in range(rounds):
            if suffices(held - required):
                break
            potential = solve_poisson(held - required, self.step, self.periodic)
            if self.allowed is not None:
                potential = potential.masked_fill_(~self.allowed, 1e30)
            own = wrap_axes(potential, self.margins), wrap_axes(held, self.margins)
            self._log.append(own)
            held = _crop(self._flows.push(*own), self.margins)
        return held

    def pull_back(self, moments: Moments) -> Moments:
        """Return moments before the flow from those after it."""
        for potential, held in reversed(self._log):
            wide = wrap_moments(moments, self.margins, self.step)
            pulled = (self._flows.pull(potential, held, one) for one in wide)
            moments = Moments(*(_crop(one, self.margins) for one in pulled))
        return moments


def _repair_blocks(held: Tensor, required: Tensor, step: Sequence[float]) -> Moments:
    """Return moments of the final position if surplus goes to deficits of the same block."""
    centres = cell_positions(held.shape, step)
    powers = torch.cat([centres, centres**2])
    surplus, deficit = (held - required).clamp(min=0), (required - held).clamp(min=0)
    share = torch.where(held > 0, surplus / held, 0.0)
    goal = _match_blocks(surplus, torch.cat([deficit[None], deficit * powers]))
    means = powers + share * (goal - powers)
    return Moments(*means.chunk(2))


def wrap_axes(values: Tensor, margins: Sequence[int]) -> Tensor:
    """Continue values (*shape) periodically beyond both faces of each axis."""
    for axis, margin in enumerate(margins):
        if margin:
            index = torch.arange(-margin, values.shape[axis] + margin) % values.shape[axis]
            values = values.index_select(axis, index)
    return values.contiguous()


def wrap_moments(moments: Moments, margins: Sequence[int], step: Sequence[float]) -> Moments:
    """Continue moments: the positions of copies differ by whole periods."""
    first, second = moments
    for axis, (margin, h) in enumerate(zip(margins, step, strict=True)):
        if not margin:
            continue
        n = first.shape[axis + 1]
        index = torch.arange(-margin, n + margin)
        first, second = (one.index_select(axis + 1, index % n) for one in (first, second))
        view = [-1 if k == axis else 1 for k in range(first.ndim - 1)]
        shift = (index.div(n, rounding_mode="floor") * (n * h)).reshape(view)
        second[axis] += 2 * shift * first[axis] + shift**2
        first[axis] += shift
    return Moments(first.contiguous(), second.contiguous())


def _crop(values: Tensor, margins: Sequence[int]) -> Tensor:
    """Remove margins from the last axes."""
    for axis, margin in enumerate(margins, start=values.ndim - len(margins)):
        values = values.narrow(axis, margin, values.shape[axis] - 2 * margin)
    return values.contiguous()


def solve_poisson(
    excess: Tensor, step: Sequence[float], periodic: Sequence[bool] | None = None
) -> Tensor:
    """Return p with −Δp = excess, (*shape), in single precision: any p gives a valid plan."""
    wraps = tuple(periodic) if periodic is not None else (False,) * excess.ndim
    around = [axis for axis, own in enumerate(wraps) if own]
    across = [axis for axis, own in enumerate(wraps) if not own]
    series = excess.numpy().astype(np.float32)
    series = dctn(series, axes=across, norm="ortho") if across else series
    series = fftn(series, axes=around) if around else series
    series = series * _inverse_laplacian(tuple(excess.shape), tuple(step), wraps)
    series = np.real(np.asarray(ifftn(series, axes=around))) if around else series
    series = idctn(series, axes=across, norm="ortho") if across else series
    return torch.from_numpy(np.ascontiguousarray(series, dtype=np.float32))


@lru_cache(maxsize=2)
def _inverse_laplacian(
    shape: tuple[int, ...], step: tuple[float, ...], periodic: tuple[bool, ...]
) -> np.ndarray:
    """Return 1/eigenvalues of the Laplacian in the series of each axis; 0 for the constant."""
    eigenvalues = np.zeros(shape)
    for axis, (n, h, wraps) in enumerate(zip(shape, step, periodic, strict=True)):
        view = [-1 if k == axis else 1 for k in range(len(shape))]
        angles = (2 if wraps else 1) * np.pi * np.arange(n) / n
        eigenvalues += (2 - 2 * np.cos(angles)).reshape(view) / h**2
    eigenvalues.flat[0] = np.inf  # the excess has mean zero
    return (1 / eigenvalues).astype(np.float32)


# ---- Reference implementation in torch


class TorchFlows:
    """`Flows` in torch."""

    def __init__(self, shape: Sequence[int], step: Sequence[float]):
        self.shape, self.step = tuple(shape), tuple(step)

    def push(self, potential: Tensor, held: Tensor) -> Tensor:
        flows = [(axis, way, held * share) for axis, way, share in self._shares(potential, held)]
        return held + sum(flow.roll(way, axis) - flow for axis, way, flow in flows)

    def pull(self, potential: Tensor, held: Tensor, means: Tensor) -> Tensor:
        return means + sum(
            share * (means.roll(-way, axis + 1) - means)
            for axis, way, share in self._shares(potential, held)
        )

    def repair_blocks(self, held: Tensor, required: Tensor) -> Tensor:
        centres = cell_positions(self.shape, self.step)
        surplus, deficit = (held - required).clamp(min=0), (required - held).clamp(min=0)
        share = torch.where(held > 0, surplus / held, 0.0)
        goal = _match_blocks(surplus, torch.cat([deficit[None], deficit * centres]))
        return centres + share * (goal - centres)

    def _shares(self, potential: Tensor, held: Tensor) -> list[tuple[int, int, Tensor]]:
        """Return axis, direction ±1, and the share of each cell's mass that flows there."""
        flows = []
        for axis, h in enumerate(self.step):
            descent = -potential.double().diff(dim=axis) / h**2  # across the face to the next cell
            zero = torch.zeros_like(held.narrow(axis, 0, 1))
            flows.append((axis, 1, torch.cat([descent.clamp(min=0), zero], axis)))
            flows.append((axis, -1, torch.cat([zero, (-descent).clamp(min=0)], axis)))
        outflow = torch.as_tensor(sum(flow for _, _, flow in flows))
        scale = torch.where(held > 0, 1 / torch.maximum(outflow, held), 0.0)
        return [(axis, way, flow * scale) for axis, way, flow in flows]


def _match_blocks(surplus: Tensor, deficit: Tensor) -> Tensor:
    """Return mean positions of the deficits to which the surplus of each cell goes, (d, *shape).

    Args:
        surplus: mass that is too much, (*shape).
        deficit: missing mass, and positions times it, (d + 1, *shape).
    """
    room = deficit[0]
    moved = torch.minimum(surplus, room)
    goal = torch.where(room > 0, deficit[1:] / room, 0.0)
    if surplus.numel() == 1:
        return goal
    share = torch.where(surplus > 0, moved / surplus, 0.0)
    rest = torch.where(room > 0, 1 - moved / room, 0.0)
    coarse = _match_blocks(
        sum_blocks(surplus - moved, surplus.ndim), sum_blocks(deficit * rest, surplus.ndim)
    )
    for axis, n in enumerate(surplus.shape, start=1):
        coarse = coarse.repeat_interleave(2, axis).narrow(axis, 0, n)
    return share * goal + (1 - share) * coarse


def _match_nearby(surplus: Tensor, deficit: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Match surplus and deficits like `_match_blocks`, in blocks of up to 2^levels cells.

    Returns:
        Sums of functions at the deficits per surplus of a cell, share of the surplus that moves,
        and share of the deficit that is filled.
    """
    room = deficit[0]
    met = torch.minimum(surplus, room)
    moved = torch.where(surplus > 0, met / surplus, 0.0)
    filled = torch.where(room > 0, met / room, 0.0)
    goal = moved * torch.where(room > 0, deficit[1:] / room, 0.0)
    if surplus.numel() == 1 or levels == 0:
        return goal, moved, filled
    d = surplus.ndim
    rest = sum_blocks(surplus - met, d), sum_blocks(deficit * (1 - filled), d)
    coarse = _match_nearby(*rest, levels - 1)
    wide = []
    for one in coarse:
        for axis, n in enumerate(surplus.shape, start=one.ndim - d):
            one = one.repeat_interleave(2, axis).narrow(axis, 0, n)
        wide.append(one)
    return (
        goal + (1 - moved) * wide[0],
        moved + (1 - moved) * wide[1],
        filled + (1 - filled) * wide[2],
    )


# ---- Compiled implementation


class CompiledFlows:
    """`Flows` by bounds.c; everything that is passed to C is checked here."""

    def __init__(self, shape: Sequence[int], step: Sequence[float]):
        self.shape, self.step = tuple(shape), tuple(step)
        grid = make_grid_structure(self.shape)
        assert 1 <= len(self.shape) <= 3 and grid.cells < 2**31
        self._library = kernel_library(declare)
        self._plan = PlanStructure(len(self.shape), count_threads(grid.cells))
        self._plan.lattice = grid
        for axis, h in enumerate(self.step):
            self._plan.step[axis] = h

    def push(self, potential: Tensor, held: Tensor) -> Tensor:
        return self._flow(potential, held, None, torch.empty_like(held))

    def pull(self, potential: Tensor, held: Tensor, means: Tensor) -> Tensor:
        return self._flow(potential, held, means, torch.empty_like(means))

    def _flow(
        self, potential: Tensor, held: Tensor, means: Tensor | None, result: Tensor
    ) -> Tensor:
        assert potential.dtype == torch.float32 and potential.is_contiguous()
        assert potential.shape == self.shape
        addresses = address(held, self.shape), address(means, (len(self.shape), *self.shape))
        rate = torch.empty_like(held)
        self._library.geonet_plan_flow(
            self._plan, potential.data_ptr(), *addresses, rate.data_ptr(), result.data_ptr()
        )
        return result

    def repair_blocks(self, held: Tensor, required: Tensor) -> Tensor:
        means = torch.empty(len(self.shape), *self.shape, dtype=torch.float64)
        size = self._library.geonet_plan_blocks_size(self._plan)
        scratch = torch.empty(size, dtype=torch.float64)
        addresses = address(held, self.shape), address(required, self.shape), means.data_ptr()
        self._library.geonet_plan_blocks(self._plan, *addresses, scratch.data_ptr())
        return means
