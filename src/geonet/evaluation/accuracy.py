"""How far a solver's paths are from exact ones, over many pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from geonet import progress
from geonet.arguments import check_kind
from geonet.errors import GeonetError, InputError, UnavailableError
from geonet.geodesics.base import QUARTERS, Geodesic
from geonet.measures.density import Density, as_tensor, check_density
from geonet.measures.metrics import l1
from geonet.solvers.base import Solver
from geonet.wording import number


@dataclass(frozen=True)
class Accuracy:
    """Errors of a solver in percent, over the pairs that it answered.

    Attributes:
        solver: its name.
        pairs: how many it answered.
        failures: what it said of each of the others.
        mean: of the L1 error at t = 0, ¼, ½, ¾, 1.
        deviation: standard deviation over the pairs.
        worst: the largest.
        distance: mean of |W2 − exact| / exact, over pairs that are apart; None if it gives none.
    """

    solver: str
    pairs: int
    failures: list[str]
    mean: list[float]
    deviation: list[float]
    worst: list[float]
    distance: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"times": list(QUARTERS), **asdict(self)}

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each time: t, mean ± deviation, worst."""
        columns = zip(QUARTERS, self.mean, self.deviation, self.worst, strict=True)
        return [
            (f"{t:g}", f"{number(m, 3)} ± {number(s, 3)}", number(w, 3)) for t, m, s, w in columns
        ]


def measure(
    solver: Solver, source: Density, target: Density, truth: Density, distance: Tensor
) -> Accuracy:
    """Solve a batch of pairs, one by one, and compare with their exact frames and distances."""
    check_kind(solver, Solver, "solver", "give a Solver, such as geonet.solver('auto')")
    for batch, name in ((source, "source"), (target, "target"), (truth, "truth")):
        check_density(batch, name)
    distance = as_tensor(distance)
    errors, distances, failures = [], [], []
    for k in range(len(source)):
        try:
            with progress.part(f"{solver.name} {k + 1}/{len(source)}"):
                path = solver(source[k], target[k])
            errors.append(100 * l1(path.density(QUARTERS), truth[k]).double())
            distances.append(_relative(path, distance[k]))
        except GeonetError as error:
            failures.append(" ".join(str(error).split()))
    if not errors:
        raise InputError(f"The solver {solver.name!r} answers none of the pairs: {failures[0]}")
    found = torch.stack(errors)
    return Accuracy(
        solver=solver.name,
        pairs=len(errors),
        failures=failures,
        mean=found.mean(0).tolist(),
        deviation=found.std(0, correction=0).tolist(),
        worst=found.amax(0).tolist(),
        distance=_mean(distances),
    )


def _relative(path: Geodesic, exact: Tensor) -> float | None:
    """The relative error of W2 in percent; None where there is none, or nothing moves."""
    try:
        found = float(path.distance)
    except UnavailableError:
        return None
    still = 1e-9 * path.grid.longest
    return 100 * abs(found - float(exact)) / float(exact) if float(exact) > still else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
