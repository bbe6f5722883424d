"""The form "cascade" (universal-2d, universal-3d): any two densities to the potential at t = ½.

The cascade goes from a coarse grid to the fine one. On every grid a network receives the residual
r = ρ1 − ρ0 and the weight A of the Newton equation −div(A∇δ) = r at the current potential u, and
returns a correction of u: a learned Newton step. For the exact u both r and the correction vanish.
One network works on the coarsest grid, where mass moves far; another one on all finer grids, as its
lengths are in cells.

Training needs densities only. As long as no map folds, the Kantorovich dual value D(u) ≤ W2² is
concave in u, equals W2² for the exact u, and has the derivative 2∫δ(ρ1 − ρ0) along δ: the residual
is its gradient.

Recentring: transport commutes with translations. If the source is shifted by s and the target by
−s, the pair meets at the same points at t = ½, and the potential lacks the term 2s·y. So `predict`
shifts both ends by whole cells until their means agree, as far as empty cells allow, and adds the
term afterwards. Potentials are flat at the faces of the box; the term is bent there without folds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet._toml import require
from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics.cosine import cosine_transform, laplacian_eigenvalues
from geonet.numerics.splines import interpolate_centres, spline_stencil
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.neural.losses import Batch, Loss, LossSettings, Terms, max_abs_eigenvalue
from geonet.solvers.neural.model import (
    MAX_SIZE,
    PRETRAINED,
    Header,
    Model,
    ModelSettings,
    load_cached,
)
from geonet.solvers.neural.unet import SymmetricUNet, coarsen, prolong
from geonet.solvers.newton.iteration import InitialGuess, MultilevelNewton
from geonet.solvers.newton.path import MidpointGeodesic
from geonet.solvers.newton.system import ResidualState, evaluate_residual


@dataclass(frozen=True)
class CascadeConfig:
    """Constants of the cascade.

    Attributes:
        coarsest: cells along an axis of the coarsest grid in 2D and 3D.
        finest: cells along an axis of the finest grid in 2D and 3D.
        max_residual: limit on |r| relative to uniform in 2D; its power 3/2 in 3D, because a peak of
            equal width is higher there.
        small_error: relative error of the velocity below which pairs count less in the loss.
        fold_limit: |eigenvalue| of ½D²u above which a spline counts as folding in the loss.
        min_energy: fraction of the Poisson energy that bounds W2² from below in the loss.
        border: empty cells that recentring leaves at the faces.
        tie: distance from half a cell, in cells, below which recentring rounds towards zero.
    """

    coarsest: tuple[int, int] = (16, 8)
    finest: tuple[int, int] = (512, 64)
    max_residual: float = 30.0
    small_error: float = 0.01
    fold_limit: float = 1.02
    min_energy: float = 0.1
    border: int = 1
    tie: float = 1e-3


CONFIG = CascadeConfig()


@torch.no_grad()
def initial_potentials(source: Density, target: Density) -> Sequence[InitialGuess]:
    """Return initial guesses of the pretrained networks for Newton's method, one per pair."""
    d = source.grid.dimension
    if d == 1:
        from geonet.solvers.neural.transport.solver import transport_potentials

        return transport_potentials(source, target)
    name = f"universal-{d}d"
    report_progress(f"evaluating {name}")
    return predict(_load_pretrained(name, d), source, target)


@lru_cache
def _load_pretrained(name: str, dimension: int) -> CascadeNet:
    model, _ = load_cached(PRETRAINED / f"{name}.safetensors", dimension)
    assert isinstance(model, CascadeNet)
    return model


# ---- the model


@dataclass(frozen=True)
class CascadeSettings(ModelSettings):
    """The cascade: both densities to the potential at t = ½, grid by grid.

    Attributes:
        dimension: 2 or 3.
        sensors: cells along each axis in training, 16 (in 3D 8) times a power of two; predictions
            may use more.
        whole: features of the network for the coarsest grid; on its two coarser grids 4/3 and twice
            as many.
        detail: features of the network for finer grids; on its coarser grids twice, four times and
            four times as many.
    """

    kind: Literal["cascade"] = "cascade"
    dimension: int = 2
    sensors: int = 64
    whole: int = 48
    detail: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        d = self.dimension
        require(d in (2, 3), f"dimension is {d}; a cascade takes 2 or 3.")
        coarsest = CONFIG.coarsest[d - 2]
        cells = self.sensors // coarsest
        require(
            self.sensors % coarsest == 0 and cells > 0 and cells & (cells - 1) == 0,
            f"sensors is {self.sensors}; give {coarsest} times a power of two.",
        )
        for name in ("whole", "detail"):
            width = getattr(self, name)
            require(0 < width <= MAX_SIZE, f"{name} is {width}; give 1 to {MAX_SIZE} features.")


class CascadeNet(Model):
    """(μ0, μ1) ↦ spline coefficients of u at t = ½.

    Attributes:
        whole: the network of the coarsest grid (the name in model files).
        detail: the network of all finer grids.
    """

    Settings = CascadeSettings
    uses_cell_means = True

    settings: CascadeSettings

    def __init__(self, settings: CascadeSettings):
        super().__init__(settings)
        w, f, d = settings.whole, settings.detail, settings.dimension
        self.whole = SymmetricUNet((w, 4 * w // 3, 2 * w), (1, 1, 2), (1, 1, 0), d)
        self.detail = SymmetricUNet((f, 2 * f, 4 * f, 4 * f), (0, 1, 1, 1), (1, 1, 1, 0), d)

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Map densities of mean one, (B, n, …, n), to potentials on all grids, the coarsest first.

        The potentials are spline coefficients in squared cells of their grid, (B, 16, 16) to
        (B, n, n) or (B, 8, 8, 8) to (B, n, n, n). No gradient passes from one grid to the next:
        each has its own part of the loss.
        """
        levels = build_pyramid(source, target)
        potentials = [self.correct(torch.zeros_like(levels[0][0]), *levels[0])]
        for ends in levels[1:]:
            potentials.append(self.correct(prolong(potentials[-1].detach()), *ends))
        return potentials

    def correct(self, start: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return corrected potentials on the grid of the given ones, (B, n, …, n)."""
        state = evaluate_residual(start, source, target, torch.get_num_threads())
        residual = _clip_residual(state.residual)
        network = self.whole if _is_coarsest(start) else self.detail
        return start + network(residual, state.weight, solve_poisson(residual))

    def build_loss(self, settings: LossSettings, box: Grid) -> DualGapLoss:
        """Return the relative dual gap on every grid."""
        return DualGapLoss(self)

    def build_path(self, source: Density, target: Density, name: str, header: Header) -> Geodesic:
        """Return the path of the network's potential without Newton steps."""
        guesses = predict(self, source.detach(), target.detach())
        if not source.batch_shape:
            return _build_path(source, target, guesses[0], name)
        return BatchedGeodesic(
            [_build_path(source[k], target[k], guess, name) for k, guess in enumerate(guesses)]
        )

    def freeze(self) -> None:
        """Copy the weights of both networks for the compiled kernel."""
        self.whole.freeze()
        self.detail.freeze()

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Raise ConfigError for loss weights, a floor, other sampling schemes and compilation."""
        require(loss == LossSettings(), "the cascade has no loss weights; remove loss.")
        require(not floor, "the cascade accepts empty cells; remove floor.")
        require(scheme == "cartesian", 'the cascade supports sampling.scheme = "cartesian" only.')
        require(not compiled, "the cascade is not compiled; remove compile.")


def _build_path(
    source: Density, target: Density, guess: NetworkGuess, name: str
) -> MidpointGeodesic:
    box = unit_box(source.grid)
    first, second = (box.to_density(end.tensor.detach()) for end in (source, target))
    newton = MultilevelNewton(1.0, max_iterations=0, threads=threads_for(source.grid.size))
    result = newton.polish(first, second, box.sides, guess)
    c = result.coefficients - result.coefficients.mean()  # the constant is arbitrary
    return MidpointGeodesic(source, target, name, {}, c, result.residual, result.integrals)


def build_pyramid(source: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Average densities (B, n, …, n) to all grids, from the coarsest to n cells an axis."""
    levels = [(source, target)]
    while not _is_coarsest((ends := levels[-1])[0]):
        first, second = (coarsen(end[:, None])[:, 0] for end in ends)
        levels.append((first, second))
    return levels[::-1]


def _is_coarsest(fields: Tensor) -> bool:
    """Return whether fields (B, n, …, n) are on the coarsest grid."""
    return fields.shape[-1] <= CONFIG.coarsest[fields.ndim - 3]


def _clip_residual(residual: Tensor) -> Tensor:
    """Limit the peaks of a residual (B, *cells)."""
    limit = CONFIG.max_residual ** ((residual.ndim - 1) / 2)
    return residual.clamp(-limit, limit)


# ---- the loss


class DualGapLoss(Loss):
    """The relative dual gap 1 − D(u)/W2² of the potential on each grid, and a fold penalty.

    W2² is estimated without a solution: it is the largest of the dual value itself, the squared
    distance of means and standard deviations, and a fraction of the Poisson energy ∫r(−Δ)⁻¹r.
    """

    def __init__(self, model: CascadeNet):
        super().__init__()
        self.model = model
        cells = [CONFIG.coarsest[model.settings.dimension - 2]]
        while cells[-1] < model.settings.sensors:
            cells.append(2 * cells[-1])
        self.weights = {f"{term}_{n}": 1.0 for n in cells for term in ("deficit", "folds")}

    def forward(self, batch: Batch) -> Terms:
        """Return the means over all pairs."""
        shape = (self.model.settings.sensors,) * self.model.settings.dimension
        ends = batch.source.unflatten(1, shape), batch.target.unflatten(1, shape)
        return compute_losses(self.model(*ends), *ends)


def compute_losses(potentials: list[Tensor], source: Tensor, target: Tensor) -> Terms:
    """Return the loss terms of potentials on the finest grids, coarse first, means over pairs."""
    levels, terms = build_pyramid(source, target)[-len(potentials) :], {}
    states = [
        evaluate_residual(potential.detach(), *ends, torch.get_num_threads())
        for potential, ends in zip(potentials, levels, strict=True)
    ]
    scale = torch.maximum(states[-1].dual.float(), _w2_squared_estimate(source, target))
    for potential, state in zip(potentials, states, strict=True):
        n = potential.shape[-1]
        terms[f"deficit_{n}"] = _relative_dual_gap(potential, state, scale).mean()
        terms[f"folds_{n}"] = _fold_penalty(potential).mean()
    return terms


def _relative_dual_gap(coefficients: Tensor, state: ResidualState, scale: Tensor) -> Tensor:
    """Return 1 − D/scale, (B,), with the gradient of its root, so that no pair dominates.

    The derivative of D in the coefficients is 2r. The gap is about rᵀK⁻¹r with the Poisson operator
    K, so the derivative is divided by the root of that.
    """
    n, cells = coefficients.shape[-1], _cell_axes(coefficients)
    residual = _clip_residual(state.gradient) / n**2  # coefficients are in squared cells
    gap = (residual * solve_poisson(residual)).mean(cells) * n**2 / scale
    derivative = 2 * (residual * coefficients).mean(cells) / scale
    derivative = derivative / (gap + CONFIG.small_error**2).sqrt()
    return 1 - state.dual.float() / scale - (derivative - derivative.detach())


def _fold_penalty(coefficients: Tensor) -> Tensor:
    """Return the root mean square by which eigenvalues of ½D²u exceed the limit, (B,).

    The dual value of a folding potential is not a lower bound and may be arbitrarily large.
    """
    excess = (max_abs_eigenvalue(coefficients) - CONFIG.fold_limit).clamp(min=0)
    small = CONFIG.small_error
    return (excess.square().mean(_cell_axes(excess)) + small**2).sqrt() - small


def _w2_squared_estimate(source: Tensor, target: Tensor) -> Tensor:
    """Return an approximate lower bound on W2² in the unit box, (B,)."""
    n, cells = source.shape[-1], _cell_axes(source)
    x = (torch.arange(n, device=source.device) + 0.5) / n
    moments = torch.zeros(len(source), device=source.device)
    for axis in cells:
        others = tuple(other for other in cells if other != axis)
        first, second = (_mean_and_deviation(end.mean(others), x) for end in (source, target))
        moments = moments + (first - second).square().sum(0)
    residual = target - source
    energy = (residual * solve_poisson(residual)).mean(cells) / n**2
    return torch.maximum(moments, CONFIG.min_energy * energy) + 1e-7


def _mean_and_deviation(density: Tensor, x: Tensor) -> Tensor:
    """Return mean and standard deviation of densities (B, n) along an axis, (2, B)."""
    mean = (density * x).mean(1)
    variance = (density * (x - mean[:, None]) ** 2).mean(1)
    return torch.stack([mean, variance.sqrt()])


def _cell_axes(fields: Tensor) -> tuple[int, ...]:
    """Return the axes of the cells in fields (B, *cells)."""
    return tuple(range(1, fields.ndim))


# ---- inference: densities on any grid to the square (in 3D the cube) of the cascade, and back


class NetworkGuess(InitialGuess):
    """The potential of one pair, with the network that refines it.

    Args:
        model: the network.
        ends: both densities of the pair, (2, *cells).
        grid: the grid of the densities.
        recentring: the shift of the ends.
        square: spline coefficients on the cells of the square, (n, …, n), in squared cells.
        halvings: number of times that the cells were halved.
    """

    def __init__(
        self,
        model: CascadeNet,
        ends: Tensor,
        grid: Grid,
        recentring: Recentring,
        square: Tensor,
        halvings: int = 0,
    ):
        self.model, self.ends, self.grid, self.recentring = model, ends, grid, recentring
        self.square, self.halvings = square, halvings
        potential = square[None].double() / len(square) ** 2
        potential = _to_grid(potential, grid, halvings)
        super().__init__(_undo_recentring(potential, grid, recentring)[0])

    @torch.no_grad()
    def refine(self) -> NetworkGuess | None:
        """Return the corrected potential on cells of half the side; None beyond the finest."""
        cells = 2 * len(self.square)
        if cells > CONFIG.finest[self.grid.dimension - 2]:
            return None
        ends = self.recentring.apply(*_to_square(self.ends, self.grid, cells)[:, None])
        (square,) = self.model.correct(prolong(self.square[None]), *ends)
        return NetworkGuess(
            self.model, self.ends, self.grid, self.recentring, square, self.halvings + 1
        )


@torch.no_grad()
def predict(model: CascadeNet, source: Density, target: Density) -> list[NetworkGuess]:
    """Return the potential of every pair on its own grid, with one call of the network."""
    grid, cells = source.grid, choose_resolution(source.grid)
    first, second = (end.tensor.reshape(-1, *grid.shape) for end in (source, target))
    on_square = _to_square(first, grid, cells), _to_square(second, grid, cells)
    recentring = fit_recentring(*on_square)
    squares = model(*recentring.apply(*on_square))[-1]
    return [
        NetworkGuess(model, ends, grid, recentring[k : k + 1], square)
        for k, (ends, square) in enumerate(
            zip(torch.stack([first, second], 1), squares, strict=True)
        )
    ]


def choose_resolution(grid: Grid) -> int:
    """Return the cells per axis of the square around a box: a power of two, at least as fine."""
    finest = max(n / side for n, side in zip(grid.shape, unit_box(grid).sides, strict=True))
    cells, k = 2 ** math.ceil(math.log2(finest) - 1e-9), grid.dimension - 2
    return min(max(cells, 2 * CONFIG.coarsest[k]), CONFIG.finest[k])


def _to_square(values: Tensor, grid: Grid, cells: int) -> Tensor:
    """Average densities over the cells of the square centred at the box, (B, cells, …)."""
    box = unit_box(grid)
    values = box.to_density(values).float()
    for axis, (n, side) in enumerate(zip(grid.shape, box.sides, strict=True), 1):
        if (n, side) != (cells, 1.0):
            values = _apply_along(values, _averaging_matrix(n, side, cells), axis)
    return values


def _to_grid(coefficients: Tensor, grid: Grid, halvings: int) -> Tensor:
    """Express potentials on the square by splines on the halved cells of a grid, (B, *cells)."""
    cells, sides = coefficients.shape[-1], unit_box(grid).sides
    shape = tuple(n << halvings for n in grid.shape)
    if shape == (cells,) * len(shape) and set(sides) == {1.0}:
        return coefficients
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True), 1):
        coefficients = _apply_along(coefficients, _evaluation_matrix(n, side, cells), axis)
    return torch.stack([interpolate_centres(own) for own in coefficients])


def _apply_along(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    return (values.movedim(axis, -1) @ matrix.to(values.dtype).T).movedim(-1, axis)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _averaging_matrix(n: int, side: float, cells: int) -> Tensor:
    """Return (cells, n): from n cells of a centred interval of [0, 1] to means over its cells."""
    own = side * torch.arange(n + 1, dtype=torch.float64) / n + (1 - side) / 2
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    upper = torch.minimum(edges[1:, None], own[1:])
    lower = torch.maximum(edges[:-1, None], own[:-1])
    return cells * (upper - lower).clamp(min=0)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _evaluation_matrix(n: int, side: float, cells: int) -> Tensor:
    """Return (n, cells): from splines on [0, 1] to values at n cell centres of the interval."""
    centres = side * (torch.arange(n, dtype=torch.float64) + 0.5) / n + (1 - side) / 2
    indices, (weights, _, _) = spline_stencil(centres, 1 / cells, cells)
    return torch.zeros(n, cells, dtype=torch.float64).scatter_add_(1, indices, weights)


# ---- recentring


@dataclass(frozen=True)
class Recentring:
    """Shifts of pairs in the unit square or cube.

    Attributes:
        steps: added to the positions of the source, subtracted from the target's, (B, d).
        centre: the mean of both ends, (B, d), where the term 2s·y is zero: quadrature gives both
            ends slightly different masses, so that a constant would change the dual value.
        room: distance from the lower and the upper face to the support at t = ½, (B, d, 2).
    """

    steps: Tensor
    centre: Tensor
    room: Tensor

    def __getitem__(self, pairs: slice) -> Recentring:
        return Recentring(self.steps[pairs], self.centre[pairs], self.room[pairs])

    def apply(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shifted ends, (B, n, …, n) each."""
        cells = (self.steps * source.shape[-1]).round().long()
        return _roll(source, cells), _roll(target, -cells)

    def potential(self, axis: int, n: int, side: float) -> Tensor:
        """Return the term 2s·y along an axis: spline coefficients (B, n) on the centred interval.

        Between two cells the slope of a spline is the difference of their coefficients.
        """
        outside, step = (1 - side) / 2, 2 * self.steps[:, axis, None]
        edges = side * torch.arange(1, n, dtype=torch.float64) / n + outside
        low, high = self.room[:, axis, :, None].clamp(min=CONFIG.tie / n).unbind(1)
        slope = step * torch.minimum(edges / low, (1 - edges) / high).clamp(max=1)
        values = pad(slope.cumsum(1) * side / n, (1, 0))
        position = (self.centre[:, axis, None] - outside) / side * n - 0.5  # in cells
        nearest = position.round().clamp(0, n - 1).long()
        return values - values.gather(1, nearest) - step * (position - nearest) * side / n


def fit_recentring(source: Tensor, target: Tensor) -> Recentring:
    """Return the shifts for densities (B, n, …, n), as far as the empty cells around them allow."""
    count, n, d = len(source), source.shape[-1], source.ndim - 1
    if not count or min(float(source.min()), float(target.min())) > 0:  # no empty cells
        zero = torch.zeros(count, d, dtype=torch.float64)
        return Recentring(zero, zero, torch.zeros(count, d, 2, dtype=torch.float64))
    axes = [_fit_axis(source, target, axis) for axis in range(1, d + 1)]
    steps, centre, low, high = (torch.stack(parts, 1) / n for parts in zip(*axes, strict=True))
    return Recentring(steps, centre, torch.stack([low, high], 2))


def _fit_axis(source: Tensor, target: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return step, centre and room at both faces along an axis, in cells, (B,) each."""
    line = torch.arange(source.shape[-1], dtype=torch.float64)
    (mean0, low0, high0), (mean1, low1, high1) = (
        _mean_and_margins(_marginal(end, axis), line) for end in (source, target)
    )
    half = (mean1 - mean0) / 2
    wanted = half.sign() * (half.abs() + 0.5 - CONFIG.tie).floor()
    low, high = (low0 + low1) / 2, (high0 + high1) / 2
    injective = torch.minimum(low, high).floor()  # a longer step would fold at the faces
    up = torch.minimum(torch.minimum(high0, low1) - CONFIG.border, injective).clamp(min=0)
    down = torch.minimum(torch.minimum(low0, high1) - CONFIG.border, injective).clamp(min=0)
    step = torch.maximum(torch.minimum(wanted, up), -down)
    return step, (mean0 + mean1) / 2 + 0.5, low, high


def _marginal(density: Tensor, axis: int) -> Tensor:
    """Return the marginal along an axis, (B, n), with sum one."""
    others = [other for other in range(1, density.ndim) if other != axis]
    marginal = density.double().sum(others)
    return marginal / marginal.sum(1, keepdim=True)


def _mean_and_margins(marginal: Tensor, line: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean cell and the numbers of empty cells below and above, (B,) each."""
    full, last = marginal > 0, len(line) - 1
    below = torch.where(full, line, last).amin(1)
    above = torch.where(full, last - line, last).amin(1)
    return (marginal * line).sum(1), below, above


def _roll(values: Tensor, cells: Tensor) -> Tensor:
    """Shift fields (B, n, …, n) by whole cells (B, d); only empty cells are wrapped around."""
    axes = tuple(range(values.ndim - 1))
    pairs = zip(values, cells.tolist(), strict=True)
    return torch.stack([own.roll(by, axes) if any(by) else own for own, by in pairs])


def _undo_recentring(coefficients: Tensor, grid: Grid, recentring: Recentring) -> Tensor:
    """Convert potentials (B, *cells) of shifted ends to potentials of the ends."""
    if not bool(recentring.steps.any()):
        return coefficients
    for axis, side in enumerate(unit_box(grid).sides):
        n, after = coefficients.shape[axis + 1], grid.dimension - 1 - axis
        term = recentring.potential(axis, n, side)
        coefficients = coefficients + term.view(-1, *(1,) * axis, n, *(1,) * after)
    return coefficients


# ---- Poisson's equation on cells


def solve_poisson(right: Tensor) -> Tensor:
    """Solve −Δu = right for fields (B, *cells) of mean zero, with no flux through the faces.

    Lengths are in units of a cell, and Δ has the stencil 1, −2, 1 along each axis.
    """
    shape = right.shape[1:]
    for axis, n in enumerate(shape, 1):
        right = _multiply_axis(right, _transforms(n)[0], axis)
    right = right / _single_precision_eigenvalues(shape)
    for axis, n in enumerate(shape, 1):
        right = _multiply_axis(right, _transforms(n)[1], axis)
    return right


def _multiply_axis(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    if axis == values.ndim - 2:
        return matrix @ values
    return (values.movedim(axis, -1) @ matrix.T).movedim(-1, axis)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _transforms(n: int) -> tuple[Tensor, Tensor]:
    """Return the cosine transform and its inverse, (n, n) each, single precision."""
    forward = cosine_transform(n)
    return forward.float(), torch.linalg.inv(forward).float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _single_precision_eigenvalues(shape: torch.Size) -> Tensor:
    return laplacian_eigenvalues(shape, (1.0,) * len(shape)).float()
