"""How the models of experiments are trained anew."""

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

[problem]
family = "mixtures-1d"

[model]
dimension = 1
sensors = 12
rank = 6

[model.branch]
width = 8
depth = 3

[model.trunk]
width = 8
depth = 3

[sampling]
pairs = 4
points = 6
places = 5

[validation]
pairs = 2
"""


@pytest.fixture(autouse=True)
def clone(tmp_path, monkeypatch):
    """A clone of the repository with one tiny experiment, whose file has another name."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path / "studies" / "configs"
    folder.mkdir(parents=True)
    (folder / "small.toml").write_text(TINY)
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture
def counted(monkeypatch):
    """Steps that a training has behind it when it begins, one number for each."""
    begun = []

    def watched(config, folder, *, resume):
        file = folder / "checkpoint.safetensors"
        done = read_tensors(file, "a checkpoint")[1]["progress"]["step"] if resume else 0
        begun.append(done)
        return train(config, folder, resume=resume)

    monkeypatch.setattr(f"{module.__name__}.train", watched)
    return begun


def test_a_quick_training_is_short_and_its_model_is_used():
    """Named by the config's name, not by its file's; not compiled, since that takes a minute."""
    conditions = train_models(Conditions(quick=True), ("tiny-model",), Path("runs/quick"))
    file = Path("runs/quick/tiny-model/model.safetensors")
    assert conditions == Conditions(quick=True, trained=(("tiny-model", str(file)),))
    _, header = load_model(file)
    assert (header["name"], header["training"]["steps"]) == ("tiny-model", module.QUICK_STEPS)
    assert header["training"]["compile"] is False
    log = read_log(file.with_name("log.jsonl"))
    assert max(line["step"] for line in log) == module.QUICK_STEPS
    assert make_solver(conditions.solver("tiny-model")).name == "geonet"


def test_a_full_training_has_the_config_as_it_is(monkeypatch):
    seen = []

    def stopped(config, folder, *, resume):
        seen.append((config, folder, resume))
        return train(replace(config, steps=1, compile=False), folder, resume=resume)

    monkeypatch.setattr(f"{module.__name__}.train", stopped)
    train_models(Conditions(), ("tiny-model",), Path("runs"))
    ((config, folder, resume),) = seen
    assert (config.steps, config.compile) == (5000, True)
    assert (folder, resume) == (Path("runs/tiny-model"), False)


def test_a_second_run_goes_on_from_the_first(counted, monkeypatch):
    monkeypatch.setattr(module, "QUICK_STEPS", 4)
    first = train_models(Conditions(quick=True), ("tiny-model",), Path("runs"))
    before = Path("runs/tiny-model/model.safetensors").read_bytes()
    assert train_models(Conditions(quick=True), ("tiny-model",), Path("runs")) == first
    assert counted == [0, 4]  # nothing was left to do
    assert Path("runs/tiny-model/model.safetensors").read_bytes() == before


def test_a_training_that_was_cut_goes_on(counted, monkeypatch):
    monkeypatch.setattr(module, "QUICK_STEPS", 6)
    train_models(Conditions(quick=True), ("tiny-model",), Path("whole"))

    def cut(config, folder, *, resume):
        outcome = train(config, folder, resume=resume, stop_at=4)
        return replace(outcome, reason="interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(f"{module.__name__}.train", cut)
        with pytest.raises(KeyboardInterrupt):
            train_models(Conditions(quick=True), ("tiny-model",), Path("runs"))
    train_models(Conditions(quick=True), ("tiny-model",), Path("runs"))
    assert counted == [0, 4]
    parts, in_one = (
        read_tensors(Path(folder, "tiny-model", "checkpoint.safetensors"), "a checkpoint")[0]
        for folder in ("runs", "whole")
    )
    assert all(torch.equal(parts[name], in_one[name]) for name in in_one)


@pytest.mark.parametrize("models", [("unheard-of",), ("small",)])  # a name is no file's name
def test_a_model_without_a_config(models):
    with pytest.raises(FileError) as error:
        train_models(Conditions(quick=True), models, Path("runs"))
    assert str(error.value) == (
        f"No config in studies/configs/ is called {models[0]}; "
        "run --train in a clone of the repository."
    )
    assert not Path("runs").exists()


def test_outside_a_clone(clone):
    (clone / "small.toml").unlink()
    clone.rmdir()
    with pytest.raises(FileError, match="No config in studies/configs/ is called tiny-model; run"):
        train_models(Conditions(), ("tiny-model",), Path("runs"))


# ---- digits


@pytest.fixture
def small_mnist(monkeypatch):
    """A world in which MNIST has 40 digits to train on and 20 others."""
    images = sample_digits().images
    parts = {"train": Digits(images[::25], images[::25]), "test": Digits(images[1::50], images)}
    monkeypatch.setattr(f"{module.__name__}.mnist", parts.__getitem__)
    monkeypatch.setattr("experiments.problems.mnist", parts.__getitem__)
    return parts


def test_codes_are_learned_from_the_autoencoder_that_was_trained_before(
    clone, small_mnist, monkeypatch
):
    monkeypatch.setattr(module, "QUICK_STEPS", 3)
    (clone / "codes.toml").write_text(
        TINY.replace("tiny-model", "tiny-codes").replace("mixtures-1d", "digit-codes")
    )
    models = ("mnist-autoencoder", "tiny-codes", "tiny-model")
    conditions = train_models(Conditions(quick=True), models, Path("runs"))
    files = {name: f"runs/{name}/model.safetensors" for name in models}
    assert dict(conditions.trained) == files
    _, header = read_tensors(Path(files["mnist-autoencoder"]), "an autoencoder")
    assert (header["kind"], header["epochs"]) == ("autoencoder", 1)
    assert load_autoencoder(Path(files["mnist-autoencoder"])).encode(torch.zeros(1, 784)).shape
    _, header = load_model(Path(files["tiny-codes"]))
    assert header["training"]["problem"]["autoencoder"] == files["mnist-autoencoder"]
    _, header = load_model(Path(files["tiny-model"]))
    assert "autoencoder" not in header["training"]["problem"]


def test_a_full_autoencoder_is_measured_on_the_test_set(small_mnist, monkeypatch):
    seen = []

    def recorded(images, unseen, file, epochs):
        seen.append((images, unseen, file, epochs))
        return file

    monkeypatch.setattr(f"{module.__name__}.train_autoencoder", recorded)
    conditions = train_models(Conditions(), ("mnist-autoencoder",), Path("runs"))
    ((images, unseen, file, epochs),) = seen
    assert images is small_mnist["train"].images and unseen is small_mnist["test"].images
    assert file.parent.is_dir() and epochs == 40
    assert conditions.solver("mnist-autoencoder") == str(file)
