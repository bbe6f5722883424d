"""Speed of transport paths, and the training time until they beat the authors' weights.

Ratios, taken in one run: a whole path (11 times, 64×64) by transport-2d, alone and in a batch of
64, against the same without the compiled loops, and against monge-ampere and POT's barycenter from
scratch; and a training of transport-2d until its validation error at t = ½ is below 5 %, against
150 cold monge-ampere solves. Writes the tables into docs/transport.md. Run it by `make benchmark
NAME=transport-speed` on an otherwise idle machine.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

import geonet
from benchmarks.pages import ROOT, Cells, format_table, publish
from benchmarks.results import describe_machine, record_provenance
from benchmarks.timing import make_generator, measure_median
from geonet import Density
from geonet.training.config import read_config
from geonet.training.loop import Processes, Run
from geonet.training.problems import make_problem

TIMES = tuple(k / 10 for k in range(11))
PAIRS = 6  # solved from scratch by the classical solvers
BATCH = 64
GOAL = 5.0  # percent at t = ½: reached by the authors' published weights
SOLVES = 150


def speed_rows() -> list[Cells]:
    """Return times of a whole path, solving and evaluating, per pair."""
    source, target = make_problem("mixtures-2d").draw_densities(BATCH, make_generator(7_000))
    singles = [
        tuple(Density(end.tensor[k], end.grid) for end in (source, target)) for k in range(PAIRS)
    ]
    batch = [Density(end.tensor, end.grid) for end in (source, target)]

    def path(name: str, ends) -> None:
        geonet.geodesic(*ends, name).density(TIMES)

    def transport() -> tuple[float, float]:
        """Return one pair, and a pair of the batch."""
        for _ in range(3):  # the matrices are made, the threads are awake
            path("transport-2d", singles[0])
        one = [
            measure_median(lambda k=k: path("transport-2d", singles[k]), 9) for k in range(PAIRS)
        ]
        return median(one), measure_median(lambda: path("transport-2d", batch), 5) / BATCH

    path("monge-ampere", singles[0])
    alone, together = transport()
    os.environ["GEONET_COMPILED"] = "0"
    slowly = transport()
    del os.environ["GEONET_COMPILED"]
    classical = {
        name: median(
            measure_median(lambda k=k, name=name: path(name, singles[k])) for k in range(PAIRS)
        )
        for name in ("monge-ampere", "barycenter")
    }
    rows: list[Cells] = [("`transport-2d`, one pair", f"{1e3 * alone:.1f} ms", "1", "–")]
    rows.append((f"`transport-2d`, in a batch of {BATCH}", f"{1e3 * together:.1f} ms", "–", "1"))
    times = {f"`{name}`, cold": (time, time) for name, time in classical.items()}
    for name, (one, of_batch) in {"the same in torch": slowly, **times}.items():
        shown = f"{1e3 * one:.0f} ms" + (f", {1e3 * of_batch:.1f} ms" if one != of_batch else "")
        rows.append((name, shown, f"{one / alone:.1f}", f"{of_batch / together:.1f}"))
    return rows


def training_row() -> Cells:
    """Return seconds of training steps until the validation error at t = ½ is below the goal."""
    config = read_config(ROOT / "experiments" / "configs" / "transport-2d.toml")
    config = replace(config, validation=replace(config.validation, pairs=8))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, Path(folder), Processes())
        assert run.validation is not None
        error = 100.0
        while error > GOAL:
            for _ in range(10):
                run.step()
            error = run.validation.measure(run.model)["validation_l1_percent"][2]
    source, target = make_problem("mixtures-2d").draw_densities(PAIRS, make_generator(7_001))
    solve = geonet.solver("monge-ampere")
    one = median(measure_median(lambda k=k: solve(source[k], target[k])) for k in range(PAIRS))
    took = run.progress.seconds
    return (
        f"{error:.1f} % at t = ½ after {run.progress.step} steps",
        f"{took:.1f} s",
        f"{SOLVES * one:.1f} s",
        f"{took / (SOLVES * one):.2f}",
    )


def main() -> None:
    """Measure, print and write."""
    provenance = record_provenance()
    print(describe_machine())
    sections = {
        "speed": format_table(
            ("11 times, 64×64", "per pair", "relative to one pair", "relative to the batch"),
            speed_rows(),
        ),
        "training": format_table(
            ("training of `transport-2d`", "training", f"{SOLVES} × `monge-ampere`", "ratio"),
            [training_row()],
        ),
    }
    for name, text in sections.items():
        print(f"\n{name}\n{text}", flush=True)
    publish("transport-speed", provenance, {"docs/transport.md": sections})


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
