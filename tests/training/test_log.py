"""Validation against exact solutions, the log of a run, and the display."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.special import ndtr

import geonet
from geonet.errors import TrainingError
from geonet.evaluation import reference_frames
from geonet.metrics import l1_tensor
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import load_model, save_model
from geonet.training import log as module
from geonet.training.distributed import Processes
from geonet.training.log import Display, RunLog, Validation, read_log
from geonet.training.loop import Run, train

TERMS = {"continuity": 1.0, "hamilton_jacobi": 0.5, "source": 0.25, "target": 0.25}


# ---- log


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.jsonl"


def _write(folder, *steps: int) -> None:
    with RunLog(folder, Display(10), 0) as log:
        for step in steps:
            log.log_loss(step, 2.0, TERMS, learning_rate=1e-3, seconds=0.5)


def _steps(log) -> list[int]:
    return [entry["step"] for entry in read_log(log)]


def test_every_line_of_the_log_is_json(tiny, tmp_path, log):
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


def test_lines_are_flushed(tmp_path, log):
    with RunLog(tmp_path, Display(10), 0) as open_log:
        open_log.log_loss(1, 2.0, TERMS)
        assert read_log(log) == [{"step": 1, "loss": 2.0, "terms": TERMS}]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_truncated_line_is_dropped(tmp_path, log, kept):
    _write(tmp_path, 1, 2, 3)
    whole = log.read_text()
    last = whole.splitlines()[-1]
    log.write_text(whole[: whole.index(last) + kept])
    assert _steps(log) == [1, 2]
    with RunLog(tmp_path, Display(10), 2) as resumed:
        resumed.log_loss(3, 2.0, TERMS)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_a_line_without_newline_is_kept(tmp_path, log):
    _write(tmp_path, 1, 2)
    log.write_text(log.read_text().rstrip("\n"))
    with RunLog(tmp_path, Display(10), 2) as resumed:
        resumed.log_loss(3, 2.0, TERMS)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_lines_after_the_step_are_dropped(tmp_path, log):
    _write(tmp_path, 1, 2, 3, 4, 5)
    RunLog(tmp_path, Display(10), 3).stream.close()
    assert _steps(log) == [1, 2, 3]


def test_a_new_run_starts_a_new_log(tmp_path, log):
    _write(tmp_path, 1, 2, 3)
    _write(tmp_path, 1)
    assert _steps(log) == [1]


def test_a_kill_between_checkpoints_leaves_the_log_of_one_run(tiny, tmp_path, logged):
    """Steps 10 and 11 were logged but not saved, and the line of step 12 was truncated."""
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


def test_without_a_terminal_a_line_appears_every_ten_seconds(monkeypatch, capsys):
    """A status line when an activity begins, then at most one in ten seconds; also for steps."""
    now = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    with Display(10) as display, Display(10, visible=False) as quiet:
        display.status("reading data")
        for k in range(1, 26):
            for each in (display, quiet):
                each.status("validating", f"exact path {k}/25")
            now += 1
        display.describe("loss 1")
        for step in range(1, 5):
            now += 6
            for each in (display, quiet):
                each.set_step(step)
    assert capsys.readouterr().err.splitlines() == [
        "reading data",
        "validating: exact path 1/25",
        "validating: exact path 12/25",
        "validating: exact path 23/25",
        "step 2/10, 37 s  loss 1",
        "step 4/10, 49 s  loss 1",
    ]


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
    assert "(ρ0−ρ1 2.0e+00) L1 at t = ½: 2.12 % (linear mixture 33 %)" in _plain(stream)
    assert "step 4" not in _plain(stream)


def _plain(stream: io.StringIO) -> str:
    """Return the text sent to a terminal, without control codes."""
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


def test_errors_of_a_supervised_model_agree_with_its_solver(tiny_supervised, tmp_path):
    run = Run(tiny_supervised(), tmp_path, Processes())
    measured = run.validation.measure(run.model)
    assert set(measured) == {"validation_l1_percent", "halfway_l1_percent"}
    file = save_model(tmp_path / "model.safetensors", run.model, {})
    path = geonet.geodesic(run.validation.source, run.validation.target, solver=str(file))
    errors = 100 * l1_tensor(path.density(QUARTERS), run.validation.reference).mean(0)
    assert measured["validation_l1_percent"] == pytest.approx(errors.tolist(), rel=1e-5, abs=1e-4)


def test_the_error_of_the_linear_mixture_is_measured(transport_run):
    validation = transport_run.validation
    measured = validation.measure(transport_run.model)
    source, target = validation.source.tensor, validation.target.tensor
    off = ((source + target) / 2 - validation.reference.tensor[:, 2]).abs().sum(1)
    linear = 100 * (off / validation.reference.tensor[:, 2].sum(1)).mean()
    assert measured["halfway_l1_percent"] == {
        "model": measured["validation_l1_percent"][2],
        "linear": pytest.approx(linear.item(), abs=1e-4),
    }
    assert linear > 10


def test_the_outcome_has_the_errors_of_the_best_model(tiny_transport, tmp_path, logged):
    config = tiny_transport(validation={"every": 3})
    outcome = train(config, tmp_path)
    entries = [entry for entry in logged(tmp_path) if "validation" in entry]
    best = min(entries, key=lambda entry: sum(entry["validation"]))
    assert outcome.halfway == best["validation"][2] > 1.5 * outcome.best
    assert outcome.linear == best["linear_halfway"]
    assert train(config, tmp_path, resume=True) == outcome


def test_model_files_without_a_linear_error_load(tiny_transport, tmp_path):
    config = tiny_transport()
    outcome = train(config, tmp_path)
    model, header = load_model(outcome.model)
    del header["measured"]["halfway_l1_percent"]
    save_model(outcome.model, model, header)
    assert train(config, tmp_path, resume=True) == replace(outcome, linear=None)


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


def test_1d_references_are_densities_at_cell_centres(generator):
    """Compared with the monotone map between distribution functions on a fine grid."""
    mixtures = [mixtures_1d(2, generator) for _ in range(2)]
    source, target = (mixture.to_density(BOX_1D) for mixture in mixtures)
    reference = reference_frames(source, target, 0.0)
    assert reference.grid == BOX_1D and reference.tensor.shape == (2, 5, 100)
    means = geonet.geodesic(source, target, solver="quantile").density(QUARTERS)
    for n in range(2):
        expected = np.stack([between(mixtures[0][n], mixtures[1][n], t) for t in QUARTERS])
        off, coarse = (np.abs(path.numpy()[n] - expected).max(1) for path in (reference, means))
        assert max(off[0], off[-1]) < 1e-6
        assert off.max() < 2e-4 < 1e-3 < coarse.max()


@pytest.mark.parametrize("d", [2, 3])
def test_2d_and_3d_references_are_classical(d, monkeypatch):
    """`monge-ampere`, and `midpoint` on a finer grid for densities with zeros."""
    calls = []

    def record(name, **options):
        solver = geonet.solver(name, **options)
        return lambda *ends: (calls.append((name, ends[0].grid)), solver(*ends))[1]

    monkeypatch.setattr("geonet.evaluation.make_solver", record)
    grid = geonet.Grid((8,) * d)
    ends = [geonet.GaussianMixture.isotropic([[m] * d], 0.5).to_density(grid) for m in (0.48, 0.52)]
    assert reference_frames(*ends, 0.0).tensor.shape == (5, *grid.shape)
    assert calls == [("monge-ampere", grid)]
    values = torch.zeros(2, *grid.shape, dtype=torch.float64)
    values[0, :4] = values[1, 4:] = 1
    calls.clear()
    middle = reference_frames(*(geonet.Density(own, grid) for own in values), 0.0).tensor[2]
    assert calls == [("monge-ampere", grid), ("midpoint", grid.with_shape(24))]
    expected = torch.zeros_like(middle)
    expected[2:6] = 2
    assert torch.allclose(middle, expected, atol=0.02)


def between(source, target, t):
    """Return the density at time t at the centres of BOX_1D between mixtures in the box."""
    x = np.linspace(0.0, 10.0, 200_001)
    (f0, F0), (f1, F1) = (distribution(mixture, x) for mixture in (source, target))
    image = np.interp(F0, F1, x)  # the optimal map
    density = f0 / (1 - t + t * f0 / np.interp(image, x, f1))
    return np.interp(BOX_1D.axes()[0].numpy(), (1 - t) * x + t * image, density)


def distribution(mixture, x):
    """Return the density of a mixture in [0, 10] and its distribution function."""
    std = mixture.covariances[:, 0, 0].sqrt().numpy()
    z = (x[:, None] - mixture.means[:, 0].numpy()) / std
    low, high = ((edge - mixture.means[:, 0].numpy()) / std for edge in (0.0, 10.0))
    weights = mixture.weights.numpy()
    mass = (ndtr(high) - ndtr(low)) @ weights
    density = np.exp(-0.5 * z**2) @ (weights / std) / math.sqrt(math.tau)
    return density / mass, (ndtr(z) - ndtr(low)) @ weights / mass


def test_entropic_references_are_bridges(run):
    source, target = run.validation.source, run.validation.target
    bridge = geonet.geodesic(source, target, solver="schrodinger", epsilon=0.5).density(QUARTERS)
    reference = reference_frames(source, target, 0.5)
    assert torch.allclose(reference.tensor, bridge.tensor)
    plain = reference_frames(source, target, 0.0)
    assert not torch.allclose(reference.tensor[:, 2], plain.tensor[:, 2], atol=1e-3)


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


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_errors_that_are_not_finite_stop_the_run(tiny, tmp_path, fake_errors, error):
    fake_errors(3.0, error)
    with pytest.raises(
        TrainingError, match="At step 6 the output on validation pairs is no longer"
    ):
        train(tiny(validation={"every": 3}), tmp_path)
    assert load_model(tmp_path / "model.safetensors")[1]["steps"] == 3


def test_without_validation_the_last_model_is_saved(tiny, tmp_path):
    outcome = train(tiny(validation={"pairs": 0}), tmp_path)
    assert outcome.model == tmp_path / "model.safetensors"
    assert load_model(outcome.model)[1]["steps"] == 12
    assert all("validation" not in entry for entry in read_log(tmp_path / "log.jsonl"))


def test_validation_does_not_change_the_losses(tiny, tmp_path):
    train(tiny(validation={"every": 1}), tmp_path / "often")
    train(tiny(validation={"pairs": 0}), tmp_path / "never")
    often, never = (
        [e["loss"] for e in read_log(tmp_path / name / "log.jsonl") if "loss" in e]
        for name in ("often", "never")
    )
    assert often == never
