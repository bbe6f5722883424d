"""The log: JSON lines, kept whole through kills and resumes."""

from __future__ import annotations

import io
import json
import re
import sys
from types import ModuleType

import pytest
from rich.console import Console

from geonet.training import log as run_log
from geonet.training.log import Display, RunLog, read_log
from geonet.training.loop import train

TERMS = {"continuity": 1.0, "hamilton_jacobi": 0.5, "source": 0.25, "target": 0.25}


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.jsonl"


def _write(folder, *steps: int) -> None:
    with RunLog(folder, Display(10), 0) as log:
        for step in steps:
            log.log_loss(step, 2.0, TERMS, learning_rate=1e-3, seconds=0.5)


def _steps(log) -> list[int]:
    return [entry["step"] for entry in read_log(log)]


def test_every_line_is_json(tiny, tmp_path, log):
    train(tiny(log_every=2), tmp_path)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [entry for entry in entries if "loss" in entry]
    validations = [entry for entry in entries if "validation" in entry]
    assert [entry["step"] for entry in losses] == [2, 4, 6, 8, 10, 12]
    assert [entry["step"] for entry in validations] == [6, 12]
    assert len(entries) == 8 and log.read_text().endswith("\n")
    for entry in losses:
        assert set(entry) == {"step", "loss", "terms", "learning_rate", "seconds"}
        assert set(entry["terms"]) == set(TERMS)
        assert sum(entry["terms"].values()) == pytest.approx(entry["loss"], rel=1e-5)
        assert entry["learning_rate"] > 0
    for entry in validations:
        assert len(entry["validation"]) == 5 and entry["linear_halfway"] > 1
    seconds = [entry["seconds"] for entry in losses]
    assert seconds == sorted(seconds) and seconds[0] > 0


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path, log):
    with RunLog(tmp_path, Display(10), 0) as open_log:
        open_log.losses(1, 2.0, TERMS)
        assert read_log(log) == [{"step": 1, "loss": 2.0, "terms": TERMS}]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path, log, kept):
    _write(tmp_path, 1, 2, 3)
    whole = log.read_text()
    last = whole.splitlines()[-1]
    log.write_text(whole[: whole.index(last) + kept])
    assert _steps(log) == [1, 2]
    with RunLog(tmp_path, Display(10), 2) as resumed:
        resumed.losses(3, 2.0, TERMS)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_a_line_without_its_end_is_kept(tmp_path, log):
    """Cut after the last brace: the line is whole, and the next must not be glued to it."""
    _write(tmp_path, 1, 2)
    log.write_text(log.read_text().rstrip("\n"))
    with RunLog(tmp_path, Display(10), 2) as resumed:
        resumed.losses(3, 2.0, TERMS)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_lines_after_the_checkpoint_are_dropped(tmp_path, log):
    _write(tmp_path, 1, 2, 3, 4, 5)
    RunLog(tmp_path, Display(10), 3).stream.close()
    assert _steps(log) == [1, 2, 3]


def test_a_new_training_starts_a_new_log(tmp_path, log):
    _write(tmp_path, 1, 2, 3)
    _write(tmp_path, 1)
    assert _steps(log) == [1]


def test_a_kill_between_checkpoints_leaves_the_log_of_one_run(
    tiny, tmp_path, monkeypatch, logged, log
):
    """Steps 10 and 11 were logged, never saved, and the line of step 12 was cut."""
    config = tiny(checkpoint_every=9)
    train(config, tmp_path / "run", stop_at=9)
    checkpoint = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    train(config, tmp_path / "run", resume=True, stop_at=11)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(checkpoint)
    with (tmp_path / "run" / "log.jsonl").open("a") as stream:
        stream.write('{"step": 12, "loss": 0.0, "te')
    train(config, tmp_path / "run", resume=True)
    steps = [entry["step"] for entry in logged(tmp_path / "run") if "loss" in entry]
    assert steps == list(range(1, 13))
    train(config, tmp_path / "whole", stop_at=9)
    train(config, tmp_path / "whole", resume=True)
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_without_a_terminal_errors_are_lines_on_standard_error(tmp_path, capsys):
    """The error that counts is the one at t = ½, beside that of the linear mixture."""
    with Display(10) as display, RunLog(tmp_path, display, 0) as log:
        display.set_step(1)
        log.log_loss(1, 2.0, TERMS)
        log.log_validation(1, [0.0, 1.5, 2.125, 1.5, 0.0], 33.04, 61.2)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "step 1  61 s  L1 at t = ½: 2.12 % (linear mixture 33 %)\n")
    assert read_log(tmp_path / "log.jsonl")[-1] == {
        "step": 1,
        "validation": [0.0, 1.5, 2.125, 1.5, 0.0],
        "linear_halfway": 33.04,
        "seconds": 61.2,
    }


def test_without_a_terminal_work_is_a_line_now_and_then(monkeypatch, capsys):
    """When it begins, and then every ten seconds; a process that shows nothing prints nothing."""
    now = 100.0
    monkeypatch.setattr(run_log, "monotonic", lambda: now)
    with Display(10) as display, Display(10, visible=False) as quiet:
        display.status("reading data")
        for k in range(1, 26):
            for each in (display, quiet):
                each.status("validating", f"exact path {k}/25")
            now += 1
    assert capsys.readouterr().err.splitlines() == [
        "reading data",
        "validating: exact path 1/25",
        "validating: exact path 12/25",
        "validating: exact path 23/25",
    ]


def test_on_a_terminal_the_bar_says_what_goes_on(monkeypatch, tmp_path):
    """Work before the first step, then the loss beside the errors."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=200, markup=False)
    monkeypatch.setattr(run_log, "Console", lambda **_: console)
    with Display(20) as display, RunLog(tmp_path, display, 3) as log:
        display.set_step(3)
        display.status("validating", "exact path 7/16")
        display.bar.refresh()
        assert "3/20 validating: exact path 7/16" in _plain(shown)
        log.log_validation(4, [0.0, 1.5, 2.125, 1.5, 0.0], 33.04, 1.0)
        log.log_loss(4, 2.0, {"mismatch": 2.0})
        display.bar.refresh()
    assert "(ρ0−ρ1 2.0e+00) L1 at t = ½: 2.12 % (linear mixture 33 %)" in _plain(shown)
    assert "step 4" not in _plain(shown)


def _plain(stream: io.StringIO) -> str:
    """What a terminal was sent, without its codes."""
    return " ".join(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).split())


def test_without_tensorboard(tmp_path, monkeypatch, log):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    _write(tmp_path, 1)
    assert _steps(log) == [1]
    assert list(tmp_path.iterdir()) == [log]


def test_with_tensorboard(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with RunLog(tmp_path, Display(10), 0) as log:
        log.log_loss(3, 2.0, {"source": 2.0}, learning_rate=0.1)
        log.log_validation(3, [1.0, 4.0, 5.0], 30.0, 0.5)
    assert written == [
        str(tmp_path / "tensorboard"),
        ("loss", 2.0, 3),
        ("learning_rate", 0.1, 3),
        ("terms/source", 2.0, 3),
        ("validation/0", 1.0, 3),
        ("validation/1", 4.0, 3),
        ("validation/2", 5.0, 3),
        "closed",
    ]
