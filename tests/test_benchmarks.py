"""The benchmarks still run, and the cost of a step is what is said of it."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


def test_training_step(benchmark):
    rows = benchmark("training_step").measure(1, repetitions=1)
    assert rows[0][0].startswith("paper")
    assert all(step > 0 and residual > 0 for _, step, residual in rows)


@pytest.mark.slow
def test_a_residual_costs_a_fifth_of_the_papers(benchmark):
    for dimension in (1, 2):
        rows = benchmark("training_step").measure(dimension, repetitions=5)
        paper, ours = rows[0][2], rows[-1][2]
        assert ours <= paper / 5


def test_training_variants(benchmark):
    module = benchmark("training_variants")
    variants = module.variants()
    assert len({str(config) for config in variants.values()}) == len(variants)
    config = next(iter(variants.values()))
    model = replace(
        config.model,
        rank=4,
        branch=replace(config.model.branch, width=4),
        trunk=replace(config.model.trunk, width=4),
    )
    small = replace(config, model=model, validation=replace(config.validation, pairs=2))
    steps, seconds, errors = module.measure(small, 0.1)
    assert steps > 0
    assert seconds > 0
    assert len(errors) == 5


def test_learned_solvers(benchmark):
    import geonet

    errors = benchmark("learned_solvers").errors_of(geonet.solver("linear"), 1)
    assert errors["mean"][0] == pytest.approx(0, abs=1e-6)
    assert errors["mean"][2] > 15
