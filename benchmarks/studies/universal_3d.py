"""Accuracy of `universal-3d` at 32³: alone, and as a start for Newton's method.

Writes a table of docs/universal.md. Run it by `make benchmark NAME=universal-3d`, on an idle
machine. `--file` measures another model instead; the page then stays as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.results import record_provenance
from benchmarks.timing import make_generator, measure_median
from geonet import Density, Grid
from geonet.mixture import BOX_3D, mixtures_3d
from geonet.solvers.neural.cascade import CascadeNet, predict
from geonet.solvers.neural.model import PRETRAINED, load_cached
from geonet.solvers.newton.iteration import InitialGuess
from geonet.solvers.newton.path import MidpointGeodesic
from geonet.solvers.newton.solver import Midpoint
from geonet.synthetic import CUBE, KINDS
from geonet.training.synthetic_pairs import random_densities

PAIRS = 2  # of a kind
SEED = 7_000  # which no training has
LIMIT = 10.0  # seconds for a pair
PAPER = "mixtures-3d"

Pair = tuple[Density, Density]
Begin = Callable[[Density, Density], InitialGuess]


def pairs_of(kind: str) -> list[Pair]:
    """Return new pairs of a kind of the training's family, or of the paper's mixtures in 3D."""
    if kind == PAPER:
        box, drawn = BOX_3D.with_shape(CUBE.shape), mixtures_3d(2 * PAIRS, make_generator(SEED))
        return [(drawn[k].to_density(box), drawn[PAIRS + k].to_density(box)) for k in range(PAIRS)]
    number, box = list(KINDS).index(kind), Grid(CUBE.shape)
    kinds = torch.full((2 * PAIRS,), number)
    values = random_densities(make_generator(SEED + number), kinds, CUBE).double()
    return [(Density(values[k], box), Density(values[PAIRS + k], box)) for k in range(PAIRS)]


class Solved(NamedTuple):
    """Work of Newton's method."""

    path: MidpointGeodesic
    seconds: float

    @property
    def steps(self) -> int:
        """Return the number of steps on all grids."""
        return sum(self.path.info["newton steps"])


def solve(pair: Pair, begin: Begin | None) -> Solved:
    """Solve with Newton's method; the time includes the network that provides the start."""
    began = perf_counter()
    start = None if begin is None else begin(*pair)
    path = Midpoint(time_limit=LIMIT).solve_from(*pair, start)
    return Solved(path, perf_counter() - began)


def row_of(kind: str, model: CascadeNet) -> tuple[Cells, float]:
    """Return the network alone, then Newton's method from zero and from its potential; and the
    ratio of their times.
    """
    pairs = pairs_of(kind)
    starts: dict[str, Begin | None] = {
        "zero": None,
        "universal": lambda s, t: predict(model, s, t)[0],
    }
    found = {name: [solve(pair, begin) for pair in pairs] for name, begin in starts.items()}
    alone = [model.build_path(*pair, "universal-3d", {}) for pair in pairs]
    assert all(isinstance(path, MidpointGeodesic) for path in alone)
    known = [k for k, own in enumerate(found["zero"]) if own.path.info["converged"]]
    off = [
        alone[k].integrals.distance / found["zero"][k].path.integrals.distance - 1 for k in known
    ]  # pyright: ignore
    texts = [format_share(median(map(abs, off))) if off else "–"]
    texts.append(format_share(median(path.residual for path in alone)))  # pyright: ignore
    texts.append(
        f"{1e3 * measure_median(lambda: model.build_path(*pairs[0], 'universal-3d', {}), 5):.3g}"
    )
    for own in found.values():
        done = sum(one.path.info["converged"] for one in own)
        texts += [
            f"{1e3 * median(one.seconds for one in own):.3g}",
            f"{median(one.steps for one in own):.3g}",
            f"{done} of {len(own)}",
        ]
    ratio = median(
        a.seconds / b.seconds for a, b in zip(found["zero"], found["universal"], strict=True)
    )
    return (kind, *texts, f"{ratio:.2f}"), ratio


def measure_kinds(model: CascadeNet) -> str:
    """Return a summary and a table with a row for every kind."""
    rows, ratios = zip(*(row_of(kind, model) for kind in (*KINDS, PAPER)), strict=True)
    header = ["kind", "W2", "unbalanced", "alone, ms"]
    for start in ("zero", "`universal-3d`"):
        header += [f"from {start}, ms", "steps", "converged"]
    pays = sum(ratio > 1 for ratio in ratios)
    text = (
        f"The network makes Newton's method {median(ratios):.2f} times as fast at the median kind; "
        f"it pays for {pays} of {len(ratios)} kinds."
    )
    return f"{text}\n\n{format_table((*header, 'times as fast'), list(rows))}"


def main(file: Path | None = None) -> None:
    """Measure, print and write the table; print only if a file of another model is given."""
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    provenance = record_provenance()
    model, _ = load_cached(file or PRETRAINED / "universal-3d.safetensors", 3, "cascade")
    assert isinstance(model, CascadeNet)
    text = measure_kinds(model)
    print(text)
    if file is None:
        publish("universal-3d", provenance, {"docs/universal.md": {"space": text}})


if __name__ == "__main__":
    main()
