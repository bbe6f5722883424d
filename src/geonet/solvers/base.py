"""The interface of solvers: two densities in, a geodesic out, and metadata about the method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from geonet._progress import report_progress
from geonet._threads import limit_threads, map_in_threads
from geonet._utils import import_object
from geonet.density import Density, requires_grad
from geonet.errors import DensityError, GeonetError, GridError, SolverError
from geonet.mixture import End, GaussianMixture
from geonet.paths import BatchedGeodesic, Geodesic

ALL_QUANTITIES = ("density", "distance", "velocity", "potential", "trajectories")


@dataclass(frozen=True)
class MenuEntry:
    """A solver in the menu of the web page.

    Attributes:
        label: text of the entry.
        dimensions: dimensions in which the page offers the solver.
        max_cells: largest number of cells along an axis in 2D; None for the limit of the page.
        epsilon: smallest, default and largest value of the slider for `epsilon` in the unit box;
            None for solvers without one.
    """

    label: str
    dimensions: tuple[int, ...] = (1, 2)
    max_cells: int | None = None
    epsilon: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class SolverInfo:
    """Metadata of a solver: the only place that describes it to listings, reports and menus.

    Attributes:
        name: name in the registry.
        summary: one line for `geonet solvers`.
        family: kind of method: "exact", "closed form", "Newton", "dual ascent", "entropic",
            "neural", "baseline" or "automatic".
        dimensions: dimensions of the densities it takes; None for any.
        provides: quantities that its paths can compute.
        differentiable: quantities that autograd differentiates with respect to the densities at
            the ends; all others are detached.
        periodic: whether it takes grids with periodic axes.
        exact: whether the distance is exact for the discrete problem that it solves.
        transports: False for paths that blend the ends and move no mass.
        guarantee: known property of the frames between the ends, for paths without an error
            estimate.
        tolerance: meaning of the option `tolerance`; None for solvers without one.
        more_iterations: remedy if the solver stops early, such as "a larger max_iterations".
        less_blur: remedy for blurred frames, such as "a smaller epsilon".
        menu: entry in the menu of the web page; None if the page does not offer the solver.
    """

    name: str
    summary: str
    family: str
    dimensions: tuple[int, ...] | None = None
    provides: tuple[str, ...] = ALL_QUANTITIES
    differentiable: tuple[str, ...] = ()
    periodic: bool = False
    exact: bool = False
    transports: bool = True
    guarantee: str | None = None
    tolerance: str | None = None
    more_iterations: str | None = None
    less_blur: str | None = None
    menu: MenuEntry | None = None

    def takes(self, dimension: int) -> bool:
        """Return whether the solver takes densities of this dimension."""
        return self.dimensions is None or dimension in self.dimensions


class Solver(ABC):
    """A map from two densities on one grid to the geodesic between them.

    A solver is a frozen dataclass whose fields are its options, with an `info`. Calling it checks
    the pair and runs `_solve`, which by default runs `_solve_pair` for each pair of a batch.
    """

    info: ClassVar[SolverInfo]

    @property
    def name(self) -> str:
        """Name in the registry."""
        return self.info.name

    def __call__(self, source: Density, target: Density) -> Geodesic:
        """Return the geodesic from `source` to `target`; batches give a batch of paths."""
        self._check(source, target)
        if not (self.info.differentiable and requires_grad(source, target)):
            source, target = source.detach(), target.detach()
        with limit_threads(source.tensor.numel()):
            return self._solve(source, target)

    def _solve(self, source: Density, target: Density) -> Geodesic:
        """Solve a checked pair or batch; by default one pair after the other."""
        if not source.batch_shape:
            return self._solve_pair(source, target)
        return solve_sequential(lambda i: self._solve_pair(source[i], target[i]), len(source))

    @abstractmethod
    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        """Solve one checked pair."""

    def _check(self, source: Density, target: Density) -> None:
        """Raise an error unless source and target are pairs that this solver takes."""
        check_pair(source, target)
        d = source.grid.dimension
        if not self.info.takes(d):
            *first, last = (f"{k}D" for k in self.info.dimensions or ())
            dimensions = f"{', '.join(first)} and {last}" if first else last
            other = import_object("geonet.solvers.registry:recommend_solver")(d, general=True)
            raise SolverError(
                f"The solver {self.name!r} takes {dimensions} densities, these are {d}D; choose "
                f"solver={other!r} or another one (geonet.list_solvers() or `geonet solvers`)."
            )
        if source.grid.is_periodic and not self.info.periodic:
            names = import_object("geonet.solvers.registry:list_periodic_solvers")(d)
            raise SolverError(
                f"The solver {self.name!r} takes no periodic axes, and the densities lie on "
                f"{source.grid}; choose one of {', '.join(names)}."
            )


class MixtureSolver(Solver):
    """A solver that also takes Gaussian mixtures without a grid."""

    def __call__(self, source: End, target: End) -> Geodesic:
        """Return the geodesic between two densities, or between two mixtures on R^d."""
        if isinstance(source, Density) and isinstance(target, Density):
            return super().__call__(source, target)
        if not (isinstance(source, GaussianMixture) and isinstance(target, GaussianMixture)):
            raise SolverError(
                f"The ends are of type {type(source).__name__} and {type(target).__name__}; "
                "give two densities or two Gaussian mixtures."
            )
        if not requires_grad(source, target):
            source, target = source.detach(), target.detach()
        return self._solve_mixtures(source, target)

    @abstractmethod
    def _solve_mixtures(self, source: GaussianMixture, target: GaussianMixture) -> Geodesic:
        """Solve a pair, or a batch, of mixtures without a grid."""


def check_pair(source: Density, target: Density) -> None:
    """Raise an error unless both ends are densities on one grid with the same batch size."""
    for name, end in (("source", source), ("target", target)):
        if not isinstance(end, Density):
            raise DensityError(
                f"{name} is of type {type(end).__name__}; give geonet.Density(values, grid)."
            )
    first, second = source.grid, target.grid
    if first != second and (first.shape != second.shape or not first.same_box(second)):
        remedy = "both need the same lower and upper corners."
        if first.dimension != second.dimension:
            remedy = (
                f"one is {first.dimension}D and the other {second.dimension}D; give two densities "
                "of one dimension."
            )
        elif first.periodic != second.periodic:
            remedy = "both need the same periodic axes."
        elif first.same_box(second):
            remedy = "use density.resample(grid) for one of them."
        raise GridError(f"Source and target lie on different grids: {first} and {second}; {remedy}")
    if source.batch_shape != target.batch_shape or len(source.batch_shape) > 1:
        raise SolverError(
            f"Source has batch shape {source.batch_shape} and target {target.batch_shape}; "
            "give two single densities or two batches of the same length."
        )


def solve_threaded(solve: Callable[[int], Geodesic], count: int, cells: int) -> BatchedGeodesic:
    """Solve pairs in several threads, for solvers whose compiled loops release the GIL.

    Args:
        solve: function of the index of a pair that returns its path.
        count: number of pairs.
        cells: cells of one pair; large pairs are solved one after the other with all threads.
    """
    return _collect(map_in_threads(solve, count, cells), count)


def solve_sequential(solve: Callable[[int], Geodesic], count: int) -> BatchedGeodesic:
    """Solve pairs one after the other; `solve` takes the index of a pair."""
    return _collect(map(solve, range(count)), count)


def _collect(results: Iterator[Geodesic], count: int) -> BatchedGeodesic:
    """Collect paths, report progress, and add the index of the pair to errors."""
    paths: list[Geodesic] = []
    report_progress(f"pair 1 of {count}")
    try:
        for path in results:
            paths.append(path)
            if len(paths) < count:
                report_progress(f"pair {len(paths) + 1} of {count}")
    except GeonetError as error:
        error.args = (f"Pair {len(paths)} of the batch: {error}",)
        raise
    return BatchedGeodesic(paths)
