"""Gaussian mixtures: Table 2 and the figures of geodesics."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.results import Result, Table, make_means, make_spreads
from experiments.paper import published_values as paper
from experiments.paper.experiments import Conditions
from geonet.density import Density
from geonet.evaluation import PAIRS, TEST_SETS, TIME_LABELS, ReferencePairs, TestSet, sample_pairs
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D
from geonet.paths import QUARTERS, Geodesic
from geonet.plotting import DENSITY_MAP, plot_together

QUICK_PAIRS = 3
FORMS = ("geonet", "transport")


def table_2(conditions: Conditions) -> Result:
    """Measure L1 errors of both forms against exact solutions, and against POT as in the paper."""
    tables, remarks = [], []
    for name, case in TEST_SETS.items():
        pairs = sample_pairs(case, conditions.count(PAIRS, QUICK_PAIRS))
        tables.append(_errors(name, case, pairs, conditions))
    met = [name for table, name in zip(tables, TEST_SETS, strict=True) if _under_paper(table)]
    missed = [name for name in TEST_SETS if name not in met]
    remarks.append(
        f"GeONet, against exact truth, is at or under the paper's means in {len(met)} of "
        f"{len(TEST_SETS)} rows" + (f"; it is not in {', '.join(missed)}." if missed else ".")
    )
    return Result("table-2", "L1 error on Gaussian mixtures", conditions.quick, tables, remarks)


def _errors(name: str, case: TestSet, pairs: ReferencePairs, conditions: Conditions) -> Table:
    d = case.grid.dimension
    pot = pairs.solve_frames("barycenter")
    rows = [["paper: GeONet to POT", *paper.TABLE_2[name]]]
    for form in FORMS:
        frames = pairs.solve_frames(conditions.solver(f"{form}-{d}d"))
        rows.append([f"`{form}-{d}d` to exact truth", *make_spreads(l1(frames, pairs.truth))])
        rows.append([f"`{form}-{d}d` to POT", *make_spreads(l1(frames, pot))])
    rows.append(["POT to exact truth", *make_spreads(l1(pot, pairs.truth))])
    cells = "×".join(map(str, case.grid.shape))
    title = f"{name}, {cells} cells, {len(pairs.source)} pairs, L1 in %"
    return Table(title, ("", *TIME_LABELS), rows)


def _under_paper(table: Table) -> bool:
    """Return True if GeONet's means are at most the paper's at every time."""
    paper_row, ours = table.rows[0][1:], table.rows[1][1:]
    return all(a.mean <= b.mean for a, b in zip(ours, paper_row, strict=True))  # pyright: ignore


def geodesics_1d(conditions: Conditions) -> Result:
    """Draw four pairs in space × time: exact, GeONet, transport, POT."""
    pairs = sample_pairs(TEST_SETS["1D random"], conditions.count(4, 2))
    paths = _paths(pairs, "quantile", conditions)
    figure = _space_time(paths, len(pairs.source))
    table = _example_errors(pairs, paths)
    return Result("geodesics-1d", "Geodesics in 1D", conditions.quick, [table], figure=figure)


def geodesics_2d(conditions: Conditions) -> Result:
    """Draw a pair at the quarters: exact, GeONet, transport, POT."""
    pairs = sample_pairs(TEST_SETS["2D random"], conditions.count(4, 1))
    paths = _paths(pairs, "monge-ampere", conditions)
    figure = plot_together(_examples(pairs, "monge-ampere", conditions))
    table = _example_errors(pairs, paths)
    return Result("geodesics-2d", "Geodesics in 2D", conditions.quick, [table], figure=figure)


def super_resolution(conditions: Conditions) -> Result:
    """Evaluate paths of one coarse pair on finer grids and compare with the exact ones."""
    tables = []
    strips: dict[str, tuple[Geodesic, list[int]]] = {}
    for d, coarse, finer in ((1, 100, (50, 100, 200, 400)), (2, 24, (24, 48, 96, 192))):
        case = TestSet(
            TEST_SETS[f"{d}D random"].family, (BOX_1D if d == 1 else BOX_2D).with_shape(coarse)
        )
        counts = finer[: conditions.count(4, 3)]
        paths = {
            form: sample_pairs(case, 1).solve(conditions.solver(f"{form}-{d}d")) for form in FORMS
        }
        rows = []
        for cells in counts:
            fine = sample_pairs(TestSet(case.family, case.grid.with_shape(cells)), 1)
            for form, path in paths.items():
                frames = path.density(QUARTERS, fine.source.grid)
                rows.append([f"{cells} cells, `{form}-{d}d`", *make_means(l1(frames, fine.truth))])
        title = f"{d}D, a pair given on {coarse} cells a side, L1 to exact truth in %"
        tables.append(Table(title, ("evaluated on", *TIME_LABELS), rows))
        strips[f"transport-{d}d"] = paths["transport"], list(counts)
    return Result(
        "super-resolution",
        "One input, any resolution",
        conditions.quick,
        tables,
        figure=_resolutions(strips),
    )


def _methods(exact: str, conditions: Conditions, d: int) -> dict[str, str]:
    """Return solvers by their labels in figures."""
    learned = {f"{form}-{d}d": conditions.solver(f"{form}-{d}d") for form in FORMS}
    return {"exact": exact, **learned, "POT": "barycenter"}


def _paths(pairs: ReferencePairs, exact: str, conditions: Conditions) -> dict[str, Geodesic]:
    methods = _methods(exact, conditions, pairs.source.grid.dimension)
    return {name: pairs.solve(solver) for name, solver in methods.items()}


def _examples(pairs: ReferencePairs, exact: str, conditions: Conditions) -> dict[str, Geodesic]:
    methods = _methods(exact, conditions, pairs.source.grid.dimension)
    return {name: pairs.solve_first(solver) for name, solver in methods.items()}


def _example_errors(pairs: ReferencePairs, paths: dict[str, Geodesic]) -> Table:
    rows = [
        [f"`{label}`", *make_means(l1(path.density(QUARTERS), pairs.truth))]
        for label, path in paths.items()
        if label != "exact"
    ]
    title = f"{len(pairs.source)} pairs, L1 to exact truth in %"
    return Table(title, ("", *TIME_LABELS), rows)


def _space_time(paths: dict[str, Geodesic], count: int) -> Figure:
    """Draw a row per method and a column per pair: time to the right, space upwards."""
    figure = Figure(figsize=(2.2 * count, 1.9 * len(paths)), layout="constrained")
    axes = figure.subplots(len(paths), count, squeeze=False)
    times = [i / 60 for i in range(61)]
    for row, (name, path) in zip(axes, paths.items(), strict=True):
        values = path.density(times).numpy()
        for axis, frames in zip(row, values, strict=True):
            axis.imshow(frames.T, origin="lower", aspect="auto", cmap=DENSITY_MAP, vmin=0)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name)
    axes[-1][0].set_xlabel("t")
    return figure


def _resolutions(strips: dict[str, tuple[Geodesic, list[int]]]) -> Figure:
    """Draw the path at t = ½ on every grid."""
    count = max(len(cells) for _, cells in strips.values())
    figure = Figure(figsize=(2.3 * count, 4.4), layout="constrained")
    axes = figure.subplots(len(strips), count, squeeze=False)
    for row, (name, (path, counts)) in zip(axes, strips.items(), strict=True):
        for axis, cells in zip(row, counts, strict=False):
            grid = path.grid.with_shape(cells)
            frame: Density = path.density(0.5, grid)
            values = frame.tensor[0].numpy()
            if grid.dimension == 1:
                axis.step(grid.axes()[0], values, where="mid", linewidth=1)
            else:
                axis.imshow(values.T, origin="lower", cmap=DENSITY_MAP, vmin=0)
            axis.set(xticks=[], yticks=[], title=f"{cells}{f'×{cells}' * (grid.dimension - 1)}")
        row[0].set_ylabel(f"{name}, t = ½")
    return figure
