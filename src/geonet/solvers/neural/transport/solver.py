"""Solver of the transport form: a network for the potential, and Newton steps for unusual pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet.density import Density, requires_grad
from geonet.errors import FileError, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.splines import interpolate_centres, level_shapes
from geonet.paths import Geodesic
from geonet.solvers.base import solve_sequential
from geonet.solvers.neural.model import PRETRAINED, Header, load_cached, to_float64
from geonet.solvers.neural.solver import NetworkSolver
from geonet.solvers.neural.transport.certificate import Calibration, pull_to_midpoint
from geonet.solvers.neural.transport.network import TransportNet, predict_potential
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import MAX_SPECTRAL_RADIUS, scale_to_injective
from geonet.solvers.neural.transport.splines import DensityPairs
from geonet.solvers.newton.iteration import InitialGuess
from geonet.solvers.newton.solver import Midpoint


@dataclass(frozen=True)
class TransportSolver(NetworkSolver):
    """A trained model of the transport form from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
        max_iterations: largest number of Newton steps per level for pairs outside the
            distribution of the training; these are solved by `midpoint` from the network's
            potential. 0 for the network alone.
        floor: share of the mass of both ends that is spread evenly; None for the share of the
            model's training, which is 0 for the pretrained models.
    """

    info = replace(
        NetworkSolver.info,
        name="transport",
        summary="a transport model from a file that `geonet train` wrote",
    )
    form = "transport"
    fewest_cells: ClassVar[tuple[int, int, int]] = (32, 16, 16)  # along each axis, in 1D to 3D

    max_iterations: int = Midpoint.max_iterations
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.max_iterations < 0:
            raise SolverError(f"max_iterations is {self.max_iterations}; give 0 or more.")
        if self.floor is not None and not 0 <= self.floor < 1:
            raise SolverError(f"floor is {self.floor:g}; give a share of the mass in [0, 1).")

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header, name = self._load(source.grid.dimension)
        assert isinstance(model, TransportNet)
        self._check_cells(source.grid, model.settings.sensors)
        info: dict[str, Any] = {"model": name}
        calibration = read_calibration(header, self.file)
        floor = read_floor(header, self.file) if self.floor is None else self.floor
        if floor:
            source, target = source.with_floor(floor), target.with_floor(floor)
            info["floor"] = floor
        fixed = source.detach(), target.detach()
        pairs = DensityPairs(*fixed)
        with torch.no_grad():
            coefficients, mismatch = make_injective(pairs, predict_potential(model, *fixed))
        unusual = torch.ones_like(mismatch, dtype=torch.bool)  # unless a calibration is known
        if calibration is not None:
            unusual = mismatch > calibration.limit
        differentiable = None
        if requires_grad(source, target):
            differentiable = predict_potential(to_float64(model), source, target)
            differentiable = scale_to_injective(differentiable)
        path = CosineGeodesic(
            source,
            target,
            self.name,
            info,
            coefficients,
            calibration,
            None if calibration is None else ~unusual,
            pairs,
            differentiable,
        )
        if not self.max_iterations or not bool(unusual.any()):
            return path
        return self._solve_unusual(path, unusual)

    _solve_pair = _solve

    def _check_cells(self, grid: Grid, sensors: int) -> None:
        """Raise SolverError for grids whose cells are too large for frames between them."""
        fewest = min(sensors, self.fewest_cells[grid.dimension - 1])
        if min(grid.shape) < fewest:
            raise SolverError(
                f"The solver {self.name!r} is for at least {fewest} cells along each axis, the "
                f"densities lie on {grid}; choose solver='midpoint' or resample them."
            )

    def _solve_unusual(self, path: CosineGeodesic, unusual: Tensor) -> Geodesic:
        """Return the path with its unusual pairs, (B,), solved by Newton's method."""
        sides, shape = path.box.sides, choose_start_shape(path.grid)
        midpoint = Midpoint(max_iterations=self.max_iterations)

        def solve(k: int, source: Density, target: Density) -> Geodesic:
            if not unusual[k]:
                own = path[k]
                own.info["corrected"] = False
                return own
            start = to_splines(path.coefficients[k].double(), shape, sides)
            solution = midpoint.solve_from(source, target, start)
            solution.solver = self.name
            solution.in_distribution = None if path.in_distribution is None else False
            solution.info |= path.info | {"corrected": True}
            return solution

        if not path.batch:
            return solve(0, path.source, path.target)
        return solve_sequential(lambda k: solve(k, path.source[k], path.target[k]), len(unusual))


@torch.no_grad()
def transport_potentials(source: Density, target: Density) -> list[InitialGuess]:
    """Return initial guesses of the pretrained transport networks for Newton's method."""
    d = source.grid.dimension
    report_progress(f"evaluating transport-{d}d")
    model, _ = load_cached(PRETRAINED / f"transport-{d}d.safetensors", d)
    assert isinstance(model, TransportNet)
    modes = scale_to_injective(predict_potential(model, source, target)).double()
    shape, sides = choose_start_shape(source.grid), unit_box(source.grid).sides
    return [InitialGuess(to_splines(own, shape, sides)) for own in modes]


def choose_start_shape(grid: Grid, max_cells: int = 32) -> tuple[int, ...]:
    """Return the level of a grid with the resolution of a network, as Newton's initial grid."""
    shapes = level_shapes(grid.shape, unit_box(grid).sides)
    return next((shape for shape in shapes if max(shape) <= max_cells), shapes[-1])


def to_splines(modes: Tensor, shape: tuple[int, ...], sides: tuple[float, ...]) -> Tensor:
    """Express a cosine series on the unit cube by quadratic splines on the cells of a box."""
    values = modes
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True)):
        centres = side * (torch.arange(n, dtype=torch.float64) + 0.5) / n
        waves = torch.cos(math.pi * centres[:, None] * torch.arange(modes.shape[axis]))
        values = (values.movedim(axis, -1) @ waves.T).movedim(-1, axis)
    return interpolate_centres(values)


def make_injective(pairs: DensityPairs, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Return potentials scaled down until they do not fold, and their mismatch, (B,).

    Both are evaluated on a coarse grid.
    """
    cells, kept, mismatches = 2 * coefficients.shape[-1], [], []
    for some, ends in pairs.chunks(cells**pairs.grid.dimension):
        own = coefficients[some]
        middle = pull_to_midpoint(own, ends, cells)
        folds = middle.radius > MAX_SPECTRAL_RADIUS
        if bool(folds.any()):
            mask = folds.reshape(-1, *(1,) * (own.ndim - 1))
            own = torch.where(mask, scale_to_injective(own), own)
            middle = pull_to_midpoint(own, ends, cells)
        kept.append(own)
        mismatches.append(middle.mismatch())
    return torch.cat(kept), torch.cat(mismatches)


def read_calibration(header: Header, file: str) -> Calibration | None:
    """Return the calibration in the header of a model, if there is one."""
    try:
        measured = header.get("measured", {}).get("calibration")
        if measured is None:
            return None
        return Calibration(**{name: float(value) for name, value in measured.items()})
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"The header of {file} has an invalid calibration; download it again."
        ) from error


def read_floor(header: Header, file: str) -> float:
    """Return the floor of the model's training."""
    floor = header.get("floor", 0.0)
    if not isinstance(floor, int | float) or not 0 <= floor < 1:
        raise FileError(f"The header of {file} has floor = {floor!r}; download it again.")
    return float(floor)
