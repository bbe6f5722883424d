"""Two neighbouring frames: what is missing in them, and what is between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from geonet.advice import either
from geonet.api import geodesic
from geonet.arguments import as_number, check_kind, check_word, is_number, shown
from geonet.errors import DensityError, InputError
from geonet.geodesics.base import Geodesic
from geonet.measures.density import MASSES, Density, Mass
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver
from geonet.xarray.axes import Space

Missing = Literal["refuse", "exclude"] | float
Where = Callable[[int], str]  # of the first frame, 0, or the last, 1: "rain at time 12:30"

REPORTED = np.dtype(
    [
        ("solver", "U32"),
        ("distance", float),
        ("distance_lower_bound", float),
        ("distance_upper_bound", float),
        ("error_estimate", float),
        ("source_mass", float),
        ("target_mass", float),
        ("converged", bool),
        ("faded", bool),
    ]
)


@dataclass(frozen=True)
class Treatment:
    """How pairs of frames are treated.

    Attributes:
        space: where they live.
        solver: a name, a model's file or a solver.
        options: of the solver.
        missing: cells without a value: "refuse" them, "exclude" them from both frames and from all
            between, or a number to fill them with.
        mass: "given", where the total goes evenly from one frame's to the next, or "one".
    """

    space: Space
    solver: str | Path | Solver = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    missing: Missing = "refuse"
    mass: Mass = "given"

    def check(self) -> None:
        """Refuse settings that make no sense, before anything is computed."""
        check_word(self.mass, MASSES, "mass")
        check_kind(self.options, dict, "options", "give a dictionary of the solver's options")
        if not isinstance(self.solver, Solver):  # that has its own options
            make_solver(self.solver, **self.options)
        if not is_number(self.missing):
            if not isinstance(self.missing, str) or self.missing not in ("refuse", "exclude"):
                raise InputError(
                    f"missing is {shown(self.missing)}; give 'refuse', 'exclude' or a number."
                )
        elif not 0 <= as_number(self.missing, "missing") < np.inf:
            raise InputError(
                f"missing is {self.missing:g}; give a number from zero up to fill cells with."
            )


class Pair:
    """Two frames in double precision, as densities on the grid of their space.

    Args:
        first: the earlier frame, (*space).
        last: the later one.
        how: the treatment.
        where: names a frame in messages.
    """

    def __init__(self, first: np.ndarray, last: np.ndarray, how: Treatment, where: Where):
        self.how, self.where = how, where
        frames = [frame.astype(np.float64) for frame in (first, last)]
        holes = [np.isnan(frame) for frame in frames]
        for k, (frame, hole) in enumerate(zip(frames, holes, strict=True)):
            self._check(frame, hole, k)
        filling = how.missing if is_number(how.missing) else 0.0
        gaps = holes if is_number(how.missing) else [holes[0] | holes[1]] * 2
        self.gaps = None if is_number(how.missing) or not gaps[0].any() else gaps[0]
        self.first, self.last = (
            np.where(gap, filling, frame) for frame, gap in zip(frames, gaps, strict=True)
        )

    def _check(self, frame: np.ndarray, hole: np.ndarray, k: int) -> None:
        if self.how.missing == "refuse" and hole.any():
            remedy = either(
                "give missing='exclude' to leave them out, or a number to fill them with",
                "give --missing exclude to leave them out, or a number to fill them with",
            )
            raise DensityError(
                f"{self.where(k)} has {int(hole.sum())} of {hole.size} cells without a value; "
                f"{remedy}."
            )
        if np.isinf(frame).any():
            raise DensityError(
                f"{self.where(k)} holds {int(np.isinf(frame).sum())} infinite values; mask them: "
                ".where(np.isfinite(field))."
            )
        low = np.nanmin(frame, initial=0.0)
        if low < 0:
            raise DensityError(
                f"{self.where(k)} holds {int((frame < 0).sum())} negative values, down to "
                f"{low:g}; a density has none: .clip(min=0) makes them zero, if they are noise."
            )

    @property
    def faded(self) -> bool:
        """Whether a frame is empty: then nothing can move."""
        return not (self.first.any() and self.last.any())

    @cached_property
    def path(self) -> Geodesic:
        """The geodesic of the masses in the cells."""
        space = self.how.space
        source, target = (
            Density(frame * space.areas, space.grid) for frame in (self.first, self.last)
        )
        return geodesic(source, target, self.how.solver, **self.how.options)

    def masses(self) -> tuple[float, float]:
        """∫ of both frames over the cells."""
        return float(self._integral(self.first)), float(self._integral(self.last))

    # ---- what is asked of a pair; T shares of the way

    def frames(self, shares: np.ndarray) -> np.ndarray:
        """(T, *space)."""
        if self.faded:
            along = self._of_space(shares)
            moved = (1 - along) * self._scaled(self.first) + along * self._scaled(self.last)
        else:
            moved = self.path.density(shares.tolist()).numpy() / self.how.space.areas
            # A network's frames may have another mass than one, by as much as its report says.
            moved *= self._of_space(self._totals(shares) / self._integral(moved))
        return self._with_gaps(moved)

    def _totals(self, shares: np.ndarray) -> np.ndarray:
        """What frames hold in all, (T,): evenly from the first one's to the last one's."""
        if self.how.mass == "one":
            return np.ones(len(shares))
        first, last = self.masses()
        return (1 - shares) * first + shares * last

    def _integral(self, values: np.ndarray) -> np.ndarray:
        """∫ over the cells of values (…, *space), (…)."""
        space = self.how.space
        cells = tuple(range(-space.grid.dimension, 0))
        return (values * space.areas).sum(axis=cells) * space.grid.cell_volume

    def _of_space(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers (T,) as (T, 1, …), beside frames."""
        return numbers.reshape(-1, *(1,) * self.first.ndim)

    def start(self) -> np.ndarray:
        """The earlier frame, (*space)."""
        return self._with_gaps(self._scaled(self.first))

    def _scaled(self, frame: np.ndarray) -> np.ndarray:
        """A frame of the mass that is asked for; an empty one stays empty."""
        if self.how.mass == "given" or not frame.any():
            return frame
        return frame / self._integral(frame)

    def velocities(self, shares: np.ndarray, duration: float) -> np.ndarray:
        """(T, d, *space), per unit of time; unknown where a pair fades."""
        space = self.how.space
        if self.faded:
            return np.full((len(shares), space.grid.dimension, *space.grid.shape), np.nan)
        found = self.path.velocity(shares.tolist(), space.grid.points()).numpy()
        parts = [found[..., k] * speed / duration for k, speed in enumerate(space.speeds)]
        return self._with_gaps(np.stack(parts, axis=1))

    def distance(self) -> float:
        """W2 in the units of the space."""
        return np.nan if self.faded else float(self.path.distance)

    def report(self) -> np.ndarray:
        """What can be said of the pair, of the type `REPORTED`."""
        line = np.zeros((), REPORTED)
        masses = self.masses()
        line["source_mass"], line["target_mass"], line["faded"] = *masses, self.faded
        names: Sequence[str] = REPORTED.names or ()
        known = {} if self.faded else self.path.report.to_dict()
        for name in names[1:5]:
            line[name] = np.nan if known.get(name) is None else known[name]
        line["solver"] = known.get("solver", "fade")
        line["converged"] = known.get("notes", {}).get("converged", True)
        return line

    def _with_gaps(self, values: np.ndarray) -> np.ndarray:
        return values if self.gaps is None else np.where(self.gaps, np.nan, values)
