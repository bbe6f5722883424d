"""What every solver is: two densities in, a geodesic out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from geonet._advice import either, setting
from geonet._progress import report_progress
from geonet._threads import limit_threads, map_in_threads
from geonet._validation import short_repr
from geonet.density import Density, check_density
from geonet.errors import GeonetError, GridError, SolverError
from geonet.mixture import End, GaussianMixture
from geonet.numerics.autograd import wanted
from geonet.paths import BatchedGeodesic, Geodesic

EVERY_ANSWER = ("density", "distance", "velocity", "potential", "trajectories")


class Solver(ABC):
    """Maps two densities on one grid to the geodesic between them.

    A solver is a frozen dataclass: its fields are its options. Calling it checks the pair and then
    runs `_solve`, or `_solve_pair` pair by pair where the method has no batched form.

    Attributes:
        name: the name in the registry.
        summary: one line for `geonet solvers`.
        dimensions: the dimensions it takes; None for any.
        gives: what its geodesics can answer beside `density`.
        differentiable: which answers autograd can follow back to the densities at the ends; all
            others are detached.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    dimensions: ClassVar[tuple[int, ...] | None]
    gives: ClassVar[tuple[str, ...]] = ("distance", "velocity", "potential", "trajectories")
    differentiable: ClassVar[tuple[str, ...]] = ()

    def __call__(self, source: Density, target: Density) -> Geodesic:
        """The geodesic from `source` to `target`; a batch of both gives a batch of paths."""
        self._check(source, target)
        if not (self.differentiable and wanted(source, target)):
            source, target = source.detach(), target.detach()
        with limit_threads(source.tensor.numel()):
            return self._solve(source, target)

    def _solve(self, source: Density, target: Density) -> Geodesic:
        """Solve a checked pair or batch; by default pair by pair."""
        if not source.leading:
            return self._solve_pair(source, target)
        return one_by_one(lambda i: self._solve_pair(source[i], target[i]), len(source))

    @abstractmethod
    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        """Solve one checked pair."""

    def _check(self, source: Density, target: Density) -> None:
        check_pair(source, target)
        d = source.grid.dimension
        if self.dimensions is not None and d not in self.dimensions:
            takes = " and ".join(f"{k}D" for k in self.dimensions)
            raise SolverError(
                f"The solver {self.name!r} takes {takes} densities, these are {d}D; "
                f"choose another ({either('geonet.list_solvers() lists', 'geonet solvers lists')} "
                f"them) or {setting('solver', 'auto')}."
            )


class MixtureSolver(Solver):
    """A solver that takes Gaussian mixtures without a grid as well."""

    def __call__(self, source: End, target: End) -> Geodesic:
        """The geodesic between two densities, or between two mixtures on R^d."""
        if isinstance(source, Density) and isinstance(target, Density):
            return super().__call__(source, target)
        if not (isinstance(source, GaussianMixture) and isinstance(target, GaussianMixture)):
            raise SolverError(
                f"The ends are {short_repr(source)} and {short_repr(target)}; "
                "give both Gaussians on a grid, or both without."
            )
        if not wanted(source, target):
            source, target = source.detach(), target.detach()
        return self._solve_mixtures(source, target)

    @abstractmethod
    def _solve_mixtures(self, source: GaussianMixture, target: GaussianMixture) -> Geodesic:
        """Solve a pair, or a batch, of mixtures that have no grid."""


def check_pair(source: Density, target: Density) -> None:
    """Refuse ends that do not make a pair, or a batch of pairs, on one grid."""
    check_density(source, "source")
    check_density(target, "target")
    if not source.grid.same_box(target.grid):
        raise GridError(
            f"Source and target lie on different boxes: {source.grid} and {target.grid}; "
            + either("put both on one box.", "give files with one box: lower and upper.")
        )
    if source.grid.shape != target.grid.shape:
        raise GridError(
            f"Source and target lie on different grids: {source.grid} and {target.grid}; "
            "use density.resample(grid) to bring one to the other's."
        )
    if source.leading != target.leading or len(source.leading) > 1:
        raise SolverError(
            f"Source has leading axes {source.leading} and target {target.leading}; "
            "give two single densities or two batches of the same length."
        )


def some_at_once(solve: Callable[[int], Geodesic], count: int, cells: int) -> BatchedGeodesic:
    """`one_by_one` for compiled loops, which let other threads run: several pairs at a time.

    Args:
        solve: the path of the pair with this number.
        count: of pairs.
        cells: of a pair; where they are many, all threads work on one pair.
    """
    return _stacked(map_in_threads(solve, count, cells), count)


def one_by_one(solve: Callable[[int], Geodesic], count: int) -> BatchedGeodesic:
    """The paths of a batch, by a function of the pair's number."""
    return _stacked(map(solve, range(count)), count)


def _stacked(paths: Iterator[Geodesic], count: int) -> BatchedGeodesic:
    """Paths as they come; errors name the pair."""
    found: list[Geodesic] = []
    report_progress(f"pair 1 of {count}")
    try:
        for path in paths:
            found.append(path)
            if len(found) < count:
                report_progress(f"pair {len(found) + 1} of {count}")
    except GeonetError as error:
        error.args = (f"Pair {len(found)} of the batch: {error}",)
        raise
    return BatchedGeodesic(found)
