"""What a path says about its own trustworthiness, without any reference solver."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from geonet.errors import InputError, UnavailableError
from geonet.geodesics.base import QUARTERS, Geodesic
from geonet.geodesics.gaussian import gaussian_distance
from geonet.geodesics.stack import Stack
from geonet.geodesics.verdict import STILL, verdict
from geonet.measures.density import Density
from geonet.measures.metrics import l1, mass_error, negativity
from geonet.wording import number

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
    first, last = (frames.values.select(len(path.batch), k) for k in (0, -1))
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
        solvers=[pair.solver for pair in path.paths] if isinstance(path, Stack) else None,
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
        return number(value)
    if isinstance(value, list):
        between = "; " if any(isinstance(entry, list) for entry in value) else ", "
        more = ["…"] if len(value) > SHOWN else []
        return between.join([*(_text(entry) for entry in value[:SHOWN]), *more]) or "–"
    return str(value)
