"""What the tests of the benchmark share: rows that nobody measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from benchmarks.any_pair.records import Answer, AnyPairs, Reference, Unanswered
from benchmarks.contestants import CONTESTANTS, filter_by_dimension
from benchmarks.records import Benchmark, Curve, Measurement, Seconds, Skipped
from benchmarks.suites import SUITES

SPEEDS = {  # seconds a pair and L1 in %, roughly as they are, by the beginning of the name
    "transport": (0.006, 0.06),
    "geonet": (0.004, 3.5),
    "deeponet": (0.002, 2.1),
    "quantile": (0.003, 0.15),
    "monge-ampere": (0.8, 3e-5),
    "linear-program": (4.0, 8.0),
    "schrodinger": (0.5, 0.3),
    "barycenter": (1.5, 4.0),
    "debiased": (20.0, 0.2),
    "ott": (2.5, 3.0),
    "linear": (0.0002, 10.0),
    "auto": (0.008, 0.06),
}


def made_up_row(**changes: Any) -> Measurement:
    """A row of a classical solver, but for what is given; `seconds` is the median."""
    seconds = changes.pop("seconds", 1.0)
    values: dict[str, Any] = {
        "suite": "2d",
        "dimension": 2,
        "cells": 64,
        "pairs": 1,
        "times": 5,
        "label": "some",
        "solver": "some",
        "options": {},
        "kind": "classical",
        "setup_seconds": 0.1,
        "seconds_per_pair": Seconds(seconds, 0.9 * seconds, 1.2 * seconds, 0.8 * seconds),
        "repeats": 20,
        "l1_percent": 1.0,
        "l1_quarters": [0.0, 0.5, 1.0, 0.5, 0.0],
        "w2_percent": None,
        "pairs_measured": 16,
        "memory_mb": 12.5,
        "threads": 2,
        "dtype": "float64",
        "training_seconds": None,
    }
    return Measurement(**values | changes)


def made_up_answer(**changes: Any) -> Answer:
    """An answer with a W2 of 0.1 that is right, but for what is given."""
    values: dict[str, Any] = {
        "cells": 64,
        "kind": "smooth",
        "pair": 0,
        "label": "some",
        "solver": "some",
        "answered_by": "some",
        "seconds": 0.05,
        "repeats": 3,
        "reference": 0.1,
        "w2_percent": 0.1,
        "l1_percent": [0.2, 0.4, 0.3],
        "bounds": [0.099, 0.102],
        "estimate_percent": 0.5,
    }
    return Answer(**values | changes)


@pytest.fixture
def answer() -> Callable[..., Answer]:
    return made_up_answer


@pytest.fixture
def row() -> Callable[..., Measurement]:
    return made_up_row


@pytest.fixture(scope="session")
def made_up() -> Benchmark:
    """A full run of all solvers; every solver without a batched form leaves the batch out."""
    rows, skipped = [], []
    for suite in SUITES.values():
        for entrant in filter_by_dimension(CONTESTANTS, suite.dimension):
            for setting in suite.calls():
                parts = {"suite": suite.name, "dimension": suite.dimension, **vars(setting)}
                parts |= {"label": entrant.label, "solver": entrant.solver}
                if entrant.kind == "classical" and setting.pairs > 1:
                    reason = "64 pairs, one by one, take about 100 s"
                    skipped.append(Skipped(**parts, reason=reason))
                elif entrant.kind != "per-pair" or (setting.cells == suite.reference):
                    rows.append(made_up_row(**parts, **_about(entrant, setting, suite)))
    values = [1, 4, 16, 64]
    curves = [
        Curve(solver, axis, values, [0.004 * (1 + n / 9) for n in values], 0.87)
        for solver in ("transport-1d", "transport-2d", "geonet-2d")
        for axis in ("output points", "times", "pairs")
    ]
    machine = {"cpu": "A Processor", "cores": 2, "threads": 2, "memory_gb": 24.0, "jax": None}
    return Benchmark(machine, False, rows, skipped, curves, any=_any_pairs(machine))


def _any_pairs(machine: dict[str, Any]) -> AnyPairs:
    """Two solvers on two kinds and grids; one leaves out a pair."""
    settings = [(n, kind, k) for n in (64, 128) for kind in ("smooth", "spots") for k in (0, 1)]
    answers = [
        made_up_answer(cells=n, kind=kind, pair=k, label=label, solver=label, seconds=n / 1e3)
        for label in ("midpoint", "back-and-forth")
        for n, kind, k in settings
    ]
    left = answers.pop()
    missing = Unanswered(left.cells, left.kind, left.pair, left.label, left.solver, "too slow")
    fine = [(n, kind, k) for n in (256, 512) for _, kind, k in settings[:4]]
    references = [Reference(n, 4 * n, kind, k, 0.1, 1.0) for n, kind, k in fine]
    return AnyPairs(machine, {64: 256, 128: 512}, answers, references, [missing])


def _about(entrant, setting, suite) -> dict[str, Any]:
    speed, error = next(
        (values for name, values in SPEEDS.items() if entrant.solver.startswith(name)), (30, 5)
    )
    chance = crc32(entrant.label.encode()) / 2**32  # the same in every run
    growth = (setting.cells / suite.reference) ** (0.2 if entrant.kind == "learned" else 2)
    learned = entrant.kind == "learned" and entrant.solver != "auto"
    return {
        "options": entrant.options,
        "kind": entrant.kind,
        "l1_percent": error * (0.6 + chance),
        "seconds": speed * 4**chance * growth * (1 + setting.times / 10) / setting.pairs**0.5,
        "training_seconds": 1800.0 if learned else None,
    }
