"""All experiments by name."""

from __future__ import annotations

from geonet.studies.reproduction import clouds, digits, kinds, losses, mixtures, runtime
from geonet.studies.reproduction.conditions import Experiment

_BOTH = ("geonet-1d", "geonet-2d", "transport-1d", "transport-2d")
_CLOUDS = ("geonet-cloud", "transport-cloud")
_DIGITS = ("mnist-autoencoder", "geonet-mnist", "transport-1d", "transport-mnist")

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table-1",
            "Four kinds of method side by side",
            kinds.table_1,
            ("deeponet-1d", "geonet-1d", "transport-1d"),
        ),
        Experiment("table-2", "L1 error on Gaussian mixtures", mixtures.table_2, _BOTH),
        Experiment("table-3", "Point clouds against CFM and RF", clouds.table_3, _CLOUDS),
        Experiment("mnist", "Encoded MNIST, and images", digits.mnist, _DIGITS),
        Experiment("metrics", "L2, W1 and sliced W1 on mixtures", mixtures.metrics, _BOTH),
        Experiment("runtime", "Time against POT's", runtime.runtime, _BOTH),
        Experiment(
            "super-resolution", "One input, any resolution", mixtures.super_resolution, _BOTH
        ),
        Experiment("geodesics-1d", "Geodesics in 1D", mixtures.geodesics_1d, _BOTH[::2]),
        Experiment("geodesics-2d", "Geodesics in 2D", mixtures.geodesics_2d, _BOTH[1::2]),
        Experiment("point-clouds", "A pair of clouds by all methods", clouds.point_clouds, _CLOUDS),
        Experiment("mnist-figure", "A digit becomes another", digits.mnist_figure, _DIGITS),
        Experiment("ood", "Out of distribution", mixtures.ood, _BOTH),
        Experiment("loss-curves", "The loss by term", losses.loss_curves, losses.MODELS),
        Experiment("potentials", "Potentials", mixtures.potentials, _BOTH),
    )
}
