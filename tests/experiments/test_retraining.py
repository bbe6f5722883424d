"""Training of the experiments' models from their configs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.autoencoder import load_autoencoder
from experiments.mnist import Digits, sample_digits
from experiments.paper import experiments as module
from experiments.paper.experiments import Conditions, train_models
from geonet.errors import FileError
from geonet.solvers.neural.model import load_model, read_tensors
from geonet.solvers.registry import make_solver
from geonet.training.log import read_log
from geonet.training.loop import train

TINY = """
name = "tiny-model"
steps = 5000
compile = true
log_every = 1
problem.family = "mixtures-1d"
model = {dimension = 1, sensors = 12, rank = 6, branch = {width = 8, depth = 3}, \
trunk = {width = 8, depth = 3}}
sampling = {pairs = 4, points = 6, places = 5}
validation.pairs = 2
"""


@pytest.fixture(autouse=True)
def configs(tmp_path, monkeypatch):
    """Replace the configs by a tiny one, whose file has another name than its model."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "small.toml").write_text(TINY)
    monkeypatch.setattr(module, "CONFIGS", folder)
    return folder


@pytest.fixture
def first_steps(monkeypatch):
    """Return a list with the step at which each training starts."""
    starts = []

    def record_start(config, folder, *, resume):
        file = folder / "checkpoint.safetensors"
        done = read_tensors(file, "a checkpoint")[1]["progress"]["step"] if resume else 0
        starts.append(done)
        return train(config, folder, resume=resume)

    monkeypatch.setattr(f"{module.__name__}.train", record_start)
    return starts


def test_quick_training():
    """The config is selected by its name, and not compiled, since that takes a minute."""
    conditions = train_models(Conditions(quick=True), ("tiny-model",), Path("runs/quick"))
    file = Path("runs/quick/tiny-model/model.safetensors")
    assert conditions == Conditions(quick=True, trained=(("tiny-model", str(file)),))
    _, header = load_model(file)
    assert (header["name"], header["training"]["steps"]) == ("tiny-model", module.QUICK_STEPS)
    assert header["training"]["compile"] is False
    log = read_log(file.with_name("log.jsonl"))
    assert max(line["step"] for line in log) == module.QUICK_STEPS
    assert make_solver(conditions.solver("tiny-model")).name == "geonet"


def test_full_training_uses_the_config_unchanged(monkeypatch):
    calls = []

    def train_one_step(config, folder, *, resume):
        calls.append((config, folder, resume))
        return train(replace(config, steps=1, compile=False), folder, resume=resume)

    monkeypatch.setattr(f"{module.__name__}.train", train_one_step)
    train_models(Conditions(), ("tiny-model",), Path("runs"))
    ((config, folder, resume),) = calls
    assert (config.steps, config.compile) == (5000, True)
    assert (folder, resume) == (Path("runs/tiny-model"), False)


def test_interrupted_training_resumes(first_steps, monkeypatch):
    monkeypatch.setattr(module, "QUICK_STEPS", 6)
    train_models(Conditions(quick=True), ("tiny-model",), Path("whole"))

    def interrupt(config, folder, *, resume):
        outcome = train(config, folder, resume=resume, stop_at=4)
        return replace(outcome, reason="interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(f"{module.__name__}.train", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_models(Conditions(quick=True), ("tiny-model",), Path("runs"))
    train_models(Conditions(quick=True), ("tiny-model",), Path("runs"))
    assert first_steps == [0, 4]
    parts, in_one = (
        read_tensors(Path(folder, "tiny-model", "checkpoint.safetensors"), "a checkpoint")[0]
        for folder in ("runs", "whole")
    )
    assert all(torch.equal(parts[name], in_one[name]) for name in in_one)


@pytest.mark.parametrize("name", ["unknown", "small"])  # the name of a file is no name of a model
def test_model_without_a_config_raises(name):
    with pytest.raises(FileError, match=f"called {name}; run --train in a clone"):
        train_models(Conditions(quick=True), (name,), Path("runs"))
    assert not Path("runs").exists()


# ---- Digits


@pytest.fixture
def small_mnist(monkeypatch):
    """Replace MNIST by 40 training digits and 20 test digits."""
    images = sample_digits().images
    parts = {"train": Digits(images[::25], images[::25]), "test": Digits(images[1::50], images)}
    monkeypatch.setattr(f"{module.__name__}.mnist", parts.__getitem__)
    monkeypatch.setattr("experiments.problems.mnist", parts.__getitem__)
    return parts


def test_codes_come_from_the_new_autoencoder(configs, small_mnist, monkeypatch):
    monkeypatch.setattr(module, "QUICK_STEPS", 3)
    (configs / "codes.toml").write_text(
        TINY.replace("tiny-model", "tiny-codes").replace(
            "mixtures-1d", "experiments.problems:digit_codes"
        )
    )
    models = ("mnist-autoencoder", "tiny-codes", "tiny-model")
    conditions = train_models(Conditions(quick=True), models, Path("runs"))
    files = {name: f"runs/{name}/model.safetensors" for name in models}
    assert dict(conditions.trained) == files
    _, header = read_tensors(Path(files["mnist-autoencoder"]), "an autoencoder")
    assert (header["kind"], header["epochs"]) == ("autoencoder", 1)
    assert load_autoencoder(Path(files["mnist-autoencoder"])).encode(torch.zeros(1, 784)).shape
    _, header = load_model(Path(files["tiny-codes"]))
    assert header["training"]["problem"]["file"] == files["mnist-autoencoder"]
    _, header = load_model(Path(files["tiny-model"]))
    assert "file" not in header["training"]["problem"]
