"""The form "cascade": any two densities to the potential at t = ½, from coarse to fine.

On every grid a network is shown what the potential so far leaves unbalanced halfway, and corrects
it: a Newton step that was learnt. Its fields are the residual r = ρ1 − ρ0 and the matrix A of
`fields.elliptic`. At u = 0 these are the densities themselves; where u is right r is zero, and so
is the correction. One network answers on the coarsest grid, where things move far; another on every
finer one, whatever its size, since it knows lengths in cells only.

It learns from densities alone. As long as nothing folds, Kantorovich's dual value D(u) ≤ W2² is
concave in u. It is W2² where u is right, and its derivative along δ is 2∫δ(ρ1 − ρ0): the residual
is the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from geonet._threads import threads_for
from geonet._toml import require
from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics.cosine import poisson_solved
from geonet.numerics.splines import axis_taps, interpolated
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.neural.losses import Batch, Loss, LossSettings, Terms
from geonet.solvers.neural.model import LARGEST, Header, Model, ModelSettings
from geonet.solvers.neural.unet import SymmetricUNet, coarsened, halved, steepest
from geonet.solvers.newton.iteration import Newton, Start
from geonet.solvers.newton.path import SplineGeodesic
from geonet.solvers.newton.system import Looked, looked

COARSEST = {2: 16, 3: 8}  # cells along an axis where it begins, by dimension
STEEPEST = 30.0  # residual, relative to uniform, that counts as no more; to the 3/2 in 3D
SMALL = 0.01  # relative error of the velocity below which pairs count less and less
FOLDS = 1.02  # |eigenvalue| of ½D²u above which a map folds, with room for splines
FAINT = 0.1  # share of Poisson's energy that a squared distance is at least, to compare with


@dataclass(frozen=True)
class CascadeSettings(ModelSettings):
    """The cascade: both densities to the potential at t = ½, grid by grid.

    Attributes:
        dimension: 2 or 3.
        sensors: cells along each axis in training, 16 times a power of two, in 3D 8 times one;
            answers may have more.
        whole: features of the network for the coarsest grid; on its two coarser ones 4/3 and twice
            as many.
        detail: features of the network for finer grids; on its coarser ones twice, four times and
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
        require(d in COARSEST, f"dimension is {d}; a cascade takes 2 or 3.")
        cells = self.sensors // COARSEST[d]
        require(
            self.sensors % COARSEST[d] == 0 and cells > 0 and cells & (cells - 1) == 0,
            f"sensors is {self.sensors}; give {COARSEST[d]} times a power of two.",
        )
        for name in ("whole", "detail"):
            width = getattr(self, name)
            require(0 < width <= LARGEST, f"{name} is {width}; give 1 to {LARGEST} features.")


class CascadeNet(Model):
    """(μ0, μ1) ↦ spline coefficients of u at t = ½."""

    Settings = CascadeSettings
    sees_means = True

    settings: CascadeSettings

    def __init__(self, settings: CascadeSettings):
        super().__init__(settings)
        w, f, d = settings.whole, settings.detail, settings.dimension
        self.whole = SymmetricUNet((w, 4 * w // 3, 2 * w), (1, 1, 2), (1, 1, 0), d)
        self.detail = SymmetricUNet((f, 2 * f, 4 * f, 4 * f), (0, 1, 1, 1), (1, 1, 1, 0), d)

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Densities of mean one, (B, n, …, n), to potentials on grids from the coarsest to n cells.

        These are spline coefficients, (B, 16, 16) to (B, n, n) or (B, 8, 8, 8) to (B, n, n, n), in
        squared cells of their grid. No gradient leads from one grid to the next: each has its own
        part of the objective.
        """
        levels = averaged(source, target)
        answers = [self.corrected(torch.zeros_like(levels[0][0]), *levels[0])]
        for ends in levels[1:]:
            answers.append(self.corrected(halved(answers[-1].detach()), *ends))
        return answers

    def corrected(self, start: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Potentials on a grid, (B, n, …, n), from others on the same one."""
        look = looked(start, source, target, torch.get_num_threads())
        residual = _bounded(look.residual)
        network = self.whole if _is_coarsest(start) else self.detail
        return start + network(residual, look.weight, poisson_solved(residual))

    def on_cells(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """What the sensors read, (B, m) each, as densities (B, n, …, n)."""
        cells = (self.settings.sensors,) * self.settings.dimension
        return source.unflatten(1, cells), target.unflatten(1, cells)

    def objective(self, settings: LossSettings, box: Grid) -> DualObjective:
        """What the dual value lacks, on every grid."""
        return DualObjective(self)

    def path(self, source: Density, target: Density, name: str, header: Header) -> Geodesic:
        """The network's answer alone."""

        return network_path(self, source, target, name)

    def freeze(self) -> None:
        """Answer by the compiled loops."""
        self.whole.freeze()
        self.detail.freeze()

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """There is nothing to weigh."""
        require(loss == LossSettings(), "the cascade has no weights; remove loss.")
        require(not floor, "the cascade takes empty cells as they are; remove floor.")
        require(scheme == "cartesian", 'the cascade takes sampling.scheme = "cartesian" only.')
        require(not compiled, "the cascade is not compiled; remove compile.")


def averaged(source: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Densities (B, n, …, n) on grids from the coarsest to n cells an axis, each twice as fine."""
    levels = [(source, target)]
    while not _is_coarsest((ends := levels[-1])[0]):
        first, second = (coarsened(end[:, None])[:, 0] for end in ends)
        levels.append((first, second))
    return levels[::-1]


def _is_coarsest(fields: Tensor) -> bool:
    """Whether fields (B, n, …, n) are on the grid where a cascade begins."""
    return fields.shape[-1] <= COARSEST[fields.ndim - 1]


class DualObjective(Loss):
    """What the dual value of each grid's potential lacks of W2², as a share of it; and folds.

    The share is of an estimate of W2² that needs no solution: the largest of the dual value itself,
    the squared distance of means and spreads, and a part of Poisson's energy ∫r(−Δ)⁻¹r.
    """

    def __init__(self, model: CascadeNet):
        super().__init__()
        self.model = model
        cells = [COARSEST[model.settings.dimension]]
        while cells[-1] < model.settings.sensors:
            cells.append(2 * cells[-1])
        self.weights = {f"{term}_{n}": 1.0 for n in cells for term in ("deficit", "folds")}

    def forward(self, batch: Batch) -> Terms:
        """Means over all pairs; the gradient in the coefficients is the residual's."""
        ends = self.model.on_cells(batch.source, batch.target)
        return losses(self.model(*ends), *ends)


def losses(answers: list[Tensor], source: Tensor, target: Tensor) -> Terms:
    """The terms of every answer, means over pairs; these are on the finest grids, coarse first."""
    levels, terms = averaged(source, target)[-len(answers) :], {}
    looks = [
        looked(answer.detach(), *pair, torch.get_num_threads())
        for answer, pair in zip(answers, levels, strict=True)
    ]
    scale = torch.maximum(looks[-1].dual.float(), _least(source, target))
    for answer, look in zip(answers, looks, strict=True):
        n = answer.shape[-1]
        terms[f"deficit_{n}"] = _deficit(answer, look, scale).mean()
        terms[f"folds_{n}"] = _folds(answer).mean()
    return terms


def _deficit(coefficients: Tensor, look: Looked, scale: Tensor) -> Tensor:
    """1 − D/scale, (B,), with the gradient of its root, in which no pair outweighs the others.

    The derivative of D in the coefficients is 2r. What D still lacks is about rᵀK⁻¹r, with
    Poisson's operator for K: the derivative is divided by the root of that.
    """
    n, cells = coefficients.shape[-1], _cells(coefficients)
    residual = _bounded(look.gradient) / n**2  # coefficients are in squared cells
    lacking = (residual * poisson_solved(residual)).mean(cells) * n**2 / scale
    along = 2 * (residual * coefficients).mean(cells) / scale
    along = along / (lacking + SMALL**2).sqrt()
    return 1 - look.dual.float() / scale - (along - along.detach())


def _folds(coefficients: Tensor) -> Tensor:
    """How far second derivatives leave [−2, 2], where maps fold, (B,): root of the mean square.

    Of a potential that folds the dual value is no bound any more, and may be anything.
    """
    beyond = (steepest(coefficients) - FOLDS).clamp(min=0)
    return (beyond.square().mean(_cells(beyond)) + SMALL**2).sqrt() - SMALL


def _least(source: Tensor, target: Tensor) -> Tensor:
    """About what W2² is at least in the unit box, (B,)."""
    n, cells = source.shape[-1], _cells(source)
    x = (torch.arange(n, device=source.device) + 0.5) / n
    moved = torch.zeros(len(source), device=source.device)
    for axis in cells:
        others = tuple(other for other in cells if other != axis)
        first, second = (_moments(end.mean(others), x) for end in (source, target))
        moved = moved + (first - second).square().sum(0)
    residual = target - source
    energy = (residual * poisson_solved(residual)).mean(cells) / n**2
    return torch.maximum(moved, FAINT * energy) + 1e-7


def _moments(density: Tensor, x: Tensor) -> Tensor:
    """Mean and standard deviation of densities (B, n) along an axis, (2, B)."""
    mean = (density * x).mean(1)
    spread = (density * (x - mean[:, None]) ** 2).mean(1)
    return torch.stack([mean, spread.sqrt()])


def _bounded(residual: Tensor) -> Tensor:
    """A residual (B, *cells) without peaks: what is as wide is higher in space than in a plane."""
    most = STEEPEST ** ((residual.ndim - 1) / 2)
    return residual.clamp(-most, most)


def _cells(fields: Tensor) -> tuple[int, ...]:
    """The axes of fields (B, *cells) along which their cells are."""
    return tuple(range(1, fields.ndim))


# ---- Both ends of a pair moved towards each other by whole cells, until their means agree.
#
# Transport commutes with translations. If a source is moved by s and its target by −s, the pair meets
# at the same places halfway, and the potential lacks the part 2s·y. What is small and has far to go
# is then no harder than what stays.
#
# A potential is flat at the faces of the box. So 2s·y is bent there, between the places where the
# ends can meet and the face, and so little that nothing folds.


BORDER = 1  # empty cells that a move leaves
TIE = 1e-3  # of a cell: what is nearer to half a cell counts as less, whichever way one looks


class Moves(NamedTuple):
    """By how much pairs are moved, in the unit square or cube.

    Attributes:
        steps: what is added to a source's place and taken from a target's, (B, d).
        centre: the mean of both ends, where `potential` is zero, (B, d). A constant would count:
            sums over half-cells give both ends masses that differ a little.
        room: from the lower and the upper face to where the ends can meet, (B, d, 2).
    """

    steps: Tensor
    centre: Tensor
    room: Tensor

    def of(self, k: int) -> Moves:
        """One pair's."""
        return Moves(*(part[k : k + 1] for part in self))

    def apply(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The moved ends, (B, n, …, n) each."""
        cells = (self.steps * source.shape[-1]).round().long()
        return _rolled(source, cells), _rolled(target, -cells)

    def potential(self, axis: int, n: int, side: float) -> Tensor:
        """What moved ends lack along an axis: spline coefficients (B, n) in the middle's `side`.

        Between two cells the slope of a spline is the difference of their coefficients.
        """
        outside, step = (1 - side) / 2, 2 * self.steps[:, axis, None]
        edges = side * torch.arange(1, n, dtype=torch.float64) / n + outside
        low, high = self.room[:, axis, :, None].clamp(min=TIE / n).unbind(1)
        slope = step * torch.minimum(edges / low, (1 - edges) / high).clamp(max=1)
        values = torch.nn.functional.pad(slope.cumsum(1) * side / n, (1, 0))
        place = (self.centre[:, axis, None] - outside) / side * n - 0.5  # in cells
        nearest = place.round().clamp(0, n - 1).long()
        return values - values.gather(1, nearest) - step * (place - nearest) * side / n


def moves_between(source: Tensor, target: Tensor) -> Moves:
    """For densities (B, n, …, n), as far as the empty cells around them allow."""
    count, n, d = len(source), source.shape[-1], source.ndim - 1
    if not count or min(float(source.min()), float(target.min())) > 0:  # often, and soon said
        nothing = torch.zeros(count, d, dtype=torch.float64)
        return Moves(nothing, nothing, torch.zeros(count, d, 2, dtype=torch.float64))
    along = [_along_moves(source, target, axis) for axis in range(1, d + 1)]
    steps, centre, low, high = (torch.stack(parts, 1) / n for parts in zip(*along, strict=True))
    return Moves(steps, centre, torch.stack([low, high], 2))


def _along_moves(
    source: Tensor, target: Tensor, axis: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Step, centre and room at both faces along an axis, in cells, (B,) each."""
    n = source.shape[-1]
    line = torch.arange(n, dtype=torch.float64)
    (mean0, low0, high0), (mean1, low1, high1) = (
        _extent(_marginal(end, axis), line) for end in (source, target)
    )
    half = (mean1 - mean0) / 2
    wanted = half.sign() * (half.abs() + 0.5 - TIE).floor()
    low, high = (low0 + low1) / 2, (high0 + high1) / 2
    unfolded = torch.minimum(low, high).floor()
    up = torch.minimum(torch.minimum(high0, low1) - BORDER, unfolded).clamp(min=0)
    down = torch.minimum(torch.minimum(low0, high1) - BORDER, unfolded).clamp(min=0)
    step = torch.maximum(torch.minimum(wanted, up), -down)
    return step, (mean0 + mean1) / 2 + 0.5, low, high


def _marginal(density: Tensor, axis: int) -> Tensor:
    """Along an axis, (B, n), of sum one."""
    others = [other for other in range(1, density.ndim) if other != axis]
    own = density.double().sum(others)
    return own / own.sum(1, keepdim=True)


def _extent(marginal: Tensor, line: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean cell, and how many are empty below and above, (B,) each."""
    full, last = marginal > 0, len(line) - 1
    below = torch.where(full, line, last).amin(1)
    above = torch.where(full, last - line, last).amin(1)
    return (marginal * line).sum(1), below, above


def _rolled(values: Tensor, cells: Tensor) -> Tensor:
    """Fields (B, n, …, n) moved by whole cells (B, d); what is rolled round is empty."""
    axes = tuple(range(values.ndim - 1))
    pairs = zip(values, cells.tolist(), strict=True)
    return torch.stack([own.roll(by, axes) if any(by) else own for own, by in pairs])


# ---- From densities on any grid to the square of a cascade, and from its potentials back.
#
# In 3D the square is a cube.


LEAST = {d: 2 * cells for d, cells in COARSEST.items()}  # cells of the square along an axis
MOST = {2: 512, 3: 64}


def square_cells(grid: Grid) -> int:
    """Cells an axis of the square around a box: a power of two, at best not coarser than it."""
    finest = max(n / side for n, side in zip(grid.shape, unit_box(grid).sides, strict=True))
    cells, d = 2 ** math.ceil(math.log2(finest) - 1e-9), grid.dimension
    return min(max(cells, LEAST[d]), MOST[d])


class Guess(Start):
    """A network's potential for one pair, and those on smaller cells.

    Args:
        model: the network.
        ends: both densities of the pair, (2, *cells).
        grid: whose cells these are.
        moves: of the ends, when the network saw them.
        square: spline coefficients on the cells of the square, (n, …, n), in their squares.
        halvings: how often cells were halved.
    """

    def __init__(
        self,
        model: CascadeNet,
        ends: Tensor,
        grid: Grid,
        moves: Moves,
        square: Tensor,
        halvings: int = 0,
    ):
        self.known, self.square, self.halvings = (model, ends, grid, moves), square, halvings
        potential = square[None].double() / len(square) ** 2
        super().__init__(_unmoved(_on_grid(potential, grid, halvings), grid, moves)[0])

    @torch.no_grad()
    def finer(self) -> Guess | None:
        """The network's correction on cells of half the side; None beyond the finest."""
        (model, ends, grid, moves), cells = self.known, 2 * len(self.square)
        if cells > MOST[grid.dimension]:
            return None
        source, target = moves.apply(*_on_square(ends, grid, cells)[:, None])
        (found,) = model.corrected(halved(self.square[None]), source, target)
        return Guess(model, ends, grid, moves, found, self.halvings + 1)


@torch.no_grad()
def guesses_of(model: CascadeNet, source: Density, target: Density) -> list[Guess]:
    """The potential of every pair on the grid's own cells, by one call of the network."""
    grid, cells = source.grid, square_cells(source.grid)
    first, second = (end.tensor.reshape(-1, *grid.shape) for end in (source, target))
    on_square = _on_square(first, grid, cells), _on_square(second, grid, cells)
    moves = moves_between(*on_square)
    answers = model(*moves.apply(*on_square))[-1]
    pairs = zip(torch.stack([first, second], 1), answers, strict=True)
    return [Guess(model, ends, grid, moves.of(k), own) for k, (ends, own) in enumerate(pairs)]


def network_path(model: CascadeNet, source: Density, target: Density, name: str) -> Geodesic:
    """The path of the network's potential as it is."""
    guesses = guesses_of(model, source.detach(), target.detach())
    if not source.leading:
        return _path(source, target, guesses[0], name)
    return BatchedGeodesic(
        [_path(source[k], target[k], own, name) for k, own in enumerate(guesses)]
    )


def _path(source: Density, target: Density, guess: Guess, name: str) -> SplineGeodesic:
    box = unit_box(source.grid)
    first, second = (box.to_density(end.tensor.detach()) for end in (source, target))
    newton = Newton(1.0, max_steps=0, threads=threads_for(source.grid.size))
    found = newton.polished(first, second, box.sides, guess)
    c = found.coefficients - found.coefficients.mean()  # the constant is free
    return SplineGeodesic(source, target, name, {}, c, found.residual, found.totals)


def _on_square(values: Tensor, grid: Grid, cells: int) -> Tensor:
    """Means over the cells of the square in whose middle the box is, (B, cells, …)."""
    box = unit_box(grid)
    values = box.to_density(values).float()
    for axis, (n, side) in enumerate(zip(grid.shape, box.sides, strict=True), 1):
        if (n, side) != (cells, 1.0):
            values = _along(values, _means(n, side, cells), axis)
    return values


def _on_grid(coefficients: Tensor, grid: Grid, halvings: int) -> Tensor:
    """The potential on the square in splines on the grid's cells, halved or not, (B, *cells)."""
    cells, sides = coefficients.shape[-1], unit_box(grid).sides
    shape = tuple(n << halvings for n in grid.shape)
    if shape == (cells,) * len(shape) and set(sides) == {1.0}:
        return coefficients
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True), 1):
        coefficients = _along(coefficients, _values(n, side, cells), axis)
    return torch.stack([interpolated(own) for own in coefficients])


def _unmoved(coefficients: Tensor, grid: Grid, moves: Moves) -> Tensor:
    """Potentials (B, *cells) of moved ends to those of the ends themselves."""
    if not bool(moves.steps.any()):
        return coefficients
    for axis, side in enumerate(unit_box(grid).sides):
        n, after = coefficients.shape[axis + 1], grid.dimension - 1 - axis
        own = moves.potential(axis, n, side)
        coefficients = coefficients + own.view(-1, *(1,) * axis, n, *(1,) * after)
    return coefficients


def _along(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    return (values.movedim(axis, -1) @ matrix.to(values.dtype).T).movedim(-1, axis)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _means(n: int, side: float, cells: int) -> Tensor:
    """(cells, n): from n cells of a side to means over those of [0, 1], in whose middle it is."""
    own = side * torch.arange(n + 1, dtype=torch.float64) / n + (1 - side) / 2
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    upper = torch.minimum(edges[1:, None], own[1:])
    lower = torch.maximum(edges[:-1, None], own[:-1])
    return cells * (upper - lower).clamp(min=0)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _values(n: int, side: float, cells: int) -> Tensor:
    """(n, cells): from spline coefficients on [0, 1] to values at the centres of a side's cells."""
    centres = side * (torch.arange(n, dtype=torch.float64) + 0.5) / n + (1 - side) / 2
    taps, (weights, _, _) = axis_taps(centres, 1 / cells, cells)
    return torch.zeros(n, cells, dtype=torch.float64).scatter_add_(1, taps, weights)
