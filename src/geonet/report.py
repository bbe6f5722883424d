"""Reports on paths: errors and bounds that the path itself provides, and a summary in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

import torch
from torch import Tensor

from geonet._format import format_number, format_percent
from geonet.density import Density
from geonet.errors import InputError, UnavailableError
from geonet.metrics import measure_discontinuity
from geonet.paths import QUARTERS, BatchedGeodesic, Geodesic
from geonet.solvers.base import SolverInfo
from geonet.solvers.linear_program import LinearProgram
from geonet.solvers.registry import find_info, recommend_solver

PerPair = float | list[float]


@dataclass(frozen=True)
class ReportThresholds:
    """Limits from which the entries of a report are mentioned or lead to advice.

    Attributes:
        noticeable: smallest share of the mass that is mentioned.
        unequal: relative difference of the masses that is mentioned.
        motionless: W2 in cells up to which nothing moves.
        missed: L1 error at an end above which W2 does not describe the path.
        poor: expected L1 error above which there is advice.
        unreliable: expected L1 error above which the path is called unreliable.
        certified: relative distance of the bounds up to which W2 is called certified.
        uncertain: relative uncertainty above which W2 is given by its bounds.
        unknown: ratio of the bounds above which a pair does not count as converged.
        slack: relative rounding error of W2 and its bounds, which are sums over cells.
    """

    noticeable: float = 5e-3
    unequal: float = 0.05
    motionless: float = 1e-3
    missed: float = 0.2
    poor: float = 0.05
    unreliable: float = 0.5
    certified: float = 0.05
    uncertain: float = 0.006
    unknown: float = 2.0
    slack: float = 1e-3


THRESHOLDS = ReportThresholds()


@dataclass(frozen=True)
class Summary:
    """A report as sentences.

    Attributes:
        headline: accuracy in a few words.
        sentences: known facts, then at most one recommendation.
    """

    headline: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.headline}.", *self.sentences))


@dataclass(frozen=True)
class Report:
    """Errors and bounds of a path, as numbers for one pair or lists of numbers for a batch.

    In a list, None stands for pairs for which an entry is unknown. From `error_estimate` on,
    entries are None if the path does not provide them.

    Attributes:
        solver: name of the solver; several names, joined, for a batch with several solvers.
        distance: W2 by the solver; None if it does not provide it. Values outside the bounds by
            rounding are moved to the bound; see also `is_distance_uncertain`.
        distance_lower_bound: W2 of Gaussians with the same moments (Gelbrich), or the bound of the
            path if it is larger.
        distance_upper_bound: cost of the product plan, or the bound of the path if it is smaller.
        mass_error: largest |∫μ_t − 1| over t = 0, ¼, ½, ¾, 1.
        negativity: largest negative mass over the same times.
        source_error: L1 error of the path at t = 0.
        target_error: L1 error of the path at t = 1.
        info: entries of the solver: residual, iterations, floor, grid.
        error_estimate: expected L1 error between the ends.
        in_distribution: whether the pair resembles the training data of the model.
        mismatch: ∫|ρ0 − ρ1| at t = ½ between the densities pushed from both ends.
        continuity: ∫∫|∂_t μ + ∇·(μv)|, mass that appears or disappears.
        hamilton_jacobi: acceleration ∂_t v + (v·∇)v of the particles relative to |v|.
        smallest_determinant: smallest Jacobian determinant of the maps from t = ½ to both ends;
            positive if the maps do not fold.
        distance_uncertainty: bound on the error of `distance`.
        blur: standard deviation that noise or coarse cells add at t = ½ along each axis, a length.
        discontinuous_mass: share of the mass with a neighbour that ends elsewhere.
        cost: cost of a path with a reach; `distance` is then √(2·cost).
        cost_lower_bound: lower bound of the cost, by duality.
        cost_upper_bound: upper bound of the cost, by a plan.
        transported_share: mass of the plan over the mean mass, with a reach.
        source_mass: mass of the source as given.
        target_mass: mass of the target as given.
        program_uncertainty: bound on the uncertainty of W2 that coarser cells would cause in
            `linear-program` with coarsen=True, for pairs that did not converge.
        cell: shortest side of a cell.
        dimension: dimension of the grid.
        is_periodic: whether an axis of the grid is periodic.
        solvers: solver of each pair, for a batch that was solved pair by pair.
    """

    solver: str
    distance: PerPair | None
    distance_lower_bound: PerPair
    distance_upper_bound: PerPair
    mass_error: PerPair
    negativity: PerPair
    source_error: PerPair
    target_error: PerPair
    info: dict[str, Any]
    error_estimate: PerPair | None = None
    in_distribution: bool | list[bool] | None = None
    mismatch: PerPair | None = None
    continuity: PerPair | None = None
    hamilton_jacobi: PerPair | None = None
    smallest_determinant: PerPair | None = None
    distance_uncertainty: PerPair | None = None
    blur: PerPair | None = None
    discontinuous_mass: PerPair | None = None
    cost: PerPair | None = None
    cost_lower_bound: PerPair | None = None
    cost_upper_bound: PerPair | None = None
    transported_share: PerPair | None = None
    source_mass: PerPair | None = None
    target_mass: PerPair | None = None
    program_uncertainty: PerPair | None = None
    cell: float | None = None
    dimension: int | None = None
    is_periodic: bool = False
    solvers: list[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return asdict(self)

    def summary(self) -> Summary:
        """Return the report in words; for a batch, about the pair with the largest errors."""
        pairs = self.pairs()
        worst = max(range(len(pairs)), key=lambda k: pairs[k]._severity())
        summary = _summarise(pairs[worst])
        if not isinstance(self.mass_error, list):
            return summary
        text = f"{summary.headline[0].lower()}{summary.headline[1:]}"
        return replace(summary, headline=f"Worst of {len(pairs)} pairs is path[{worst}]: {text}")

    def pairs(self) -> list[Report]:
        """Return the reports of the pairs of a batch, or the report itself for a single pair."""
        if not isinstance(self.mass_error, list):
            return [self]
        shared = ("solver", "solvers", "cell", "dimension", "is_periodic", "info")
        names = [field.name for field in fields(self) if field.name not in shared]
        reports = []
        for k in range(len(self.mass_error)):
            entries = {name: _get_entry(getattr(self, name), k) for name in names}
            info = {name: _get_entry(entry, k) for name, entry in self.info.items()}
            solver = _get_entry(self.solvers or self.solver, k)
            reports.append(replace(self, solver=solver, solvers=None, info=info, **entries))
        return reports

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for every known entry."""
        distances = [
            "between {} and {}".format(
                *round_bounds(pair.distance_lower_bound, pair.distance_upper_bound)
            )
            if pair._is_uncertain()
            else format_entry(pair.distance)
            for pair in self.pairs()
        ]
        is_batch = isinstance(self.mass_error, list)
        entries: dict[str, Any] = {
            "solver": f"{self.solver} ({len(distances)} pairs)" if is_batch else self.solver,
            **self._distance_rows(distances),
            "L1 error, estimated": self.error_estimate,
            "in distribution": self.in_distribution,
            "mismatch at t = ½": self.mismatch,
            "continuity residual": self.continuity,
            "Hamilton–Jacobi residual": self.hamilton_jacobi,
            "smallest determinant": self.smallest_determinant,
            "discontinuous mass": self.discontinuous_mass,
            "mass error": self.mass_error,
            "negative mass": self.negativity,
            "L1 error at t = 0": self.source_error,
            "L1 error at t = 1": self.target_error,
            "blur": self.blur,
        }
        ratios = [pair._mass_ratio() for pair in self.pairs()]
        if any(abs(ratio - 1) > THRESHOLDS.noticeable for ratio in ratios):
            entries["mass of the source"] = self.source_mass
            entries["mass of the target"] = self.target_mass
            entries["mass ratio"] = ratios if is_batch else ratios[0]
        entries |= self.info
        return [
            (label, format_entry(entry)) for label, entry in entries.items() if entry is not None
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)

    def _distance_rows(self, distances: list[str]) -> dict[str, Any]:
        """Return W2 with its bounds or, with a reach, the cost."""
        if self.cost is not None:
            low, high = round_bounds(self.cost_lower_bound, self.cost_upper_bound)
            return {
                "cost": self.cost,
                "cost at least": low,
                "cost at most": high,
                "transported share": self.transported_share,
            }
        low, high = round_bounds(self.distance_lower_bound, self.distance_upper_bound)
        return {
            "W2 distance": None if self.distance is None else format_entry(distances),
            "W2 at least": low,
            "W2 at most": high,
            "W2 uncertainty": self.distance_uncertainty,
        }

    @property
    def is_distance_uncertain(self) -> bool:
        """True if the distance of any pair is outside its bounds or too uncertain."""
        return any(pair._is_uncertain() for pair in self.pairs())

    # ---- Properties of single pairs, for the summary

    def _is_uncertain(self: Any) -> bool:
        if self.distance is None:
            return False
        lower, upper, still = self.distance_lower_bound, self.distance_upper_bound, self._still()
        is_vague = (self.distance_uncertainty or 0.0) > THRESHOLDS.uncertain * self.distance
        return (is_vague and upper > still) or any(_is_outside(self.distance, lower, upper, still))

    def _is_program_better(self: Any) -> bool:
        """Return whether `linear-program` can at least halve the gap between wide bounds of W2."""
        upper = self.distance_upper_bound
        if self.program_uncertainty is None or self.cost is not None or self.is_periodic:
            return False
        gap = upper - self.distance_lower_bound
        return gap > max(THRESHOLDS.certified * upper, 2 * self.program_uncertainty)

    def _is_still(self: Any) -> bool:
        is_short = self.distance is not None and self.distance <= self._still()
        return is_short and not self.error_estimate and not self._is_uncertain()

    def _still(self) -> float:
        return THRESHOLDS.motionless * (self.cell or 0.0)

    def _rms_displacement(self: Any) -> float:
        """Return the rms displacement: W2 within its bounds, or the lower bound."""
        low, high = self.distance_lower_bound, self.distance_upper_bound
        return low if self.distance is None else min(max(self.distance, low), high)

    def _is_mostly_blur(self: Any) -> bool:
        return self.blur is not None and self.blur > self._rms_displacement()

    def _stopped_early(self) -> bool:
        return self.info.get("converged") is False or bool(self.info.get("stopped early at t"))

    def _mass_ratio(self: Any) -> float:
        return (self.target_mass or 1.0) / (self.source_mass or 1.0)

    def _has_dip(self: Any) -> bool:
        """Return whether the total mass is smallest between the ends, as "wfr" may have it.

        It is the linear interpolation minus 2t(1 − t)·cost/reach².
        """
        if self.cost is None or self.info.get("growth") != "wfr":
            return False
        change = abs((self.target_mass or 1.0) - (self.source_mass or 1.0))
        return 2 * self.cost / self.info["reach"] ** 2 > change

    def _describe_bounds(self) -> str:
        name, bounds = "W2", (self.distance_lower_bound, self.distance_upper_bound)
        if self.cost is not None:
            name, bounds = "the cost", (self.cost_lower_bound, self.cost_upper_bound)
        return "{} is between {} and {}".format(name, *round_bounds(*bounds))

    def _reach_in_cells(self) -> float:
        """Return the reach in cells; infinity for balanced transport."""
        reach = self.info.get("reach")
        return math.inf if reach is None else reach / (self.cell or reach)

    def _severity(self: Any) -> float:
        """Return a score of the errors, by which the pairs of a batch are compared."""
        shares = self.source_error, self.target_error, self.mass_error, self.negativity
        estimates = self.error_estimate or 0.0, self.mismatch or 0.0
        flags = self.in_distribution is False, self._stopped_early(), self._is_mostly_blur()
        return sum((*shares, *estimates, *flags, self._is_uncertain()))

    def _format_length(self, length: float) -> str:
        cells = length / (self.cell or 1.0)
        if cells < 0.995:
            return "less than a cell"
        text = format_number(cells, digits=2)
        return f"{text} cell" if text == "1" else f"{text} cells"


def _get_entry(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, list) and k < len(value) else value


def _is_outside(distance: Any, lower: Any, upper: Any, still: float) -> Any:
    """Return whether distances are below and above their bounds, for numbers or tensors."""
    is_below = (distance < (1 - THRESHOLDS.slack) * lower) & (lower > still)
    return is_below, (distance > (1 + THRESHOLDS.slack) * upper) & (distance > still)


def format_entry(value: Any, max_entries: int = 5) -> str:
    """Return an entry as text; lists with one list for each pair are joined by semicolons."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list):
        separator = "; " if any(isinstance(entry, list) for entry in value) else ", "
        rest = ["…"] if len(value) > max_entries else []
        return separator.join([*map(format_entry, value[:max_entries]), *rest]) or "–"
    return str(value)


def _summarise(report: Report) -> Summary:
    """Write the summary of a single pair."""
    solver = find_info(report.solver)
    if not solver.transports:
        name = recommend_solver(report.dimension, general=True)
        sentence = f"Choose solver={name!r} for the geodesic, on the command line --solver {name}."
        return Summary("No transport: one density fades into the other", (sentence,))
    statements = _describe_motion, _describe_accuracy, _list_defects, _recommend
    sentences = [sentence for state in statements for sentence in state(report, solver)]
    headline = _write_headline(report, solver)
    return Summary(headline, tuple(one for one in sentences if one[1:-1] not in headline))


def _write_headline(report: Any, solver: SolverInfo) -> str:
    error, distance = report.error_estimate, report.distance
    lower, upper = report.distance_lower_bound, report.distance_upper_bound
    if report._is_still():
        return "Nothing moves: both densities are equal"
    if report._stopped_early():
        return f"Not converged: {report._describe_bounds()}"
    if error is not None and error > THRESHOLDS.unreliable:
        return f"Not reliable: expect {_describe_error(error)}"
    if solver.exact and solver.guarantee:
        return _capitalise(solver.guarantee)
    if distance is not None and lower <= distance <= upper and (error or 0.0) <= THRESHOLDS.poor:
        width, value, name = upper - lower, distance, "Distance"
        if report.cost is not None:
            width, value = report.cost_upper_bound - report.cost_lower_bound, report.cost
            name = "Cost"
        if value > 0 and width <= THRESHOLDS.certified * value:
            return f"{name} certified within {format_percent(width / value)}"
    if error is not None:
        return f"Expect {_describe_error(error)}"
    return _capitalise(solver.guarantee or "the error between the ends is unknown")


def _describe_motion(report: Any, solver: SolverInfo) -> Iterator[str]:
    """Write how far mass moves, and the bounds of W2; with a reach, how much of it moves."""
    if report._is_still():
        return
    if report.cost is not None:
        share = format_percent(report.transported_share)
        yield f"{share} of the mass is transported; the rest grows or fades in place."
        yield f"{_capitalise(report._describe_bounds())}."
        return
    if max(report.source_error, report.target_error) <= THRESHOLDS.missed:
        at_least = "at least " if report.distance is None else ""
        yield f"Mass moves {at_least}{report._format_length(report._rms_displacement())} (rms)."
    if report._is_uncertain() or not solver.exact:
        yield f"{report._describe_bounds()}."


def _describe_accuracy(report: Any, solver: SolverInfo) -> Iterator[str]:
    """Write the accuracy of the frames between the ends."""
    if report.error_estimate is not None:
        yield f"Expect {_describe_error(report.error_estimate)}."
    elif solver.guarantee and not solver.exact:
        yield f"{_capitalise(solver.guarantee)}."
    if report.blur:
        blur = f"The frame halfway is blurred by {report._format_length(report.blur)}"
        yield f"{blur}, more than the mass moves." if report._is_mostly_blur() else f"{blur}."


def _describe_error(error: float) -> str:
    return f"an L1 error of {format_percent(error)} between the ends"


def _list_defects(report: Any, solver: SolverInfo) -> Iterator[str]:
    """Write every share of the mass above its threshold, and every warning."""
    mismatch = report.mismatch if report.error_estimate is None else None
    shares = (
        (report.source_error, "The path misses the source by {}."),
        (report.target_error, "The path misses the target by {}."),
        (report.mass_error, "The total mass is off by up to {}."),
        (min(report.negativity, 1.0), "Up to {} of the mass is negative."),
        (mismatch, "The densities pushed from both ends differ by {} halfway."),
        (
            report.discontinuous_mass,
            "The map is discontinuous: {} of the mass has neighbours that end elsewhere.",
        ),
    )
    for share, sentence in shares:
        if share is not None and share > THRESHOLDS.noticeable:
            yield sentence.format(format_percent(share))
    if report.in_distribution is False:
        yield "The pair differs from the training data of the network."
    if report.info.get("bounds"):
        yield "The bounds of W2 are too far apart to confirm that the solver has converged."
    elif report._stopped_early():
        yield "The solver did not reach its tolerance."
    if report.info.get("plan entries"):
        yield "The frames between the ends are grainy."
    if abs(report._mass_ratio() - 1) > THRESHOLDS.unequal:
        ratio = format_number(report._mass_ratio(), 2)
        change = "grows" if report._mass_ratio() > 1 else "shrinks"
        is_balanced = report.cost is None
        treatment = f"the total {change} along the path"
        if is_balanced:
            treatment = "both are normalised"
        elif report._has_dip():
            end = "grows" if change == "grows" else "rises again"
            treatment = f"the total first falls, then {end}"
        yield f"The target has {ratio} times the mass of the source; {treatment}."


def _recommend(report: Any, solver: SolverInfo) -> Iterator[str]:
    """Write at most one recommendation.

    Solvers recommend their own options, or the most reliable solver for the dimension, and the
    latter recommends smoother densities: advice does not lead back to the first solver. If a small
    mass must move far between islands, blurring does not help; a linear program provides W2 unless
    its coarser cells would leave it as uncertain as it is.
    """
    reference = recommend_solver(report.dimension)
    is_reference, stopped = report.solver == reference, report._stopped_early()
    is_poor = (report.error_estimate or 0.0) > THRESHOLDS.poor
    is_blurred = report.blur and (report._is_mostly_blur() or report._is_uncertain())
    epsilon = report.info.get("smaller epsilon")
    errors = report.source_error, report.target_error, report.mass_error, report.negativity
    if report._reach_in_cells() < 1:
        cells = format_number(report._reach_in_cells(), 1)
        yield (
            f"Choose a longer reach: it is {cells} cells, so mass can hardly move and grows or "
            "fades in place."
        )
    elif stopped and report.info.get("stopped after"):
        yield "Give a larger time_limit, on the command line --option time_limit=…."
    elif stopped and solver.more_iterations and not report.info.get("stagnated"):
        yield f"Give {_name_both(solver.more_iterations)}."
    elif is_reference and stopped and report._is_program_better():
        yield (
            "Choose solver='linear-program' with coarsen=True for W2, on the command line "
            "--solver linear-program --option coarsen=true."
        )
    elif is_reference and (stopped or is_poor):
        yield (
            "Blur both ends by one cell, or by two or four if one does not suffice: "
            "density.gaussian_blur(1) or --blur 1."
        )
    elif is_blurred and solver.less_blur and (epsilon or "epsilon" not in report.info):
        yield f"Give {_name_both(solver.less_blur, epsilon)}."
    elif is_reference:
        return
    elif stopped or is_poor or is_blurred or max(errors) > THRESHOLDS.noticeable:
        yield f"Choose solver={reference!r}, on the command line --solver {reference}."
    elif report.error_estimate is None and solver.guarantee is None:
        yield f"Compare with solver={reference!r}, on the command line --solver {reference}."


def _name_both(advice: str, value: float | None = None) -> str:
    """Return advice that ends in the name of an option, with the option of the command line."""
    number = "" if value is None else format_number(value)
    example = f" such as {number}" if number else ""
    return f"{advice}{example}, on the command line --option {advice.split()[-1]}={number or '…'}"


def _capitalise(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def round_bounds(lower: Any, upper: Any, digits: int = 4) -> tuple[Any, Any]:
    """Return two bounds as texts, rounded such that they remain bounds; for lists, lists of texts.

    None, an unknown bound, remains None.
    """
    directions = (lower, ROUND_FLOOR), (upper, ROUND_CEILING)
    low, high = (_round_each(value, Context(digits, way)) for value, way in directions)
    return low, high


def _round_each(value: Any, context: Context) -> Any:
    if isinstance(value, list):
        return [_round_each(entry, context) for entry in value]
    if value is None:
        return None
    return format_number(float(context.create_decimal(repr(value))), context.prec)


def build_report(path: Geodesic) -> Report:
    """Measure a path at five times on its grid."""
    if not isinstance(path.source, Density):
        raise InputError("A path without a grid has no report; give both ends on a grid.")
    grid, axis = path.grid, len(path.batch)
    frames = path._density(torch.tensor(QUARTERS, dtype=torch.float64), grid).to(torch.float64)
    diagnostics = path._diagnostics()
    lower, upper = path._moment_bounds
    if "distance_lower_bound" in diagnostics:
        lower = torch.fmax(lower, diagnostics.pop("distance_lower_bound"))
        upper = torch.fmin(upper, diagnostics.pop("distance_upper_bound"))
    lower = torch.minimum(lower, upper)  # they may be equal up to rounding
    cell = min(grid.spacing)
    still = THRESHOLDS.motionless * cell
    if (share := measure_discontinuity(path)) is not None:
        diagnostics["discontinuous_mass"] = share

    def integrate(values: Tensor) -> Tensor:
        return values.flatten(-grid.dimension).sum(-1) * grid.cell_volume

    info = _describe_solve(path, lower, upper)
    return Report(
        solver=path.solver,
        distance=_measure_distance(path, lower, upper, still),
        distance_lower_bound=lower.tolist(),
        distance_upper_bound=upper.tolist(),
        mass_error=(integrate(frames) - 1).abs().amax(-1).tolist(),
        negativity=integrate(-frames.clamp(max=0)).amax(-1).tolist(),
        source_error=integrate((frames.select(axis, 0) - path.source.tensor).abs()).tolist(),
        target_error=integrate((frames.select(axis, -1) - path.target.tensor).abs()).tolist(),
        info=info,
        program_uncertainty=_bound_program(path.source, path.target, info.get("converged")),
        source_mass=path.source.mass_tensor.expand(path.batch).tolist(),
        target_mass=path.target.mass_tensor.expand(path.batch).tolist(),
        cell=cell,
        dimension=grid.dimension,
        is_periodic=grid.is_periodic,
        solvers=[pair.solver for pair in path.paths] if isinstance(path, BatchedGeodesic) else None,
        **{name: _to_python(v, name == "in_distribution") for name, v in diagnostics.items()},
    )


def _describe_solve(path: Geodesic, lower: Tensor, upper: Tensor) -> dict[str, Any]:
    """Return the entries of the solver; a pair whose bounds are far apart has not converged."""
    info, known = dict(path.info), is_known(path, lower, upper).tolist()
    converged = info.get("converged")
    if isinstance(converged, list):
        is_vague = [flag and not own for flag, own in zip(converged, known, strict=True)]
        if any(is_vague):
            pairs = zip(converged, is_vague, strict=True)
            info["converged"] = [flag and not vague for flag, vague in pairs]
            info["bounds"] = ["far apart" if vague else None for vague in is_vague]
    elif converged and not known:
        info |= {"converged": False, "bounds": "far apart"}
    return info


def _bound_program(source: Density, target: Density, converged: Any) -> Any:
    """Return `program_uncertainty`, None for pairs that converged."""
    if isinstance(converged, list):
        return [_bound_program(source[k], target[k], flag) for k, flag in enumerate(converged)]
    if converged is not False:
        return None
    return LinearProgram(coarsen=True).bound_coarsening(source, target)


def is_known(path: Geodesic, lower: Tensor, upper: Tensor) -> Tensor:
    """Return whether bounds of W2 are close enough to confirm that a pair converged, (batch?).

    Bounds from moments alone are not judged. See `ReportThresholds.unknown`.
    """
    paths = path.paths if isinstance(path, BatchedGeodesic) else [path]
    is_judged = torch.tensor([own.has_bounds and own.is_balanced for own in paths])
    if not isinstance(path, BatchedGeodesic):
        is_judged = is_judged[0]
    still = THRESHOLDS.motionless * min(path.grid.spacing)
    return ~is_judged | (upper <= THRESHOLDS.unknown * lower) | (upper <= still)


def _measure_distance(path: Geodesic, lower: Tensor, upper: Tensor, still: float) -> PerPair | None:
    """Return W2; values outside the bounds by rounding are moved to the bound."""
    try:
        distance = path._distance().to(torch.float64)
    except UnavailableError:
        return None
    is_below, is_above = _is_outside(distance, lower, upper, still)
    return torch.where(is_below | is_above, distance, distance.clamp(lower, upper)).tolist()


def _to_python(values: Tensor, is_flag: bool) -> Any:
    """Return numbers or flags for each pair, None if they are NaN."""
    if values.ndim:
        return [_to_python(value, is_flag) for value in values]
    value = float(values)
    return None if math.isnan(value) else bool(value) if is_flag else value
