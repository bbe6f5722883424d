"""All experiments by name. Their code is imported when one is run: a list must not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from geonet.locations import located
from geonet.studies.reproduction.conditions import Conditions, Experiment

if TYPE_CHECKING:
    from geonet.evaluation.results import Result

LOGGED = ("geonet-1d", "geonet-2d", "geonet-cloud", "geonet-mnist")  # with a history of the loss
_BOTH = ("geonet-1d", "geonet-2d", "transport-1d", "transport-2d")
_CLOUDS = ("geonet-cloud", "transport-cloud")
_DIGITS = ("mnist-autoencoder", "geonet-mnist", "transport-1d", "transport-mnist")


def _at(module: str, function: str) -> Callable[[Conditions], Result]:
    """A function of this package, imported when it is called."""
    home = f"geonet.studies.reproduction.{module}"

    def run(conditions: Conditions) -> Result:
        return located(f"{home}:{function}")(conditions)

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
