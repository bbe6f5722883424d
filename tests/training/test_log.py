"""Validation against exact solutions, the log of a run, and the display."""

import io
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

import geonet
from geonet.errors import FileError
from geonet.evaluation import reference_frames
from geonet.metrics import l1_tensor
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import load_model, save_model
from geonet.training import log as module
from geonet.training.log import Display, RunLog, Validation, plot_log, read_log
from geonet.training.loop import Processes, Run, train

TERMS = {"continuity": 1.0, "hamilton_jacobi": 0.5, "source": 0.25, "target": 0.25}


# ---- log


def _write(folder: Path, start: int, *steps: int) -> list[int]:
    """Open the log of a run at a step, add lines, and return all logged steps."""
    with RunLog(folder, Display(10), start) as log:
        for step in steps:
            log.log_loss(step, 2.0, TERMS, learning_rate=1e-3, seconds=0.5)
        assert read_log(folder / "log.jsonl")[-1]["step"] == steps[-1]  # lines are flushed
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_every_line_of_the_log_is_json(tiny, tmp_path):
    train(tiny(log_every=2), tmp_path)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in losses] == [2, 4, 6, 8, 10, 12]
    assert [entry["step"] for entry in entries if "validation" in entry] == [6, 12]
    for entry in losses:
        assert set(entry) == {"step", "loss", "terms", "learning_rate", "seconds"}
        assert set(entry["terms"]) == set(TERMS)
        assert sum(entry["terms"].values()) == pytest.approx(entry["loss"], rel=1e-5)


def test_lines_after_the_step_and_truncated_lines_are_dropped(tmp_path):
    log = tmp_path / "log.jsonl"
    assert _write(tmp_path, 0, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    assert _write(tmp_path, 3, 4) == [1, 2, 3, 4]
    whole = log.read_text()
    last = whole.splitlines()[-1]
    for kept in (0, 1, 20):
        log.write_text(whole[: whole.index(last) + kept])
        assert [entry["step"] for entry in read_log(log)] == [1, 2, 3]
        assert _write(tmp_path, 3, 4) == [1, 2, 3, 4]
    log.write_text(whole.rstrip("\n"))
    assert _write(tmp_path, 4, 5) == [1, 2, 3, 4, 5]
    assert _write(tmp_path, 0, 1) == [1]


def test_without_a_terminal_errors_are_lines_on_standard_error(tmp_path, capsys):
    with Display(10) as display, RunLog(tmp_path, display, 0) as log:
        display.set_step(1)
        log.log_loss(1, 2.0, TERMS)
        log.log_validation(1, [0.0, 1.5, 2.125, 1.5, 0.0], 33.04, 61.2)
    out, err = capsys.readouterr()
    errors = re.escape("L1 at t = ½: 2.12 % (linear blend 33 %)")
    assert out == "" and re.fullmatch(rf"step 1/10, [\d.]+ m?s  {errors}\n", err)  # not 61 s
    assert read_log(tmp_path / "log.jsonl")[-1]["linear_halfway"] == 33.04


def test_without_a_terminal_lines_appear_also_during_a_long_computation(capsys):
    """A line when an activity begins, then one in every interval, whatever the main thread does."""

    def wait_for(text: str) -> str:
        err, until = "", time.monotonic() + 60
        while text not in err:
            assert time.monotonic() < until
            time.sleep(0.01)
            err += capsys.readouterr().err
        return err

    with Display(10, line_every=0.05) as display, Display(10, visible=False, line_every=0.05):
        display.status("validating", "exact path 1/25")
        display.status("validating", "exact path 2/25")
        lines = wait_for("2/25, ").splitlines()
        assert lines[0] == "validating: exact path 1/25"
        assert re.fullmatch(r"validating: exact path 2/25, [\d.]+ m?s", lines[1])
        display.describe("loss 1")
        display.set_step(2)
        assert re.search(r"^step 2/10, [\d.]+ m?s  loss 1$", wait_for("loss 1\n"), re.MULTILINE)
    assert not display._ticker.is_alive()
    capsys.readouterr()
    with Display(10) as display:  # ten seconds have not passed
        for k in range(5):
            display.status("validating", f"exact path {k}/25")
    assert capsys.readouterr().err == "validating: exact path 0/25\n"


def test_plot(tiny, tmp_path):
    train(tiny(log_every=2), tmp_path)
    left, right = plot_log(tmp_path / "log.jsonl").axes
    drawn = {line.get_label(): line for line in left.lines}
    assert set(drawn) == {"loss", *TERMS}
    assert drawn["loss"].get_xdata().tolist() == [2, 4, 6, 8, 10, 12]
    assert left.get_yscale() == "log"
    labels = [line.get_label() for line in right.lines]
    assert labels == [*(f"t = {t:g}" for t in QUARTERS), "linear blend, t = 0.5"]
    with pytest.raises(FileError, match="There is no file"):
        plot_log(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(FileError, match="no losses yet"):
        plot_log(tmp_path / "empty.jsonl")


def test_on_a_terminal_the_bar_shows_status_loss_and_errors(monkeypatch, tmp_path):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, markup=False)
    monkeypatch.setattr(module, "Console", lambda **_: console)
    with Display(20) as display, RunLog(tmp_path, display, 3) as log:
        display.set_step(3)
        display.status("validating", "exact path 7/16")
        display.bar.refresh()
        assert "3/20 validating: exact path 7/16" in _plain(stream)
        log.log_validation(4, [0.0, 1.5, 2.125, 1.5, 0.0], 33.04, 1.0)
        log.log_loss(4, 2.0, {"mismatch": 2.0})
        display.bar.refresh()
    assert "(ρ0−ρ1 2.0e+00) L1 at t = ½: 2.12 % (linear blend 33 %)" in _plain(stream)
    assert "step 4" not in _plain(stream)


def _plain(stream: io.StringIO) -> str:
    """Return the text sent to a terminal, without control codes."""
    return " ".join(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).split())


def test_with_tensorboard(tmp_path, monkeypatch):
    writer = Mock()
    package = SimpleNamespace(SummaryWriter=writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    with RunLog(tmp_path, Display(10), 0) as log:
        log.log_loss(3, 2.0, {"source": 2.0}, learning_rate=0.1)
        log.log_validation(3, [1.0, 4.0, 5.0], 30.0, 0.5)
    writer.assert_called_once_with(str(tmp_path / "tensorboard"))
    calls = [call.args for call in writer.return_value.add_scalar.call_args_list]
    losses = [("loss", 2.0, 3), ("learning_rate", 0.1, 3), ("terms/source", 2.0, 3)]
    assert calls[:3] == losses and calls[3:] == [
        (f"validation/{k}", error, 3) for k, error in enumerate((1.0, 4.0, 5.0))
    ]
    writer.return_value.close.assert_called_once_with()


# ---- validation


@pytest.fixture
def run(tiny, tmp_path):
    return Run(tiny(), tmp_path, Processes())


@pytest.fixture
def fake_errors(monkeypatch):
    """Let validations return these errors, one after the other."""

    def fake(*errors: float) -> None:
        answers = map(_measurement, errors)
        monkeypatch.setattr(Validation, "measure", lambda *_: next(answers))

    return fake


def _measurement(error: float) -> dict:
    """Return the result of a validation with one error at all times."""
    halfway = {"model": error, "linear": 30.0}
    return {"validation_l1_percent": [error] * 5, "halfway_l1_percent": halfway}


@pytest.fixture
def transport_run(tiny_transport, tmp_path):
    return Run(tiny_transport(validation={"pairs": 3}), tmp_path, Processes())


def test_errors_agree_with_the_solver_and_the_exact_path(run, tmp_path):
    measured = run.validation.measure(run.model)
    assert set(measured) == {"validation_l1_percent", "halfway_l1_percent", "calibration"}
    errors = measured["validation_l1_percent"]
    file = save_model(tmp_path / "model.safetensors", run.model, {})
    source, target = run.validation.source, run.validation.target
    learned = geonet.geodesic(source, target, solver=str(file)).density(QUARTERS)
    exact = reference_frames(source, target, 0.0)
    assert errors == pytest.approx(
        (100 * l1_tensor(learned, exact).mean(0)).tolist(), rel=1e-5, abs=1e-4
    )
    assert len(errors) == 5 and min(errors) > 1


def test_the_outcome_has_the_errors_of_the_best_model(tiny_transport, tmp_path, logged):
    config = tiny_transport(validation={"every": 3})
    outcome = train(config, tmp_path)
    entries = [entry for entry in logged(tmp_path) if "validation" in entry]
    best = min(entries, key=lambda entry: sum(entry["validation"]))
    assert outcome.halfway == best["validation"][2] > 1.5 * outcome.best
    assert outcome.linear == best["linear_halfway"]
    assert train(config, tmp_path, resume=True) == outcome


def test_transport_models_are_calibrated(transport_run, tmp_path):
    """The slope is the median ratio of error and mismatch."""
    run = transport_run
    measured = run.validation.measure(run.model)
    assert set(measured) == {"validation_l1_percent", "halfway_l1_percent", "calibration"}
    assert set(measured["calibration"]) == {"slope", "limit"}
    file = save_model(tmp_path / "model.safetensors", run.model, {"measured": measured})
    source, target = run.validation.source, run.validation.target
    path = geonet.geodesic(source, target, solver=str(file), max_iterations=0)
    largest = l1_tensor(path.density(QUARTERS), run.validation.reference).amax(1)
    ratios = largest / path.certificate.mismatch
    assert measured["calibration"]["slope"] == pytest.approx(ratios.median().item(), rel=1e-4)
    assert path.calibration._asdict() == measured["calibration"]


def test_validation_pairs_are_fixed_and_not_used_for_training(tiny, tmp_path, run):
    again = Run(tiny(seed=7), tmp_path, Processes()).validation
    other = Run(tiny(validation={"seed": 3}), tmp_path, Processes()).validation
    assert torch.equal(run.validation.source.tensor, again.source.tensor)
    assert not torch.equal(run.validation.source.tensor, other.source.tensor)
    drawn = [run.draw_batch().source for _ in range(3)]
    sensed = run.validation.source.at(10 * run.sensors.double()).float() * 10
    assert float((torch.cat(drawn)[:, None] - sensed).abs().amax(-1).min()) > 0.01


def test_the_best_model_is_saved(tiny, tmp_path, fake_errors):
    fake_errors(5.0, 3.0, 4.0, 3.0)
    outcome = train(tiny(validation={"every": 3}), tmp_path)
    _, header = load_model(tmp_path / "model.safetensors")
    assert header["steps"] == 6
    assert header["measured"] == _measurement(3.0)
    assert (outcome.best, outcome.halfway, outcome.linear) == (3.0, 3.0, 30.0)
    found = [e["validation"][0] for e in read_log(tmp_path / "log.jsonl") if "validation" in e]
    assert found == [5.0, 3.0, 4.0, 3.0]


def test_the_best_error_survives_a_resume(tiny, tmp_path, fake_errors):
    config = tiny(validation={"every": 3})
    fake_errors(5.0, 3.0)
    train(config, tmp_path, stop_at=6)
    fake_errors(4.0, 3.5)
    assert train(config, tmp_path, resume=True).best == 3.0
    assert load_model(tmp_path / "model.safetensors")[1]["steps"] == 6


def test_validation_does_not_change_the_losses(tiny, tmp_path):
    train(tiny(validation={"every": 1}), tmp_path / "often")
    train(tiny(validation={"pairs": 0}), tmp_path / "never")
    often, never = (
        [e["loss"] for e in read_log(tmp_path / name / "log.jsonl") if "loss" in e]
        for name in ("often", "never")
    )
    assert often == never
