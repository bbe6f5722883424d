"""Errors of the shipped models on pairs that no training saw, and the entropic one's against ε.

Prints the tables and writes them into docs/models.md between their markers, with the pictures
beside them. Run it by `make benchmark NAME=models`; it takes some minutes, most of them for the
exact 2D paths.
"""

from __future__ import annotations

from statistics import mean

import matplotlib.pyplot as plt
import torch

import geonet
from benchmarks.pages import ROOT, Cells, format_table, publish
from benchmarks.results import record_provenance
from benchmarks.timing import make_generator
from geonet import Density
from geonet.evaluation import (
    PAIRS,
    SEED,
    TEST_SETS,
    TIME_LABELS,
    reference_frames,
    reference_solution,
    sample_pairs,
)
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.base import Solver
from geonet.training.problems import make_problem

# Errors of the authors' published weights, measured on other pairs of the same families,
# against exact truth; quoted, since those weights are not here.
PUBLISHED = {1: (3.0, 6.5, 7.7, 6.8, 2.9), 2: (4.8, 5.5, 6.2, 5.8, 4.7)}
TRUST_SEED = 9_500  # of pairs that no calibration saw


def test_pairs(dimension: int) -> tuple[Density, Density]:
    """Return the 50 pairs."""
    return make_problem(f"mixtures-{dimension}d").draw_densities(PAIRS, make_generator(SEED))


def errors_of(solver: Solver, dimension: int, epsilon: float = 0.0) -> dict[str, list[float]]:
    """Return mean and standard deviation of the L1 error in percent at the quarters."""
    pairs = test_pairs(dimension)
    noise = epsilon * max(pairs[0].grid.lengths) ** 2
    errors = 100 * l1(solver(*pairs).density(QUARTERS), reference_frames(*pairs, noise))
    return {
        "mean": [round(e, 3) for e in errors.mean(0).tolist()],
        "sd": [round(e, 3) for e in errors.std(0).tolist()],
    }


def error_rows(dimension: int) -> list[Cells]:
    """Return the shipped model, the authors' weights, and no transport at all."""
    rows: list[Cells] = []
    for name in (f"geonet-{dimension}d", "linear"):
        errors = errors_of(geonet.solver(name), dimension)
        cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(*errors.values(), strict=True)]
        rows.append((f"{dimension}D `{name}`", *cells))
    published = tuple(f"{e:.1f}" for e in PUBLISHED[dimension])
    return [
        rows[0],
        (f"{dimension}D, the authors' published weights (quoted)", *published),
        rows[1],
    ]


def distance_bias(dimension: int, pairs: int = 20) -> str:
    """Return mean relative error of W2, with its sign."""
    source, target = (Density(end.tensor[:pairs], end.grid) for end in test_pairs(dimension))
    exact = reference_solution(source, target).distance
    learned = geonet.geodesic(source, target, f"geonet-{dimension}d").distance
    bias = 100 * float((learned / exact - 1).mean())
    return f"On average W2 is {abs(bias):.1f} % too {'small' if bias < 0 else 'large'}."


def trust_table(dimension: int) -> str:
    """Compare reports with the truth for pairs in and out of distribution."""
    rows: list[Cells] = []
    for name in (f"{dimension}D random", f"{dimension}D OOD"):
        known = sample_pairs(TEST_SETS[name], seed=TRUST_SEED)
        path = known.solve(f"geonet-{dimension}d")
        error = l1(path.density(QUARTERS), known.truth).amax(-1)
        report = path.report
        residuals = report.continuity, report.hamilton_jacobi
        ratio = torch.tensor(report.error_estimate) / error
        low, middle, high = ratio.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=ratio.dtype))
        foreign = sum(usual is False for usual in report.in_distribution)
        rows.append(
            (
                name,
                f"{100 * float(error.mean()):.2f}",
                f"{float(middle):.2f} ({float(low):.2f} to {float(high):.2f})",
                f"{foreign} of {len(error)}",
                *(f"{100 * mean(residual):.1f}" for residual in residuals),
            )
        )
    return format_table(
        (
            "pairs",
            "largest L1 error, %",
            "estimated over true, median (10 to 90 %)",
            "called unlike the training",
            "continuity, %",
            "Hamilton–Jacobi, %",
        ),
        rows,
    )


def entropic_table(dimension: int) -> str:
    """Return the entropic model and the geodesic against the bridge at the same ε, and against ε =
    0.
    """
    name = f"er-geonet-{dimension}d"
    source, target = test_pairs(dimension)
    path = geonet.geodesic(source, target, name)
    epsilon = float(path.info["epsilon"])
    bridge, geodesic = (reference_frames(source, target, noise) for noise in (epsilon, 0.0))
    frames = path.density(QUARTERS)
    rows: list[Cells] = []
    for label, a, b in (
        (f"`{name}` to `schrodinger` at ε = {epsilon:g}", frames, bridge),
        (f"`{name}` to the geodesic, ε = 0", frames, geodesic),
        (f"`schrodinger` at ε = {epsilon:g} to the geodesic", bridge, geodesic),
    ):
        rows.append((label, *(f"{e:.2f}" for e in (100 * l1(a, b)).mean(0).tolist())))
    if dimension == 1:
        plot_entropic(frames, bridge, geodesic, epsilon)
    return format_table(("L1 in %", *TIME_LABELS), rows)


def plot_entropic(frames: Density, bridge: Density, geodesic: Density, epsilon: float) -> None:
    """Return three pairs at t = ½."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True, layout="constrained")
    (x,) = frames.grid.axes()
    for i, axis in enumerate(axes):
        for label, curve, style in (
            ("geodesic, ε = 0", geodesic, "0.6"),
            (f"schrodinger, ε = {epsilon:g}", bridge, "k"),
            ("er-geonet-1d", frames, "C1--"),
        ):
            axis.plot(x, curve.tensor[i, 2], style, lw=1.2, label=label)
        axis.set(title=f"pair {i}, t = ½", xlabel="x")
    axes[0].legend(fontsize=7)
    figure.savefig(ROOT / "docs" / "images" / "er-geonet-1d.png", dpi=110)


def main() -> None:
    """Measure, print and write."""
    provenance = record_provenance()
    header = ("L1 in %", *TIME_LABELS)
    rows = {dimension: error_rows(dimension) for dimension in (1, 2)}
    sections = {
        "geonet-1d": format_table(header, rows[1]),
        "geonet-2d": format_table(header, rows[2]),
        "distance-1d": distance_bias(1),
        "distance-2d": distance_bias(2),
        "trust-1d": trust_table(1),
        "trust-2d": trust_table(2),
        "er-geonet-1d": entropic_table(1),
        "er-geonet-2d": entropic_table(2),
    }
    for name, text in sections.items():
        print(f"\n{name}\n{text}")
    publish("models", provenance, {"docs/models.md": sections})


if __name__ == "__main__":
    main()
