"""Accuracy and cost of the exact and entropic solvers, on seeds that no test uses.

Prints the tables and writes them into docs/accuracy.md between their markers. Run it by `make
benchmark NAME=accuracy` on an otherwise idle machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from rich.progress import track

import geonet
from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.results import record_provenance
from benchmarks.timing import make_generator
from geonet import Density, Grid
from geonet.errors import ConvergenceWarning
from geonet.evaluation import SEED, prescribed_map_geodesic, random_potential
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.numerics.interpolation import resample
from geonet.paths import QUARTERS, Geodesic

INSIDE = QUARTERS[1:-1]


def quantile_accuracy(pairs: int = 50) -> list[Cells]:
    """Return 100 cells against 20,000 cells averaged over the 100, the paper's 1D mixtures."""
    source, target = (mixtures_1d(pairs, make_generator(SEED + k)) for k in range(2))
    fine = BOX_1D.with_shape(20_000)
    truth = geonet.geodesic(source, target, "quantile", grid=fine).density(INSIDE).tensor
    truth = Density.from_unnormalized(resample(truth, fine, BOX_1D), BOX_1D)
    path = geonet.geodesic(source, target, "quantile", grid=BOX_1D)
    errors = l1(path.density(INSIDE), truth).mean(0)
    return [("mean L1 at t = ¼, ½, ¾", ", ".join(format_share(e) for e in errors))]


def monge_ampere_accuracy(pairs: int = 20, compared: int = 6) -> list[Cells]:
    """Return residuals, agreement between grids, known maps and the linear program's distance."""
    source, target = (mixtures_2d(pairs, make_generator(SEED + k)) for k in range(2, 4))
    path = solve(source, target, BOX_2D, "monge-ampere")
    residuals = torch.tensor(path.info["residual"])
    few = [[mixture[i] for i in range(compared)] for mixture in (source, target)]
    apart, known = [], []
    for i in track(range(compared), "monge-ampere", transient=True):
        coarse, fine = (
            solve(few[0][i], few[1][i], grid, "monge-ampere")
            for grid in (BOX_2D, BOX_2D.with_shape(96))
        )
        apart.append(float(l1(coarse.density(INSIDE), fine.density(INSIDE, BOX_2D)).max()))
        truth = known_map(i)
        found = geonet.geodesic(*get_gridded_ends(truth), "monge-ampere")
        known.append(float(l1(found.density(INSIDE), truth.density(INSIDE)).max()))
    return [
        (f"residual ∫\\|μ1(T) det DT − μ0\\|, {pairs} pairs", spread(residuals, "{:.1e}")),
        (f"L1 between 64 and 96 cells, {compared} pairs", spread(apart)),
        (f"L1 against known maps, {compared} pairs", spread(known)),
        *linear_program_rows(few, path.distance),
    ]


def linear_program_rows(few: list[list], truth: torch.Tensor) -> list[Cells]:
    """Return the difference of the distance by plans between parts of cells."""
    grid, truth = BOX_2D.with_shape(32), truth[: len(few[0])]
    paths = [geonet.geodesic(*ends, "linear-program", grid=grid) for ends in zip(*few, strict=True)]
    distances = torch.stack([path.distance for path in paths])
    return [("W2 of `linear-program` at 32×32 above it", spread(distances / truth - 1))]


def comparison(pairs: int = 3) -> list[Cells]:
    """Compare the 2D solvers on known-map pairs at 64×64: error at t = ½, W2, cost."""
    truths = [known_map(100 + i) for i in range(pairs)]
    rows = []
    plans: list[tuple[str, str, dict, int]] = [
        ("`monge-ampere`", "monge-ampere", {}, pairs),
        ("`transport-2d`, corrected", "transport-2d", {}, pairs),
        ("`transport-2d`, the network alone", "transport-2d", {"max_iterations": 0}, pairs),
        ("`linear-program` (48×48)", "linear-program", {"coarsen": True}, pairs),
        ("`schrodinger`, ε = 10⁻³ L²", "schrodinger", {}, pairs),
        ("`barycenter` (POT, the paper's reference)", "barycenter", {}, pairs),
        ("`linear` (no transport)", "linear", {}, pairs),
    ]
    for label, name, options, count in track(plans, "comparison", transient=True):
        rows.append((label, *measure_solver(geonet.solver(name, **options), truths[:count])))
    unit = rows[0][-1]
    return [(*row[:-1], f"{row[-1] / unit:.2g}") for row in rows]


def measure_solver(solver: geonet.Solver, truths: list[Geodesic]) -> tuple[str, str, float]:
    """Return L1 and W2 errors, and the seconds of one frame at t = ½, solving included."""
    errors, distances, seconds = [], [], []
    for truth in truths:
        ends = get_gridded_ends(truth)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            answer, took = time_work(lambda ends=ends: (path := solver(*ends), path.density(0.5)))
        path, middle = answer
        seconds.append(took)
        errors.append(float(l1(middle, truth.density(0.5))))
        if "distance" in solver.info.provides:
            distances.append(abs(float(path.distance / truth.distance) - 1))
    distance = format_share(sum(distances) / len(distances)) if distances else "–"
    error = format_share(sum(errors) / len(errors))
    return error, distance, median(seconds)


def schrodinger_accuracy() -> list[Cells]:
    """Return gaussians in 1D against the closed form; ε → 0 against quantiles."""
    grid = Grid(200, 0.0, 10.0)
    first, second = (0.6, 4.0), (0.9, 6.0)
    rows = []
    for epsilon in (0.3, 0.1, 0.03):
        ends = [gaussian(grid, *end) for end in (first, second)]
        path = geonet.geodesic(*ends, "schrodinger", epsilon=epsilon)
        worst = max(
            float(l1(path.density(t), gaussian(grid, *bridge(first, second, epsilon, t))))
            for t in INSIDE
        )
        met = path.info["marginal error"]
        rows.append(
            (f"ε = {epsilon:g}: worst L1 on Gaussians", format_share(worst) + f" ({met:.0e})")
        )
    source, target = (
        mixtures_1d(1, make_generator(SEED + k))[0].to_density(grid) for k in range(2)
    )
    exact = geonet.geodesic(source, target, "quantile").density(0.5)
    for epsilon in (0.3, 0.1, 0.03, 0.01, 0.003):
        path = geonet.geodesic(source, target, "schrodinger", epsilon=epsilon)
        rows.append(
            (f"ε = {epsilon:g}: L1 to `quantile`", format_share(l1(path.density(0.5), exact)))
        )
    return rows


def bridge(
    first: tuple[float, float], second: tuple[float, float], epsilon: float, t: float
) -> tuple[float, float]:
    """Return standard deviation and mean of the bridge between 1D Gaussians at time t."""
    (s, m), (r, n) = first, second
    cross = ((4 * s**2 * r**2 + 4 * epsilon**2) ** 0.5 - 2 * epsilon) / 2
    variance = (1 - t) ** 2 * s**2 + t**2 * r**2 + t * (1 - t) * (2 * cross + 2 * epsilon)
    return variance**0.5, (1 - t) * m + t * n


def gaussian(grid: Grid, std: float, mean: float) -> Density:
    """Return N(mean, std²) on a 1D grid."""
    return geonet.GaussianMixture.isotropic([[mean]], std).to_density(grid)


def known_map(index: int) -> Geodesic:
    """Return the path of a mixture by the gradient of a random convex potential."""
    generator = make_generator(SEED + 100 + index)
    source = mixtures_2d(1, generator)[0].to_density(BOX_2D)
    return prescribed_map_geodesic(source, random_potential(BOX_2D, generator, strength=0.85))


def get_gridded_ends(truth: Geodesic) -> list[Density]:
    """Return the two ends as a user has them: values on a grid, no formula."""
    return [Density(end.tensor, end.grid) for end in (truth.source, truth.target)]


def solve(source, target, grid: Grid, name: str) -> Geodesic:
    """Solve between the gridded values of two mixtures."""
    return geonet.geodesic(
        *(Density(end.to_density(grid).tensor, grid) for end in (source, target)), name
    )


def time_work(work: Callable):
    """Return the result of `work` and its seconds."""
    began = perf_counter()
    answer = work()
    return answer, perf_counter() - began


def spread(values, form: str = "{:.3%}") -> str:
    """Return mean and worst."""
    values = torch.as_tensor(values)
    return f"{form.format(float(values.mean()))} mean, {form.format(float(values.max()))} worst"


def main() -> None:
    """Measure everything, print it, and write it into the pages."""
    provenance = record_provenance()
    geonet.geodesic(
        *get_gridded_ends(known_map(99)), "monge-ampere"
    )  # imports and caches, not timed
    rows = comparison()
    sections = {
        "comparison": format_table(
            ("solver", "L1 at t = ½", "W2 error", "time, relative to `monge-ampere`"), rows
        ),
        "quantile": format_table(("`quantile`", "error"), quantile_accuracy()),
        "monge-ampere": format_table(("`monge-ampere`", "measured"), monge_ampere_accuracy()),
        "schrodinger": format_table(("`schrodinger`", "error"), schrodinger_accuracy()),
    }
    for name, text in sections.items():
        print(f"\n{name}\n{text}")
    publish("accuracy", provenance, {"docs/accuracy.md": sections})


if __name__ == "__main__":
    main()
