"""The main functions: geodesic, solver, list_solvers and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geonet._validation import as_path, short_repr
from geonet.density import Density
from geonet.errors import InputError, SolverError
from geonet.grid import Grid, check_grid
from geonet.mixture import End, GaussianMixture
from geonet.paths import Geodesic
from geonet.solvers.base import MixtureSolver, Solver
from geonet.solvers.registry import import_all_solvers, load_solver_classes, make_solver


def geodesic(
    source: End,
    target: End,
    solver: str | Path | Solver = "auto",
    *,
    grid: Grid | None = None,
    **options: Any,
) -> Geodesic:
    """Return the W2 geodesic from `source` to `target`.

    Without `reach`, the normalised densities are connected and all mass moves. Along periodic axes
    of the grid it moves the shorter way round.

    Args:
        source: μ_0, one density or a batch.
        target: μ_1, on the same grid.
        solver: a name (see `list_solvers`), a trained model's file (*.safetensors), or a `Solver`.
        grid: grid on which Gaussian mixtures are evaluated; not needed for densities.
        **options: options of the named solver, such as `floor=0.01` for "monge-ampere". Options of
            "auto" and "midpoint" are, among others:

            - `reach`: length over which mass moves, in units of the grid, for densities of unequal
              mass, which count as given; the rest grows or fades. The path then also has `cost`,
              `cost_bounds`, `transported_share` and `growth_rate`.
            - `growth`: with a reach, "hellinger" (Gaussian–Hellinger transport, the default) or
              "wfr" (geodesics of the Wasserstein–Fisher–Rao metric).
            - `tolerance`: share of the mass that may remain unbalanced.
            - `time_limit`: seconds for each pair.
    """
    if grid is not None:
        check_grid(grid)
    if isinstance(solver, Solver):
        if options:
            raise SolverError(
                "Solver options need a solver name, not a Solver instance; "
                "give them to geonet.solver(name, ...)."
            )
        chosen = solver
    else:
        chosen = make_solver(solver, **options)
    if isinstance(chosen, MixtureSolver) and grid is None:
        _check_end(source)
        _check_end(target)
        return chosen(source, target)
    return chosen(*(_on_grid(end, grid, chosen) for end in (source, target)))


def solver(name: str | Path, **options: Any) -> Solver:
    """Return the solver of that name or model file, a callable (source, target) -> Geodesic."""
    return make_solver(name, **options)


def list_solvers() -> dict[str, str]:
    """Return the name of every solver with one line on its purpose and its results."""
    lines = {}
    for name, cls in load_solver_classes().items():
        lines[name] = f"{cls.info.summary}; provides {', '.join(cls.info.provides)}"
    return lines


def load(file: str | Path) -> Any:
    """Return the `Geodesic`, `Barycenter` or `Barycenters` that `save` wrote.

    Its results are NumPy arrays.
    """
    path = as_path(file)
    from geonet.barycenters import restore  # these two take long to import
    from geonet.io import load_saved

    import_all_solvers()  # the import of its module registers a kind of path
    return load_saved(path, {"barycenter": restore, "barycenters": restore})


def _on_grid(end: End, grid: Grid | None, solver: Solver) -> Density:
    _check_end(end)
    if isinstance(end, GaussianMixture):
        if grid is not None:
            return end.to_density(grid)
        raise InputError(
            f"A Gaussian mixture has no grid and {solver.name!r} needs one; "
            "give grid=..., use mixture.to_density(grid), or take solver='bures' for two Gaussians."
        )
    if grid is not None and end.grid != grid:
        raise InputError(
            f"grid is for mixtures, and this density lies on {end.grid}; "
            "use density.resample(grid) first."
        )
    return end


def _check_end(end: End) -> None:
    if not isinstance(end, Density | GaussianMixture):
        if isinstance(end, str | Path):
            name = repr(str(end))
            raise InputError(f"{name} is a file name, not a Density; give geonet.read({name}).")
        raise InputError(
            f"Source and target must be densities, and one of them is {short_repr(end)}; "
            "give geonet.Density(values, grid)."
        )
