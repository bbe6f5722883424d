"""Accuracy of `midpoint`: exact paths, trust, cost against size, large grids.

Writes the tables of docs/midpoint.md. Run it by `make benchmark NAME=midpoint`, on an idle machine.
"""

from __future__ import annotations

import resource
import warnings
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

import geonet
from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.pairs import EXACT_PAIRS, KINDS, PAIRS, draw, exact_pair
from benchmarks.results import record_provenance
from benchmarks.timing import measure_median
from geonet import Density, Geodesic, Grid
from geonet._format import format_number
from geonet.metrics import block_l1, l1
from geonet.paths import QUARTERS

BETWEEN = (0.25, 0.5, 0.75)
FINER = 4  # for references: parts of a cell along each axis
SIZES = (64, 256, 1024)
RIVAL = (64, 256)  # back-and-forth's are measured on these
REPEATS = 3


def solve(source: Density, target: Density, **options) -> Geodesic:
    """Return the path of `midpoint`."""
    return geonet.geodesic(source, target, solver="midpoint", **options)


def divide_cells(density: Density) -> Density:
    """Return the same density on cells that are cut into 4 × 4."""
    grid = density.grid
    return density.resample(grid.with_shape([FINER * n for n in grid.shape]))


def roughness(frame: Tensor) -> float:
    """Return ∫|∇μ|², by differences of neighbours."""
    return float(sum((frame.diff(dim=axis) ** 2).sum() for axis in (0, 1)))


# ---- exact paths


def exact_rows() -> list[Cells]:
    """Return L1 at the quarters and W2, for `midpoint` and for the cells themselves."""
    rows = []
    for name in EXACT_PAIRS:
        for cells in (64, 128):
            pair = exact_pair(name, cells)
            truth = torch.stack([pair.truth(t).tensor for t in BETWEEN])
            path = solve(pair.source, pair.target)
            frames = path.density(BETWEEN).tensor
            cells_alone = solve(divide_cells(pair.source), divide_cells(pair.target))
            limit = cells_alone.density(BETWEEN, pair.source.grid).tensor
            off = float(path.distance) / pair.distance - 1
            sharp = roughness(frames[1]) / roughness(truth[1])
            rows.append(
                (
                    name,
                    f"{cells}²",
                    *(format_share(error) for error in (frames - truth).abs().mean((1, 2))),
                    f"{100 * off:+.3f} %",
                    f"{sharp:.3f}",
                    format_share((limit - truth).abs().mean((1, 2)).max()),
                )
            )
    return rows


# ---- trust


def trust_rows(cells: int = 64) -> tuple[list[Cells], str]:
    """Return errors, estimated errors and bounds by kind."""
    rows, ratios, widths = [], [], []
    for kind in KINDS:
        errors, frames, off, expected, width, inside = [], [], [], [], [], []
        for k in range(PAIRS):
            source, target = draw(kind, cells, k)
            path, reference = (
                solve(source, target),
                solve(divide_cells(source), divide_cells(target)),
            )
            truth = reference.density(BETWEEN, source.grid)
            errors.append(float(l1(path.density(BETWEEN), truth).max()))
            frames.append(float(block_l1(path.density(BETWEEN), truth).max()))
            distance, report = float(reference.distance), path.report
            off.append(abs(float(path.distance) / distance - 1))
            low, high = report.distance_lower_bound, report.distance_upper_bound
            expected.append(report.error_estimate)
            width.append((high - low) / distance)
            slack = 2e-3 * distance  # of the reference itself
            inside.append(low <= distance + slack and distance <= high + slack)
        ratios += [e / error for e, error in zip(expected, errors, strict=True)]
        widths += width
        rows.append(
            (
                kind,
                *(
                    format_share(median(values))
                    for values in (off, frames, errors, expected, width)
                ),
                f"{sum(inside)} of {len(inside)}",
            )
        )
    enough = sum(ratio >= 0.5 for ratio in ratios)
    least, most = (format_number(share, 2) for share in np.quantile(ratios, (0.05, 0.95)).tolist())
    text = (
        f"Of {len(ratios)} pairs, {enough} have an error of at most twice the estimate. "
        f"The estimate is {least} to {most} times the error for 90 % of them, "
        f"{format_number(median(ratios), 2)} times at the median. The bounds on W2 are "
        f"{format_share(median(widths))} wide at the median, {format_share(max(widths))} at most."
    )
    return rows, text


# ---- cost


def scaling_rows() -> tuple[list[Cells], str]:
    """Return time and steps by number of cells, medians over a pair of each kind."""
    rows, times = [], []
    for cells in SIZES:
        pairs = [draw(kind, cells) for kind in KINDS]
        own, rival, steps, inner = [], [], [], []
        for source, target in pairs:
            path = solve(source, target)
            own.append(
                measure_median(lambda s=source, t=target: solve(s, t).density(QUARTERS), REPEATS)
            )
            steps.append(path.info["newton steps"][-1])
            inner.append(sum(path.info["multigrid steps"]) / sum(path.info["newton steps"]))
            if cells in RIVAL:
                rival.append(measure_median(lambda s=source, t=target: rival_frames(s, t)))
        times.append(median(own))
        smooth = own[KINDS.index("smooth")]
        ratio = f"{median(rival) / median(own):.3g}" if rival else "–"
        row = (f"{cells}²", 1e3 * median(own), 1e3 * smooth, median(steps), median(inner))
        rows.append((row[0], *(f"{value:.3g}" for value in row[1:]), ratio))
    logs = np.log(np.array(SIZES) ** 2)
    slope = np.polyfit(logs, np.log(times), 1)[0]
    return rows, f"The time grows as the number of cells to the power {slope:.2f}."


def rival_frames(source: Density, target: Density) -> Density:
    """Return the densities of back-and-forth."""
    return geonet.geodesic(source, target, solver="back-and-forth").density(QUARTERS)


def large_rows() -> list[Cells]:
    """Return the time of the largest grids, solving and one frame."""
    grid = Grid((128, 128, 128))
    x = grid.points()
    lump = lambda centre, width: torch.exp(-((x - torch.tensor(centre)) ** 2).sum(-1) / width)  # noqa: E731
    ball = ((x - torch.tensor([0.7, 0.6, 0.5])) ** 2).sum(-1) < 0.02
    ends = [lump([0.35] * 3, 0.02) + ball, lump([0.6] * 3, 0.01) + lump([0.2, 0.7, 0.5], 0.005)]
    cases = {
        "photographs, 1024²": draw("photographs", 1024),
        "shapes, 1024²": draw("shapes", 1024),
        "a ball and lumps, 128³": tuple(Density(end, grid) for end in ends),
    }
    rows = []
    for name, (source, target) in cases.items():
        began = perf_counter()
        path = solve(source, target)
        path.density(0.5)
        taken = perf_counter() - began
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        rows.append((name, f"{taken:.3g}", f"{most:.2g}", format_share(path.info["residual"])))
    return rows


def main() -> None:
    """Measure, print and write the tables; memory first, since it is the most so far."""
    warnings.simplefilter("ignore")
    provenance = record_provenance()
    large = format_table(("pair", "s", "memory so far, GB", "residual"), large_rows())
    exact = format_table(
        (
            "pair",
            "cells",
            "L1 at ¼",
            "½",
            "¾",
            "W2",
            "roughness at ½ over the truth's",
            "cells alone",
        ),
        exact_rows(),
    )
    rows, text = trust_rows()
    header = ("kind", "W2", "16² blocks", "L1", "L1, estimated", "width of the bounds", "W2 inside")
    trust = f"{text}\n\n{format_table(header, rows)}"
    rows, text = scaling_rows()
    header = ("cells", "ms", "smooth pair, ms", "Newton's steps on the last grid")
    header += ("multigrid steps for each of them", "`back-and-forth` over `midpoint`")
    cost = f"{text}\n\n{format_table(header, rows)}"
    sections = {"exact": exact, "trust": trust, "cost": cost, "large": large}
    publish("midpoint", provenance, {"docs/midpoint.md": sections})
    print("\n\n".join(sections.values()))


if __name__ == "__main__":
    main()
