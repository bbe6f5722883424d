"""What a path says about its own trustworthiness, without any reference solver."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

import torch
from torch import Tensor

from geonet._advice import either, setting
from geonet._format import format_number, format_percent
from geonet.density import Density
from geonet.errors import InputError, UnavailableError
from geonet.metrics import l1, mass_error, negativity
from geonet.paths import QUARTERS, BatchedGeodesic, Geodesic
from geonet.solvers.bures import gaussian_distance

# ---- What a report comes to, in a few sentences for a person.
#
# How far things moved and how far the answer is blurred, in cells; what can be wrong; what to do.


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
    text = format_number(count, digits=2)
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
        f"{what} {format_percent(share)}"
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
        error = format_percent(report.error_estimate)
        parts.append(f"expect an L1 error of {error} against the exact geodesic")
    elif isinstance(report.mismatch, float) and report.mismatch > NOTICED:
        parts.append(
            f"both ends disagree on the density halfway by {format_percent(report.mismatch)}"
        )
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
        f"The target has {format_number(ratio, digits=2)} times the source's mass; the path is that of "
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


SHOWN = 5  # entries of a list in a line of text
SLACK = 1e-3  # both the distance and its bound are sums over cells
UNSURE = 0.02  # of W2: uncertainty above which an interval stands for the distance
SAME = 5e-3  # masses that differ by a smaller share are not shown

TINY = 1e-300  # a distance up to here is none

PerPair = float | list[float]


@dataclass(frozen=True)
class Report:
    """Per pair: a number, or a list of numbers for a batch.

    In a list, None stands for pairs of which an entry is not known.

    Attributes:
        solver: the solver that answered, or several of a batch.
        distance: W2 as the solver has it; None if it gives none. What rounding puts outside its
            bounds is moved to the nearest. Where it is not within them, or its uncertainty is
            large, the bounds say more: see `doubtful`.
        distance_lower_bound: the W2 distance of Gaussians with the same moments (Gelbrich), or the
            path's own bound if that is larger.
        distance_upper_bound: what it costs to send all mass anywhere (the product of both ends), or
            the path's own bound if that is smaller.
        mass_error: largest |∫μ_t − 1| over t = 0, ¼, ½, ¾, 1.
        negativity: largest mass below zero over the same times.
        source_error: L1 error of the path at t = 0.
        target_error: L1 error of the path at t = 1.
        notes: the solver's own: residual, iterations, floor, what it was solved on.
        error_estimate: the L1 error to expect between the ends; like all that follows None where
            the path does not know.
        in_distribution: whether the pair is like those the model was trained on.
        mismatch: ∫|ρ0 − ρ1| at t = ½, between what both ends say the density is.
        continuity: ∫∫|∂_t μ + ∇·(μv)|, the mass that comes from nowhere or goes there.
        hamilton_jacobi: ∂_t v + (v·∇)v, by which particles leave their straight lines, relative to
            |v|.
        smallest_determinant: of the maps from t = ½ to both ends; where it is positive nothing
            folds.
        distance_uncertainty: W2 is no further than this from `distance`.
        blur: the standard deviation halfway, along each axis, that noise or coarse cells add; a
            length in the units of the box.
        source_mass: as it was given.
        target_mass: as it was given.
        cell: the side of a cube with the volume of a cell.
        dimension: of the grid.
        solvers: the solver of each pair, of a batch that was answered pair by pair.
    """

    solver: str
    distance: PerPair | None
    distance_lower_bound: PerPair
    distance_upper_bound: PerPair
    mass_error: PerPair
    negativity: PerPair
    source_error: PerPair
    target_error: PerPair
    notes: dict[str, Any]
    error_estimate: PerPair | None = None
    in_distribution: bool | list[bool] | None = None
    mismatch: PerPair | None = None
    continuity: PerPair | None = None
    hamilton_jacobi: PerPair | None = None
    smallest_determinant: PerPair | None = None
    distance_uncertainty: PerPair | None = None
    blur: PerPair | None = None
    source_mass: PerPair | None = None
    target_mass: PerPair | None = None
    cell: float | None = None
    dimension: int | None = None
    solvers: list[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """(label, text) for each entry, for people."""
        entries: dict[str, Any] = {
            "solver": self.solver,
            "W2 distance": None if self.distance is None else self.distance_text,
            "W2 at least": self.distance_lower_bound,
            "W2 at most": self.distance_upper_bound,
            "W2 uncertainty": self.distance_uncertainty,
            "L1 error, estimated": self.error_estimate,
            "in distribution": self.in_distribution,
            "mismatch at t = ½": self.mismatch,
            "continuity residual": self.continuity,
            "Hamilton–Jacobi residual": self.hamilton_jacobi,
            "smallest determinant": self.smallest_determinant,
            "mass error": self.mass_error,
            "mass below zero": self.negativity,
            "L1 error at t = 0": self.source_error,
            "L1 error at t = 1": self.target_error,
            "blur": self.blur,
            **self._mass_rows(),
            **self.notes,
        }
        if self._many:
            entries["solver"] = f"{self.solver} ({len(_listed(self.mass_error))} pairs)"
        return [(label, _text(entry)) for label, entry in entries.items() if entry is not None]

    def verdict(self) -> str:
        """What all of it comes to, in five sentences at most; of a batch, for the worst pair."""
        return verdict(self)

    @property
    def uncertain_share(self) -> float:
        """The largest uncertainty relative to the distance; 0 where none is known."""
        shares = [
            uncertainty / max(distance, TINY)
            for distance, _, upper, uncertainty in self._distances()
            if distance is not None and uncertainty is not None and upper > self._still
        ]
        return max(shares, default=0.0)

    @property
    def doubtful(self) -> bool:
        """Whether any pair's distance is outside its bounds, or too uncertain."""
        return any(_is_doubtful(*pair, still=self._still) for pair in self._distances())

    @property
    def distance_text(self) -> str:
        """The distance, or where that is doubtful what it is between."""
        return _text([self._distance_text(*pair) for pair in self._distances()])

    def _distance_text(self, distance: Any, lower: float, upper: float, unsure: Any) -> str:
        if _is_doubtful(distance, lower, upper, unsure, self._still):
            return f"between {_text(lower)} and {_text(upper)}"
        return _text(distance)

    def _distances(self) -> list[tuple[Any, ...]]:
        """Per pair: distance, lower bound, upper bound, uncertainty."""
        count = len(_listed(self.mass_error))
        entries = self.distance, self.distance_lower_bound, self.distance_upper_bound
        known = [entry if isinstance(entry, list) else [entry] * count for entry in entries]
        unsure = self.distance_uncertainty
        unsure = unsure if isinstance(unsure, list) else [unsure] * count
        return list(zip(*known, unsure, strict=True))

    def _mass_rows(self) -> dict[str, Any]:
        """Both masses and their ratio, where they differ."""
        if self.source_mass is None or self.target_mass is None:
            return {}
        both = zip(_listed(self.source_mass), _listed(self.target_mass), strict=True)
        ratios = [after / before for before, after in both]
        if all(abs(ratio - 1) <= SAME for ratio in ratios):
            return {}
        return {
            "source, integral over the box": self.source_mass,
            "target, integral over the box": self.target_mass,
            "target's mass over source's": ratios if self._many else ratios[0],
        }

    @property
    def _still(self) -> float:
        """A distance that counts as none."""
        return STILL * (self.cell or 0.0)

    @property
    def _many(self) -> bool:
        return isinstance(self.mass_error, list)

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "\n".join(f"{label:<{width}}  {text}" for label, text in self.rows())


def report_on(path: Geodesic) -> Report:
    """Measure a path at five times on its own grid."""
    if not isinstance(path.source, Density):
        raise InputError("A path without a grid has no report; give both ends on a grid.")
    frames = path.density(QUARTERS)
    checks = path._checks()
    lower, upper = moment_bounds(path.source, path.target)
    if "distance_lower_bound" in checks:
        lower = torch.fmax(lower, checks.pop("distance_lower_bound"))
        upper = torch.fmin(upper, checks.pop("distance_upper_bound"))
    lower = torch.minimum(lower, upper)  # which may be equal up to rounding
    cell = path.grid.cell_volume ** (1 / path.grid.dimension)
    first, last = (frames.tensor.select(len(path.batch), k) for k in (0, -1))
    return Report(
        solver=path.solver,
        distance=_distance(path, lower, upper, STILL * cell),
        distance_lower_bound=_plain(lower),
        distance_upper_bound=_plain(upper),
        mass_error=_plain(mass_error(frames).amax(-1)),
        negativity=_plain(negativity(frames).amax(-1)),
        source_error=_plain(l1(Density.as_computed(first, path.grid), path.source)),
        target_error=_plain(l1(Density.as_computed(last, path.grid), path.target)),
        notes=dict(path.notes),
        source_mass=_plain(path.source.mass.expand(path.batch)),
        target_mass=_plain(path.target.mass.expand(path.batch)),
        cell=cell,
        dimension=path.grid.dimension,
        solvers=[pair.solver for pair in path.paths] if isinstance(path, BatchedGeodesic) else None,
        **{name: _known(check, name == "in_distribution") for name, check in checks.items()},
    )


def moment_bounds(source: Density, target: Density) -> tuple[Tensor, Tensor]:
    """What means and covariances say about W2: at least, and at most, (batch?) each.

    At least the distance of the Gaussians with the same moments (Gelbrich), at most what the
    product of both costs: W2² ≤ |m_1 − m_0|² + tr S_0 + tr S_1.

    Both hold whether cells count as atoms or as constant: spreading atoms over their cells makes W2
    smaller, if anything, so Gelbrich's moments are those of constant cells.
    """
    shift = target.mean() - source.mean()
    spreads = source.covariance(), target.covariance()
    traces = sum(spread.diagonal(dim1=-2, dim2=-1).sum(-1) for spread in spreads)
    within = torch.diag(torch.tensor(source.grid.spacing, dtype=torch.float64) ** 2 / 12)
    lower = gaussian_distance(shift, *(spread + within for spread in spreads))
    return lower, ((shift**2).sum(-1) + traces).sqrt()


def _distance(path: Geodesic, lower: Tensor, upper: Tensor, still: float) -> PerPair | None:
    """As the path has it; where that is outside its bounds by rounding, the nearest of them."""
    try:
        distance = path.distance.to(torch.float64)
    except UnavailableError:
        return None
    below, above = _outside(distance, lower, upper, still)
    return _plain(torch.where(below | above, distance, distance.clamp(lower, upper)))


def _plain(value: Tensor) -> PerPair:
    return value.detach().tolist()


def _known(check: Tensor, flag: bool) -> Any:
    """Numbers or flags per pair, None where they are not known."""
    if check.ndim:
        return [_known(one, flag) for one in check]
    value = float(check)
    return None if math.isnan(value) else bool(value) if flag else value


def _listed(entry: Any) -> list[Any]:
    """An entry per pair, of one pair or many."""
    return entry if isinstance(entry, list) else [entry]


def _outside(distance: Any, lower: Any, upper: Any, still: float) -> tuple[Any, Any]:
    """Whether a distance is below or above its bounds; numbers or tensors."""
    below = (distance < (1 - SLACK) * lower) & (lower > still)
    return below, (distance > (1 + SLACK) * upper) & (distance > still)


def _is_doubtful(
    distance: float | None, lower: float, upper: float, uncertainty: float | None, still: float
) -> bool:
    if distance is None:
        return False
    unsure = uncertainty is not None and uncertainty > UNSURE * distance and upper > still
    return unsure or any(_outside(distance, lower, upper, still))


def _text(value: Any) -> str:
    """Lists of lists, one for each pair, have semicolons between."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list):
        between = "; " if any(isinstance(entry, list) for entry in value) else ", "
        more = ["…"] if len(value) > SHOWN else []
        return between.join([*(_text(entry) for entry in value[:SHOWN]), *more]) or "–"
    return str(value)


# ---- Whether a pair tears: mass that lies together in the source and ends far apart.


PLACES = {1: 64, 2: 32, 3: 16}  # an axis, at most: neighbours are as far apart on finer grids
FAINT = 1e-3  # of the highest density: a place with less counts as empty
APART = 0.1  # of the box: neighbours whose ways differ by less stay together
UNUSUAL = 3.0  # times what neighbours usually part by, where everything is stretched


def torn_share(path: Geodesic) -> float | None:
    """The share of the mass with a neighbour that ends elsewhere; None where no way is known.

    The source is looked at on at most 32 × 32 places, in 1D on 64 and in 3D on 16³. Two
    neighbouring places with mass part where their displacements differ by more than a tenth of the
    box, and by more than three times the median of all neighbours: what is stretched evenly is not
    torn.
    """
    most = PLACES.get(path.grid.dimension)
    if most is None:
        return None
    grid = path.grid.with_shape([min(n, most) for n in path.grid.shape])
    density = path.source.resample(grid).tensor.double()
    full = density > FAINT * density.max()
    points = grid.points()[full]
    try:
        ends = path.trajectories(1.0, points)
    except UnavailableError:
        return None
    ways = torch.zeros(*grid.shape, grid.dimension, dtype=torch.float64)
    ways[full] = ends - points
    torn = _torn(ways, full, grid.longest)
    return float(density[torn].sum() / density[full].sum())


def _torn(ways: Tensor, full: Tensor, longest: float) -> Tensor:
    """Places (*shape) that part from a neighbour, for displacements (*shape, d)."""
    pairs = []
    for axis, n in enumerate(full.shape):
        first, second = (_slice_of(k, n, axis) for k in (0, 1))
        both = full[first] & full[second]
        pairs.append((first, second, both, (ways[first] - ways[second]).norm(dim=-1)))
    gaps = torch.cat([gap[both] for _, _, both, gap in pairs])
    torn = torch.zeros_like(full)
    if not len(gaps):
        return torn
    limit = max(APART * longest, UNUSUAL * float(gaps.median()))
    for first, second, both, gap in pairs:
        parted = both & (gap > limit)
        torn[first] |= parted
        torn[second] |= parted
    return torn


def _slice_of(k: int, n: int, axis: int) -> tuple[slice, ...]:
    """All places but the last (k = 0) or the first (k = 1) along an axis of n."""
    return (*(slice(None),) * axis, slice(k, n - 1 + k))


# ---- A report in words that need no mathematics, for pages.


DIGITS = 4
TIGHT = 0.05  # of the distance: bounds that are further apart are not in the headline
POOR_PLAIN_WORDS, HOPELESS = (
    0.1,
    0.5,
)  # errors of frames that go before a distance, and that say it all
STILL_PLAIN_WORDS = 0.01  # of a cell: what moves by less does not move
NOTICED_PLAIN_WORDS = 5e-3  # a share that is not mentioned below
UNEVEN_PLAIN_WORDS = 0.05  # densities whose masses differ by more are mentioned

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
        return f"Not to be trusted: expect errors of about {format_percent(error)}"
    if report.solver in EXACT:
        return EXACT[report.solver]
    spread = _spread(report)
    if spread is not None and spread <= TIGHT and (error or 0.0) <= POOR_PLAIN_WORDS:
        return f"Distance within {format_percent(spread)}, certified"
    if error is not None:
        return f"Expect errors of about {format_percent(error)}"
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
        *(_distance_plain_words(report, longest), _frames(report, longest), _doubts(report)),
        *(_tears(tears), _masses_plain_words(report)),
    )
    return [sentence for part in parts for sentence in part]


def _distance_plain_words(report: Report, longest: float) -> Iterator[str]:
    lower, upper = _float(report.distance_lower_bound), _float(report.distance_upper_bound)
    assert lower is not None and upper is not None
    distance = _float(report.distance)
    if distance is not None and not report.doubtful:
        yield f"On average, mass moves {format_number(distance / longest, 2)} of the box's width."
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
        yield f"Expect the frames in between to be off by about {format_percent(error)}."
    elif blur is not None:
        yield (
            f"Noise blurs the frames halfway by {format_number(blur / longest, 2)} of the box's width; "
            "less ε means less blur."
        )
    elif mismatch is not None and mismatch > NOTICED_PLAIN_WORDS:
        yield f"Seen from both ends, the frame halfway differs by {format_percent(mismatch)}."


def _doubts(report: Report) -> Iterator[str]:
    flaws = (
        ("The path misses the first density by {}.", report.source_error),
        ("The path misses the second density by {}.", report.target_error),
        ("Up to {} of the mass comes from nowhere or gets lost.", report.mass_error),
        ("Up to {} of the mass is below zero.", report.negativity),
    )
    for sentence, share in flaws:
        found = _float(share)
        if found is not None and found > NOTICED_PLAIN_WORDS:
            yield sentence.format(format_percent(found))
    if report.in_distribution is False:
        yield "The network was not trained on densities like these."
    if report.notes.get("converged") is False:
        yield "The solver stopped before it was done."


def _tears(share: float | None) -> Iterator[str]:
    if share is not None and share > NOTICED_PLAIN_WORDS:
        yield f"This pair tears: {format_percent(share)} of the mass has neighbours that end elsewhere."


def _masses_plain_words(report: Report) -> Iterator[str]:
    before, after = _float(report.source_mass), _float(report.target_mass)
    if before and after and abs(after / before - 1) > UNEVEN_PLAIN_WORDS:
        ratio = format_number(after / before, 2)
        yield f"The second density has {ratio} times the mass of the first; both count as one."


def _is_still(report: Report) -> bool:
    distance, error = _float(report.distance), _float(report.error_estimate)
    length = STILL_PLAIN_WORDS * (report.cell or 0.0)
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
    return format_number(float(Context(DIGITS, direction).create_decimal_from_float(value)), DIGITS)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].removesuffix(".")


def _float(value: object) -> float | None:
    """A number of one pair; None where it is not known."""
    return value if isinstance(value, float) else None
