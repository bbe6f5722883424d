"""Trained operators of the transport form: one pass of a network per pair, and then straight lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from geonet.measures.density import Density
from geonet.operators import packed
from geonet.operators.transport import TransportNet
from geonet.solvers.base import Solver
from geonet.solvers.learned.lookup import sensed, series_matrix
from geonet.solvers.learned.midpoint import MidpointGeodesic, derivatives
from geonet.solvers.learned.opened import PRETRAINED, opened

STEEPEST = 0.98  # of the eigenvalues of ½D²u: below 1 particles neither meet nor cross


@dataclass(frozen=True)
class TransportSolver(Solver):
    """A trained model of the transport form from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
    """

    name = "transport"
    summary = "a transport model from a file that `geonet train` wrote"
    dimensions = (1, 2, 3)

    file: str

    def _solve(self, source: Density, target: Density) -> MidpointGeodesic:
        model, header = opened(Path(self.file), TransportNet, source.grid.dimension)
        source, target = source.detach(), target.detach()
        notes = {"model": header.get("name", Path(self.file).stem)}
        return MidpointGeodesic(source, target, self.name, notes, potential_of(model, source, target))

    _solve_pair = _solve


@torch.no_grad()
def potential_of(model: TransportNet, source: Density, target: Density) -> Tensor:
    """The coefficients (B, modes, …) of the potentials at t = ½, in the unit cube."""
    settings, grid = model.settings, source.grid
    ends = [
        sensed(end.values.reshape(-1, *grid.shape), grid, settings.sensors)
        for end in (source, target)
    ]
    coefficients = model.coefficients(*ends)
    return unfolded(coefficients.unflatten(1, (settings.modes,) * settings.dimension))


def unfolded(coefficients: Tensor) -> Tensor:
    """Potentials whose maps would fold, scaled down until they do not."""
    modes = coefficients.shape[-1]
    _, hessian = derivatives(coefficients, lambda k: series_matrix(2 * modes, modes, k))
    steepest = 0.5 * packed.spectral_radius(torch.stack(list(hessian))).flatten(1).amax(1)
    scale = (STEEPEST / steepest.clamp(min=STEEPEST)).reshape(-1, *(1,) * (coefficients.ndim - 1))
    return coefficients * scale


@dataclass(frozen=True)
class Transport1D(TransportSolver):
    """The transport form, trained on 1D mixtures."""

    name = "transport-1d"
    summary = "1D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds"
    dimensions = (1,)

    file: str = str(PRETRAINED / "transport-1d.safetensors")


@dataclass(frozen=True)
class Transport2D(TransportSolver):
    """The transport form, trained on 2D mixtures."""

    name = "transport-2d"
    summary = "2D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds"
    dimensions = (2,)

    file: str = str(PRETRAINED / "transport-2d.safetensors")


@dataclass(frozen=True)
class Transport3D(TransportSolver):
    """The transport form, trained on 3D mixtures."""

    name = "transport-3d"
    summary = "3D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds"
    dimensions = (3,)

    file: str = str(PRETRAINED / "transport-3d.safetensors")
