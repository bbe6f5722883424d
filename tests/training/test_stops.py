"""A training is stopped by Ctrl-C, SIGTERM or the clock, while it solves its validation, too."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from geonet._progress import report_progress
from geonet.solvers.neural import model as model_file
from geonet.solvers.neural.model import read_tensors
from geonet.training import checkpoint as kept_truths
from geonet.training import loop as stops
from geonet.training.loop import Run, StopRequested, StopMonitor, train

BOTH = pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
SIX_PAIRS = {"pairs": 6, "every": 6}


@pytest.fixture
def on_pair(monkeypatch):
    """Do something before the n-th pair of the validation is solved; gives the list of calls."""

    def do(what, n: int) -> list:
        calls, whole = [], _reference_for_pair

        def slow(*pair):
            calls.append(pair)
            if len(calls) == n:
                what()
            return whole(*pair)

        monkeypatch.setattr(kept_truths, "reference_for_pair", slow)
        return calls

    return do


_reference_for_pair = kept_truths.reference_for_pair


def _send(*numbers: int):
    return lambda: [os.kill(os.getpid(), number) for number in numbers]


def _step(folder: Path) -> int:
    return read_tensors(folder / "checkpoint.safetensors", "a checkpoint")[1]["progress"]["step"]


def _kept(folder: Path) -> int:
    _, header = read_tensors(folder / "references.safetensors", "exact paths")
    return len(header["solvers"])


# ---- during the exact paths of the validation


@BOTH
def test_a_signal_is_heard_between_two_pairs(
    tiny, tmp_path, on_pair, assert_same_state, logged, number, reason
):
    """The pair in hand is finished and kept, the others are left; a resume solves only those."""
    config = tiny(validation=SIX_PAIRS)
    calls = on_pair(_send(number), 4)
    outcome = train(config, tmp_path / "run")
    assert (outcome.step, outcome.reason, outcome.model) == (0, reason, None)
    assert (_step(tmp_path / "run"), len(calls), _kept(tmp_path / "run")) == (0, 4, 4)

    calls = on_pair(None, 0)
    resumed = train(config, tmp_path / "run", resume=True)
    assert (resumed.reason, len(calls), _kept(tmp_path / "run")) == ("finished", 2, 6)
    whole = train(config, tmp_path / "whole")
    assert (resumed.best, resumed.halfway) == (whole.best, whole.halfway)
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


@BOTH
def test_a_signal_is_heard_within_a_pair(tiny, tmp_path, on_pair, number, reason):
    """A solver that tells how far it is need not come to an end."""

    def endless() -> None:
        os.kill(os.getpid(), number)
        while True:
            report_progress("residual 3 %")

    calls = on_pair(endless, 3)
    outcome = train(tiny(validation=SIX_PAIRS), tmp_path)
    assert (outcome.step, outcome.reason) == (0, reason)
    assert (_step(tmp_path), len(calls), _kept(tmp_path)) == (0, 3, 2)


def test_the_time_limit_counts_the_validation(
    tiny, tmp_path, on_pair, monkeypatch, assert_same_state
):
    now = [100.0]
    monkeypatch.setattr(stops, "perf_counter", lambda: now[0])
    calls = on_pair(lambda: now.__setitem__(0, 161.0), 2)
    outcome = train(tiny(validation=SIX_PAIRS), tmp_path / "run", time_limit=60)
    assert (outcome.step, outcome.reason, len(calls)) == (0, "time limit", 2)
    assert _step(tmp_path / "run") == 0
    train(tiny(validation=SIX_PAIRS), tmp_path / "run", resume=True, time_limit=60)
    train(tiny(validation=SIX_PAIRS), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


def test_no_time_at_all_leaves_a_training_to_resume(tiny, tmp_path, assert_same_state):
    assert train(tiny(), tmp_path / "run", time_limit=-1).step == 0
    assert train(tiny(), tmp_path / "run", resume=True, time_limit=-1).step == 0
    assert train(tiny(), tmp_path / "run", resume=True).reason == "finished"
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


def test_a_second_interrupt_keeps_what_was_solved(tiny, tmp_path, on_pair):
    """It does not wait for the pair in hand, and no checkpoint is made."""
    on_pair(_send(signal.SIGINT, signal.SIGINT), 3)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(validation=SIX_PAIRS), tmp_path)
    assert _kept(tmp_path) == 2
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_stop_on_resume_leaves_the_checkpoint_as_it_was(tiny, tmp_path, on_pair):
    """Where the exact paths are gone, they are solved again, and this is stopped."""
    config = tiny(validation=SIX_PAIRS)
    train(config, tmp_path, stop_at=4)
    (tmp_path / "references.safetensors").unlink()
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.safetensors")}
    on_pair(_send(signal.SIGTERM), 1)
    outcome = train(config, tmp_path, resume=True)
    assert (outcome.step, outcome.reason) == (4, "terminated")
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_no_pair_is_solved_again_on_resume(tiny, tmp_path, on_pair):
    config = tiny(validation=SIX_PAIRS)
    assert len(on_pair(None, 0)) == 0
    train(config, tmp_path, stop_at=4)
    calls = on_pair(None, 0)
    outcome = train(config, tmp_path, resume=True)
    assert outcome.reason == "finished" and not calls


def test_a_finished_training_solves_nothing(tiny, tmp_path, on_pair):
    outcome = train(tiny(), tmp_path)
    (tmp_path / "references.safetensors").unlink()
    calls = on_pair(None, 0)
    assert train(tiny(), tmp_path, resume=True) == outcome and not calls


def test_there_is_a_sign_of_life_from_the_start(tiny_transport, tmp_path, on_pair, capsys):
    """In lines where there is no terminal, before the work that they announce."""
    seen = []
    on_pair(lambda: seen.append(capsys.readouterr().err), 1)
    train(tiny_transport(), tmp_path)
    assert seen == ["reading data\ndrawing calibration densities\nvalidating: exact path 1/2\n"]


# ---- while files are written


def test_a_second_interrupt_while_saving_leaves_whole_files(
    tiny, tmp_path, monkeypatch, assert_same_state
):
    """The first comes in the fifth step, the second when the checkpoint is half-made."""
    whole, save = Run.step, model_file.save

    def step(self):
        if self.progress.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self)

    def interrupted(tensors, metadata):
        if '"kind": "checkpoint"' in metadata["geonet"] and '"step": 5' in metadata["geonet"]:
            os.kill(os.getpid(), signal.SIGINT)
        return save(tensors, metadata)

    monkeypatch.setattr(Run, "step", take_step)
    monkeypatch.setattr(model_file, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "run")
    assert _step(tmp_path / "run") == 3 and not list((tmp_path / "run").glob(".*"))
    monkeypatch.undo()
    train(tiny(), tmp_path / "run", resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


# ---- reasons


@BOTH
def test_signals_are_heard_only_meanwhile(number, reason):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    asked = StopMonitor()
    with asked.install_handlers():
        assert asked.reason is None
        asked.check()
        os.kill(os.getpid(), number)
        assert asked.reason == reason
        with pytest.raises(StopRequested):
            asked.check()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_counts_before_the_clock(monkeypatch):
    asked = StopMonitor(time_limit=-1)
    assert asked.reason == "time limit"
    with asked.install_handlers():
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked.reason == "terminated"


def test_other_threads_hear_the_clock_alone():
    found = []

    def work() -> None:
        with StopMonitor(-1).install_handlers() as asked:
            found.append(asked.reason)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["time limit"]
