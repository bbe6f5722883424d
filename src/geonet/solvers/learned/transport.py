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
from geonet.solvers.learned.sensors import sensed
from geonet.solvers.midpoint.calibration import Calibration
from geonet.solvers.midpoint.correction import cells_per_axis, corrected
from geonet.solvers.midpoint.geodesic import MidpointGeodesic
from geonet.solvers.midpoint.halfway import both_sides
from geonet.solvers.midpoint.potential import STEEPEST, steepness, unfolded

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

    def _solve(self, source: Density, target: Density) -> MidpointGeodesic:
        model, header = opened(Path(self.file), TransportNet, source.grid.dimension)
        source, target = source.detach(), target.detach()
        notes: dict[str, Any] = {"model": header.get("name", Path(self.file).stem)}
        guess = potential_of(model, source, target)
        path = MidpointGeodesic(source, target, self.name, notes, guess)
        path.coefficients, mismatch = without_folds(path, guess)
        path.calibration = calibration_in(header, self.file)
        foreign = torch.ones_like(mismatch, dtype=torch.bool)  # as far as is known
        if path.calibration is not None:
            foreign = mismatch > path.calibration.limit
            path.usual = ~foreign
        if self.corrections and bool(foreign.any()):
            path.coefficients = corrected_where(foreign, path, model, self.corrections)
            notes["corrected"] = foreign.reshape(path.batch).tolist()
        return path

    _solve_pair = _solve


@torch.no_grad()
def potential_of(
    model: TransportNet, source: Density, target: Density, blur: float = 0.0
) -> Tensor:
    """The network's potentials at t = ½ in the unit cube, (B, modes, …), folded or not."""
    settings = model.settings
    first, second = (sensed(end, settings.sensors) for end in (source, target))
    coefficients = model.coefficients(first, second, blur)
    return coefficients.unflatten(1, (settings.modes,) * settings.dimension)


def calibration_in(header: Header, file: str) -> Calibration | None:
    """What was measured with the model, if it was."""
    try:
        measured = header.get("measured", {}).get("calibration")
        return None if measured is None else Calibration(**measured)
    except (AttributeError, TypeError) as error:
        raise FileError(f"The header of {file} has an odd calibration; get it again.") from error


def without_folds(path: MidpointGeodesic, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials for the pairs of a path, scaled down where they fold, and their mismatch, (B,).

    Both are looked at on a coarse grid.
    """
    cells, kept, mismatches = 2 * coefficients.shape[-1], [], []
    for pairs, ends in path.chunks(cells**path.grid.dimension):
        own = coefficients[pairs]
        sides = both_sides(own, ends, cells)
        if bool((steepness(sides.hessian) > STEEPEST).any()):
            own = unfolded(own)
            sides = both_sides(own, ends, cells)
        kept.append(own)
        mismatches.append(sides.mismatch())
    return torch.cat(kept), torch.cat(mismatches)


def corrected_where(
    chosen: Tensor, path: MidpointGeodesic, model: TransportNet, steps: int
) -> Tensor:
    """The potentials, those of the chosen pairs after Newton's method.

    It starts from the network's best guess: where features are narrower than any in the training,
    the network does better on blurred densities, whose potential is close to the one sought.
    """
    source, target = (
        Density(end.values.reshape(-1, *path.grid.shape)[chosen], path.grid)
        for end in (path.source, path.target)
    )
    own = MidpointGeodesic(source, target, path.solver, {}, path.coefficients[chosen])
    best, least = without_folds(own, own.coefficients)
    for blur in BLURS:
        guess, mismatch = without_folds(own, potential_of(model, source, target, blur))
        better = (mismatch < least).reshape(-1, *(1,) * (best.ndim - 1))
        best, least = torch.where(better, guess, best), torch.minimum(least, mismatch)
    work = cells_per_axis(best) ** path.grid.dimension * best[0].numel()
    improved = [corrected(best[pairs], ends, steps) for pairs, ends in own.chunks(work // 16)]
    coefficients = path.coefficients.clone()
    coefficients[chosen] = torch.cat(improved)
    return coefficients


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
