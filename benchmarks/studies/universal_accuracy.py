"""Accuracy of `universal-2d`: alone, with three steps of Newton's method, and as a start.

Writes the tables of docs/universal.md. Run it by `make benchmark NAME=universal`, on an idle
machine, with MNIST in `GEONET_DATA`.
"""

from __future__ import annotations

import warnings
from statistics import median
from typing import NamedTuple

import torch

import geonet
from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.pairs import KINDS, draw
from benchmarks.results import record_provenance
from benchmarks.studies.midpoint_accuracy import divide_cells
from benchmarks.timing import make_generator, measure_median
from geonet import Density, Geodesic, Grid
from geonet.evaluation import reference_solution
from geonet.metrics import block_l1, l1
from geonet.paths import QUARTERS
from geonet.training.problems import make_problem

PAIRS = 4  # of a kind
RAW = "digits, 28²"
BATCH = 64
FAMILY_PAIRS, FAMILY_SEED = 32, 9_000
REPEATS = 5
RADII, GRIDS = (0.02, 0.03, 0.05, 0.1, 0.15), (64, 128, 256)


class Pair(NamedTuple):
    """Two densities with a reference: the same on cells that are cut into 4 × 4."""

    source: Density
    target: Density
    reference: Geodesic


def network(source: Density, target: Density, max_iterations: int) -> Geodesic:
    """Return the path of `universal-2d`."""
    return geonet.geodesic(source, target, solver="universal-2d", max_iterations=max_iterations)


def draw_pair(kind: str, k: int) -> tuple[Density, Density]:
    """Return a pair of the suite at 64², or two of MNIST's digits as they are."""
    return draw("digits", 28, k) if kind == RAW else draw(kind, 64, k)


def pairs_of(kind: str) -> list[Pair]:
    """Return all pairs of a kind."""
    pairs = (draw_pair(kind, k) for k in range(PAIRS))
    return [
        Pair(s, t, geonet.geodesic(divide_cells(s), divide_cells(t), solver="midpoint"))
        for s, t in pairs
    ]


class Errors(NamedTuple):
    """Errors of a path: W2, and the frame at ½, there relative to the linear blend's."""

    distance: float
    halfway: float
    relative: float
    blocks: float


def errors_of(path: Geodesic, pair: Pair) -> Errors:
    """Return errors against the reference; for the blocks, the worst of three times."""
    grid, times = pair.source.grid, QUARTERS[1:-1]
    truth = pair.reference.density(0.5, grid)
    linear = geonet.geodesic(pair.source, pair.target, solver="linear").density(0.5)
    off = float(l1(path.density(0.5), truth))
    between = block_l1(path.density(times), pair.reference.density(times, grid))
    return Errors(
        float(path.distance) / float(pair.reference.distance) - 1,
        off,
        off / float(l1(linear, truth)),
        float(between.max()),
    )


def alone_rows(suite: dict[str, list[Pair]]) -> list[Cells]:
    """Return medians of the network alone by kind."""
    rows = []
    for kind, pairs in suite.items():
        found = [errors_of(network(p.source, p.target, 0), p) for p in pairs]
        distance, halfway, relative, blocks = (
            median(column) for column in zip(*found, strict=True)
        )
        worst = max(abs(own.distance) for own in found)
        cells = (
            format_share(distance),
            format_share(worst),
            format_share(halfway),
            f"{relative:.3f}",
        )
        rows.append((kind, *cells, format_share(blocks)))
    return rows


def corrected_rows(suite: dict[str, list[Pair]]) -> tuple[list[Cells], str]:
    """Return errors of the network with at most three steps, and times of one pair and of a batch,
    by kind.
    """
    rows, good, count = [], 0, 0
    for kind, pairs in suite.items():
        paths = [network(p.source, p.target, 3) for p in pairs]
        found = [errors_of(path, p) for path, p in zip(paths, pairs, strict=True)]
        fine = sum(abs(own.distance) <= 2e-3 and own.blocks <= 0.01 for own in found)
        one = measure_median(lambda p=pairs[0]: frames(p.source, p.target), REPEATS)
        batch = [together([(p.source, p.target)[end] for p in pairs]) for end in (0, 1)]
        many = measure_median(lambda b=batch: frames(*b), 3) / BATCH
        rows.append(
            (
                kind,
                format_share(median(abs(own.distance) for own in found)),
                format_share(median(own.blocks for own in found)),
                f"{fine} of {len(found)}",
                f"{median(sum(path.info['newton steps']) for path in paths):.3g}",
                f"{1e3 * one:.3g}",
                f"{1e3 * many:.3g}",
            )
        )
        good, count = good + fine, count + len(found)
    text = (
        f"Of {count} pairs, {good} have W2 within 0.2 % and all frames within 1 % on 16² blocks: "
        f"{format_share(good / count)}."
    )
    return rows, text


def together(densities: list[Density]) -> Density:
    """Return a batch of `BATCH`, in turn."""
    values = [densities[k % len(densities)].tensor for k in range(BATCH)]
    return Density(torch.stack(values), densities[0].grid)


def frames(source: Density, target: Density) -> Density:
    """Solve with at most three steps and evaluate the frame at ½; this is timed."""
    return network(source, target, 3).density(0.5)


def start_rows(cells: int) -> tuple[list[Cells], str]:
    """Compare Newton's method from zero and from the network, by kind."""
    rows, ratios = [], []
    for kind in KINDS:
        times: dict[str, list[float]] = {"zero": [], "network": []}
        steps: dict[str, list[int]] = {"zero": [], "network": []}
        for k in range(4):
            source, target = draw(kind, cells, k)
            for start in times:
                solve = lambda s=source, t=target, b=start: geonet.geodesic(  # noqa: E731
                    s, t, solver="midpoint", start=b
                )
                steps[start].append(sum(solve().info["newton steps"]))
                times[start].append(measure_median(solve, REPEATS))
        ratio = median(a / b for a, b in zip(*times.values(), strict=True))
        ratios.append(ratio)
        texts = []
        for start in times:
            texts += [f"{1e3 * median(times[start]):.3g}", f"{median(steps[start]):.3g}"]
        rows.append((kind, *texts, f"{ratio:.2f}"))
    better = sum(ratio > 1 for ratio in ratios)
    text = (
        f"At {cells}² the network makes it {median(ratios):.2f} times as fast at the median kind; "
        f"it pays for {better} of {len(ratios)} kinds."
    )
    return rows, text


def disc(cells: int, centre: tuple[float, float], radius: float) -> Density:
    """Return a disc with nothing around it, its edge a cell wide."""
    line = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    distance = torch.hypot(line[:, None] - centre[0], line - centre[1])
    return Density((0.5 - (distance - radius) * cells).clamp(0, 1), Grid((cells, cells)))


def disc_rows() -> list[Cells]:
    """Return the unbalanced mass of `universal-2d` between two distant discs, by radius."""
    rows = []
    for radius in RADII:
        left = []
        for cells in GRIDS:
            ends = disc(cells, (0.3, 0.25), radius), disc(cells, (0.7, 0.8), 1.3 * radius)
            path = network(*ends, 3)
            left.append(format_share(path.info["residual"]) if path.info["converged"] else "astray")
        rows.append((f"{radius:g}", *left))
    return rows


FAMILIES = {
    "mixtures-2d": "transport-2d",
    "experiments.problems:digit_images": "transport-mnist",
    "experiments.problems:Clouds": "transport-cloud",
}


def family_rows() -> list[Cells]:
    """Compare `universal-2d` with the transport models on their families: L1 at ½ and times."""
    rows = []
    for family, model in FAMILIES.items():
        source, target = make_problem(family).draw_densities(
            FAMILY_PAIRS, make_generator(FAMILY_SEED)
        )
        truth = reference_solution(source, target).frames
        for name, options in (
            (model, {}),
            ("universal-2d", {"max_iterations": 0}),
            ("universal-2d", {}),
        ):
            solve = lambda s=source, t=target, n=name, o=options: geonet.geodesic(  # noqa: E731
                s, t, solver=n, **o
            )
            errors = l1(solve().density(QUARTERS), truth)[:, 1:-1].mean(0)
            time = measure_median(lambda call=solve: call().density(0.5), 3) / FAMILY_PAIRS
            what = f"`{name}`" + (" alone" if options else "")
            rows.append((family, what, *(format_share(e) for e in errors), f"{1e3 * time:.3g}"))
    return rows


def main() -> None:
    """Measure, print and write the tables."""
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    provenance = record_provenance()
    rows, text = start_rows(128)
    header = ("kind", "from zero, ms", "steps", "from the network, ms", "steps", "times as fast")
    start = f"{text}\n\n{format_table(header, rows)}"
    suite = {kind: pairs_of(kind) for kind in (*KINDS, RAW)}
    header = ("kind", "W2", "W2 at worst", "L1 at ½", "of the linear blend's", "16² blocks")
    alone = format_table(header, alone_rows(suite))
    rows, text = corrected_rows(suite)
    header = ("kind", "W2", "16² blocks", "both within", "steps", "one pair, ms", "of 64, ms each")
    sections = {
        "discs": format_table(("radius", *(f"{cells}²" for cells in GRIDS)), disc_rows()),
        "alone": alone,
        "corrected": f"{text}\n\n{format_table(header, rows)}",
        "start": start,
        "families": format_table(
            ("family", "solver", "L1 at ¼", "½", "¾", "of 32, ms each"), family_rows()
        ),
    }
    print("\n\n".join(sections.values()))
    publish("universal", provenance, {"docs/universal.md": sections})


if __name__ == "__main__":
    main()
