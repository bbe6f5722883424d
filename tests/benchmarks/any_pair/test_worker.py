"""One solver through its pairs: what is measured, left out, and why."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.any_pair import run as worker
from benchmarks.any_pair.run import AnyJob, measure_solver
from benchmarks.any_pair.suite import ReferenceJob, solve_references
from benchmarks.contestants import Contestant
from benchmarks.pairs import draw
from geonet.metrics import block_l1
from geonet.solvers.linear import Linear, LinearPath


@pytest.fixture
def job(tiny, stub, tmp_path):
    files = tiny.write_pairs(tmp_path)
    references = {n: solve_references(ReferenceJob(tiny, n)) for n in tiny.finer}
    return lambda suite=tiny: AnyJob(Contestant("a stub", "stub", (2,)), suite, files, references)


def test_answers(job, tiny, stub):
    stub(off=0.001)
    answers, unanswered = measure_solver(job())
    assert unanswered == []
    assert [(a.cells, a.kind, a.pair) for a in answers] == [
        (cells, *pair) for cells in tiny.finer for pair in tiny.each()
    ]
    for row in answers:
        assert (row.label, row.solver, row.answered_by) == ("a stub", "stub", "stub")
        assert row.repeats == 2 and row.seconds > 0 and row.reference == pytest.approx(0.1)
        assert row.w2_percent == pytest.approx(0.1)
        # of the stub's bounds and of what the moments say, the tighter
        assert row.bounds[0] >= 0.09 - 1e-6 and row.bounds[1] == pytest.approx(0.11)
        assert row.estimate_percent == pytest.approx(3)
        assert max(row.l1_percent) < 1e-5  # a fade of means is the mean of the fade


def test_frames_are_compared_on_blocks(job, stub, monkeypatch):
    """With a reference that fades and a solver that stays where it is."""
    references = job().references
    monkeypatch.setattr(
        LinearPath, "_density", lambda self, t, g: self.source.tensor.expand(len(t), *g.shape)
    )
    stub()
    answers, _ = measure_solver(job())
    source, target = draw("smooth", 16)
    expected = 100 * np.array([0.25, 0.5, 0.75]) * float(block_l1(target, source, 16))
    assert answers[0].l1_percent != pytest.approx([0, 0, 0])
    truth = references[16]["smooth", 0].density()
    stays = source.resample(truth.grid).tensor.expand(3, 16, 16)
    off = (stays - truth.tensor).abs().mean((1, 2))
    assert answers[0].l1_percent == pytest.approx((100 * off).tolist())
    assert answers[0].l1_percent == pytest.approx(expected.tolist(), rel=0.5)


def test_a_solver_without_a_distance_or_an_estimate(job, monkeypatch):
    monkeypatch.setattr(worker, "made", lambda entrant: Linear())
    answers, _ = measure_solver(job())
    assert answers[0].w2_percent is None and answers[0].estimate_percent is None
    assert 0 <= answers[0].bounds[0] < answers[0].bounds[1]


def test_failures_are_reasons(job, stub):
    stub(refused=16)
    answers, unanswered = measure_solver(job())
    assert {row.cells for row in answers} == {32}
    assert {row.reason for row in unanswered} == {"Not this grid."} and len(unanswered) == 4
    stub(positive=True)
    answers, unanswered = measure_solver(job())
    assert {row.kind for row in answers} == {"smooth"}
    assert {(row.kind, row.reason) for row in unanswered} == {
        ("digits", "ZeroDivisionError: by zero")
    }


def test_densities_that_are_not_finite(job, stub, monkeypatch):
    stub()
    monkeypatch.setattr(
        LinearPath, "_density", lambda self, t, g: torch.full((len(t), *g.shape), torch.nan)
    )
    answers, unanswered = measure_solver(job())
    assert answers == [] and unanswered[0].reason.startswith("The densities are not finite")


def test_a_solver_that_is_not_there(job, tiny):
    given = job()
    named = AnyJob(Contestant("new", "not-yet", (2,)), tiny, given.files, given.references)
    answers, unanswered = measure_solver(named)
    assert answers == [] and len(unanswered) == 8
    assert all("There is no solver 'not-yet'" in row.reason for row in unanswered)


def test_pairs_without_a_reference(job, tiny, stub):
    stub()
    given = job()
    given.references[16]["smooth", 1] = "It failed."
    answers, unanswered = measure_solver(given)
    assert len(answers) == 7
    assert [(r.cells, r.kind, r.pair, r.reason) for r in unanswered] == [
        (16, "smooth", 1, "There is no reference: It failed.")
    ]


def test_what_is_over_the_budget(job, tiny, stub):
    """The kind's second pair, and the kind on the larger grid."""
    stub(seconds=0.02)
    answers, unanswered = measure_solver(job(replace(tiny, budget=0.03)))
    assert [(row.cells, row.pair) for row in answers] == [(16, 0), (16, 0)]
    reasons = {(row.cells, row.pair): row.reason for row in unanswered}
    assert reasons[16, 1] == "the 0.03 s for a kind are spent after 1 of 2 pairs"
    assert reasons[32, 0] == reasons[32, 1] == "a pair on 16² cells takes about 0 s"
