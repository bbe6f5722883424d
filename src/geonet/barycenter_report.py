"""Reports on barycenters: bounds and errors, and a summary in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from geonet._format import format_number, format_percent
from geonet.report import THRESHOLDS, Summary, format_entry, round_bounds

if TYPE_CHECKING:
    from geonet.barycenters import Barycenter


@dataclass(frozen=True)
class BarycenterReport:
    """Bounds and errors of a barycenter, as numbers for one or lists of numbers for many.

    Attributes:
        weights: w_i of the densities.
        objective: Σ w_i W2²(ρ, μ_i); with a reach, see `Barycenter.objective`.
        lower_bound: lower bound of the objective for any density; None with a reach.
        upper_bound: upper bound of the objective of this density; None with a reach.
        gap: (upper bound − lower bound)/upper bound; None with a reach.
        residual: share of the mass that is not balanced.
        converged: True if the residual reached the tolerance.
        mass: mass of the barycenter in the units of the densities.
        masses: masses of the densities that were given.
        reach: length over which mass moves; None for balanced transport.
        info: cells of the potentials, Newton steps and multigrid steps by level.
        cell: shortest side of a cell.
    """

    weights: Any
    objective: Any
    lower_bound: Any
    upper_bound: Any
    gap: Any
    residual: Any
    converged: Any
    mass: Any
    masses: list[float]
    reach: float | None = None
    info: dict[str, Any] = field(default_factory=dict)
    cell: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return asdict(self)

    def each(self) -> list[BarycenterReport]:
        """Return the reports of many barycenters, or the report itself for one."""
        if not isinstance(self.converged, list):
            return [self]
        names = [name for name in _LISTED if getattr(self, name) is not None]
        return [
            replace(
                self,
                info={key: values[k] for key, values in self.info.items()},
                **{name: getattr(self, name)[k] for name in names},
            )
            for k in range(len(self.converged))
        ]

    def summary(self) -> Summary:
        """Return the report in words; for many barycenters, about the one with the worst result."""
        each = self.each()
        worst = max(
            range(len(each)),
            key=lambda k: (not each[k].converged, each[k].gap or 0.0, each[k].residual),
        )
        summary = _summarise(each[worst])
        if not isinstance(self.converged, list):
            return summary
        text = f"{summary.headline[0].lower()}{summary.headline[1:]}"
        return replace(summary, headline=f"Worst of {len(each)} barycenters: {text}")

    @property
    def objective_label(self) -> str:
        """Name of the objective: Σ w W2², or "objective" with a reach."""
        return "Σ w W2²" if self.reach is None else "objective"

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for every known entry."""
        low, high = round_bounds(self.lower_bound, self.upper_bound)
        entries = {
            "weights": self.weights,
            self.objective_label: self.objective,
            "Σ w W2² at least": low,
            "Σ w W2² at most": high,
            "gap": self.gap,
            "residual": self.residual,
            "mass": self.mass,
            "masses of the densities": self.masses if self._has_unequal_masses() else None,
            "reach": self.reach,
            "converged": self.converged,
            **self.info,
        }
        return [
            (label, format_entry(entry)) for label, entry in entries.items() if entry is not None
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)

    def _has_unequal_masses(self) -> bool:
        return max(self.masses) > (1 + THRESHOLDS.noticeable) * min(self.masses)


_LISTED = (
    "weights",
    "objective",
    "lower_bound",
    "upper_bound",
    "gap",
    "residual",
    "converged",
    "mass",
)


def build_report(one: Barycenter) -> BarycenterReport:
    """Return the report of a barycenter, with its bounds unless it has a reach."""
    is_bounded = one.options.reach is None
    return BarycenterReport(
        weights=one._weights.tolist(),
        objective=float(one.objective),
        lower_bound=float(one.lower_bound) if is_bounded else None,
        upper_bound=float(one.upper_bound) if is_bounded else None,
        gap=float(one.gap) if is_bounded else None,
        residual=one.solution.residual,
        converged=one.converged,
        mass=float(one.mass),
        masses=one.densities.mass_tensor.tolist(),
        reach=one.options.reach,
        info={key: value for key, value in one.solution.info.items() if key != "converged"},
        cell=min(one.grid.spacing),
    )


def join_reports(reports: Sequence[BarycenterReport]) -> BarycenterReport:
    """Return one report with a list for each entry that differs between barycenters."""
    keys = dict.fromkeys(key for report in reports for key in report.info)
    names = [name for name in _LISTED if getattr(reports[0], name) is not None]
    return replace(
        reports[0],
        info={key: [report.info.get(key) for report in reports] for key in keys},
        **{name: [getattr(report, name) for report in reports] for name in names},
    )


def _summarise(report: BarycenterReport) -> Summary:
    kept = [k for k, weight in enumerate(report.weights) if weight > 0]
    if len(kept) == 1:
        return Summary("One density has all the weight; it is its own barycenter", ())
    rms = math.sqrt(max(report.objective, 0.0))
    if report.reach is None and report.converged and rms <= THRESHOLDS.motionless * report.cell:
        return Summary("Nothing moves: all densities are equal", ())
    unbalanced = f"{format_percent(min(1.0, report.residual))} of the mass is not balanced"
    sentences = []
    if report.reach is None:
        cells = format_number(rms / report.cell, digits=2)
        sentences.append(f"Mass moves {cells} {'cell' if cells == '1' else 'cells'} (rms).")
        low, high = round_bounds(report.lower_bound, report.upper_bound)
        sentences.append(f"The weighted sum of squared distances is between {low} and {high}.")
        headline = f"Optimal within {format_percent(report.gap)}"
    else:
        headline = "Converged; with a reach there are no bounds"
    if not report.converged:
        headline = f"Not converged: {unbalanced}"
        if report.info.get("stopped after"):
            sentences.append("Give a larger time_limit, on the command line --option time_limit=….")
        else:
            sentences.append(
                "Blur all densities by about a cell, density.gaussian_blur(1) or --blur 1, or give "
                "a larger max_iterations, on the command line --option max_iterations=…."
            )
    elif report.residual > THRESHOLDS.noticeable:
        sentences.append(f"{unbalanced}.")
    if report.reach is None and max(report.masses) > (1 + THRESHOLDS.unequal) * min(report.masses):
        sentences.append("The masses of the densities differ; they count as one each.")
    return Summary(headline, tuple(sentences))
