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
from geonet.measures.density import Density
from geonet.measures.metrics import l1, mass_error, negativity

SHOWN = 5  # entries of a list in a line of text
SLACK = 1e-3  # both the distance and its bound are sums over cells

NOTICED = 0.5  # percent: what a verdict does not mention below

PerPair = float | list[float]


@dataclass(frozen=True)
class Report:
    """Per pair: a number, or a list of numbers for a batch.

    In a list, None stands for pairs of which an entry is not known.

    Attributes:
        solver: the solver that answered.
        distance: W2 as the solver has it; None if it gives none.
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
        hamilton_jacobi: ∂_t v + (v·∇)v, by which particles leave their straight lines, relative to
            |v|.
        smallest_determinant: of the maps from t = ½ to both ends; where it is positive nothing
            folds.
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
    hamilton_jacobi: PerPair | None = None
    smallest_determinant: PerPair | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """(label, text) for each entry, for people."""
        entries: dict[str, Any] = {
            "solver": self.solver,
            "W2 distance": self._judged_distance(),
            "W2 at least": self.distance_lower_bound,
            "W2 at most": self.distance_upper_bound,
            "L1 error, estimated": self.error_estimate,
            "in distribution": self.in_distribution,
            "mismatch at t = ½": self.mismatch,
            "Hamilton–Jacobi residual": self.hamilton_jacobi,
            "smallest determinant": self.smallest_determinant,
            "mass error": self.mass_error,
            "mass below zero": self.negativity,
            "L1 error at t = 0": self.source_error,
            "L1 error at t = 1": self.target_error,
            **self.notes,
        }
        if self._many:
            entries["solver"] = f"{self.solver} ({len(_listed(self.mass_error))} pairs)"
        return [(label, _text(entry)) for label, entry in entries.items() if entry is not None]

    def verdict(self) -> str:
        """What all of it comes to, in a sentence or two; of a batch, for the worst pair."""
        flaws = [
            f"{what} {worst:.2g} %"
            for what, entry in (
                ("misses its source by", self.source_error),
                ("misses its target by", self.target_error),
                ("is off in mass by", self.mass_error),
                ("falls below zero by", self.negativity),
            )
            if (worst := 100 * _worst(entry)) > NOTICED
        ]
        sentences = [f"The path {', '.join(flaws)}."] if flaws else []
        if self._below_the_bound():
            sentences.append("Its W2 is below what the moments of both ends allow.")
        if not flaws and self.error_estimate is None:
            sentences.append("Ends and mass are right.")
        return " ".join([*sentences, *self._expectations()])

    def _expectations(self) -> list[str]:
        """What is known of the path between its ends, in sentences."""
        sentences = []
        known = _listed(self.error_estimate)
        if any(value is not None for value in known):
            sentences.append(f"Expect an L1 error of {100 * _worst(known):.2g} %.")
        unknown = sum(value is None for value in known)
        if unknown:
            of = f" of {unknown} pairs of {len(known)}" if len(known) > 1 else ""
            sentences.append(f"What lies between the ends{of} is not estimated.")
        usual = _listed(self.in_distribution)
        strange = sum(value is False for value in usual)
        if strange:
            which = "The pair is" if len(usual) == 1 else f"{strange} of {len(usual)} pairs are"
            sentences.append(f"{which} unlike those of the training.")
        elif usual and all(usual):
            sentences.append("The training had pairs like this.")
        missed = sum(value is False for value in _listed(self.notes.get("converged")))
        if missed:
            of = f" for {missed} of {len(_listed(self.mass_error))} pairs" if self._many else ""
            sentences.append(f"The solver did not reach its tolerance{of}.")
        noise = [epsilon for epsilon in _listed(self.notes.get("epsilon")) if epsilon]
        if noise:
            blur = math.sqrt(max(noise) / 2)
            sentences.append(f"Noise blurs it by {blur:.2g} halfway, in units of the box.")
        if any(_listed(self.notes.get("plan entries"))):
            sentences.append("It is grainy between the ends.")
        return sentences

    @property
    def _many(self) -> bool:
        return isinstance(self.mass_error, list)

    def _judged_distance(self) -> str | None:
        """The distance as text, with a word where it cannot be right."""
        if self.distance is None:
            return None
        below, text = self._below_the_bound(), _text(self.distance)
        of = len(_listed(self.distance))
        return f"{text} (below the bound for {below} of {of})" if below else text

    def _below_the_bound(self) -> int:
        """How many pairs have a distance that cannot be right."""
        if self.distance is None:
            return 0
        pairs = zip(_listed(self.distance), _listed(self.distance_lower_bound), strict=True)
        return sum(distance < (1 - SLACK) * bound for distance, bound in pairs)

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
    first, last = (frames.values.select(len(path.batch), k) for k in (0, -1))
    return Report(
        solver=path.solver,
        distance=_distance(path),
        distance_lower_bound=_plain(lower),
        distance_upper_bound=_plain(upper),
        mass_error=_plain(mass_error(frames).amax(-1)),
        negativity=_plain(negativity(frames).amax(-1)),
        source_error=_plain(l1(Density.as_computed(first, path.grid), path.source)),
        target_error=_plain(l1(Density.as_computed(last, path.grid), path.target)),
        notes=dict(path.notes),
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


def _distance(path: Geodesic) -> PerPair | None:
    try:
        return _plain(path.distance)
    except UnavailableError:
        return None


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


def _worst(entry: PerPair) -> float:
    """The largest that is known."""
    return max((value for value in _listed(entry) if value is not None), default=math.nan)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        shown = ", ".join(_text(v) for v in value[:SHOWN])
        return f"{shown}, …" if len(value) > SHOWN else shown or "–"
    return str(value)
