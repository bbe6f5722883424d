"""Errors of the transport models on pairs that no training saw, and whether their report is right.

Prints the tables and writes them into docs/transport.md between their markers, with the picture of
estimated against true errors. Run it by `make benchmark NAME=transport`; most of its minutes go
into the exact paths.
"""

from __future__ import annotations

from functools import partial

import matplotlib.pyplot as plt
import torch

import geonet
from benchmarks.pages import ROOT, Cells, format_table, publish
from benchmarks.results import format_digits, record_provenance
from benchmarks.suites import prescribed_map_pairs
from experiments.paper.published_values import TABLE_2
from geonet.evaluation import TEST_SETS, ReferencePairs, TestSet, sample_pairs
from geonet.metrics import l1, mass_error, negativity
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.paths import QUARTERS
from geonet.solvers.newton.solver import Midpoint

FAR_1D = partial(mixtures_1d, spread=(0.2, 0.25))
FAR_2D = partial(mixtures_2d, narrow=(0.18, 0.22), wide=(0.45, 0.55))


def solver_for(pairs: ReferencePairs, **options) -> geonet.Solver:
    """Return the transport model of the pairs' dimension."""
    return geonet.solver(f"transport-{pairs.source.grid.dimension}d", **options)


def percentages(errors: torch.Tensor) -> str:
    """Return mean errors at the quarters in percent."""
    return " ".join(f"{e:.2f}" for e in (100 * errors).mean(0).tolist())


def error_rows(label: str, pairs: ReferencePairs) -> Cells:
    """Return L1 of the solver and of the network alone, and the number of corrected pairs."""
    paper = (
        " ".join(format_digits(cell.mean) for cell in TABLE_2[label]) if label in TABLE_2 else "–"
    )
    path = solver_for(pairs)(pairs.source, pairs.target)
    alone = solver_for(pairs, max_iterations=0)(pairs.source, pairs.target)
    corrected = sum(path.info.get("corrected", []))
    errors = [percentages(l1(p.density(QUARTERS), pairs.truth)) for p in (path, alone)]
    return (label, paper, *errors, f"{corrected} of {len(pairs.source)}")


def distance_rows(label: str, pairs: ReferencePairs) -> Cells:
    """Return error of W2, its bounds, mass and sign."""
    path = solver_for(pairs)(pairs.source, pairs.target)
    report, exact_distance = path.report, pairs.distance
    lower, upper, found = (
        torch.tensor(values, dtype=torch.float64) / exact_distance
        for values in (report.distance_lower_bound, report.distance_upper_bound, report.distance)
    )
    inside = int(((lower <= 1) & (upper >= 1)).sum())
    frames = path.density(QUARTERS)
    return (
        label,
        f"{100 * float((found - 1).abs().mean()):.3f} %",
        f"{100 * float((1 - lower).mean()):.3f} %",
        f"{100 * float((upper - 1).mean()):.2f} %",
        f"{inside} of {len(pairs.source)}",
        f"{100 * float(mass_error(frames).max()):.3f} %",
        f"{float(negativity(frames).max()):g}",
    )


def plot_estimates(found: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Return estimated against true error, per pair, for each kind of pairs."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
    for axis, dimension in zip(axes, (1, 2), strict=True):
        for label, (estimate, true) in found.items():
            if label.startswith(f"{dimension}D"):
                axis.loglog(100 * estimate, 100 * true, ".", label=label, ms=4)
        ends = [0.5 * min(axis.get_xlim()[0], axis.get_ylim()[0]), 2 * axis.get_xlim()[1]]
        axis.loglog(ends, ends, "k", lw=0.6)
        axis.set(xlabel="error that the report expects, %", ylabel="true L1 error, %")
        axis.set(title=f"{dimension}D")
        axis.legend(fontsize=7)
    figure.savefig(ROOT / "docs" / "images" / "transport-estimate.png", dpi=110)


def estimates(pairs: ReferencePairs, max_iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the report's estimate and the largest true error along the path, (n,) each."""
    path = solver_for(pairs, max_iterations=max_iterations)(pairs.source, pairs.target)
    estimate = torch.tensor(path.report.error_estimate, dtype=torch.float64)
    return estimate, l1(path.density(QUARTERS), pairs.truth).amax(1)


def estimate_rows(found: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> list[Cells]:
    """Return the accuracy of the estimates."""
    rows = []
    for label, (estimate, true) in found.items():
        ratio = true / estimate
        rank = torch.corrcoef(
            torch.stack([estimate.argsort().argsort(), true.argsort().argsort()]).double()
        )
        rows.append(
            (
                label,
                str(len(true)),
                f"{100 * float(estimate.mean()):.2f} %",
                f"{100 * float(true.mean()):.2f} %",
                f"{float(ratio.quantile(0.05)):.2f} to {float(ratio.quantile(0.95)):.2f}",
                f"{float(rank[0, 1]):.2f}",
            )
        )
    return rows


def main() -> None:
    """Measure, print and write."""
    provenance = record_provenance()
    pairs = {label: sample_pairs(case) for label, case in TEST_SETS.items()}
    rows = [error_rows(label, pairs[label]) for label in TEST_SETS]
    three = prescribed_map_pairs()
    rows.append(error_rows("3D known maps (24³)", three))
    header = ("L1 in % at t = 0, ¼, ½, ¾, 1", "paper", "`transport`", "network alone", "corrected")
    moving = {k: p for k, p in pairs.items() if "identity" not in k}
    moving["3D known maps (24³)"] = three
    distances = [distance_rows(label, p) for label, p in moving.items()]
    columns = (
        "",
        "W2 error",
        "W2 above lower bound",
        "upper bound above W2",
        "W2 within",
        "mass error",
        "mass below zero",
    )
    found = {
        f"{label}{how}": estimates(p, steps)
        for label, p in {
            "1D in distribution": pairs["1D random"],
            "1D OOD": pairs["1D OOD"],
            "1D far OOD": sample_pairs(TestSet(FAR_1D, BOX_1D)),
            "2D in distribution": pairs["2D random"],
            "2D OOD": pairs["2D OOD"],
            "2D far OOD": sample_pairs(TestSet(FAR_2D, BOX_2D)),
        }.items()
        for how, steps in ((", network alone", 0), ("", Midpoint.max_iterations))
    }
    plot_estimates(found)
    names = ("", "pairs", "expected", "true", "true/expected, 5 to 95 %", "rank correlation")
    sections = {
        "errors": format_table(header, rows),
        "distances": format_table(columns, distances),
        "estimates": format_table(names, estimate_rows(found)),
    }
    for name, text in sections.items():
        print(f"\n{name}\n{text}", flush=True)
    publish("transport", provenance, {"docs/transport.md": sections})


if __name__ == "__main__":
    main()
