"""The autoencoder of digits that comes with geonet, and digits as densities of their codes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from torch import Tensor

from geonet.errors import FileError
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.autoencoder import CODE, SHIFT, Autoencoder
from geonet.solvers.learned.model_file import read_tensors
from geonet.solvers.learned.opened import PRETRAINED

CODE_BOX = Grid(CODE, 0.0, 5.0)  # the paper's: 32 points on [0, 5]
SHIPPED = PRETRAINED / "mnist-autoencoder.safetensors"


@lru_cache(4)
def load_autoencoder(file: Path = SHIPPED) -> Autoencoder:
    """The autoencoder in a file that `train_autoencoder` wrote."""
    tensors, header = read_tensors(file, "an autoencoder")
    if header.get("kind") != "autoencoder":
        raise FileError(f"{file} holds a {header.get('kind')!r} and no autoencoder; give another.")
    model = Autoencoder(width=tensors["encoder.0.weight"].shape[0])
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)


def code_densities(codes: Tensor) -> Density:
    """Codes (n, 32) as densities on [0, 5], shifted by 10 to be positive; `mass` undoes it."""
    return Density(codes.double() + SHIFT, CODE_BOX)


def codes_of(values: Tensor, mass: Tensor) -> Tensor:
    """Densities (..., 32) with the mass (...) they stand for, back to codes."""
    return values * mass[..., None] - SHIFT
