"""Trained models of any form as solvers: the path that the network gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet.density import Density
from geonet.errors import SolverError
from geonet.grid import unit_box
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, Solver, SolverInfo, solve_threaded
from geonet.solvers.neural.cascade import CascadeNet, predict
from geonet.solvers.neural.model import load_cached
from geonet.solvers.newton.iteration import InitialGuess, MultilevelNewton
from geonet.solvers.newton.solver import Midpoint


@dataclass(frozen=True)
class NetworkSolver(Solver):
    """A trained model from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
    """

    info = SolverInfo(
        name="network",
        summary="a trained model from a file that `geonet train` wrote",
        family="neural",
        dimensions=(1, 2, 3),
        differentiable=ALL_QUANTITIES,
    )
    form: ClassVar[str | None] = None  # that the model must have; None for any

    file: str

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header = load_cached(Path(self.file), source.grid.dimension, self.form)
        name = header.get("name", Path(self.file).stem)
        report_progress(f"asking {name}")
        path = model.build_path(source, target, self.name, header)
        path.info["model"] = name
        return path

    _solve_pair = _solve


# ---- Trained models of the cascade form: a network for the potential, then few steps of Newton's.


@dataclass(frozen=True)
class CascadeSolver(NetworkSolver):
    """A trained model of the cascade form from a file.

    The network answers once for all pairs of a batch. Where it leaves more of a pair's mass
    unbalanced than the tolerance, some steps of Newton's method follow on the pair's own grid.
    Their number is limited. If they do not reach the tolerance, the report says so; `midpoint` with
    start="network" takes as many as the tolerance needs.

    Attributes:
        file: the model, as `geonet train` writes it.
        corrections: steps of Newton's method, at most. 0 for the network's answer alone.
        tolerance: of the residual, a share of the mass, at which no step follows.
    """

    info = SolverInfo(
        name="cascade",
        summary="a cascade model from a file that `geonet train` wrote",
        family="neural",
        dimensions=(2, 3),
        differentiable=ALL_QUANTITIES,
        tolerance="share of the mass that is not balanced at t = ½",
    )
    form = "cascade"

    corrections: int = 3
    tolerance: float = Midpoint.tolerance

    def __post_init__(self) -> None:
        if self.corrections < 0:
            raise SolverError(f"corrections is {self.corrections}; give 0 or more Newton steps.")
        Midpoint(tolerance=self.tolerance)  # which checks it

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header = load_cached(Path(self.file), source.grid.dimension, self.form)
        assert isinstance(model, CascadeNet)
        name = header.get("name", Path(self.file).stem)
        report_progress(f"asking {name}")
        starts = predict(model, source.detach(), target.detach())
        if not source.batch_shape:
            return self._corrected(source, target, starts[0], name)
        solve = lambda k: self._corrected(source[k], target[k], starts[k], name)  # noqa: E731
        return solve_threaded(solve, len(source), source.grid.size)

    _solve_pair = _solve

    def _corrected(
        self, source: Density, target: Density, start: InitialGuess, name: str
    ) -> Geodesic:
        box, threads = unit_box(source.grid), threads_for(source.grid.size)
        first, second = (box.to_density(end.tensor.detach()) for end in (source, target))
        newton = MultilevelNewton(self.tolerance, self.corrections, threads=threads)
        found = newton.polished(first, second, box.sides, start)
        path = Midpoint(tolerance=self.tolerance).path_of(source, target, found)
        path.solver = self.name
        path.info["model"] = name
        return path
