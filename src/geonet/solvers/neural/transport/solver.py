"""Trained operators of the transport form: a network for the potential, then straight lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet.density import Density
from geonet.errors import FileError, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.autograd import requires_grad
from geonet.numerics.splines import interpolate_centres, level_shapes
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, SolverInfo, solve_sequential
from geonet.solvers.neural.cascade import CascadeNet, predict
from geonet.solvers.neural.model import PRETRAINED, Header, load_cached, to_float64
from geonet.solvers.neural.solver import NetworkSolver
from geonet.solvers.neural.transport.certificate import Calibration, DensityPairs, pull_to_midpoint
from geonet.solvers.neural.transport.network import TransportNet, predict_potential
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import MAX_SPECTRAL_RADIUS, scale_to_injective
from geonet.solvers.newton.iteration import STEPS, InitialGuess
from geonet.solvers.newton.solver import Midpoint

# ---- A network's potential at t = ½ as quadratic splines: where `midpoint` may begin.


Form = TypeVar("Form", CascadeNet, TransportNet)
CELLS = 32  # along the longest axis: networks have no finer detail


@torch.no_grad()
def initial_potentials(source: Density, target: Density) -> Sequence[InitialGuess]:
    """Where Newton's method may begin, for one pair or for every pair of a batch."""
    d = source.grid.dimension
    if d == 1:
        return transport_potentials(source, target)
    return predict(_asked(f"universal-{d}d", d, CascadeNet), source, target)


@torch.no_grad()
def transport_potentials(source: Density, target: Density) -> list[InitialGuess]:
    """The same by the networks of the paper's mixtures."""
    d = source.grid.dimension
    model = _asked(f"transport-{d}d", d, TransportNet)
    modes = scale_to_injective(predict_potential(model, source, target)).double()
    shape, sides = choose_start_shape(source.grid), unit_box(source.grid).sides
    return [InitialGuess(to_splines(own, shape, sides)) for own in modes]


def _asked(name: str, dimension: int, form: type[Form]) -> Form:
    report_progress(f"asking {name}")
    model, _ = load_cached(PRETRAINED / f"{name}.safetensors", dimension)
    assert isinstance(model, form)
    return model


def choose_start_shape(grid: Grid) -> tuple[int, ...]:
    """The cells on which a network's potential is handed to Newton's method."""
    shapes = level_shapes(grid.shape, unit_box(grid).sides)
    return next((shape for shape in shapes if max(shape) <= CELLS), shapes[-1])


def to_splines(modes: Tensor, shape: tuple[int, ...], sides: tuple[float, ...]) -> Tensor:
    """A cosine series on the unit cube as quadratic splines on the cells of a box in it."""
    values = modes
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True)):
        centres = side * (torch.arange(n, dtype=torch.float64) + 0.5) / n
        waves = torch.cos(math.pi * centres[:, None] * torch.arange(modes.shape[axis]))
        values = (values.movedim(axis, -1) @ waves.T).movedim(-1, axis)
    return interpolate_centres(values)


@dataclass(frozen=True)
class TransportSolver(NetworkSolver):
    """A trained model of the transport form from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
        corrections: steps of Newton's method on each grid, at most, for pairs that are unlike those
            of the training; these are `midpoint`'s, which begins with the network's potential. 0
            for the network's answer alone.
        floor: share of the mass of both ends that is spread evenly; None takes the share of the
            model's training, which is 0 for the shipped models.
    """

    info = SolverInfo(
        name="transport",
        summary="a transport model from a file that `geonet train` wrote",
        family="neural",
        dimensions=(1, 2, 3),
        differentiable=ALL_QUANTITIES,
    )
    form = "transport"

    corrections: int = STEPS
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.corrections < 0:
            raise SolverError(f"corrections is {self.corrections}; give 0 or more Newton steps.")
        if self.floor is not None and not 0 <= self.floor < 1:
            raise SolverError(f"floor is {self.floor:g}; give a share of the mass in [0, 1).")

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header = load_cached(Path(self.file), source.grid.dimension, self.form)
        assert isinstance(model, TransportNet)
        calibration = read_calibration(header, self.file)
        info: dict[str, Any] = {"model": header.get("name", Path(self.file).stem)}
        report_progress(f"asking {info['model']}")
        floor = read_floor(header, self.file) if self.floor is None else self.floor
        if floor:
            source, target = source.with_floor(floor), target.with_floor(floor)
            info["floor"] = floor
        fixed = source.detach(), target.detach()
        pairs = DensityPairs(*fixed)
        with torch.no_grad():
            coefficients, mismatch = make_injective(pairs, predict_potential(model, *fixed))
        foreign = torch.ones_like(mismatch, dtype=torch.bool)  # as far as is known
        if calibration is not None:
            foreign = mismatch > calibration.limit
        usual = None if calibration is None else ~foreign
        followed = None
        if requires_grad(source, target):
            followed = scale_to_injective(predict_potential(to_float64(model), source, target))
        known = coefficients, calibration, usual, pairs, followed
        path = CosineGeodesic(source, target, self.name, info, *known)
        if not self.corrections or not bool(foreign.any()):
            return path
        return self._corrected(path, foreign)

    _solve_pair = _solve

    def _corrected(self, path: CosineGeodesic, foreign: Tensor) -> Geodesic:
        """The path with those of its pairs that are foreign, (B,), solved by Newton's method."""
        sides, cells = path.box.sides, choose_start_shape(path.grid)
        midpoint = Midpoint(max_steps=self.corrections)

        def solved(k: int, source: Density, target: Density) -> Geodesic:
            if not foreign[k]:
                own = path[k]
                own.info["corrected"] = False
                return own
            start = to_splines(path.coefficients[k].double(), cells, sides)
            found = midpoint.found(source, target, start)
            found.solver, found.usual = self.name, None if path.usual is None else False
            found.info |= path.info | {"corrected": True}
            return found

        if not path.batch:
            return solved(0, path.source, path.target)
        return solve_sequential(
            lambda k: solved(k, path.source[k], path.target[k]), len(path.source)
        )


def read_calibration(header: Header, file: str) -> Calibration | None:
    """What was measured with the model, if it was."""
    try:
        measured = header.get("measured", {}).get("calibration")
        if measured is None:
            return None
        return Calibration(**{name: float(value) for name, value in measured.items()})
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"The header of {file} has an odd calibration; get it again.") from error


def read_floor(header: Header, file: str) -> float:
    """The floor that the model was trained with."""
    floor = header.get("floor", 0.0)
    if not isinstance(floor, int | float) or not 0 <= floor < 1:
        raise FileError(f"The header of {file} has floor = {floor!r}; get it again.")
    return float(floor)


def make_injective(pairs: DensityPairs, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials for pairs, scaled down where they fold, and their mismatch, (B,).

    Both are looked at on a coarse grid.
    """
    cells, kept, mismatches = 2 * coefficients.shape[-1], [], []
    for some, ends in pairs.chunks(cells**pairs.grid.dimension):
        own = coefficients[some]
        sides = pull_to_midpoint(own, ends, cells)
        steep = sides.steepness > MAX_SPECTRAL_RADIUS
        if bool(steep.any()):
            own = torch.where(
                steep.reshape(-1, *(1,) * (own.ndim - 1)), scale_to_injective(own), own
            )
            sides = pull_to_midpoint(own, ends, cells)
        kept.append(own)
        mismatches.append(sides.mismatch())
    return torch.cat(kept), torch.cat(mismatches)
