"""One solver through its settings: what is measured, left out, and why."""

from dataclasses import dataclass
from time import sleep

import pytest
import torch

from benchmarks import worker
from benchmarks.contestants import Contestant
from benchmarks.suites import Call, PairsFile, Suite
from benchmarks.worker import Job, Limits, measure_solver
from geonet.errors import SolverError
from geonet.evaluation import SEED, TestSet, sample_pairs
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers import registry
from geonet.solvers.base import Solver
from geonet.solvers.linear import Linear, LinearPath
from geonet.solvers.quantile import Quantile

SUITE = Suite("1d", mixtures_1d, BOX_1D, (20, 30, 40), 30, times=(1, 5), batches=(1, 3))
SETTINGS = [Call(20), Call(30), Call(30, times=1), Call(30, pairs=3), Call(40)]

AMPLE = Limits(10.0, 3, 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    found = {cells: folder / f"{cells}.safetensors" for cells in SUITE.cells}
    for cells, file in found.items():
        SUITE.write_pairs(cells, 2, file)
    return found


@pytest.fixture
def job(files):
    def make(solver, limits=AMPLE, **parts):
        return Job(Contestant(solver, solver, (1,), **parts), SUITE, files, limits)

    return make


@pytest.fixture
def in_its_place(monkeypatch):
    """Has the worker make another solver than the one named."""
    return lambda solver: monkeypatch.setattr(worker, "made", lambda entrant: solver)


@dataclass(frozen=True)
class Changed(Linear):
    """Fades pair by pair, after a pause, and fails on a grid."""

    seconds: float = 0.0
    error: Exception | None = None
    cells: int = 0  # of the grid on which to fail

    _solve = Solver._solve

    def _solve_pair(self, source, target):
        sleep(self.seconds)
        if self.error is not None and source.grid.size == self.cells:
            raise self.error
        return LinearPath(source, target, "changed", {})


def test_rows(job):
    rows, skipped = measure_solver(job("quantile"))
    assert skipped == []
    assert [Call(row.cells, row.pairs, row.times) for row in rows] == SETTINGS
    for row in rows:
        assert (row.suite, row.dimension, row.label, row.solver) == (
            "1d",
            1,
            "quantile",
            "quantile",
        )
        assert (row.repeats, row.pairs_measured, row.kind) == (3, 2, "classical")
        seconds = row.seconds_per_pair
        assert 0 < seconds.min <= seconds.low_quartile <= seconds.median <= seconds.high_quartile
        assert row.l1_percent == max(row.l1_quarters) and len(row.l1_quarters) == 5
        assert 0 < row.w2_percent < 1 and row.dtype == "float64" and row.training_seconds is None
        assert row.threads == torch.get_num_threads()
    assert len({row.setup_seconds for row in rows}) == 1
    assert rows[0].l1_percent > rows[1].l1_percent == rows[3].l1_percent > rows[4].l1_percent


def test_errors_are_those_of_the_solver(job):
    """On pairs drawn as those of the reproduction are."""
    rows, _ = measure_solver(job("linear"))
    assert rows[0].w2_percent is None
    assert rows[0].l1_quarters[0] == pytest.approx(0, abs=1e-3)
    grid = BOX_1D.with_shape(40)
    mixture = mixtures_1d(4, torch.Generator().manual_seed(SEED)).to_density(grid).tensor
    truth = sample_pairs(TestSet(mixtures_1d, grid), 2).truth.tensor[:, 2]
    faded = (mixture[:2] + mixture[2:]) / 2
    expected = 100 * ((faded - truth).abs().sum(-1) / truth.sum(-1)).mean()
    assert rows[-1].l1_quarters[2] == pytest.approx(float(expected), rel=1e-6)


def test_a_learned_one_tells_its_training(job):
    rows, skipped = measure_solver(job("transport-1d", kind="learned"))
    assert skipped == []
    assert {row.training_seconds for row in rows} == {1404.0}
    assert {row.dtype for row in rows} == {"float32"}


def test_one_that_is_trained_for_every_pair_is_measured_once(job, in_its_place):
    in_its_place(Linear())
    rows, _ = measure_solver(job("pinn", kind="per-pair"))
    assert [Call(row.cells, row.pairs, row.times) for row in rows] == [Call(30)]


def test_a_refusal_is_a_reason(job, in_its_place):
    in_its_place(Changed(error=SolverError("Not this grid;\n take another."), cells=30))
    rows, skipped = measure_solver(job("some"))
    assert [row.cells for row in rows] == [20, 40]
    assert [Call(s.cells, s.pairs, s.times) for s in skipped] == SETTINGS[1:4]
    assert {s.reason for s in skipped} == {"Not this grid; take another."}


def test_a_pair_that_fails_is_named(job, monkeypatch):
    path = LinearPath._density

    def fails(self, times, grid):
        if torch.equal(self.source.tensor, second):
            raise SolverError("Not this pair.")
        return path(self, times, grid)

    grid = BOX_1D.with_shape(20)
    second = PairsFile(job("some").files[20], grid).pairs().source[1].tensor
    monkeypatch.setattr(LinearPath, "_density", fails)
    _, skipped = measure_solver(job("linear"))
    assert [(s.cells, s.reason) for s in skipped] == [(20, "Pair 1 of 2: Not this pair.")]


def test_an_error_that_is_not_ours_is_a_reason_too(job, in_its_place):
    in_its_place(Changed(error=ZeroDivisionError("by zero"), cells=40))
    rows, skipped = measure_solver(job("some"))
    assert len(rows) == 4
    assert [s.reason for s in skipped] == ["ZeroDivisionError: by zero"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"no": 1}, "The solver 'linear' has no option 'no'"), ({"reg": 1}, "no option 'reg'")],
)
def test_options_that_it_does_not_take(job, options, message):
    rows, skipped = measure_solver(job("linear", options=options))
    assert rows == [] and len(skipped) == 5
    assert all(message in s.reason for s in skipped)


def test_a_solver_that_is_not_there(job):
    rows, skipped = measure_solver(job("no-such-solver"))
    assert rows == [] and "There is no solver 'no-such-solver'" in skipped[0].reason


def test_densities_that_are_not_finite(job, in_its_place, monkeypatch):
    in_its_place(Linear())
    monkeypatch.setattr(
        LinearPath, "_density", lambda self, t, g: torch.full((len(t), g.size), torch.nan)
    )
    rows, skipped = measure_solver(job("some"))
    assert rows == []
    assert skipped[0].reason.startswith("The densities are not finite")


def test_what_is_over_the_budget_is_not_tried_on_larger_grids(job, in_its_place):
    in_its_place(Changed(seconds=0.05))
    rows, skipped = measure_solver(job("some", Limits(0.03, 3, 2)))
    assert [(row.cells, row.repeats) for row in rows] == [(20, 1)]
    assert [Call(s.cells, s.pairs, s.times) for s in skipped] == SETTINGS[1:]
    assert {s.reason for s in skipped} == {"one path on 20 cells a side takes about 0 s"}


def test_a_failure_after_too_long_is_not_tried_on_larger_grids(job, in_its_place):
    in_its_place(Changed(0.05, SolverError("No."), 20))
    rows, skipped = measure_solver(job("some", Limits(0.03, 3, 2)))
    assert rows == []
    assert [s.reason[:12] for s in skipped] == ["No.", *["one path on "] * 4]


def test_pairs_one_by_one_that_are_over_the_budget(job, in_its_place):
    in_its_place(Changed(seconds=0.05))
    rows, skipped = measure_solver(job("some", Limits(0.12, 1, 2)))
    assert [row.cells for row in rows] == [20, 30, 30, 40]
    assert [(s.pairs, s.reason) for s in skipped] == [(3, "3 pairs, one by one, take about 0 s")]


def test_a_batched_form_is_always_tried(job, in_its_place):
    in_its_place(Quantile())
    rows, _ = measure_solver(job("some", Limits(1e-9, 1, 2)))
    assert [row.cells for row in rows] == [20]  # over the budget, and so on
    rows, _ = measure_solver(job("some", Limits(10.0, 1, 2)))
    assert [row.pairs for row in rows] == [1, 1, 1, 3, 1]


def test_another_processs_registration(job, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    rows, skipped = measure_solver(job("mine", location="geonet.solvers.linear:Linear"))
    assert len(rows) == 5 and skipped == []
