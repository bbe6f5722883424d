"""What a report comes to, in a few sentences for a person.

How far things moved and how far the answer is blurred, in cells; what can be wrong; what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from geonet.advice import either, setting
from geonet.wording import number, percent

if TYPE_CHECKING:
    from geonet.geodesics.report import Report

NOTICED = 5e-3  # a share that is not mentioned below
POOR = 0.05  # expected L1 error above which there is advice
UNEVEN = 0.05  # masses that differ by a larger share are mentioned
STILL = 0.01  # cells: those that move by less do not move
MISSED = 0.2  # an end that is missed by more: the path does not say how far things moved
LONGEST = 4  # sentences, beside that on unequal masses
NOT_PER_PAIR = ("solver", "solvers", "cell", "dimension", "notes")

# What is known of frames between the ends beside an estimate: by the solver.
KNOWN = {
    "quantile": "the path is exact for cells of constant density",
    "bures": "the path is exact for Gaussians in all of space",
    "monge-ampere": "the solver met its equation within its tolerance",
    "schrodinger": "the path is the exact bridge with noise, and not the geodesic",
}
MORE_STEPS = {
    "back-and-forth": "max_iterations",
    "barycenter": "max_iterations",
    "debiased-barycenter": "max_iterations",
    "ott-barycenter": "max_iterations",
}
MOST_DIMENSIONS = 3  # of auto and midpoint; the linear program takes any
LESS_BLUR = {
    "schrodinger": ("a smaller", "epsilon"),
    "barycenter": ("a smaller", "reg"),
    "ott-barycenter": ("a smaller", "epsilon"),
    "linear-program": ("a larger", "max_cells"),
}


def verdict(report: Report) -> str:
    """Five sentences at most; of a batch, about the worst pair."""
    if not isinstance(report.mass_error, list):
        return _of_pair(report)
    pairs = list(pairs_of(report))
    worst = max(range(len(pairs)), key=lambda k: _badness(pairs[k]))
    said = _of_pair(pairs[worst])
    return f"Of {len(pairs)} pairs path[{worst}] is the worst: {said[0].lower()}{said[1:]}"


def pairs_of(report: Report) -> Iterator[Report]:
    """The reports of the pairs of a batch."""
    per_pair = [field.name for field in fields(report) if field.name not in NOT_PER_PAIR]
    assert isinstance(report.mass_error, list)
    for k in range(len(report.mass_error)):
        entries = {name: _entry(getattr(report, name), k) for name in per_pair}
        notes = {name: _entry(note, k) for name, note in report.notes.items()}
        solver = _entry(report.solvers or report.solver, k)
        yield replace(report, solver=solver, solvers=None, notes=notes, **entries)


def _entry(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, list) and k < len(value) else value


def _of_pair(report: Report) -> str:
    if report.solver == "linear":
        solver = "linear-program" if (report.dimension or 0) > MOST_DIMENSIONS else "auto"
        return (
            "Nothing moves: the mixture fades one density into the other; it is not a geodesic. "
            f"Take {setting('solver', solver)} for the geodesic."
        )
    first, remedy = _motion(report), _remedy(report)
    doubts = [_smeared(report), _flaws(report), _trust(report), _interval(report)]
    said = [sentence for sentence in doubts if sentence]
    room = LONGEST - bool(first) - bool(remedy)
    return " ".join(filter(None, [first, *said[:room], _masses(report), remedy]))


def _badness(report: Report) -> float:
    """By which pairs of a batch are compared."""
    flaws = report.source_error, report.target_error, report.mass_error, report.negativity
    score = sum(float(flaw) for flaw in flaws if isinstance(flaw, float))
    for share in (report.error_estimate, report.uncertain_share, report.mismatch):
        score += share if isinstance(share, float) else 0.0
    score += (report.in_distribution is False) + (report.notes.get("converged") is False)
    return score + _blur_is_larger(report)


# ---- what happened


def _motion(report: Report) -> str:
    moved, blur = _in_cells(report, _way(report)), _in_cells(report, report.blur)
    if moved is None:
        return ""
    ends = report.source_error, report.target_error
    if any(isinstance(error, float) and error > MISSED for error in ends):
        return f"Blurred by {_cells(blur)}." if blur else ""
    if moved < STILL and not blur:
        return "Nothing moves: the ends are equal, or as good as equal."
    at_least = "at least " if report.distance is None and moved >= 1 else ""
    text = f"Moved {at_least}{_cells(moved)} (rms)"
    return f"{text}; blurred by {_cells(blur)}." if blur else f"{text}."


def _way(report: Report) -> float | None:
    """The root mean square of all displacements: W2, or what it is at least."""
    low, high = report.distance_lower_bound, report.distance_upper_bound
    assert isinstance(low, float) and isinstance(high, float)
    return min(max(report.distance, low), high) if isinstance(report.distance, float) else low


def _in_cells(report: Report, length: Any) -> float | None:
    return None if report.cell is None or length is None else length / report.cell


def _cells(count: float) -> str:
    if count < 0.995:
        return "less than a cell"
    text = number(count, digits=2)
    return f"{text} cell" if text == "1" else f"{text} cells"


# ---- what can be wrong


def _blur_is_larger(report: Report) -> bool:
    way = _way(report)
    return isinstance(report.blur, float) and way is not None and report.blur > way


def _smeared(report: Report) -> str:
    if not _blur_is_larger(report):
        return ""
    return "The blur is larger than the motion: the path shows little but blur."


def _flaws(report: Report) -> str:
    flaws = [
        f"{what} {percent(share)}"
        for what, share in (
            ("misses its source by", report.source_error),
            ("misses its target by", report.target_error),
            ("is off in mass by", report.mass_error),
            ("falls below zero by", report.negativity),
        )
        if isinstance(share, float) and share > NOTICED
    ]
    if not flaws:
        return ""
    listed = f"{', '.join(flaws[:-1])} and {flaws[-1]}" if flaws[1:] else flaws[0]
    return f"The path {listed}."


def _trust(report: Report) -> str:
    """What is known between the ends."""
    parts = []
    if isinstance(report.error_estimate, float):
        error = percent(report.error_estimate)
        parts.append(f"expect an L1 error of {error} against the exact geodesic")
    elif isinstance(report.mismatch, float) and report.mismatch > NOTICED:
        parts.append(f"both ends disagree on the density halfway by {percent(report.mismatch)}")
    elif (known := KNOWN.get(report.solver)) is not None:
        parts.append(known)
    if report.in_distribution is False:
        parts.append("the pair is unlike those of the training")
    if report.notes.get("converged") is False:
        parts.append("the solver did not reach its tolerance")
    if report.notes.get("stopped early at t"):
        parts.append("the solver stopped early at some times")
    if report.notes.get("plan entries"):
        parts.append("the path is grainy between the ends")
    if not parts:
        parts.append("nothing is known between the ends")
    return _sentence("; ".join(parts))


def _masses(report: Report) -> str:
    before, after = report.source_mass, report.target_mass
    if not isinstance(before, float) or not isinstance(after, float):
        return ""
    ratio = after / before
    if abs(ratio - 1) <= UNEVEN:
        return ""
    return (
        f"The target has {number(ratio, digits=2)} times the source's mass; the path is that of "
        "the normalised densities."
    )


def _interval(report: Report) -> str:
    if report.distance is None or not report.doubtful:
        return ""
    return f"W2 is {report.distance_text}."


# ---- what to do


def _remedy(report: Report) -> str:
    better = _better(report)
    missed = report.notes.get("converged") is False or report.notes.get("stopped early at t")
    if missed and report.notes.get("stopped after"):
        return f"Give {_option('a larger', 'time_limit')}."
    if missed and report.solver in MORE_STEPS:
        return f"Give {_option('more', MORE_STEPS[report.solver])}."
    if report.solver == "midpoint" and (missed or _is_poor(report)):
        return f"Take {better}." if better else _smoother()
    if _blur_is_larger(report) or (report.blur and report.doubtful):
        less = LESS_BLUR.get(report.solver)
        ways = [f"give {_option(*less)}" if less else "", f"take {better}" if better else ""]
        return _sentence(", or ".join(filter(None, ways)))
    if not better:
        return ""
    if _flaws(report) or _is_poor(report):
        return f"Take {better}."
    if report.notes.get("plan entries"):
        return f"For smooth frames take {better}."
    known = isinstance(report.error_estimate, float) or report.solver in KNOWN
    return "" if known else f"Compare with {better}."


def _smoother() -> str:
    """For ends too rough for Newton's method, which more steps or finer cells do not help."""
    blurred, bridge = either("density.blurred(1)", "--blur 1"), setting("solver", "schrodinger")
    return f"Blur both ends by about a cell, {blurred}, or take {bridge}."


def _better(report: Report) -> str:
    """The solver to trust most in so many dimensions; "" if it is the one that answered."""
    d = report.dimension
    if d is not None and d > MOST_DIMENSIONS:
        solver = "linear-program"
    else:
        solver = "quantile" if d == 1 else "midpoint"
    return "" if report.solver == solver else setting("solver", solver)


def _is_poor(report: Report) -> bool:
    return isinstance(report.error_estimate, float) and report.error_estimate > POOR


def _option(how: str, name: str) -> str:
    return f"{how} {either(name, f'{name} (--option {name}=…)')}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
