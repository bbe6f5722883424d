"""Errors of the transport models on pairs that no training saw, and whether their report is right.

Prints the tables and writes them into docs/transport.md and README.md between their markers, with
the picture of estimated against true errors. Run it by `make transport`; most of its minutes go
into the exact paths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
import torch
from pages import ROOT, Row, put, seeded, table

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError
from geonet.evaluation.metrics import l1, mass_error, negativity
from geonet.measures.families import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.solvers.exact.known_map import known_map_geodesic, random_potential

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
PAIRS = 50
SEED = 7_000  # training draws from 1,000,003 + its seed, validation from 1,000,000
FINER = 21  # cells of the 1D truth for one of the answer's, an odd number
OOD_1D = partial(mixtures_1d, spread=(0.3, 0.4))
OOD_2D = partial(mixtures_2d, narrow=(0.25, 0.3), wide=(0.65, 0.8))
FAR_1D = partial(mixtures_1d, spread=(0.2, 0.25))
FAR_2D = partial(mixtures_2d, narrow=(0.18, 0.22), wide=(0.45, 0.55))


@dataclass(frozen=True)
class Case:
    """Pairs of a family on a grid, what the paper has for them, and what is allowed here."""

    family: Callable[..., GaussianMixture]
    grid: Grid
    paper: str = "–"
    identity: bool = False


CASES = {
    "1D identity": Case(mixtures_1d, BOX_1D, "2.67 2.85 3.04 2.86 2.63", identity=True),
    "1D random": Case(mixtures_1d, BOX_1D, "4.92 5.43 5.76 5.26 4.65"),
    "1D high-res (200)": Case(mixtures_1d, BOX_1D.with_shape(200), "4.76 5.49 6.01 5.59 4.77"),
    "1D OOD (sd .3–.4)": Case(OOD_1D, BOX_1D, "12.9 14.3 16.4 14.9 12.3"),
    "2D identity": Case(
        mixtures_2d, BOX_2D.with_shape(40), "6.50 7.68 7.69 7.70 6.42", identity=True
    ),
    "2D random (40×40)": Case(mixtures_2d, BOX_2D.with_shape(40), "6.59 7.10 7.13 7.04 6.33"),
    "2D high-res (75×75)": Case(mixtures_2d, BOX_2D.with_shape(75), "6.66 7.71 7.88 7.59 6.29"),
    "2D OOD": Case(OOD_2D, BOX_2D.with_shape(40), "7.15 7.82 8.14 7.96 7.14"),
}


@dataclass(frozen=True)
class Pairs:
    """Gridded pairs with their exact paths at the quarters and their exact distances."""

    source: Density
    target: Density
    truth: Density
    distance: torch.Tensor


def pairs_of(case: Case, count: int = PAIRS, seed: int = SEED) -> Pairs:
    """Random pairs of a case; the answer sees cells alone, the truth is found from the formulas."""
    mixture = case.family(2 * count, seeded(seed))
    first = _part(mixture, slice(count))
    second = first if case.identity else _part(mixture, slice(count, None))
    ends = [Density(end.on(case.grid).values, case.grid) for end in (first, second)]
    if case.identity:
        still = ends[0].values[:, None].expand(-1, len(QUARTERS), *case.grid.shape)
        return Pairs(*ends, Density(still, case.grid), torch.zeros(count, dtype=torch.float64))
    if case.grid.dimension == 1:
        fine = case.grid.with_shape(FINER * case.grid.size)
        path = geonet.geodesic(first.on(fine), second.on(fine), "quantile")
        values = path.density(QUARTERS).values[..., FINER // 2 :: FINER]
        return Pairs(*ends, Density.as_computed(values, case.grid), path.distance)
    paths = {k: path for k in range(count) if (path := monge_ampere(first[k], second[k]))}
    truth = torch.stack([p.density(QUARTERS, case.grid).values for p in paths.values()])
    distance = torch.stack([p.distance for p in paths.values()])
    ends = [Density(end.values[list(paths)], case.grid) for end in ends]
    return Pairs(*ends, Density.as_computed(truth, case.grid), distance)


def monge_ampere(first: GaussianMixture, second: GaussianMixture) -> geonet.Geodesic | None:
    """The exact 2D path; far out of distribution some pairs have none that this solver finds."""
    try:
        return geonet.geodesic(first.on(BOX_2D), second.on(BOX_2D), "monge-ampere")
    except ConvergenceError:
        return None


def _part(mixture: GaussianMixture, which: slice) -> GaussianMixture:
    return GaussianMixture(mixture.means[which], mixture.covariances[which], mixture.weights[which])


def solver_for(pairs: Pairs, **options) -> geonet.Solver:
    """The transport model of the pairs' dimension."""
    return geonet.solver(f"transport-{pairs.source.grid.dimension}d", **options)


def percentages(errors: torch.Tensor) -> str:
    """Mean errors at the quarters in percent."""
    return " ".join(f"{e:.2f}" for e in (100 * errors).mean(0).tolist())


def error_rows(label: str, case: Case, pairs: Pairs) -> Row:
    """L1 of the solver as it comes, of the network alone, and how many pairs were corrected."""
    path = solver_for(pairs)(pairs.source, pairs.target)
    alone = solver_for(pairs, corrections=0)(pairs.source, pairs.target)
    corrected = int((~path.usual).sum()) if path.usual is not None else 0  # pyright: ignore
    errors = [percentages(l1(p.density(QUARTERS), pairs.truth)) for p in (path, alone)]
    return (label, case.paper, *errors, f"{corrected} of {len(pairs.source)}")


def distance_rows(label: str, pairs: Pairs) -> Row:
    """Error of W2, its bounds, mass and sign."""
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


def known_map_pairs(count: int = 20, seed: int = SEED) -> Pairs:
    """3D mixtures carried by random potentials, whose path is exact by construction."""
    generator = seeded(seed)
    mixtures = mixtures_3d(count, generator)
    paths = []
    for k in range(count):
        source = mixtures[k].on(BOX_3D)
        paths.append(known_map_geodesic(source, random_potential(BOX_3D, generator, 3, 0.5)))
    source, target, truth = (
        Density.as_computed(torch.stack(values), BOX_3D)
        for values in (
            [p.source.values for p in paths],
            [p.target.values for p in paths],
            [p.density(QUARTERS).values for p in paths],
        )
    )
    distance = torch.stack([p.distance for p in paths])
    return Pairs(Density(source.values, BOX_3D), Density(target.values, BOX_3D), truth, distance)


def plot_estimates(found: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Estimated against true error, per pair, for each kind of pairs."""
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


def estimates(pairs: Pairs, corrections: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The report's estimate and the largest true error along the path, (n,) each."""
    path = solver_for(pairs, corrections=corrections)(pairs.source, pairs.target)
    estimate = torch.tensor(path.report.error_estimate, dtype=torch.float64)
    return estimate, l1(path.density(QUARTERS), pairs.truth).amax(1)


def estimate_rows(found: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> list[Row]:
    """How good the estimates are."""
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
    pairs = {label: pairs_of(case) for label, case in CASES.items()}
    rows = [error_rows(label, case, pairs[label]) for label, case in CASES.items()]
    three = known_map_pairs()
    rows.append(error_rows("3D known maps (24³)", Case(mixtures_3d, BOX_3D), three))
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
            "1D OOD": pairs["1D OOD (sd .3–.4)"],
            "1D far OOD": pairs_of(Case(FAR_1D, BOX_1D)),
            "2D in distribution": pairs["2D random (40×40)"],
            "2D OOD": pairs["2D OOD"],
            "2D far OOD": pairs_of(Case(FAR_2D, BOX_2D)),
        }.items()
        for how, steps in ((", network alone", 0), ("", 5))
    }
    plot_estimates(found)
    names = ("", "pairs", "expected", "true", "true/expected, 5 to 95 %", "rank correlation")
    sections = {
        "errors": table(header, rows),
        "distances": table(columns, distances),
        "estimates": table(names, estimate_rows(found)),
    }
    for name, text in sections.items():
        print(f"\n{name}\n{text}", flush=True)
        put(ROOT / "docs" / "transport.md", name, text)
    put(ROOT / "README.md", "transport", table(header[:3], [row[:3] for row in rows]))


if __name__ == "__main__":
    main()
