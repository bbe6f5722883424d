"""W2 between two densities, and between all pairs of many."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet._files import atomic_write
from geonet._format import format_number, format_percent
from geonet._progress import progress_stage
from geonet._threads import limit_threads
from geonet._utils import user_stacklevel
from geonet._validation import as_path
from geonet.api import geodesic
from geonet.density import Array, Density, check_density, to_user_array
from geonet.errors import ConvergenceWarning, FileError, InputError, SolverError
from geonet.grid import Grid
from geonet.mixture import End
from geonet.paths import BatchedGeodesic, Geodesic, stack_densities
from geonet.report import is_known
from geonet.solvers.auto import Auto
from geonet.solvers.base import Solver
from geonet.solvers.registry import find_info, make_solver

FORMATS = (".csv", ".npy", ".npz")
Measured = tuple[Tensor, Tensor, Tensor]  # W2 and its bounds


@dataclass(frozen=True)
class PairwiseConfig:
    """Tuning parameters of many distances."""

    max_gap: float = 0.02  # relative gap of the bounds up to which a distance counts as known
    chunk_cells: int = 2**18  # cells of the pairs that are solved as one batch


DEFAULT_PAIRWISE = PairwiseConfig()


@dataclass(frozen=True, eq=False)
class PairwiseDistances:
    """Matrices of distances between N densities and M others, or the same N.

    The arrays have the type of the densities, NumPy or torch.

    Attributes:
        distances: W2, (N, M); symmetric with a zero diagonal if there are no others.
        lower_bounds: bounds of W2 from below, (N, M). W2 refers to densities that are constant in
            their cells.
        upper_bounds: bounds of W2 from above, (N, M).
        converged: whether the solver of each pair reached its tolerance, with bounds that differ by
            less than a factor of two, or the bounds are at most 2 % apart, (N, M).
    """

    distances: Array
    lower_bounds: Array
    upper_bounds: Array
    converged: Array

    @property
    def gap(self) -> float:
        """Largest upper bound − lower bound of all pairs, relative to the largest upper bound.

        Relative to their own distances, bounds of nearly equal densities are far apart.
        """
        lower, upper = (
            torch.as_tensor(own).detach() for own in (self.lower_bounds, self.upper_bounds)
        )
        largest = float(upper.max())
        return float((upper - lower).max()) / largest if largest > 0 else 0.0

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.distances.shape))
        return f"PairwiseDistances({shape}, known within {format_percent(self.gap)} of the largest)"

    def save(
        self, file: str | Path, names: Sequence[str] | None = None, bounds: bool = False
    ) -> list[Path]:
        """Write the matrices: an npz holds all of them, a csv or npy the distances.

        Args:
            file: its name, which ends in .csv, .npy or .npz.
            names: N names, for the first row and column of a csv; indices by default. An npz holds
                them as `names`. Not for distances to others.
            bounds: whether to write the bounds as well, of a csv or npy into files of their own
                that end in -lower and -upper.

        Returns:
            The files.
        """
        path = as_path(file)
        suffix, arrays = path.suffix.lower(), self._to_numpy()
        if suffix not in FORMATS:
            raise FileError(f"Cannot write {path}: give a name that ends in {', '.join(FORMATS)}.")
        n, m = arrays["distances"].shape
        if names is not None and not len(names) == n == m:
            raise InputError(f"There are {len(names)} names for {n}×{m} distances; give {n}.")
        if suffix == ".npz":
            if names is not None:
                arrays["names"] = np.array(list(names))
            with atomic_write(path) as temporary:
                np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]
            return [path]
        files = {path: arrays["distances"]}
        if bounds:
            for key in ("lower", "upper"):
                files[path.with_stem(f"{path.stem}-{key}")] = arrays[f"{key}_bounds"]
        with ExitStack() as stack:  # all files are complete before one gets its name
            for own, matrix in files.items():
                temporary = stack.enter_context(atomic_write(own))
                np.save(temporary, matrix) if suffix == ".npy" else _write_csv(
                    temporary, matrix, names
                )
        return list(files)

    def _to_numpy(self) -> dict[str, np.ndarray]:
        return {
            field.name: torch.as_tensor(getattr(self, field.name)).detach().numpy()
            for field in fields(self)
        }


def _write_csv(file: Path, matrix: np.ndarray, names: Sequence[str] | None) -> None:
    rows, columns = (range(n) if names is None else names for n in matrix.shape)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["", *columns])
        for name, row in zip(rows, matrix.tolist(), strict=True):
            writer.writerow([name, *row])


def distance(
    source: End,
    target: End,
    solver: str | Path | Solver = "auto",
    *,
    grid: Grid | None = None,
    **options: Any,
) -> Array:
    """Return W2 between two densities: a float, or an array (B,) for batches.

    It is the distance of `geodesic` with the same arguments. `path.report` of that path has its
    bounds. With torch densities it is differentiable.

    Args:
        source: μ_0, one density or a batch.
        target: μ_1, on the same grid.
        solver: a name (see `list_solvers`), a trained model's file (*.safetensors), or a `Solver`.
        grid: grid on which Gaussian mixtures are evaluated; not needed for densities.
        **options: options of the named solver, such as `reach=0.2` for densities of unequal mass.
    """
    path = geodesic(source, target, solver, grid=grid, **options)
    _warn_unless_bounded(path)
    return path.distance


def pairwise_distances(
    densities: Density | Sequence[Density],
    others: Density | Sequence[Density] | None = None,
    solver: str | Path | Solver = "auto",
    *,
    config: PairwiseConfig = DEFAULT_PAIRWISE,
    **options: Any,
) -> PairwiseDistances:
    """Return W2 between all pairs of densities, with bounds.

    Pairs are solved in batches and, on small grids, several at a time. Memory does not grow with
    the number of pairs, except for the matrices.

    Args:
        densities: a batch, or a list of single densities on one grid.
        others: likewise, for distances from each of `densities` to each of these; by default the
            distances among `densities`.
        solver: a name (see `list_solvers`), a trained model's file (*.safetensors), or a `Solver`.
        config: tuning parameters.
        **options: options of the named solver, such as `reach=0.2` for densities of unequal mass.
    """
    first = _as_batch(densities, "densities")
    second = first if others is None else _as_batch(others, "others")
    if isinstance(solver, Solver) and options:
        raise SolverError("Solver options need a solver name, not a Solver instance.")
    chosen = solver if isinstance(solver, Solver) else make_solver(solver, **options)
    if isinstance(chosen, Auto):
        # A linear program takes seconds, and close bounds do not need it.
        chosen = replace(chosen, accept_gap=max(chosen.accept_gap, config.max_gap))
    index = _list_pairs(len(first), None if others is None else len(second))
    chunk = max(1, config.chunk_cells // first.grid.size)
    parts: list[Measured] = []
    converged: list[bool] = []
    for start in range(0, len(index), chunk):
        pairs = index[start : start + chunk]
        with progress_stage(f"pairs {start + 1} to {start + len(pairs)} of {len(index)}"):
            sources, targets = zip(*pairs, strict=True)
            path = _solve(chosen, _take(first, sources), _take(second, targets))
            parts.append(_measure_batch(path))
        converged += _list_converged(path, parts[-1], config.max_gap)
    empty = (torch.zeros(0, dtype=torch.float64),) * 3
    columns = [torch.cat(column) for column in zip(*(parts or [empty]), strict=True)]
    _warn_unless_known(columns, converged)
    is_torch = first.is_torch or second.is_torch
    missed = ~torch.tensor(converged, dtype=torch.bool)
    distances, lower, upper, failed = (
        to_user_array(_fill(column, index, (len(first), len(second)), others is None), is_torch)
        for column in (*columns, missed.double())
    )
    return PairwiseDistances(distances, lower, upper, failed == 0)


def _list_pairs(count: int, others: int | None) -> list[tuple[int, int]]:
    """Return i < j below `count`, or all i below `count` with all j below `others`."""
    if others is None:
        return list(combinations(range(count), 2))
    return list(product(range(count), range(others)))


def _as_batch(densities: Density | Sequence[Density], name: str) -> Density:
    """Return a batch of densities on one grid."""
    if isinstance(densities, Density):
        if len(densities.batch_shape) != 1:
            raise InputError(
                f"{name} has batch shape {densities.batch_shape}; give values (n, *grid.shape), or "
                "a list of single densities."
            )
        return densities
    listed = list(densities)
    if not listed:
        raise InputError(f"{name} is empty; give at least one density.")
    for k, density in enumerate(listed):
        check_density(density, f"{name}[{k}]")
        if density.batch_shape:
            raise InputError(f"{name}[{k}] is a batch; give single densities, or one batch.")
        if density.grid != listed[0].grid:
            raise InputError(
                f"{name}[{k}] lies on {density.grid} and {name}[0] on {listed[0].grid}; use "
                "density.resample(grid) first."
            )
    return stack_densities(listed)


def _take(batch: Density, indices: Sequence[int]) -> Density:
    """Return densities of a batch, with their mixtures if there are any."""
    if batch.mixture is None:
        return batch.take(indices)
    return stack_densities([batch[k] for k in indices])


def _solve(solver: Solver, source: Density, target: Density) -> Geodesic:
    """Return the paths of a chunk; its warnings would name indices within the chunk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return solver(source, target)


def _measure_batch(path: Geodesic) -> Measured:
    """Return W2 and its bounds, (B,) each."""
    with limit_threads(path.source.tensor.numel()):
        if not isinstance(path, BatchedGeodesic):
            return _measure(path)
        path.share_moment_bounds()
        columns = zip(*path.map_pairs(_measure), strict=True)
        distances, lower, upper = (torch.stack(column) for column in columns)
        return distances, lower, upper


def _measure(path: Geodesic) -> Measured:
    value = path._distance().double()
    with torch.no_grad():
        lower, upper = path._moment_bounds
        known = path._diagnostics()
        if "cost_lower_bound" in known:  # with a reach the distance is √(2·cost)
            lower, upper = ((2 * known[f"cost_{key}_bound"]).sqrt() for key in ("lower", "upper"))
        elif "distance_lower_bound" in known:
            lower = torch.fmax(lower, known["distance_lower_bound"])
            upper = torch.fmin(upper, known["distance_upper_bound"])
        elif find_info(path.solver).exact:
            lower = upper = value.detach()
    return value, torch.minimum(lower, upper).double(), upper.double()


def _list_converged(path: Geodesic, measured: Measured, max_gap: float) -> list[bool]:
    """Return for each pair whether its solver converged or its bounds are close.

    A pair whose bounds are far apart has not converged, as in reports.
    """
    _, lower, upper = measured
    close = (upper - lower <= max_gap * upper).tolist()
    known = is_known(path, lower, upper).tolist()
    paths = path.paths if isinstance(path, BatchedGeodesic) else [path] * len(close)
    triples = zip(paths, close, known, strict=True)
    return [
        (bool(own.info.get("converged", True)) and has_bounds) or is_close
        for own, is_close, has_bounds in triples
    ]


def _warn_unless_known(columns: Sequence[Tensor], converged: list[bool]) -> None:
    missed = torch.tensor([not flag for flag in converged], dtype=torch.bool)
    if not bool(missed.any()):
        return
    _, lower, upper = (column.detach()[missed] for column in columns)
    gap = float((1 - lower / upper).max())
    warnings.warn(
        f"{int(missed.sum())} of {len(converged)} distances did not converge, and their bounds are "
        f"up to {format_percent(gap)} apart; `converged` marks them.",
        ConvergenceWarning,
        stacklevel=user_stacklevel(),
    )


@torch.no_grad()
def _warn_unless_bounded(path: Geodesic) -> None:
    """Warn if W2 of a solved pair is not known, because its bounds are far apart."""
    paths = path.paths if isinstance(path, BatchedGeodesic) else [path]
    if not all(own.has_bounds and own.is_balanced for own in paths):
        return
    _, lower, upper = _measure_batch(path)
    is_unknown = ~is_known(path, lower, upper).reshape(-1)
    doubtful = [
        k for k, own in enumerate(paths) if is_unknown[k] and own.info.get("converged", True)
    ]
    if doubtful:
        low, high = (format_number(float(own.reshape(-1)[doubtful[0]])) for own in (lower, upper))
        subject = f"W2 of pair {doubtful[0]}" if path.batch else "W2"
        warnings.warn(
            f"{subject} is known only to lie between {low} and {high}; "
            "geonet.geodesic(...).report.summary() has advice.",
            ConvergenceWarning,
            stacklevel=user_stacklevel(),
        )


def _fill(
    values: Tensor, index: list[tuple[int, int]], shape: tuple[int, int], is_symmetric: bool
) -> Tensor:
    """Return a matrix of values at pairs of indices; zero elsewhere."""
    if not index:
        return values.new_zeros(shape)
    rows, columns = torch.tensor(index).unbind(1)
    matrix = values.new_zeros(shape).index_put((rows, columns), values)
    return matrix + matrix.T if is_symmetric else matrix
