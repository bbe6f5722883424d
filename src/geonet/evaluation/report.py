"""What a path says about its own trustworthiness, without any reference solver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from geonet.errors import UnavailableError
from geonet.evaluation.metrics import end_point_errors, mass_error, negativity
from geonet.geodesic import Geodesic
from geonet.measures.density import Density
from geonet.solvers.exact.bures import gaussian_distance

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)

PerPair = float | list[float]


@dataclass(frozen=True)
class Report:
    """Per pair: a number, or a list of numbers for a batch.

    Attributes:
        solver: the solver that answered.
        distance: W2 as the solver has it; None if it gives none.
        distance_lower_bound: Gelbrich's bound, the W2 distance of Gaussians with the same moments.
        mass_error: largest |∫μ_t − 1| over t = 0, ¼, ½, ¾, 1.
        negativity: largest mass below zero over the same times.
        source_error: L1 error of the path at t = 0.
        target_error: L1 error of the path at t = 1.
        notes: the solver's own: residual, iterations, floor, what it was solved on.
    """

    solver: str
    distance: PerPair | None
    distance_lower_bound: PerPair
    mass_error: PerPair
    negativity: PerPair
    source_error: PerPair
    target_error: PerPair
    notes: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """(label, text) for each entry, for people."""
        rows = [("solver", self.solver)]
        if self.distance is not None:
            rows.append(("W2 distance", _text(self.distance)))
        rows += [
            ("W2 at least (moments)", _text(self.distance_lower_bound)),
            ("mass error", _text(self.mass_error)),
            ("mass below zero", _text(self.negativity)),
            ("L1 error at t = 0", _text(self.source_error)),
            ("L1 error at t = 1", _text(self.target_error)),
        ]
        return rows + [(key, _text(value)) for key, value in self.notes.items()]

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "\n".join(f"{label:<{width}}  {text}" for label, text in self.rows())


def report_on(path: Geodesic) -> Report:
    """Measure a path at five times on its own grid."""
    frames = path.density(TIMES)
    source_error, target_error = end_point_errors(path)
    return Report(
        solver=path.solver,
        distance=_distance(path),
        distance_lower_bound=_plain(moment_bound(path.source, path.target)),
        mass_error=_plain(mass_error(frames).amax(-1)),
        negativity=_plain(negativity(frames).amax(-1)),
        source_error=_plain(source_error),
        target_error=_plain(target_error),
        notes=dict(path.notes),
    )


def moment_bound(source: Density, target: Density) -> Tensor:
    """Gelbrich: W2 is at least the distance of the Gaussians with the same moments, (batch?)."""
    shift = target.mean() - source.mean()
    return gaussian_distance(shift, source.covariance(), target.covariance())


def _distance(path: Geodesic) -> PerPair | None:
    try:
        return _plain(path.distance)
    except UnavailableError:
        return None


def _plain(value: Tensor) -> PerPair:
    return value.detach().tolist()


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        shown = ", ".join(_text(v) for v in value[:4])
        return f"{shown}, … ({len(value)} pairs)" if len(value) > 4 else shown
    return str(value)
