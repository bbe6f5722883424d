"""List of experiments, their conditions (full or quick) and the training of their models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import MODELS
from experiments.autoencoder import EPOCHS, train_autoencoder
from experiments.mnist import mnist
from geonet._utils import import_object
from geonet.errors import FileError
from geonet.solvers.neural.pretrained import pretrained_file
from geonet.training.config import read_config
from geonet.training.loop import CHECKPOINT, MODEL, train

if TYPE_CHECKING:
    from benchmarks.results import Result


@dataclass(frozen=True)
class Conditions:
    """Conditions of an experiment.

    Attributes:
        quick: few pairs, small budgets: a check, not a measurement.
        trained: newly trained model files, by the name of the solver.
    """

    quick: bool = False
    trained: tuple[tuple[str, str], ...] = ()

    def count(self, full: int, quick: int) -> int:
        """Return the full or the quick number."""
        return quick if self.quick else full

    def solver(self, name: str) -> str:
        """Return a solver, or the file of the model that was trained in its place."""
        return dict(self.trained).get(name, name)

    def file(self, name: str) -> Path:
        """Return the file of a model, the shipped one or the one trained in its place."""
        if name in dict(self.trained):
            return Path(dict(self.trained)[name])
        file = MODELS / f"{name}.safetensors"
        return file if file.exists() else pretrained_file(name)


@dataclass(frozen=True)
class Experiment:
    """One of the paper's tables or figures.

    Attributes:
        name: on the command line and in file names.
        title: one line.
        run: function that runs it.
        models: shipped models it uses, which `--train` trains, in this order.
    """

    name: str
    title: str
    run: Callable[[Conditions], Result]
    models: tuple[str, ...] = ()

    def measure(self, conditions: Conditions) -> Result:
        """Run the experiment and add its provenance to the result."""
        from benchmarks.results import record_provenance

        provenance = record_provenance()
        return replace(self.run(conditions), provenance=provenance)


# ---- All experiments by name. Their code is imported when one runs, so that the list is fast.


_BOTH = ("geonet-1d", "geonet-2d", "transport-1d", "transport-2d")
_CLOUDS = ("geonet-cloud", "transport-cloud")
_DIGITS = ("mnist-autoencoder", "geonet-mnist", "transport-1d", "transport-mnist")


def _lazy(module: str, function: str) -> Callable[[Conditions], Result]:
    """Return a function of this package, imported when it is called."""
    home = f"experiments.paper.{module}"

    def run(conditions: Conditions) -> Result:
        return import_object(f"{home}:{function}")(conditions)

    run.__module__ = home
    return run


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table-1",
            "Four kinds of method side by side",
            _lazy("table_1", "table_1"),
            ("deeponet-1d", "geonet-1d", "transport-1d"),
        ),
        Experiment("table-2", "L1 error on Gaussian mixtures", _lazy("mixtures", "table_2"), _BOTH),
        Experiment(
            "table-3", "Point clouds against CFM and RF", _lazy("clouds", "table_3"), _CLOUDS
        ),
        Experiment("mnist", "Encoded MNIST, and images", _lazy("digits", "mnist"), _DIGITS),
        Experiment("runtime", "Time against POT's", _lazy("runtime", "runtime"), _BOTH),
        Experiment(
            "super-resolution",
            "One input, any resolution",
            _lazy("mixtures", "super_resolution"),
            _BOTH,
        ),
        Experiment(
            "geodesics-1d", "Geodesics in 1D", _lazy("mixtures", "geodesics_1d"), _BOTH[::2]
        ),
        Experiment(
            "geodesics-2d", "Geodesics in 2D", _lazy("mixtures", "geodesics_2d"), _BOTH[1::2]
        ),
        Experiment(
            "point-clouds",
            "A pair of clouds by all methods",
            _lazy("clouds", "point_clouds"),
            _CLOUDS,
        ),
        Experiment(
            "mnist-figure", "A digit becomes another", _lazy("digits", "mnist_figure"), _DIGITS
        ),
    )
}


# ---- Training of the models from the configs of the repository.


QUICK_STEPS = 30  # of a training that only shows that it runs
CONFIGS = Path(__file__).parents[1] / "configs"


def train_models(conditions: Conditions, models: tuple[str, ...], folder: Path) -> Conditions:
    """Train the models in folder/NAME, resuming interrupted trainings; return their conditions."""
    trained = {}
    for name in models:
        trained[name] = str(_train_model(name, folder / name, conditions.quick, trained))
    return replace(conditions, trained=tuple(trained.items()))


def _train_model(name: str, folder: Path, quick: bool, before: dict[str, str]) -> Path:
    if name == "mnist-autoencoder":
        return _train_autoencoder(folder, quick)
    found = {config.name: config for config in map(read_config, sorted(CONFIGS.glob("*.toml")))}
    if name not in found:
        raise FileError(
            f"No config in {CONFIGS}/ is called {name}; run --train in a clone of the repository."
        )
    config = found[name]
    if quick:
        config = replace(config, steps=QUICK_STEPS, compile=False)
    if (
        "mnist-autoencoder" in before
        and config.problem.family == "experiments.problems:digit_codes"
    ):
        problem = replace(config.problem, file=before["mnist-autoencoder"])
        config = replace(config, problem=problem)
    outcome = train(config, folder, resume=(folder / CHECKPOINT).exists())
    if outcome.reason != "finished":
        raise KeyboardInterrupt
    return folder / MODEL


def _train_autoencoder(folder: Path, quick: bool) -> Path:
    file = folder / "model.safetensors"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    digits, unseen = mnist("train").images, mnist("test").images
    epochs = 1 if quick else EPOCHS
    return train_autoencoder(digits, unseen, file, epochs)
