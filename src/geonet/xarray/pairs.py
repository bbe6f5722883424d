"""Pairs of neighbouring frames with their geodesic."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from geonet._utils import label_pair
from geonet.api import geodesic
from geonet.api import solver as build_solver
from geonet.errors import InputError
from geonet.grid import unit_box
from geonet.paths import Geodesic
from geonet.solvers.base import Solver
from geonet.solvers.newton.solver import as_reach, check_reach, scale_reach
from geonet.solvers.newton.unbalanced import UnbalancedGeodesic
from geonet.xarray.coordinates import Space
from geonet.xarray.groups import FrameConfig, FrameGroup

REPORT_FIELDS = np.dtype(
    [
        ("solver", "U32"),
        ("distance", float),
        ("distance_lower_bound", float),
        ("distance_upper_bound", float),
        ("error_estimate", float),
        ("source_mass", float),
        ("target_mass", float),
        ("transported_share", float),
        ("converged", bool),
        ("faded", bool),
    ]
)


SCORE_FIELDS = np.dtype(
    [
        ("cost", float),
        ("displacement", float),
        ("amplitude", float),
        ("transported_share", float),
        ("mean_displacement", float),
        ("missed_mass", float),
        ("false_mass", float),
        ("converged", bool),
    ]
)


def flagged_values(dtype: np.dtype, shape: tuple[int, ...]) -> np.dtype:
    """Return the type of one frame with its flags."""
    fields = [("values", dtype, shape), ("faded", bool), ("converged", bool)]
    return np.dtype(fields, align=True)


REPORT_NUMBERS = (
    "distance",
    "distance_lower_bound",
    "distance_upper_bound",
    "error_estimate",
    "transported_share",
)


@dataclass(frozen=True)
class PairConfig(FrameConfig):
    """Settings for all pairs of frames.

    Attributes:
        without_reach: the meaning of no reach, for error messages; "" if a reach is required.
        solver: a name, a model file or a solver.
        options: options of the named solver.
        reach: length over which mass moves, in the units of the space; None for balanced transport.
        growth: with a reach, "hellinger" or "wfr".
    """

    without_reach: ClassVar[str] = "leave it out for balanced transport"

    solver: str | Path | Solver = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    reach: float | None = None
    growth: str = "hellinger"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_spelling(self.options)
        if self.reach is not None:
            check_length(self.reach, self.space, self.without_reach)
        check_reach(self.reach, self.growth)
        if isinstance(self.solver, Solver):
            if self.reach is not None:
                raise InputError(
                    "reach is an option of a named solver, and solver is a Solver instance; give "
                    "it to geonet.solver(name, reach=...)."
                )
            # Pairs with an empty frame need no solver, but its reach.
            object.__setattr__(self, "reach", getattr(self.solver, "reach", None))
            object.__setattr__(self, "growth", getattr(self.solver, "growth", "hellinger"))
        else:
            if self.reach is not None:
                own = {"reach": self.reach, "growth": self.growth}
                object.__setattr__(self, "options", {**self.options, **own})
            build_solver(self.solver, **self.options)  # raises for unknown names and options


@dataclass(frozen=True)
class ScoreConfig(PairConfig):
    """Settings for pairs of a forecast and an observation."""

    without_reach: ClassVar[str] = ""


def _check_spelling(
    options: dict[str, Any],
    known: tuple[str, ...] = ("motion", "space", "geographic", "missing", "outside", "periodic"),
) -> None:
    """Raise InputError for an argument of `da.geonet` that is spelled wrongly or does not apply.

    The solver, to which further keywords belong, does not know these arguments.
    """
    for name in options:
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            remedy = "leave it out." if name in known else f"did you mean {close[0]!r}?"
            raise InputError(f"There is no argument {name!r}; {remedy}")


def check_length(reach: Any, space: Space, without: str, min_cells: float = 0.1) -> None:
    """Raise InputError unless a reach is a length that fits the cells.

    Args:
        reach: length in the units of the space.
        space: the spatial grid.
        without: the meaning of no reach, such as "leave it out for balanced transport"; "" if a
            reach is required.
        min_cells: shortest one in cells; mass can hardly move with a shorter one, which usually
            has other units than the coordinates.
    """
    reach = as_reach(reach, without)
    other = f", or {without}" if without else ""
    units = f" {space.units}" if space.units else ""
    cells = reach / min(space.grid.spacing)
    if cells < min_cells:
        raise InputError(
            f"reach is {reach:g}{units}, {cells:.2g} of a cell, so that mass can hardly move; give "
            f"a length of about a cell or more in the units of the coordinates{other}."
        )
    scale_reach(reach, unit_box(space.grid).length, without)


class Pair(FrameGroup):
    """Two frames and the geodesic between them.

    A frame of the field itself is returned unchecked. The methods take T fractions of the interval,
    NaN for a time outside. After the last frame of a series there is no second one.
    """

    noun = "pair"

    def interpolate(self, fractions: np.ndarray) -> np.ndarray:
        """Return the field, (T, *space); at fraction 0 the first frame bit for bit."""
        first = self._frames[0]
        dtype = np.result_type(first, np.float64)
        result = np.full((len(fractions), *first.shape), np.nan, dtype)
        between, at_start = fractions > 0, fractions == 0
        if between.any():
            result[between] = self._move(fractions[between])
        if at_start.any() and self._config.mass == "given":
            result[at_start] = first
        elif at_start.any():
            (filled,), gaps = self._fill(self._frames[:1])
            result[at_start] = np.where(gaps, np.nan, self._rescale(filled))
        return result

    def velocity(self, fractions: np.ndarray) -> np.ndarray:
        """Return the velocity per unit of time, (T, d, *space); NaN if a frame is empty."""
        grid = self._space.grid
        result = np.full((len(fractions), grid.dimension, *grid.shape), np.nan)
        inside = ~np.isnan(fractions)
        if inside.any() and not self.is_faded:
            values = np.asarray(self._path.velocity(fractions[inside].tolist(), grid.points()))
            for k, speed in enumerate(self._space.speeds):
                component = values[..., k] * speed / self.duration
                result[inside, k] = np.where(self._filled_frames[1], np.nan, component)
        return result

    def interpolate_with_flags(self, fractions: np.ndarray) -> np.ndarray:
        """Return the field and both flags, (T,), of the type `flagged_values`.

        `faded` is true inside a pair with an empty frame, `converged` is false inside a pair whose
        solver did not reach its tolerance.
        """
        values = self.interpolate(fractions)
        between = fractions > 0
        result = np.zeros(len(fractions), flagged_values(values.dtype, values.shape[1:]))
        result["values"] = values
        result["faded"] = between & (between.any() and self.is_faded)
        result["converged"] = ~between | (not between.any() or self.has_converged)
        return result

    def distance(self, fractions: np.ndarray) -> np.ndarray:
        """Return W2 in the units of the space, (T,), NaN if a frame is empty; or √(2·cost)."""
        value = self._faded_distance() if self.is_faded else float(self._path.distance)
        return np.full(len(fractions), value)

    def _faded_distance(self) -> float:
        """Return √(2·cost) if one frame is empty: all mass grows or fades; NaN without a reach."""
        reach = self._config.reach
        return np.nan if reach is None else reach * float(np.sqrt(sum(self._masses())))

    def score(self, fractions: np.ndarray) -> np.ndarray:
        """Return the parts of the cost with a reach, (T,), of the type `SCORE_FIELDS`.

        The first frame is the forecast, the second one the observation.
        """
        row = np.zeros(len(fractions), SCORE_FIELDS)
        row["converged"] = self.has_converged
        if self.is_faded:
            false, missed = self._masses()
            row["cost"] = row["amplitude"] = 0.5 * self._faded_distance() ** 2
            row["missed_mass"], row["false_mass"] = missed, false
            row["transported_share"] = 0.0 if missed or false else np.nan
            row["mean_displacement"] = np.nan
            return row
        assert isinstance(self._path, UnbalancedGeodesic)
        parts = self._path.split_cost()
        row["cost"] = parts.displacement + parts.amplitude
        row["displacement"], row["amplitude"] = parts.displacement, parts.amplitude
        row["transported_share"] = self._path.transported_share
        row["mean_displacement"] = parts.mean_displacement
        row["missed_mass"], row["false_mass"] = parts.grown, parts.faded
        return row

    def report(self, fractions: np.ndarray) -> np.ndarray:
        """Return the report on the path, (T,), of the type `REPORT_FIELDS`."""
        row = np.zeros(len(fractions), REPORT_FIELDS)
        row["source_mass"], row["target_mass"] = self._masses()
        row["faded"] = self.is_faded
        report = self._report_entries()
        for name in REPORT_NUMBERS:
            row[name] = np.nan if report.get(name) is None else report[name]
        row["solver"] = report["solver"]
        is_known = report.get("info", {}).get("converged") is not False
        row["converged"] = self.has_converged and is_known
        return row

    def _report_entries(self) -> dict[str, Any]:
        """Return the entries of a report; without a reach all mass is transported."""
        if not self.is_faded:
            entries = self._path.report.to_dict()
            return entries if self._config.reach else {**entries, "transported_share": 1.0}
        distance = self._faded_distance()
        bounds = dict.fromkeys(("distance_lower_bound", "distance_upper_bound"), distance)
        return {"solver": "fade", "distance": distance, "transported_share": 0.0, **bounds}

    @property
    def is_faded(self) -> bool:
        """True if a frame is empty: no mass can move, and one frame fades into the other."""
        (first, last), _ = self._filled_frames
        return not (first.any() and last.any())

    @property
    def has_converged(self) -> bool:
        """False if the solver did not reach its tolerance."""
        return self.is_faded or bool(self._path.info.get("converged", True))

    @cached_property
    def _path(self) -> Geodesic:
        """Geodesic of the mass in the cells."""
        source, target = (self._to_density(frame) for frame in self._filled_frames[0])
        with label_pair(f"{self._describe(0)} to {self._describe(1)}"):
            return geodesic(source, target, self._config.solver, **self._config.options)

    def _move(self, fractions: np.ndarray) -> np.ndarray:
        """Return the frames inside the interval, (T, *space)."""
        gaps = self._filled_frames[1]
        frames = self._fade(fractions) if self.is_faded else self._follow_path(fractions)
        return np.where(gaps, np.nan, frames) if gaps.any() else frames

    def _fade(self, fractions: np.ndarray) -> np.ndarray:
        """Blend two frames of which one is empty.

        All mass grows in place, as along the path to a frame that tends to zero: linearly in time,
        or quadratically for Wasserstein–Fisher–Rao.
        """
        first, last = (self._rescale(frame) for frame in self._filled_frames[0])
        t = fractions.reshape(-1, *(1,) * first.ndim)
        power = 2 if self._config.growth == "wfr" else 1
        return (1 - t) ** power * first + t**power * last

    def _follow_path(self, fractions: np.ndarray) -> np.ndarray:
        """Return the frames of the geodesic with the configured totals."""
        density = self._path.density(fractions.tolist())
        frames = np.asarray(density) / self._space.areas
        source, target = self._masses()
        totals = (1 - fractions) * source + fractions * target
        if self._config.reach is not None:
            totals = np.asarray(density.mass)
        totals = totals if self._config.mass == "given" else np.ones(len(fractions))
        # A network's frames may have another mass than one, which its report states.
        return frames * (totals / self._integrate(frames)).reshape(-1, *(1,) * (frames.ndim - 1))

    def _masses(self) -> tuple[float, float]:
        """Return the integral of both frames."""
        first, last = self._filled_frames[0]
        return float(self._integrate(first)), float(self._integrate(last))
