"""How an experiment is run: in full or quickly, with the shipped models or with new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results import Spread
from experiments.autoencoder import EPOCHS, train_autoencoder
from experiments.mnist import mnist
from geonet._utils import import_object
from geonet.errors import FileError
from geonet.training.config import read_config
from geonet.training.loop import CHECKPOINT, MODEL, train

if TYPE_CHECKING:
    from benchmarks.results import Result


@dataclass(frozen=True)
class Conditions:
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
        from geonet.solvers.neural.model import PRETRAINED

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
    run: Callable[[Conditions], Result]
    models: tuple[str, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """Where its measurement begins, see `geonet.evaluation.sources`."""
        return (self.run.__module__,)

    def measured(self, conditions: Conditions) -> Result:
        """Run it, and provenance what it gives."""
        from benchmarks.results import record_provenance

        stamped = record_provenance()
        return replace(self.run(conditions), provenance=stamped)


# ---- All experiments by name. Their code is imported when one is run: a list must not wait for it.


LOGGED = ("geonet-1d", "geonet-2d", "geonet-cloud", "geonet-mnist")  # with a history of the loss
_BOTH = ("geonet-1d", "geonet-2d", "transport-1d", "transport-2d")
_CLOUDS = ("geonet-cloud", "transport-cloud")
_DIGITS = ("mnist-autoencoder", "geonet-mnist", "transport-1d", "transport-mnist")


def _at(module: str, function: str) -> Callable[[Conditions], Result]:
    """A function of this package, imported when it is called."""
    home = f"geonet.studies.reproduction.{module}"

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
            _at("kinds", "table_1"),
            ("deeponet-1d", "geonet-1d", "transport-1d"),
        ),
        Experiment("table-2", "L1 error on Gaussian mixtures", _at("mixtures", "table_2"), _BOTH),
        Experiment("table-3", "Point clouds against CFM and RF", _at("clouds", "table_3"), _CLOUDS),
        Experiment("mnist", "Encoded MNIST, and images", _at("digits", "mnist"), _DIGITS),
        Experiment(
            "metrics", "L2, W1 and sliced W1 on mixtures", _at("mixtures", "metrics"), _BOTH
        ),
        Experiment("runtime", "Time against POT's", _at("runtime", "runtime"), _BOTH),
        Experiment(
            "super-resolution",
            "One input, any resolution",
            _at("mixtures", "super_resolution"),
            _BOTH,
        ),
        Experiment("geodesics-1d", "Geodesics in 1D", _at("mixtures", "geodesics_1d"), _BOTH[::2]),
        Experiment("geodesics-2d", "Geodesics in 2D", _at("mixtures", "geodesics_2d"), _BOTH[1::2]),
        Experiment(
            "point-clouds",
            "A pair of clouds by all methods",
            _at("clouds", "point_clouds"),
            _CLOUDS,
        ),
        Experiment(
            "mnist-figure", "A digit becomes another", _at("digits", "mnist_figure"), _DIGITS
        ),
        Experiment("ood", "Out of distribution", _at("mixtures", "ood"), _BOTH),
        Experiment("loss-curves", "The loss by term", _at("losses", "loss_curves"), LOGGED),
        Experiment("potentials", "Potentials", _at("mixtures", "potentials"), _BOTH),
    )
}


# ---- The models of an experiment trained anew, from the configs of the repository.


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


# ---- The figures that the paper prints, L1 and the like in percent, at t = 0, ¼, ½, ¾, 1.


Five = tuple[float, float, float, float, float]


def _spread(means: Five, deviations: Five) -> list[Spread]:
    return [Spread(mean, sd) for mean, sd in zip(means, deviations, strict=True)]


TABLE_2 = {
    "1D identity": _spread((2.67, 2.85, 3.04, 2.86, 2.63), (0.750, 0.912, 1.02, 0.898, 0.696)),
    "1D random": _spread((4.92, 5.43, 5.76, 5.26, 4.65), (2.00, 3.02, 3.56, 3.25, 1.50)),
    "1D high-res": _spread((4.76, 5.49, 6.01, 5.59, 4.77), (1.53, 3.00, 3.53, 2.99, 1.49)),
    "1D OOD": _spread((12.9, 14.3, 16.4, 14.9, 12.3), (4.13, 5.35, 6.01, 5.48, 3.94)),
    "2D identity": _spread((6.50, 7.68, 7.69, 7.70, 6.42), (1.15, 0.915, 0.924, 0.889, 1.11)),
    "2D random": _spread((6.59, 7.10, 7.13, 7.04, 6.33), (1.01, 0.869, 0.892, 0.780, 0.835)),
    "2D high-res": _spread((6.66, 7.71, 7.88, 7.59, 6.29), (0.766, 1.26, 1.21, 0.979, 0.723)),
    "2D OOD": _spread((7.15, 7.82, 8.14, 7.96, 7.14), (0.985, 1.04, 1.33, 1.30, 0.882)),
}
TABLE_3 = {
    "GeONet": _spread((22.9, 28.8, 30.0, 29.6, 22.6), (1.08, 1.01, 1.10, 0.877, 1.02)),
    "CFM": _spread((0.0, 94.1, 98.9, 91.8, 75.9), (0.0, 3.68, 2.41, 4.15, 3.77)),
    "RF": _spread((0.0, 103.0, 112.0, 112.0, 91.3), (0.0, 2.48, 3.61, 5.03, 3.79)),
}
MNIST = {
    "codes, identity": (0.923, 0.830, 0.825, 0.834, 0.931),
    "codes, random": (1.62, 2.14, 2.78, 2.11, 1.54),
    "images, identity": (26.7, 34.0, 35.3, 36.4, 34.0),
    "images, random": (32.1, 58.2, 68.1, 56.4, 24.7),
}
METRICS = {
    "1D L2": (5.19, 6.91, 7.28, 6.49, 4.81),
    "1D W1": (0.352, 0.364, 0.403, 0.386, 0.347),
    "2D L2": (6.93, 7.72, 8.11, 7.79, 6.87),
    "2D sliced W1": (0.245, 0.264, 0.275, 0.267, 0.246),
}
FINAL_LOSS = {"geonet-1d": 1.5e-4, "geonet-2d": 1.8e-5, "geonet-cloud": 7e-4, "geonet-mnist": 2e-2}
HOURS_ON_A_GPU = {"geonet-1d": 2, "geonet-2d": 2, "geonet-cloud": 2, "geonet-mnist": 4}
