"""`geonet train`: output, stop requests, and rejected input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import geonet
from geonet._progress import report_progress
from geonet.cli.output import parse_duration
from geonet.evaluation import reference_solution
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import load_model, read_tensors
from geonet.training import checkpoint
from geonet.training.log import read_log

TIMEOUT = 240  # seconds, on a machine that has other work
SIGNALS = pytest.mark.parametrize(
    ("number", "code", "cause"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
WORK = {"reading data", "drawing calibration densities", "validating: exact path 1/2"}

TINY = """
name = "tiny"
steps = 12
checkpoint_every = 3
log_every = 1
problem = { family = "mixtures-1d" }
sampling = { pairs = 4, points = 6, places = 5 }
optimizer = { warmup = 2 }
validation = { pairs = 2, every = 1000 }

[model]
dimension = 1
sensors = 12
rank = 6
branch = { width = 8, depth = 3 }
trunk = { width = 8, depth = 3 }
"""


@pytest.fixture
def run_failing(run):
    """Call the command line, which must fail; return the last line, the error."""

    def call(*arguments: object) -> str:
        code, out, err = run(*arguments)
        *before, line = err.splitlines()
        assert (code, out) == (2, "") and set(before) <= WORK
        assert line.startswith("error: ")
        return line

    return call


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config in the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    return _write(tmp_path)


def _write(folder, old: str = "", new: str = ""):
    """Write the tiny config with one change."""
    assert old in TINY
    file = folder / "tiny.toml"
    file.write_text(TINY.replace(old, new, 1) if old else TINY)
    return file


def _step(folder) -> int:
    return read_tensors(folder / "checkpoint.safetensors", "a checkpoint")[1]["progress"]["step"]


def _assert_same_state(first, second) -> None:
    states = [
        read_tensors(f / "checkpoint.safetensors", "a checkpoint")[0] for f in (first, second)
    ]
    assert states[0].keys() == states[1].keys()
    assert [name for name in states[0] if not torch.equal(states[0][name], states[1][name])] == []


# ---- output


def test_train_and_use_a_model(run, config, line_pair, tmp_path):
    code, out, err = run("train", config)
    model = "runs/tiny/model.safetensors"
    assert code == 0
    before = [line for line in err.splitlines() if not line.startswith("step")]
    last = err.splitlines()[-1]
    errors = r"L1 at t = ½: ([\d.]+) % \(linear blend ([\d.]+) %\)"
    assert before == [
        "reading data",
        "drawing calibration densities",
        "validating: exact path 1/2",
    ]
    assert re.fullmatch(rf"step 12/12, [\d.]+ m?s  {errors}", last)
    first, second, third = out.splitlines()
    assert first == "finished at step 12 of 12, in runs/tiny"
    found = re.fullmatch(rf"model: {model}, {errors}", second)
    measured = load_model(tmp_path / model)[1]["measured"]["halfway_l1_percent"]
    assert [float(shown) for shown in found.groups()] == [
        pytest.approx(measured[which], rel=5e-3) for which in ("model", "linear")
    ]
    assert third == f"use it: geonet geodesic A B --solver {model}"
    code, out, err = run("geodesic", *line_pair, "--solver", model, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["solver"] == "geonet"
    assert answer["report"]["info"]["model"] == "tiny"


def test_stop_at_and_resume(run, config, tmp_path):
    code, out, _ = run("train", config, "--folder", "parts", "--stop-at", 5)
    assert code == 0
    assert out.splitlines()[0] == (
        "saved, stopped at step 5 of 12 (--stop-at); to continue, repeat the command with --resume"
    )
    assert run("train", config, "--folder", "parts", "--resume").code == 0
    assert run("train", config, "--folder", "whole").code == 0
    _assert_same_state(tmp_path / "parts", tmp_path / "whole")


def test_time_limit(run, config, own, tmp_path, monkeypatch):
    """At once, and while the report on held-out pairs is made."""
    assert run("train", config, "--time-limit", "0s").out == _saved(0, 12, "time limit") + "\n"
    _, out, _ = run("train", config, "--resume", "--time-limit", "10min")
    assert out.startswith("finished at step 12 of 12")
    now, solve = [100.0], checkpoint.reference_for_pair

    def solve_slowly(*pair):
        if (tmp_path / "runs/my/model.safetensors").exists():
            now[0] += 100
            report_progress("half of it is done")
        return solve(*pair)

    for module in ("geonet.training.loop", "geonet.cli.train"):
        monkeypatch.setattr(f"{module}.perf_counter", lambda: now[0])
    monkeypatch.setattr(checkpoint, "reference_for_pair", solve_slowly)
    out = run("train", "--pairs", own(), "--steps", 4, "--time-limit", "1min").out
    assert out.splitlines()[-1].startswith("stopped before the report on held-out pairs (time lim")


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300), ("0.5", 0.5), ("90s", 90), ("5min", 300), ("1.5 h", 5400)]
)
def test_durations(text, seconds):
    assert parse_duration(text, "--time-limit") == seconds


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write thirty pairs of 1D bumps, optionally with empty cells, in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(empty=False):
        x, rng = np.linspace(0, 2, 24), np.random.default_rng(0)
        bumps = np.exp(-(((x - rng.uniform(0.6, 1.4, (2, 30, 1))) / 0.3) ** 2))
        if empty:
            bumps[bumps < 0.1] = 0
        np.savez("my.npz", source=bumps[0], target=bumps[1], lower=0, upper=2)
        return "my.npz"

    return write


def test_train_on_own_pairs(run, own, tmp_path):
    code, out, _ = run("train", "--pairs", own(), "--steps", 8)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"training my on {tmp_path / 'my.npz'}, 8 steps"
    assert lines[1].startswith("read 30 pairs of 24 cells") and "27 are for training" in lines[1]
    assert "3 are held out: 2 for validation, 1 for the final report" in lines[1]
    assert lines[2].startswith("validation: 16 random pairs of those held out for it")
    assert lines[3] == "finished at step 8 of 8, in runs/my"
    model = "runs/my/model.safetensors"
    assert "final report: 1 pair held out for it, not used in training, L1 in %, compared" in out
    assert out.endswith("report: runs/my/report.json\n")
    report = json.loads((tmp_path / "runs/my/report.json").read_text())
    with np.load("my.npz") as arrays:
        ends = [
            geonet.Density(arrays[key][-1], geonet.Grid(24, 0, 2)) for key in ("source", "target")
        ]
    truth = reference_solution(*ends)
    path = geonet.geodesic(*ends, solver=model)
    assert path.solver == "transport" and "floor" not in path.info
    errors = 100 * l1(path.density(QUARTERS), truth.frames)
    assert report["model"]["mean"] == pytest.approx(errors.tolist(), rel=1e-3, abs=1e-6)
    assert report["linear"]["mean"][2] > 1 and report["reference"] == {"quantile": 1}


def test_own_pairs_with_empty_cells_get_a_floor(run, own, tmp_path):
    code, out, _ = run("train", "--pairs", own(empty=True), "--steps", 4, "--name", "holes")
    assert code == 0 and "5 % of the mass is made uniform" in out
    assert "floor = 0.05" in (tmp_path / "runs/holes/config.toml").read_text()
    with np.load("my.npz") as arrays:
        ends = [
            geonet.Density(arrays[key][0], geonet.Grid(24, 0, 2)) for key in ("source", "target")
        ]
    model = "runs/holes/model.safetensors"
    path = geonet.geodesic(*ends, solver=model)
    assert path.info["floor"] == 0.05
    torch.testing.assert_close(path.source.tensor, ends[0].with_floor(0.05).tensor)
    plain = geonet.geodesic(*ends, solver=model, floor=0.0)
    assert torch.equal(plain.source.tensor, ends[0].tensor) and "floor" not in plain.info


def test_2d_models_say_before_training_whether_they_can_be_exported(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("my.npz", values=np.random.default_rng(0).random((6, 8, 12)))
    out = run("train", "--pairs", "my.npz", "--steps", 1, "--time-limit", "0s").out
    lines = out.splitlines()
    assert "6 densities of 8×12 cells" in lines[1] and "centred in 12×12 cells" in lines[2]
    assert "cannot be exported to ONNX; add --exportable" in lines[4]
    arguments = ("train", "--pairs", "my.npz", "--name", "onnx", "--exportable", "--steps", 1)
    out = run(*arguments).out
    assert "cannot be exported" not in out and "finished at step 1 of 1" in out
    assert run("export", "runs/onnx/model.safetensors", "-o", "models").code == 0
    assert (tmp_path / "models/onnx-branch.onnx").exists()


def test_plot(run, config, tmp_path):
    out = run("train", config, "--plot").out
    file = tmp_path / "runs/tiny/training.png"
    assert f"plot: {file.relative_to(tmp_path)}" in out and file.read_bytes()[1:4] == b"PNG"
    file.unlink()
    assert run("train", config, "--resume", "--plot").code == 0 and file.exists()


# ---- signals


@SIGNALS
def test_a_signal_saves_and_the_run_resumes(run, tmp_path, config, number, code, cause):
    """Sent to `python -m geonet train` after the first checkpoint and log line."""
    _write(tmp_path, "steps = 12", "steps = 1000000")
    folder = tmp_path / "run"
    with _started("-m", "geonet", "train", "tiny.toml", "--folder", "run") as process:
        _wait_for(folder / "checkpoint.safetensors", folder / "log.jsonl")
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT)
    step = _step(folder)
    assert process.returncode == code
    first, model, _ = out.splitlines()
    assert first == _saved(step, 1000000, cause) and model.startswith(
        "model: run/model.safetensors"
    )
    assert err.splitlines()[-1].startswith(f"step {step}/1000000, ") and "error" not in err
    assert read_log(folder / "log.jsonl")[-1]["step"] == step
    assert not list(folder.glob(".*"))

    later = step + 3
    assert run("train", config, "--folder", folder, "--resume", "--stop-at", later).code == 0
    assert run("train", config, "--folder", tmp_path / "whole", "--stop-at", later).code == 0
    _assert_same_state(folder, tmp_path / "whole")


# A solver that takes hours for a pair and reports progress.
HOURS = """
import sys, time
from geonet.cli import main
from geonet._progress import report_progress
from geonet.training import checkpoint
def slow(*pair):
    for k in range(100_000):
        report_progress(f"step {k}")
        time.sleep(0.1)
checkpoint.reference_for_pair = slow
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_during_validation(run, tmp_path, config):
    with _started("-c", HOURS, "train", "tiny.toml", "--folder", "run") as process:
        lines = [process.stderr.readline() for _ in range(3)]
        assert lines[-1] == "validating: exact path 1/2\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (143, _saved(0, 12, "SIGTERM") + "\n")
    assert "error" not in err
    assert _step(tmp_path / "run") == 0
    assert run("train", config, "--folder", "run", "--resume").out.startswith("finished at step 12")
    assert run("train", config, "--folder", "whole").code == 0
    _assert_same_state(tmp_path / "run", tmp_path / "whole")


def test_a_signal_during_the_report(run, own, tmp_path):
    """The run is finished; a resume writes the report."""
    file = own()
    arguments = ("train", "--pairs", file, "--steps", 4)
    assert run(*arguments, "--stop-at", 4).code == 0
    (tmp_path / "runs/my/report.json").unlink()
    (tmp_path / "runs/my/references.safetensors").unlink()
    with _started("-c", HOURS, *map(str, arguments), "--resume") as process:
        lines = [process.stderr.readline() for _ in range(3)]
        assert lines[-1] == "held-out pairs: exact path 1/1\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and "error" not in err
    assert out.splitlines()[-1].startswith("stopped before the report on held-out pairs (Ctrl-C)")
    assert not (tmp_path / "runs/my/report.json").exists()
    assert run(*arguments, "--resume").out.endswith("report: runs/my/report.json\n")


@contextmanager
def _started(*arguments: str):
    """Start Python with these arguments and kill it at the end."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _saved(step: int, steps: int, cause: str) -> str:
    hint = "to continue, repeat the command with --resume"
    return f"saved, stopped at step {step} of {steps} ({cause}); {hint}"


def _wait_for(*files) -> None:
    until = time.monotonic() + TIMEOUT
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < until
        time.sleep(0.02)


# ---- rejected input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "No training data"),
        (("nowhere.toml",), "There is no file nowhere.toml"),
        (("bad.toml",), "Cannot read bad.toml as TOML"),
        (("tiny.toml", "--pairs", "my.npz"), "either a TOML config or --pairs"),
        (("tiny.toml", "--steps", "3"), "--name, --steps, --floor and --exportable need --pairs"),
        (("--pairs", "my.npz", "--floor", "1"), "floor is 1; give a share in [0, 1)"),
        (("tiny.toml", "--stop-at", "0"), "--stop-at"),
        (("tiny.toml", "--time-limit", "-1"), "--time-limit"),
        (("tiny.toml", "--time-limit", "5 days"), "such as 300, 5min or 2h"),
        (("tiny.toml", "--folder", "tiny.toml"), "Cannot create the folder tiny.toml"),
        (("tiny.toml", "--resume"), "There is no file runs/tiny/checkpoint.safetensors"),
    ],
)
def test_wrong_arguments(run_failing, own, config, tmp_path, arguments, message):
    own()
    (tmp_path / "bad.toml").write_text("name = \n")
    assert message in run_failing("train", *arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 12", "step = 12", "Unknown key step; did you mean 'steps'?"),
        ("dimension = 1", "dimension = 2", "model.dimension is 2, but mixtures-1d is 1D"),
        ("warmup = 2", "learning_rate = nan", "optimizer.learning_rate is nan"),
    ],
)
def test_a_wrong_setting(run_failing, tmp_path, config, old, new, message):
    _write(tmp_path, old, new)
    assert message in run_failing("train", "tiny.toml")
    assert list(tmp_path.iterdir()) == [config]


def test_a_folder_with_a_run(run_failing, run, tmp_path, config):
    run("train", config, "--stop-at", 2)
    folder = tmp_path / "runs" / "tiny"
    saved = folder / "checkpoint.safetensors"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert "already contains a training run; add --resume" in run_failing("train", config)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    saved.write_bytes(before[saved][:-100])
    assert "as a checkpoint" in run_failing("train", config, "--resume")
