"""The models of an experiment trained anew, from the configs of the repository."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from geonet.errors import FileError
from geonet.measures.mnist import mnist
from geonet.studies.reproduction.conditions import Conditions
from geonet.training.autoencoder import EPOCHS, train_autoencoder
from geonet.training.config import read_config
from geonet.training.loop import CHECKPOINT, MODEL, train

QUICK_STEPS = 30  # of a training that only shows that it runs
CONFIGS = Path("studies/configs")  # in a clone of the repository


def with_training(conditions: Conditions, models: tuple[str, ...], folder: Path) -> Conditions:
    """Train the models into folder/NAME, going on where a training was cut, and use them."""
    trained = {}
    for name in models:
        trained[name] = str(_trained(name, folder / name, conditions.quick, trained))
    return replace(conditions, trained=tuple(trained.items()))


def _trained(name: str, folder: Path, quick: bool, before: dict[str, str]) -> Path:
    if name == "mnist-autoencoder":
        return _trained_autoencoder(folder, quick)
    found = {config.name: config for config in map(read_config, sorted(CONFIGS.glob("*.toml")))}
    if name not in found:
        raise FileError(
            f"No config in {CONFIGS}/ is called {name}; run --train in a clone of the repository."
        )
    config = found[name]
    if quick:
        config = replace(config, steps=QUICK_STEPS, compile=False)
    if "mnist-autoencoder" in before and config.problem.family == "digit-codes":
        problem = replace(config.problem, autoencoder=before["mnist-autoencoder"])
        config = replace(config, problem=problem)
    outcome = train(config, folder, resume=(folder / CHECKPOINT).exists())
    if outcome.reason != "finished":
        raise KeyboardInterrupt
    return folder / MODEL


def _trained_autoencoder(folder: Path, quick: bool) -> Path:
    file = folder / "model.safetensors"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    digits, unseen = mnist("train").images, mnist("test").images
    epochs = 1 if quick else EPOCHS
    return train_autoencoder(digits, unseen, file, epochs)
