"""Bounds of W2 from a potential u at t = ½, valid for any u: wrong, folded or not converged.

Both bounds are theorems for densities that are constant in their cells, up to rounding. They use
cells that are divided into `parts` per axis, with sides δ; the error of either is a share of δ².

Below: functions φ on a lattice P and ψ on a lattice Q with φ(p) + ψ(q) ≤ ½|p − q|² are admissible
for the Kantorovich dual between measures on these lattices. A density is distributed linearly to
the lattice points around each of its points. That is a dilation: the mean of every convex function
grows, so that the largest E x·z over all plans grows, too. Since W2² = E|x|² + E|z|² − 2 max E x·z,

    W2² ≥ 2 Σ w_P φ + 2 Σ w_Q ψ − Σ_a δ_a²/3,

where the last term is the growth of E|x|² + E|z|². P are the vertices of the parts and Q their
centres: for mass that hardly moves, the dilations of both sides then cancel best. The potentials
are c-transforms of u.

Above: the cost of a plan between the parts. A part moves to another one as a whole, by the
difference of their centres. The cell y of the same lattice at t = ½ sends mass from y − ½∇u by
∇u. The start is split linearly between the centres around it, and the displacement between whole
numbers of cells, so that only the latter costs. This gives the marginals only approximately. Three
repairs follow: scaling of the shares of each cell (rounds of iterative proportional fitting), flows
between neighbours along the gradient of a Poisson problem, and blocks of 2, 4, 8, … cells, in which
surplus goes to deficits. The cost of the composed plan is computed exactly: since its marginals
are exact, E x·z is enough, and with it the mean final position of the mass of each cell. Repairs
over short distances cost little.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Protocol

import numpy as np
import torch
from scipy.fft import dctn, idctn
from torch import Tensor

from geonet._threads import threads_for
from geonet.numerics.c_transform import Lattice, transform
from geonet.numerics.kernels import compatible_library
from geonet.numerics.kernels import library as kernel_library
from geonet.numerics.splines import evaluate_at_points, repeat_cells, spline_stencil
from geonet.solvers.newton.compiled import MAX_THREADS, GridStructure, make_grid_structure
from geonet.solvers.newton.system import signed_det_and_cofactor


@dataclass(frozen=True)
class BoundsConfig:
    """Tuning parameters of the bounds."""

    resolution: float = 7.0  # number of parts along W2: the gap is about 0.5/resolution²
    max_gap: float = 0.01  # relative gap above which parts are halved
    lattice_share: float = 0.2  # share of the gap due to the parts above which they are halved
    max_points: int = 2**18  # largest number of parts, unless cells have at most `few_parts`
    few_parts: tuple[int, ...] = (64, 4, 1)  # parts along each axis in 1D, 2D, 3D for any grid
    scaling_rounds: int = 3  # largest number of rounds of proportional fitting
    scaled_error: float = 0.25  # error of a marginal, a share of the mass, up to which it suffices
    flow_rounds: int = 20  # largest number of rounds of flow between neighbours
    flow_error: float = 5e-4  # error of a marginal up to which blocks suffice
    negligible: float = 1e-100  # mass of a cell that cannot be scaled
    rounding: float = 1e-13  # rounding error of W2², relative to the squared diagonal of the box


DEFAULT_BOUNDS = BoundsConfig()


def bound_distance(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float,
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> tuple[float, float]:
    """Return a lower and an upper bound of W2.

    Args:
        coefficients: potential, (*cells).
        source: density, (*own cells), on a box with corner zero.
        target: likewise.
        sides: side lengths of the box.
        distance: estimate of W2.
        config: tuning parameters.
    """
    first, second = (values.double() / values.double().sum() for values in (source, target))
    lower, upper = 0.0, math.inf
    parts = _choose_parts(source.shape, sides, distance, config)
    while True:
        lower = max(lower, lower_bound(coefficients, first, second, sides, parts, config))
        upper = min(upper, upper_bound(coefficients, first, second, sides, parts, config))
        gap = upper - lower
        steps = (side / (parts * n) for side, n in zip(sides, source.shape, strict=True))
        by_parts = sum(step**2 for step in steps) / 4 / max(upper, 1e-300)
        is_good = gap <= config.max_gap * upper or by_parts < config.lattice_share * gap
        if is_good or 2 * parts > _most_parts(source.shape, config):
            return min(lower, upper), upper
        parts *= 2


def _choose_parts(
    shape: Sequence[int], sides: Sequence[float], distance: float, config: BoundsConfig
) -> int:
    """Return the number of parts of a cell along each axis."""
    spacing = max(side / n for side, n in zip(sides, shape, strict=True))
    wanted = config.resolution * spacing / distance if distance > 0 else 1.0
    return max(1, math.ceil(min(wanted, _most_parts(shape, config))))


def _most_parts(shape: Sequence[int], config: BoundsConfig) -> int:
    """Return the largest number of parts of a cell along each axis."""
    affordable = (config.max_points / math.prod(shape)) ** (1 / len(shape))
    return max(config.few_parts[len(shape) - 1], math.floor(affordable + 1e-9))


# ---- Lower bound


def lower_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    parts: int,
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> float:
    """Return a lower bound of W2 for masses of cells that are divided into parts."""
    steps = [side / (parts * n) for side, n in zip(sides, source.shape, strict=True)]
    vertices = [Lattice(0.0, h, parts * n + 1) for h, n in zip(steps, source.shape, strict=True)]
    centres = [Lattice(-h / 2, h, parts * n + 2) for h, n in zip(steps, source.shape, strict=True)]
    u = evaluate_on_lattice(coefficients, sides, vertices)
    psi = transform(u, vertices, centres)
    phi = transform(-psi, centres, vertices, 0.5)
    psi = transform(-phi, vertices, centres, 0.5)
    dual = _integrate(phi, source, parts, (0.5, 0.5))
    dual += _integrate(psi, target, parts, (0.125, 0.75, 0.125))
    rounding = config.rounding * sum(side**2 for side in sides)
    return math.sqrt(max(0.0, 2 * dual - sum(h**2 for h in steps) / 3 - rounding))


def evaluate_on_lattice(
    coefficients: Tensor, sides: Sequence[float], lattices: Sequence[Lattice]
) -> Tensor:
    """Return the spline at the points of a lattice."""
    library = compatible_library(_declare)
    values = coefficients.double()
    for axis, (side, lattice) in enumerate(zip(sides, lattices, strict=True)):
        n, step = values.shape[axis], side / values.shape[axis]
        if library is None:
            taps, weights = spline_stencil(lattice.points(), step, n)
            view = [-1 if k == axis else 1 for k in range(values.ndim)]
            values = torch.stack(
                [
                    weights[0][:, k].reshape(view) * values.index_select(axis, taps[:, k])
                    for k in range(3)
                ]
            ).sum(0)
            continue
        values, shape = values.contiguous(), list(values.shape)
        shape[axis] = lattice.count
        result = torch.empty(shape, dtype=torch.float64)
        library.geonet_spline_axis(
            values.data_ptr(),
            result.data_ptr(),
            math.prod(shape[:axis]),
            math.prod(shape[axis + 1 :]),
            n,
            lattice.count,
            lattice.first / step,
            lattice.spacing / step,
            _count_threads(result.numel()),
        )
        values = result
    return values


def _count_threads(points: int, points_per_thread: int = 2**15) -> int:
    """Return the number of threads for points, with enough work to wake each of them."""
    return max(1, min(threads_for(points), points // points_per_thread, MAX_THREADS))


def _integrate(values: Tensor, masses: Tensor, parts: int, stencil: Sequence[float]) -> float:
    """Return Σ masses·(mean over the parts of a cell of the stencil applied to values)."""
    for axis, n in enumerate(masses.shape):
        size = parts * n
        part = sum(w * values.narrow(axis, k, size) for k, w in enumerate(stencil))
        values = part.unflatten(axis, (n, parts)).mean(axis + 1)  # pyright: ignore
    return float((masses * values).sum())


# ---- Upper bound


def upper_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    parts: int,
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> float:
    """Return an upper bound of W2 for masses of cells that are divided into parts."""
    shape = [parts * n for n in source.shape]
    masses = [repeat_cells(mass, shape) / parts**source.ndim for mass in (source, target)]
    plan = build_plan(coefficients, masses[0], masses[1], sides)
    scales, held = _fit_proportionally(plan, config)
    total = 1.0 if torch.equal(held[0], masses[0]) else float(held[0].sum())
    if not total > 0:  # every cell is folded
        return math.inf
    means = [
        _repair_marginal(plan, mass if total == 1 else mass / total, required, config)
        for mass, required in zip(held, masses, strict=True)
    ]
    squares = sum(_second_moment(mass, plan.step) for mass in masses)
    cost = squares - 2 * plan.product(means, scales) / total
    return math.sqrt(max(0.0, cost) + config.rounding * sum(side**2 for side in sides))


def _second_moment(masses: Tensor, step: Sequence[float]) -> float:
    """Return E|x|² of masses at the centres of cells."""
    total = 0.0
    for axis, (n, h) in enumerate(zip(masses.shape, step, strict=True)):
        others = [k for k in range(masses.ndim) if k != axis]
        marginal = masses.sum(others) if others else masses
        total += float((marginal * _centres(n, h) ** 2).sum())
    return total


Scales = list[Tensor | None]  # factors of the shares of each cell, for source and target


def _fit_proportionally(plan: TransportPlan, config: BoundsConfig) -> tuple[Scales, list[Tensor]]:
    """Scale the shares of cells; return these and the marginals.

    The marginal of the source becomes exact, but for cells that no mass reaches. That of the target
    is scaled only if its error is large: flows between neighbours cost less than many rounds.
    """
    scales: Scales = [None, None]
    held = [plan.marginal(0, scales)] * 2

    def fit(side: int) -> None:
        has_mass, before = held[side] > config.negligible, scales[side]
        scale = torch.where(has_mass, plan.masses[side] / held[side], 0.0)
        scales[side] = scale if before is None else before * scale
        held[side] = torch.where(has_mass, plan.masses[side], 0.0)
        held[1 - side] = plan.marginal(1 - side, scales)

    fit(0)
    for _ in range(config.scaling_rounds):
        if float((held[1] - plan.masses[1]).abs().sum()) <= config.scaled_error:
            break
        fit(1)
        fit(0)
    return scales, held


def _repair_marginal(
    plan: TransportPlan, held: Tensor, required: Tensor, config: BoundsConfig
) -> Tensor:
    """Return the mean final position of each cell's mass, (d, *shape)."""
    if torch.equal(held, required):
        return cell_positions(required.shape, plan.step)
    rounds: list[tuple[Tensor, Tensor]] = []
    for _ in range(config.flow_rounds):
        if float((held - required).abs().sum()) <= config.flow_error:
            break
        potential = _solve_poisson(held - required, plan.step)
        rounds.append((potential, held))
        held = plan.push(potential, held)
    means = plan.repair_blocks(held, required)
    for potential, before in reversed(rounds):
        means = plan.pull(potential, before, means)
    return means


def cell_positions(shape: Sequence[int], step: Sequence[float]) -> Tensor:
    """Return the centres of cells, (d, *shape)."""
    axes = [_centres(n, h) for n, h in zip(shape, step, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


def _centres(n: int, step: float) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) * step


def _solve_poisson(excess: Tensor, step: Sequence[float]) -> Tensor:
    """Return p with −Δp = excess, (*shape), in single precision: any p gives a valid plan."""
    series = dctn(excess.numpy().astype(np.float32), norm="ortho")
    series *= _inverse_laplacian(tuple(excess.shape), tuple(step))
    return torch.from_numpy(np.ascontiguousarray(idctn(series, norm="ortho")))


@lru_cache(maxsize=2)
def _inverse_laplacian(shape: tuple[int, ...], step: tuple[float, ...]) -> np.ndarray:
    """Return 1/eigenvalues of the Laplacian in the cosine series; 0 for the constant."""
    eigenvalues = np.zeros(shape)
    for axis, (n, h) in enumerate(zip(shape, step, strict=True)):
        view = [-1 if k == axis else 1 for k in range(len(shape))]
        eigenvalues += (2 - 2 * np.cos(np.pi * np.arange(n) / n)).reshape(view) / h**2
    eigenvalues.flat[0] = np.inf  # the excess has mean zero
    return (1 / eigenvalues).astype(np.float32)


class TransportPlan(Protocol):
    """A plan between source and target on the cells of one lattice.

    Attributes:
        masses: required masses of source and target, (*shape) each.
        step: side lengths of a cell.
    """

    masses: tuple[Tensor, Tensor]
    step: tuple[float, ...]

    def marginal(self, side: int, scales: Scales) -> Tensor:
        """Return the masses that the plan has in the cells of one side, (*shape)."""
        ...

    def push(self, potential: Tensor, held: Tensor) -> Tensor:
        """Return masses after a flow between neighbours along the descent of a potential."""
        ...

    def pull(self, potential: Tensor, held: Tensor, means: Tensor) -> Tensor:
        """Return means of final positions before that flow, (d, *shape)."""
        ...

    def repair_blocks(self, held: Tensor, required: Tensor) -> Tensor:
        """Return means of final positions if surplus goes to deficits of the same block."""
        ...

    def product(self, means: Sequence[Tensor], scales: Scales) -> float:
        """Return E x·z under the plan, with these means of final positions at both ends."""
        ...


def build_plan(
    coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float]
) -> TransportPlan:
    """Return the plan of a potential between masses on one lattice, compiled if possible."""
    if is_available():
        return CompiledPlan(coefficients, source, target, sides)
    return TorchPlan(coefficients, source, target, sides)


# ---- Reference implementation in torch


class TorchPlan:
    """`TransportPlan` in torch."""

    def __init__(
        self, coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float]
    ):
        self.shape, self.masses = tuple(source.shape), (source, target)
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        step = torch.tensor(self.step, dtype=torch.float64)
        axes = [torch.arange(n, dtype=torch.float64) for n in self.shape]
        index = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
        pitch = [side / n for side, n in zip(sides, coefficients.shape, strict=True)]
        jet = evaluate_at_points(coefficients.double(), pitch, (index + 0.5) * step)
        total = confidence = torch.zeros(len(index), dtype=torch.float64)
        upper, ends = torch.tensor(self.shape, dtype=torch.float64) - 1, []
        for mass, s in zip(self.masses, (-0.5, 0.5), strict=True):
            ends.append(torch.minimum((index + s * jet.gradient / step).clamp(min=0), upper))
            jacobian = torch.eye(len(axes), dtype=torch.float64) + s * jet.hessian
            det = signed_det_and_cofactor(jacobian)[0].clamp(min=0)
            shares = self._split(ends[-1], torch.zeros_like(index))
            density = sum(share * mass.flatten()[cell] for cell, _, share in shares)
            total = total + det**2 * det * density
            confidence = confidence + det**2
        self.mass = torch.where(confidence > 0, total / confidence, 0.0)
        # C stores single precision
        start, displacement = ends[0].float(), (ends[1] - ends[0]).float()
        self.pairs = self._split(start.double(), displacement.double())

    def marginal(self, side: int, scales: Scales) -> Tensor:
        scale, other = scales[side], scales[1 - side]
        held = torch.zeros(math.prod(self.shape), dtype=torch.float64)
        for *cells, share in self.pairs:
            factor = 1.0 if other is None else other.flatten()[cells[1 - side]]
            held.index_add_(0, cells[side], self.mass * share * factor)
        held = held.reshape(self.shape)
        return held if scale is None else held * scale

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

    def product(self, means: Sequence[Tensor], scales: Scales) -> float:
        total = 0.0
        for start, end, share in self.pairs:
            x, z = means[0].flatten(1)[:, start], means[1].flatten(1)[:, end]
            weight = self.mass * share
            for scale, cell in zip(scales, (start, end), strict=True):
                weight = weight if scale is None else weight * scale.flatten()[cell]
            total += float((weight * (x * z).sum(0)).sum())
        return total

    def _split(self, start: Tensor, displacement: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return cells from which and to which points send mass, with shares that sum to one.

        Start and displacement, (N, d) in cells, are split linearly between whole numbers.
        """
        low, steps = start.floor(), displacement.floor()
        pairs = []
        for up, more in product(product((0, 1), repeat=len(self.shape)), repeat=2):
            first = second = torch.zeros(len(start), dtype=torch.long)
            share = torch.ones(len(start), dtype=torch.float64)
            for axis, n in enumerate(self.shape):
                t, f = start[:, axis] - low[:, axis], displacement[:, axis] - steps[:, axis]
                cell = low[:, axis] + up[axis]
                end = cell + steps[:, axis] + more[axis]
                first = first * n + cell.clamp(0, n - 1).long()
                second = second * n + end.clamp(0, n - 1).long()
                share = share * (t if up[axis] else 1 - t) * (f if more[axis] else 1 - f)
            pairs.append((first, second, share))
        return pairs

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
        _sum_blocks(surplus - moved, surplus.ndim), _sum_blocks(deficit * rest, surplus.ndim)
    )
    for axis, n in enumerate(surplus.shape, start=1):
        coarse = coarse.repeat_interleave(2, axis).narrow(axis, 0, n)
    return share * goal + (1 - share) * coarse


def _sum_blocks(values: Tensor, d: int) -> Tensor:
    """Sum over blocks of two cells along each of the last d axes."""
    for axis in range(values.ndim - d, values.ndim):
        if values.shape[axis] % 2:
            values = torch.cat([values, torch.zeros_like(values.narrow(axis, 0, 1))], axis)
        values = values.unflatten(axis, (-1, 2)).sum(axis + 1)
    return values


# ---- Compiled implementation


def is_available() -> bool:
    """Return whether the kernels are compiled, compatible and not disabled."""
    return compatible_library(_declare) is not None


class _Plan(ctypes.Structure):
    _fields_ = (
        ("d", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("potential", GridStructure),
        ("lattice", GridStructure),
        ("step", ctypes.c_double * 3),
        ("masses", ctypes.c_void_p * 2),
        ("start", ctypes.c_void_p),
        ("displacement", ctypes.c_void_p),
        ("mass", ctypes.c_void_p),
    )


class CompiledPlan:
    """`TransportPlan` by bounds.c; everything that is passed to C is checked here."""

    def __init__(
        self, coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float]
    ):
        self.shape, self.masses = source.shape, (source.contiguous(), target.contiguous())
        assert source.shape == target.shape and source.dtype == target.dtype == torch.float64
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        d, cells = source.ndim, source.numel()
        assert 1 <= d <= 3 and cells < 2**31 and coefficients.ndim == d
        c = coefficients.double().contiguous()
        self._library = kernel_library(_declare)
        grids = make_grid_structure(c.shape), make_grid_structure(self.shape)
        self._plan = _Plan(d, _count_threads(cells), *grids)
        self._places = torch.empty(2, d, cells, dtype=torch.float32)
        self._mass = torch.empty(cells, dtype=torch.float64)
        for axis, h in enumerate(self.step):
            self._plan.step[axis] = h
        self._plan.masses[0], self._plan.masses[1] = (mass.data_ptr() for mass in self.masses)
        self._plan.start, self._plan.displacement = (part.data_ptr() for part in self._places)
        self._plan.mass = self._mass.data_ptr()
        padded = torch.empty(c.numel() // c.shape[-1], c.shape[-1] + 2, dtype=torch.float64)
        self._library.geonet_plan_points(self._plan, c.data_ptr(), padded.data_ptr())

    def marginal(self, side: int, scales: Scales) -> Tensor:
        held = torch.zeros(self._plan.threads, *self.shape, dtype=torch.float64)
        other, scale = self._address(scales[1 - side]), scales[side]
        self._library.geonet_plan_marginal(self._plan, side, other, held.data_ptr())
        total = held.sum(0) if len(held) > 1 else held[0]
        return total if scale is None else total * scale

    def push(self, potential: Tensor, held: Tensor) -> Tensor:
        return self._flow(potential, held, None, torch.empty_like(held))

    def pull(self, potential: Tensor, held: Tensor, means: Tensor) -> Tensor:
        return self._flow(potential, held, means, torch.empty_like(means))

    def _flow(
        self, potential: Tensor, held: Tensor, means: Tensor | None, result: Tensor
    ) -> Tensor:
        assert potential.dtype == torch.float32 and potential.is_contiguous()
        assert potential.shape == self.shape
        addresses = self._address(held), self._means_address(means)
        rate = torch.empty_like(held)
        self._library.geonet_plan_flow(
            self._plan, potential.data_ptr(), *addresses, rate.data_ptr(), result.data_ptr()
        )
        return result

    def repair_blocks(self, held: Tensor, required: Tensor) -> Tensor:
        means = torch.empty(len(self.shape), *self.shape, dtype=torch.float64)
        size = self._library.geonet_plan_blocks_size(self._plan)
        scratch = torch.empty(size, dtype=torch.float64)
        addresses = self._address(held), self._address(required), means.data_ptr()
        self._library.geonet_plan_blocks(self._plan, *addresses, scratch.data_ptr())
        return means

    def product(self, means: Sequence[Tensor], scales: Scales) -> float:
        ends = means[1] if scales[1] is None else (means[1] * scales[1]).contiguous()
        addresses = self._means_address(means[0]), self._means_address(ends)
        pair = (ctypes.c_void_p * 2)(*addresses)
        return self._library.geonet_plan_product(self._plan, pair, self._address(scales[0]))

    def _address(self, values: Tensor | None) -> int | None:
        if values is None:
            return None
        assert values.shape == self.shape and values.dtype == torch.float64
        assert values.is_contiguous()
        return values.data_ptr()

    def _means_address(self, values: Tensor | None) -> int | None:
        if values is None:
            return None
        assert values.shape == (len(self.shape), *self.shape) and values.is_contiguous()
        assert values.dtype == torch.float64
        return values.data_ptr()


@lru_cache(maxsize=8)
def _declare(library: ctypes.CDLL) -> bool:
    """Declare the functions of a library; return whether it was built for these structures."""
    version = 4
    numbers = [version, ctypes.sizeof(_Plan)]
    try:
        if list((ctypes.c_int32 * 2).in_dll(library, "geonet_bounds_abi")) != numbers:
            return False
    except ValueError:
        return False
    plan, pointer = ctypes.POINTER(_Plan), ctypes.c_void_p
    library.geonet_plan_points.argtypes = [plan, pointer, pointer]
    library.geonet_plan_marginal.argtypes = [plan, ctypes.c_int32, *[pointer] * 2]
    library.geonet_plan_flow.argtypes = [plan, *[pointer] * 5]
    library.geonet_plan_blocks.argtypes = [plan, *[pointer] * 4]
    library.geonet_plan_product.argtypes = [plan, pointer, pointer]
    library.geonet_plan_blocks_size.argtypes = [plan]
    for name in ("points", "marginal", "flow", "blocks"):
        getattr(library, f"geonet_plan_{name}").restype = None
    int32, int64, double = ctypes.c_int32, ctypes.c_int64, ctypes.c_double
    library.geonet_spline_axis.argtypes = [
        pointer, pointer, int64, int64, int32, int32, double, double, int32,
    ]  # fmt: skip
    library.geonet_spline_axis.restype = None
    library.geonet_plan_product.restype = double
    library.geonet_plan_blocks_size.restype = int64
    return True
