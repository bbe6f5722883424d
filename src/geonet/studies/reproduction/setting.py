"""How an experiment is run: in full or quickly, with the shipped models or with new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from geonet.errors import FileError
from geonet.evaluation.results import Result
from geonet.operators.opened import PRETRAINED

QUICK_STEPS = 30  # of a training that only shows that it runs
CONFIGS = Path("studies/configs")  # in a clone of the repository


@dataclass(frozen=True)
class Setting:
    """What an experiment is told.

    Attributes:
        quick: few pairs, small budgets: a check, not a measurement.
        trained: files of models that were trained anew, by the name of the solver.
    """

    quick: bool = False
    trained: tuple[tuple[str, str], ...] = ()

    def count(self, full: int, quick: int) -> int:
        """How many of something."""
        return quick if self.quick else full

    def solver(self, name: str) -> str:
        """A solver, or the file of the model that was trained in its place."""
        return dict(self.trained).get(name, name)

    def file(self, name: str) -> Path:
        """The file of a model, the shipped one or the one trained in its place."""
        return Path(dict(self.trained).get(name, PRETRAINED / f"{name}.safetensors"))


@dataclass(frozen=True)
class Experiment:
    """One of the paper's tables or figures.

    Attributes:
        name: on the command line and of the files.
        title: one line.
        run: does it.
        models: shipped models it uses, which `--train` trains, in this order.
    """

    name: str
    title: str
    run: Callable[[Setting], Result]
    models: tuple[str, ...] = ()


def with_training(setting: Setting, models: tuple[str, ...], folder: Path) -> Setting:
    """Train the models into folder/NAME, going on where a training was cut, and use them."""
    trained = {}
    for name in models:
        trained[name] = str(_trained(name, folder / name, setting.quick, trained))
    return replace(setting, trained=tuple(trained.items()))


def _trained(name: str, folder: Path, quick: bool, before: dict[str, str]) -> Path:
    if name == "mnist-autoencoder":
        return _trained_autoencoder(folder, quick)
    from geonet.training.config import read_config
    from geonet.training.loop import CHECKPOINT, MODEL, train

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
    if outcome.reason == "interrupted":
        raise KeyboardInterrupt
    return folder / MODEL


def _trained_autoencoder(folder: Path, quick: bool) -> Path:
    from geonet.measures.mnist import mnist
    from geonet.training.autoencoder import EPOCHS, train_autoencoder

    file = folder / "model.safetensors"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    digits, unseen = mnist("train").images, mnist("test").images
    epochs = 1 if quick else EPOCHS
    return train_autoencoder(digits, unseen, file, epochs)
