"""Trained models from files as solvers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet.density import Density
from geonet.errors import SolverError
from geonet.grid import unit_box
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, Solver, SolverInfo, check_pair, solve_threaded
from geonet.solvers.neural.cascade import CascadeNet, NetworkGuess, predict
from geonet.solvers.neural.model import Header, Model, load_cached
from geonet.solvers.newton.iteration import MultilevelNewton
from geonet.solvers.newton.solver import Midpoint


@dataclass(frozen=True)
class NetworkSolver(Solver):
    """A trained model from a file, without Newton steps.

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
    form: ClassVar[str | None] = None  # the form that the model must have; None for any

    file: str

    def _check(self, source: Density, target: Density) -> None:
        """Check the pair; errors on a model without a name of its own name its file."""
        if self.name in ("network", self.form):
            check_pair(source, target)
            load_cached(Path(self.file), source.grid.dimension, self.form)
        super()._check(source, target)

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header, name = self._load(source.grid.dimension)
        path = model.build_path(source, target, self.name, header)
        path.info["model"] = name
        return path

    _solve_pair = _solve

    def _load(self, dimension: int) -> tuple[Model, Header, str]:
        """Return the model, its header and its name."""
        file = Path(self.file)
        model, header = load_cached(file, dimension, self.form)
        name = header.get("name", file.stem)
        report_progress(f"evaluating {name}")
        return model, header, name


@dataclass(frozen=True)
class CascadeSolver(NetworkSolver):
    """A trained model of the cascade form from a file.

    The network is evaluated once for all pairs of a batch. If the unbalanced mass of a pair exceeds
    the tolerance, some Newton steps follow on the grid of the pair. If these do not reach the
    tolerance, the report says so; `midpoint` with start="network" continues until it is reached.

    Attributes:
        file: the model, as `geonet train` writes it.
        max_iterations: largest number of Newton steps; 0 for the network alone.
        tolerance: residual, a share of the mass, below which no step follows.
    """

    info = replace(
        NetworkSolver.info,
        name="cascade",
        summary="a cascade model from a file that `geonet train` wrote",
        dimensions=(2, 3),
        tolerance="share of the mass that is not balanced at t = ½",
    )
    form = "cascade"

    max_iterations: int = 3
    tolerance: float = Midpoint.tolerance

    def __post_init__(self) -> None:
        if self.max_iterations < 0:
            raise SolverError(f"max_iterations is {self.max_iterations}; give 0 or more.")
        Midpoint(tolerance=self.tolerance)  # raises an error if it is out of range

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, _, name = self._load(source.grid.dimension)
        assert isinstance(model, CascadeNet)
        guesses = predict(model, source.detach(), target.detach())
        if not source.batch_shape:
            return self._polish(source, target, guesses[0], name)
        return solve_threaded(
            lambda k: self._polish(source[k], target[k], guesses[k], name),
            len(source),
            source.grid.size,
        )

    _solve_pair = _solve

    def _polish(self, source: Density, target: Density, guess: NetworkGuess, name: str) -> Geodesic:
        """Return the path of one pair after some Newton steps."""
        box, threads = unit_box(source.grid), threads_for(source.grid.size)
        first, second = (box.to_density(end.tensor.detach()) for end in (source, target))
        newton = MultilevelNewton(self.tolerance, self.max_iterations, threads=threads)
        result = newton.polish(first, second, box.sides, guess)
        path = Midpoint(tolerance=self.tolerance).build_path(source, target, result)
        path.solver = self.name
        path.info["model"] = name
        return path
