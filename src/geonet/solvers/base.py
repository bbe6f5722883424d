"""What every solver is: two densities in, a geodesic out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import torch

from geonet.advice import either, setting
from geonet.arguments import shown
from geonet.errors import GeonetError, GridError, SolverError
from geonet.geodesics.base import Geodesic
from geonet.geodesics.gradients import wanted
from geonet.geodesics.stack import Stack
from geonet.measures.density import Density, check_density
from geonet.measures.gaussian_mixture import End, GaussianMixture
from geonet.progress import tell
from geonet.threads import threads_for, working_on

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
        with working_on(source.values.numel()):
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
                f"The ends are {shown(source)} and {shown(target)}; "
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


def some_at_once(solve: Callable[[int], Geodesic], count: int, cells: int, name: str) -> Stack:
    """`one_by_one` for compiled loops, which let other threads run: several pairs at a time.

    Args:
        solve: the path of the pair with this number.
        count: of pairs.
        cells: of a pair; where they are many, all threads work on one pair.
        name: of the solver, which tells how far it is.
    """
    workers = 1 if threads_for(cells) > 1 else min(count, torch.get_num_threads())
    if workers == 1:
        return one_by_one(solve, count)
    found: list[Geodesic] = []
    with ThreadPoolExecutor(workers) as pool:
        for path in pool.map(solve, range(count)):
            found.append(path)
            tell(f"{name}: {len(found)} of {count} pairs")
    return one_by_one(found.__getitem__, count)


def one_by_one(solve: Callable[[int], Geodesic], count: int) -> Stack:
    """The paths of a batch, by a function of the pair's number; errors name the pair."""
    paths = []
    for i in range(count):
        try:
            tell(f"pair {i + 1} of {count}")
            paths.append(solve(i))
        except GeonetError as error:
            error.args = (f"Pair {i} of the batch: {error}",)
            raise
    return Stack(paths)
