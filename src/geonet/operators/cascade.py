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

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from geonet.fields.bends import steepest
from geonet.fields.looks import Looked, looked
from geonet.fields.poisson import poisson_solved
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.architecture import LARGEST, ModelSettings
from geonet.operators.model import Header, Model
from geonet.operators.objective import Batch, Loss, LossSettings, Terms
from geonet.operators.symmetric_unet import SymmetricUNet, coarsened, halved
from geonet.settings import require

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
        from geonet.operators.cascade_path import network_path

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
