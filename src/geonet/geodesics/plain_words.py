"""A report in words that need no mathematics, for pages."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING, Any

from geonet.geodesics.tears import torn_share
from geonet.wording import number, percent

if TYPE_CHECKING:
    from geonet.geodesics.base import Geodesic
    from geonet.geodesics.report import Report

DIGITS = 4
TIGHT = 0.05  # of the distance: bounds that are further apart are not in the headline
POOR, HOPELESS = 0.1, 0.5  # errors of frames that go before a distance, and that say it all
STILL = 0.01  # of a cell: what moves by less does not move
NOTICED = 5e-3  # a share that is not mentioned below
UNEVEN = 0.05  # densities whose masses differ by more are mentioned

EXACT = {
    "quantile": "Exact",
    "linear-program": "The distance is exact; the frames are grainy",
}


def in_plain_words(path: Geodesic, report: Report) -> dict[str, Any]:
    """What to say of one pair: a headline, sentences, the rows of its report, and what is torn."""
    tears = torn_share(path) if report.blur is None else None  # noise never tears
    return {
        "headline": headline(report),
        "sentences": sentences(report, path.grid.longest, tears),
        "rows": report.rows(),
        "tears": tears,
    }


def headline(report: Report) -> str:
    """How far the answer can be trusted, in a few words."""
    if report.solver == "linear":
        return "This is no transport: one density fades into the other"
    if _is_still(report):
        return "Nothing moves: both densities are the same"
    error = _float(report.error_estimate)
    if error is not None and error > HOPELESS:
        return f"Not to be trusted: expect errors of about {percent(error)}"
    if report.solver in EXACT:
        return EXACT[report.solver]
    spread = _spread(report)
    if spread is not None and spread <= TIGHT and (error or 0.0) <= POOR:
        return f"Distance within {percent(spread)}, certified"
    if error is not None:
        return f"Expect errors of about {percent(error)}"
    return _first_sentence(report.verdict())


def sentences(report: Report, longest: float, tears: float | None) -> list[str]:
    """What is known, a sentence each.

    Args:
        report: on one pair.
        longest: side of the box.
        tears: the share of the mass that is torn; None where that is not known.
    """
    if report.solver == "linear":
        return [
            "Nothing moves: the first density fades out while the second one fades in.",
            "Choose another solver to see the mass move.",
        ]
    parts = (
        *(_distance(report, longest), _frames(report, longest), _doubts(report)),
        *(_tears(tears), _masses(report)),
    )
    return [sentence for part in parts for sentence in part]


def _distance(report: Report, longest: float) -> Iterator[str]:
    lower, upper = _float(report.distance_lower_bound), _float(report.distance_upper_bound)
    assert lower is not None and upper is not None
    distance = _float(report.distance)
    if distance is not None and not report.doubtful:
        yield f"On average, mass moves {number(distance / longest, 2)} of the box's width."
    if report.solver not in EXACT:
        low, high = _rounded(lower, ROUND_FLOOR), _rounded(upper, ROUND_CEILING)
        yield f"The distance is proven to lie between {low} and {high}."


def _frames(report: Report, longest: float) -> Iterator[str]:
    """What is known between the ends."""
    error, blur = _float(report.error_estimate), _float(report.blur)
    mismatch = _float(report.mismatch)
    if report.solver == "quantile":
        yield "The frames are exact for densities that are constant in each cell."
    elif error is not None:
        yield f"Expect the frames in between to be off by about {percent(error)}."
    elif blur is not None:
        yield (
            f"Noise blurs the frames halfway by {number(blur / longest, 2)} of the box's width; "
            "less ε means less blur."
        )
    elif mismatch is not None and mismatch > NOTICED:
        yield f"Seen from both ends, the frame halfway differs by {percent(mismatch)}."


def _doubts(report: Report) -> Iterator[str]:
    flaws = (
        ("The path misses the first density by {}.", report.source_error),
        ("The path misses the second density by {}.", report.target_error),
        ("Up to {} of the mass comes from nowhere or gets lost.", report.mass_error),
        ("Up to {} of the mass is below zero.", report.negativity),
    )
    for sentence, share in flaws:
        found = _float(share)
        if found is not None and found > NOTICED:
            yield sentence.format(percent(found))
    if report.in_distribution is False:
        yield "The network was not trained on densities like these."
    if report.notes.get("converged") is False:
        yield "The solver stopped before it was done."


def _tears(share: float | None) -> Iterator[str]:
    if share is not None and share > NOTICED:
        yield f"This pair tears: {percent(share)} of the mass has neighbours that end elsewhere."


def _masses(report: Report) -> Iterator[str]:
    before, after = _float(report.source_mass), _float(report.target_mass)
    if before and after and abs(after / before - 1) > UNEVEN:
        ratio = number(after / before, 2)
        yield f"The second density has {ratio} times the mass of the first; both count as one."


def _is_still(report: Report) -> bool:
    distance, error = _float(report.distance), _float(report.error_estimate)
    length = STILL * (report.cell or 0.0)
    return distance is not None and distance <= length and not report.doubtful and not error


def _spread(report: Report) -> float | None:
    """How far apart the bounds are, relative to the distance."""
    lower, upper = _float(report.distance_lower_bound), _float(report.distance_upper_bound)
    distance = _float(report.distance)
    if distance is None or lower is None or upper is None or not lower <= distance <= upper:
        return None
    return (upper - lower) / distance if distance > 0 else None


def _rounded(value: float, direction: str) -> str:
    """Four digits, rounded so that a bound stays one."""
    return number(float(Context(DIGITS, direction).create_decimal_from_float(value)), DIGITS)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].removesuffix(".")


def _float(value: object) -> float | None:
    """A number of one pair; None where it is not known."""
    return value if isinstance(value, float) else None
