"""Trained operators of the transport form: a network for the potential, then straight lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geonet.errors import FileError, SolverError
from geonet.fields.potential import STEEPEST, unfolded
from geonet.geodesics.base import Geodesic
from geonet.geodesics.gradients import wanted
from geonet.geodesics.midpoint.calibration import Calibration
from geonet.geodesics.midpoint.halfway import both_sides
from geonet.geodesics.midpoint.newton import STEPS
from geonet.geodesics.midpoint.pairs import Pairs
from geonet.geodesics.midpoint.path import MidpointGeodesic
from geonet.measures.density import Density
from geonet.operators.model import Header, doubled
from geonet.operators.opened import opened
from geonet.operators.transport import TransportNet, potential_of
from geonet.progress import tell
from geonet.solvers.base import one_by_one
from geonet.solvers.exact.midpoint import Midpoint
from geonet.solvers.learned.guess import splined, start_shape
from geonet.solvers.learned.network import NetworkSolver


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

    name = form = "transport"
    summary = "a transport model from a file that `geonet train` wrote"

    corrections: int = STEPS
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.corrections < 0:
            raise SolverError(f"corrections is {self.corrections}; give 0 or more Newton steps.")
        if self.floor is not None and not 0 <= self.floor < 1:
            raise SolverError(f"floor is {self.floor:g}; give a share of the mass in [0, 1).")

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header = opened(Path(self.file), source.grid.dimension, self.form)
        assert isinstance(model, TransportNet)
        calibration = calibration_in(header, self.file)
        notes: dict[str, Any] = {"model": header.get("name", Path(self.file).stem)}
        tell(f"asking {notes['model']}")
        floor = floor_in(header, self.file) if self.floor is None else self.floor
        if floor:
            source, target = source.with_floor(floor), target.with_floor(floor)
            notes["floor"] = floor
        fixed = source.detach(), target.detach()
        pairs = Pairs(*fixed)
        with torch.no_grad():
            coefficients, mismatch = without_folds(pairs, potential_of(model, *fixed))
        foreign = torch.ones_like(mismatch, dtype=torch.bool)  # as far as is known
        if calibration is not None:
            foreign = mismatch > calibration.limit
        usual = None if calibration is None else ~foreign
        followed = None
        if wanted(source, target):
            followed = unfolded(potential_of(doubled(model), source, target))
        known = coefficients, calibration, usual, pairs, followed
        path = MidpointGeodesic(source, target, self.name, notes, *known)
        if not self.corrections or not bool(foreign.any()):
            return path
        return self._corrected(path, foreign)

    _solve_pair = _solve

    def _corrected(self, path: MidpointGeodesic, foreign: Tensor) -> Geodesic:
        """The path with those of its pairs that are foreign, (B,), solved by Newton's method."""
        sides, cells = path.box.sides, start_shape(path.grid)
        midpoint = Midpoint(max_steps=self.corrections)

        def solved(k: int, source: Density, target: Density) -> Geodesic:
            if not foreign[k]:
                own = path[k]
                own.notes["corrected"] = False
                return own
            start = splined(path.coefficients[k].double(), cells, sides)
            found = midpoint.found(source, target, start)
            found.solver, found.usual = self.name, None if path.usual is None else False
            found.notes |= path.notes | {"corrected": True}
            return found

        if not path.batch:
            return solved(0, path.source, path.target)
        return one_by_one(lambda k: solved(k, path.source[k], path.target[k]), len(path.source))


def calibration_in(header: Header, file: str) -> Calibration | None:
    """What was measured with the model, if it was."""
    try:
        measured = header.get("measured", {}).get("calibration")
        if measured is None:
            return None
        return Calibration(**{name: float(value) for name, value in measured.items()})
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"The header of {file} has an odd calibration; get it again.") from error


def floor_in(header: Header, file: str) -> float:
    """The floor that the model was trained with."""
    floor = header.get("floor", 0.0)
    if not isinstance(floor, int | float) or not 0 <= floor < 1:
        raise FileError(f"The header of {file} has floor = {floor!r}; get it again.")
    return float(floor)


def without_folds(pairs: Pairs, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials for pairs, scaled down where they fold, and their mismatch, (B,).

    Both are looked at on a coarse grid.
    """
    cells, kept, mismatches = 2 * coefficients.shape[-1], [], []
    for some, ends in pairs.chunks(cells**pairs.grid.dimension):
        own = coefficients[some]
        sides = both_sides(own, ends, cells)
        steep = sides.steepness > STEEPEST
        if bool(steep.any()):
            own = torch.where(steep.reshape(-1, *(1,) * (own.ndim - 1)), unfolded(own), own)
            sides = both_sides(own, ends, cells)
        kept.append(own)
        mismatches.append(sides.mismatch())
    return torch.cat(kept), torch.cat(mismatches)
