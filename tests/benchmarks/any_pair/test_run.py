"""The whole suite: references, solvers, and what is told on the way."""

from benchmarks import run as whole
from benchmarks.any_pair import run
from benchmarks.any_pair import suite as module
from benchmarks.any_pair.run import MODULES, run_any_pairs
from benchmarks.contestants import Contestant
from benchmarks.records import read_benchmark
from geonet.errors import SolverError

OWN = [Contestant("a stub", "stub", (2,)), Contestant("new", "not-yet", (2,))]


def test_a_run(tiny, stub, here):
    lines = []
    found = run_any_pairs(tiny, OWN, lines.append)
    assert len(found.answers) == len(found.unanswered) == 8
    assert found.finer == tiny.finer and found.stamp.is_fresh(MODULES)
    assert [row.finer for row in found.references] == [64] * 4 + [128] * 4
    assert [line.rsplit(",", 1)[0] for line in lines] == [
        "any: 4 of 4 references of 16² cells on 64²",
        "any: 4 of 4 references of 32² cells on 128²",
        "any 1/2 a stub: 8 pairs",
        "any 2/2 new: 0 pairs, 8 left out",
    ]


def test_processes_that_die_are_reasons(tiny, monkeypatch):
    def dies(function, given):
        raise SolverError("Its process was killed.")

    monkeypatch.setattr(run, "in_new_process", dies)
    found = run_any_pairs(tiny, OWN[:1])
    assert found.answers == found.references == []
    assert {row.reason for row in found.unanswered} == {"Its process was killed."}


def test_it_is_part_of_the_benchmark(tiny, stub, here, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "SUITE", tiny)
    found = whole.run_benchmark(whole.make_plan(["any"], ["stub"]))
    assert found.settings == [] and len(found.any.answers) == 8
    found.save(tmp_path)
    assert read_benchmark(tmp_path) == found


def test_processes_of_their_own():
    """Without a reference nothing is measured, and all is told."""
    suite = module.AnySuite({16: 32}, ("digits",), 1, "not-yet")
    found = run_any_pairs(suite, [Contestant("linear", "linear", (2,))])
    (row,) = found.unanswered
    assert row.reason.startswith("There is no reference: There is no solver 'not-yet'")
