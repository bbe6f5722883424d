"""Slowdown of solves and of a training if other programs use every core.

    python -m benchmarks.studies.busy_machine

Beside each run stand as many endless loops as there are cores, stopped for the idle runs and woken
for the others, in turn. Everything runs twice, one after the other: with those threads of torch and
NumPy that come by default, which is what geonet did before, and with those that geonet chooses.
Writes the table of docs/threads.md. Run it by `make benchmark NAME=busy` on an otherwise idle
machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

import geonet
from benchmarks.pages import ROOT, Cells, format_table, publish
from benchmarks.results import record_provenance
from geonet import Density, Grid
from geonet import _threads as threads
from geonet.training.config import read_config
from geonet.training.loop import train

CASES = (
    ("monge-ampere", 64),
    ("monge-ampere", 128),
    ("schrodinger", 64),
    ("schrodinger", 128),
    ("midpoint", 256),
    ("midpoint", 512),
    ("transport-2d", 128),
    ("transport-2d", 512),
    ("back-and-forth", 64),
    ("back-and-forth", 128),
    ("barycenter", 64),
)
CONFIG, STEPS = "transport-1d", 20
REPEATS, ENOUGH = 5, 10.0  # runs of each kind, unless 10 seconds have passed
Job = Callable[[], object]
Seconds = tuple[list[float], list[float]]  # idle and busy


class Others:
    """Other programs: an endless loop for every core, each asleep until it is woken."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "while True: pass"]
        self.loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]

    def awake(self, awake: bool) -> None:
        """Resume or suspend the programs."""
        for loop in self.loops:
            loop.send_signal(signal.SIGCONT if awake else signal.SIGSTOP)
        time.sleep(0.05)

    def end(self) -> None:
        """Stop all programs."""
        for loop in self.loops:
            loop.kill()
            loop.wait()


def spots(n: int) -> list[Density]:
    """Return two densities of four soft spots, on n×n cells."""
    generator, grid = torch.Generator().manual_seed(0), Grid((n, n))
    points = grid.points()
    ends = []
    for _ in range(2):
        centres = 0.2 + 0.6 * torch.rand(4, 2, generator=generator, dtype=points.dtype)
        heights = (((points - c) ** 2).sum(-1).div(-0.03).exp() for c in centres)
        ends.append(Density(sum(heights, torch.full(grid.shape, 0.2)), grid))
    return ends


def solve(name: str, n: int) -> Job:
    """Return a solve and three frames."""
    ends = spots(n)
    return lambda: geonet.geodesic(*ends, name).density([0.25, 0.5, 0.75])


def training() -> Job:
    """Train for some steps, each time in a new folder."""
    config = read_config(ROOT / "experiments" / "configs" / f"{CONFIG}.toml")
    config = replace(config, steps=STEPS, validation=replace(config.validation, pairs=0))

    def job() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(config, Path(folder))

    return job


def seconds(job: Job, others: Others) -> Seconds:
    """Return the times of a job, idle and busy in turn, so that both see the same machine."""
    others.awake(False)
    job()
    taken: Seconds = ([], [])
    began = time.perf_counter()
    while len(taken[1]) < REPEATS and (not taken[1] or time.perf_counter() - began < ENOUGH):
        for busy in (False, True):
            others.awake(busy)
            start = time.perf_counter()
            job()
            taken[busy].append(time.perf_counter() - start)
    others.awake(False)
    return taken


def both(job: Job, others: Others) -> tuple[Seconds, Seconds]:
    """Return the times with threads as they come, and then with those that geonet chooses."""
    time.sleep(3 * threads._idle_team.keep_alive)  # until none of the last job's wait asleep
    with as_they_come():
        before = seconds(job, others)
    return before, seconds(job, others)


@contextmanager
def as_they_come() -> Iterator[None]:
    """Disable the choice of threads by geonet."""
    alone = mock.patch.multiple(threads, _openmp=lambda: None, _blas_functions=list)
    with alone:
        yield


def row(name: str, before: Seconds, now: Seconds) -> Cells:
    """Return best times in milliseconds, and their factors beside other programs."""
    cells = [name]
    for idle, busy in (before, now):
        cells += [f"{1e3 * min(idle):.0f}", f"{min(busy) / min(idle):.1f}"]
        cells[-1] += f" to {max(busy) / min(idle):.1f}"
    return tuple(cells)


def main() -> None:
    """Measure, print and write the table."""
    provenance = record_provenance()
    jobs = {f"`{name}`, {n}×{n}": solve(name, n) for name, n in CASES}
    jobs[f"training `{CONFIG}`, {STEPS} steps"] = training()
    others = Others()
    try:
        rows = [row(name, *both(job, others)) for name, job in jobs.items()]
    finally:
        others.end()
    header = ("", "spinning: idle, ms", "busy", "geonet: idle, ms", "busy")
    text = format_table(header, rows)
    print(text)
    publish("busy", provenance, {"docs/threads.md": {"busy": text}})


if __name__ == "__main__":
    main()
