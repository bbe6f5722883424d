"""The autoencoder of digits that comes with geonet, and digits as densities of their codes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from geonet.errors import FileError
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.autoencoder import CODE, SHIFT, Autoencoder
from geonet.operators.model_file import filled, read_tensors
from geonet.operators.opened import PRETRAINED

CODE_BOX = Grid(CODE, 0.0, 5.0)  # the paper's: 32 points on [0, 5]
SHIPPED = PRETRAINED / "mnist-autoencoder.safetensors"


@lru_cache(4)
def load_autoencoder(file: Path = SHIPPED) -> Autoencoder:
    """The autoencoder in a file that `train_autoencoder` wrote."""
    tensors, header = read_tensors(file, "an autoencoder")
    if header.get("kind") != "autoencoder":
        raise FileError(f"{file} holds a {header.get('kind')!r} and no autoencoder; give another.")
    first = tensors.get("encoder.0.bias", torch.zeros(0))
    if first.numel() == 0:
        raise FileError(f"{file} has no layer of the encoder; get the file again.")
    with torch.device("meta"):
        model = Autoencoder(width=first.numel())
    return filled(model, tensors, file)


def code_densities(codes: Tensor) -> Density:
    """Codes (n, 32) as densities on [0, 5], shifted by 10 to be positive; `mass` undoes it."""
    return Density(codes.double() + SHIFT, CODE_BOX)


def codes_of(values: Tensor, mass: Tensor) -> Tensor:
    """Densities (..., 32) with the mass (...) they stand for, back to codes."""
    return values * mass[..., None] - SHIFT
