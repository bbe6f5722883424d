"""The paper's experiments, with the trained models that only these use.

Importing this package registers the models in `experiments/models` as solvers.
"""

from pathlib import Path

from geonet.solvers.neural.pretrained import register_pretrained

MODELS = Path(__file__).with_name("models")

for _name, _form, _dimension, _summary in (
    (
        "transport-cloud",
        "transport",
        2,
        "2D, neural operator of the transport form, trained on histograms of point clouds",
    ),
    (
        "transport-mnist",
        "transport",
        2,
        "2D, neural operator of the transport form, trained on images of MNIST's digits",
    ),
    (
        "er-geonet-1d",
        "geonet",
        1,
        "1D, the paper's entropic operator: a Schrödinger bridge on its Gaussian mixtures",
    ),
    (
        "er-geonet-2d",
        "geonet",
        2,
        "2D, the paper's entropic operator: a Schrödinger bridge on its Gaussian mixtures",
    ),
    (
        "geonet-cloud",
        "geonet",
        2,
        "2D, the paper's neural operator, trained on histograms of point clouds",
    ),
    (
        "geonet-mnist",
        "geonet",
        1,
        "1D, the paper's neural operator, trained on codes of MNIST's digits",
    ),
    (
        "deeponet-1d",
        "deeponet",
        1,
        "1D, neural operator without physics, trained on exact paths; density only",
    ),
):
    register_pretrained(
        _name,
        MODELS / f"{_name}.safetensors",
        _form,
        _dimension,
        _summary,
        lacks=("distance",) if _name.startswith("er-") else (),  # a bridge has no W2
    )
