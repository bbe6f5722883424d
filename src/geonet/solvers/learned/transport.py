"""Trained operators of the transport form: a network for the potential, then straight lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geonet.errors import FileError, SolverError
from geonet.measures.density import Density
from geonet.operators.transport import TransportNet
from geonet.solvers.base import Solver
from geonet.solvers.learned.model_file import Header
from geonet.solvers.learned.opened import PRETRAINED, opened
from geonet.solvers.learned.sensors import all_sensed
from geonet.solvers.midpoint.calibration import Calibration
from geonet.solvers.midpoint.correction import cells_per_axis, corrected
from geonet.solvers.midpoint.geodesic import MidpointGeodesic
from geonet.solvers.midpoint.halfway import both_sides
from geonet.solvers.midpoint.pairs import Pairs
from geonet.solvers.midpoint.potential import STEEPEST, unfolded

BLURS = (0.015, 0.02, 0.025, 0.03, 0.04, 0.06)  # of the box: narrow features are foreign to most


@dataclass(frozen=True)
class TransportSolver(Solver):
    """A trained model of the transport form from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
        corrections: steps of Newton's method for pairs that are unlike those of the training; 0 for
            the network's answer alone.
    """

    name = "transport"
    summary = "a transport model from a file that `geonet train` wrote"
    dimensions = (1, 2, 3)

    file: str
    corrections: int = 5

    def __post_init__(self) -> None:
        if self.corrections < 0:
            raise SolverError(f"corrections is {self.corrections}; give 0 or more Newton steps.")

    @torch.no_grad()
    def _solve(self, source: Density, target: Density) -> MidpointGeodesic:
        model, header = opened(Path(self.file), TransportNet, source.grid.dimension)
        source, target = source.detach(), target.detach()
        calibration = calibration_in(header, self.file)
        notes: dict[str, Any] = {"model": header.get("name", Path(self.file).stem)}
        pairs = Pairs(source, target)
        coefficients, mismatch = without_folds(pairs, potential_of(model, source, target))
        foreign = torch.ones_like(mismatch, dtype=torch.bool)  # as far as is known
        if calibration is not None:
            foreign = mismatch > calibration.limit
        if self.corrections and bool(foreign.any()):
            before = coefficients.clone()
            ends = pairs.chosen(foreign)
            coefficients[foreign] = improved(model, *ends, before[foreign], self.corrections)
            changed = (coefficients != before).flatten(1).any(1)
            notes["corrected"] = changed.reshape(source.leading).tolist()
        usual = None if calibration is None else ~foreign
        return MidpointGeodesic(
            source, target, self.name, notes, coefficients, calibration, usual, pairs
        )

    _solve_pair = _solve


@torch.no_grad()
def potential_of(
    model: TransportNet, source: Density, target: Density, blur: float = 0.0
) -> Tensor:
    """The network's potentials at t = ½ in the unit cube, (B, modes, …), folded or not."""
    settings = model.settings
    first, second = all_sensed([source, target], settings.sensors)
    coefficients = model.coefficients(first, second, blur)
    return coefficients.unflatten(1, (settings.modes,) * settings.dimension)


def calibration_in(header: Header, file: str) -> Calibration | None:
    """What was measured with the model, if it was."""
    try:
        measured = header.get("measured", {}).get("calibration")
        return None if measured is None else Calibration(**measured)
    except (AttributeError, TypeError) as error:
        raise FileError(f"The header of {file} has an odd calibration; get it again.") from error


def without_folds(pairs: Pairs, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials for pairs, scaled down where they fold, and their mismatch, (B,).

    Both are looked at on a coarse grid.
    """
    cells, kept, mismatches = 2 * coefficients.shape[-1], [], []
    for some, ends in pairs.chunks(cells**pairs.grid.dimension):
        own = coefficients[some]
        sides = both_sides(own, ends, cells)
        if bool((sides.steepness > STEEPEST).any()):
            own = unfolded(own)
            sides = both_sides(own, ends, cells)
        kept.append(own)
        mismatches.append(sides.mismatch())
    return torch.cat(kept), torch.cat(mismatches)


def improved(
    model: TransportNet, source: Density, target: Density, guess: Tensor, steps: int
) -> Tensor:
    """The potentials of a batch that is foreign to the model, by Newton's method.

    It starts from the network's best guess: where features are narrower than any in the training,
    the network does better on blurred densities, whose potential is close to the one sought.
    """
    pairs = Pairs(source, target)
    best, least = without_folds(pairs, guess)
    for blur in BLURS:
        guess, mismatch = without_folds(pairs, potential_of(model, source, target, blur))
        better = (mismatch < least).reshape(-1, *(1,) * (best.ndim - 1))
        best, least = torch.where(better, guess, best), torch.minimum(least, mismatch)
    work = cells_per_axis(best) ** pairs.grid.dimension * best[0].numel()
    parts = [corrected(best[some], ends, steps) for some, ends in pairs.chunks(work // 16)]
    return torch.cat(parts)


@dataclass(frozen=True)
class Transport1D(TransportSolver):
    """The transport form, trained on 1D mixtures."""

    name = "transport-1d"
    summary = (
        "1D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds"
    )
    dimensions = (1,)

    file: str = str(PRETRAINED / "transport-1d.safetensors")


@dataclass(frozen=True)
class Transport2D(TransportSolver):
    """The transport form, trained on 2D mixtures."""

    name = "transport-2d"
    summary = (
        "2D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds"
    )
    dimensions = (2,)

    file: str = str(PRETRAINED / "transport-2d.safetensors")


@dataclass(frozen=True)
class Transport3D(TransportSolver):
    """The transport form, trained on 3D mixtures."""

    name = "transport-3d"
    summary = (
        "3D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds"
    )
    dimensions = (3,)

    file: str = str(PRETRAINED / "transport-3d.safetensors")


@dataclass(frozen=True)
class TransportCloud(TransportSolver):
    """The transport form, trained on histograms of point clouds."""

    name = "transport-cloud"
    summary = "2D, neural operator of the transport form, trained on histograms of point clouds"
    dimensions = (2,)

    file: str = str(PRETRAINED / "transport-cloud.safetensors")


@dataclass(frozen=True)
class TransportMNIST(TransportSolver):
    """The transport form, trained on images of handwritten digits."""

    name = "transport-mnist"
    summary = "2D, neural operator of the transport form, trained on images of MNIST's digits"
    dimensions = (2,)

    file: str = str(PRETRAINED / "transport-mnist.safetensors")
