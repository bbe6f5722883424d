"""Trained operators of the transport form: a network for the potential, then straight lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geonet.errors import FileError, SolverError
from geonet.fields.potential import STEEPEST, unfolded
from geonet.geodesics.gradients import wanted
from geonet.geodesics.midpoint.calibration import Calibration
from geonet.geodesics.midpoint.correction import attached, cells_per_axis, corrected
from geonet.geodesics.midpoint.halfway import both_sides
from geonet.geodesics.midpoint.pairs import Pairs
from geonet.geodesics.midpoint.path import MidpointGeodesic
from geonet.geodesics.midpoint.traced import traced
from geonet.measures.density import Density
from geonet.operators.model import Header, doubled
from geonet.operators.opened import opened
from geonet.operators.transport import TransportNet, potential_of
from geonet.solvers.learned.network import NetworkSolver

BLURS = (0.015, 0.02, 0.025, 0.03, 0.04, 0.06)  # of the box: most models saw no narrow features


@dataclass(frozen=True)
class TransportSolver(NetworkSolver):
    """A trained model of the transport form from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
        corrections: steps of Newton's method for pairs that are unlike those of the training; 0 for
            the network's answer alone.
        floor: share of the mass of both ends that is spread evenly; None takes the share of the
            model's training, which is 0 for the shipped models.
    """

    name = form = "transport"
    summary = "a transport model from a file that `geonet train` wrote"

    corrections: int = 5
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.corrections < 0:
            raise SolverError(f"corrections is {self.corrections}; give 0 or more Newton steps.")
        if self.floor is not None and not 0 <= self.floor < 1:
            raise SolverError(f"floor is {self.floor:g}; give a share of the mass in [0, 1).")

    def _solve(self, source: Density, target: Density) -> MidpointGeodesic:
        model, header = opened(Path(self.file), source.grid.dimension, self.form)
        assert isinstance(model, TransportNet)
        calibration = calibration_in(header, self.file)
        notes: dict[str, Any] = {"model": header.get("name", Path(self.file).stem)}
        floor = floor_in(header, self.file) if self.floor is None else self.floor
        if floor:
            source, target = source.with_floor(floor), target.with_floor(floor)
            notes["floor"] = floor
        fixed = source.detach(), target.detach()
        pairs = Pairs(*fixed)
        guess = potential_of(model, *fixed)
        coefficients, foreign, changed = self._improved(model, pairs, guess, calibration)
        if changed is not None:
            notes["corrected"] = changed.reshape(source.leading).tolist()
        usual = None if calibration is None else ~foreign
        followed = None
        if wanted(source, target):
            followed = traced_potential(model, source, target, coefficients, changed)
        return MidpointGeodesic(
            source, target, self.name, notes, coefficients, calibration, usual, pairs, followed
        )

    _solve_pair = _solve

    @torch.no_grad()
    def _improved(
        self, model: TransportNet, pairs: Pairs, guess: Tensor, calibration: Calibration | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Potentials (B, modes, …) from guesses; which pairs are foreign and which were changed."""
        coefficients, mismatch = without_folds(pairs, guess)
        foreign = torch.ones_like(mismatch, dtype=torch.bool)  # as far as is known
        if calibration is not None:
            foreign = mismatch > calibration.limit
        if not self.corrections or not bool(foreign.any()):
            return coefficients, foreign, None
        before, ends = coefficients.clone(), pairs.chosen(foreign)
        coefficients[foreign] = improved(model, *ends, before[foreign], self.corrections)
        return coefficients, foreign, (coefficients != before).flatten(1).any(1)


def traced_potential(
    model: TransportNet, source: Density, target: Density, found: Tensor, changed: Tensor | None
) -> Tensor:
    """The potentials that were found, (B, modes, …), as autograd can follow them, in float64.

    Through the network, but for those pairs that Newton's method changed (B,): their potentials
    depend on the densities through the equation that they solve.
    """
    network = unfolded(potential_of(doubled(model), source, target))
    if changed is None or not bool(changed.any()):
        return network
    ends, parts = (traced(source), traced(target)), list(network.split(1))
    for k in torch.nonzero(changed).flatten().tolist():
        pair = slice(k, k + 1)
        parts[k] = attached(found[pair], (ends[0][pair], ends[1][pair]))
    return torch.cat(parts)


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
