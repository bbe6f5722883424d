"""Digits to 32 numbers and back: the code on which the paper's MNIST experiment works."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.nn import GELU, Linear, Module, Sequential, Sigmoid

from experiments import MODELS
from geonet._utils import fork_rng
from geonet.density import Density
from geonet.errors import FileError
from geonet.grid import Grid
from geonet.solvers.neural.model import load_weights, read_tensors, write_tensors

PIXELS = 28 * 28
CODE = 32
WIDTH = 128
BOUND = 9.0  # codes lie in (−BOUND, BOUND), so that they are positive once shifted by SHIFT
SHIFT = 10.0


class Autoencoder(Module):
    """Φ: (n, 784) in [0, 1] to codes (n, 32), and Φ⁻¹ back, one hidden layer each."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.encoder = Sequential(Linear(PIXELS, width), GELU(), Linear(width, CODE))
        self.decoder = Sequential(Linear(CODE, width), GELU(), Linear(width, PIXELS), Sigmoid())

    def encode(self, images: Tensor) -> Tensor:
        """Return Φ: (n, 784) to (n, 32)."""
        return BOUND * torch.tanh(self.encoder(images) / BOUND)

    def decode(self, codes: Tensor) -> Tensor:
        """Return Φ⁻¹: (n, 32) to (n, 784)."""
        return self.decoder(codes)


# ---- The autoencoder of digits that comes with geonet, and digits as densities of their codes.


CODE_BOX = Grid(CODE, 0.0, 5.0)  # the paper's: 32 points on [0, 5]
SHIPPED = MODELS / "mnist-autoencoder.safetensors"


@lru_cache(4)
def load_autoencoder(file: Path = SHIPPED) -> Autoencoder:
    """Return the autoencoder in a file that `train_autoencoder` wrote."""
    tensors, header = read_tensors(file, "an autoencoder")
    if header.get("kind") != "autoencoder":
        raise FileError(f"{file} holds a {header.get('kind')!r} and no autoencoder; give another.")
    first = tensors.get("encoder.0.bias", torch.zeros(0))
    if first.numel() == 0:
        raise FileError(f"{file} has no layer of the encoder; get the file again.")
    with torch.device("meta"):
        model = Autoencoder(width=first.numel())
    return load_weights(model, tensors, file)


def code_densities(codes: Tensor) -> Density:
    """Return codes (n, 32) as densities on [0, 5], shifted by 10 to be positive."""
    return Density(codes.double() + SHIFT, CODE_BOX)


def codes_of(values: Tensor, mass: Tensor) -> Tensor:
    """Return densities (..., 32) with the mass (...) they stand for, back to codes."""
    return values * mass[..., None] - SHIFT


# ---- Training the autoencoder of digits: squared error, and a little on the size of the codes.


EPOCHS, BATCH, LEARNING_RATE = 40, 500, 4e-3  # the paper's batch; 120 steps an epoch
PENALTY = 1e-4  # on mean z²: codes with a spread of about 2, as a shift of 10 asks for


def as_rows(images: np.ndarray) -> Tensor:
    """Return images (n, 28, 28), uint8, as rows (n, 784) in [0, 1]."""
    return torch.from_numpy(images).float().flatten(1) / 255


def train_autoencoder(
    images: np.ndarray, unseen: np.ndarray, file: Path, epochs: int = EPOCHS, seed: int = 0
) -> Path:
    """Train on digits (n, 28, 28) and write the weights, with their error on unseen digits."""
    began = perf_counter()
    with fork_rng(seed):
        model = Autoencoder()
    rows, generator = as_rows(images), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    steps = epochs * max(1, len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(rows), generator=generator)
        for chosen in order.split(BATCH)[: steps // epochs]:
            batch = rows[chosen]
            codes = model.encode(batch)
            loss = ((model.decode(codes) - batch) ** 2).mean() + PENALTY * (codes**2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    header = {"kind": "autoencoder", "epochs": epochs, "seed": seed, **_measure(model, unseen)}
    header["seconds"] = round(perf_counter() - began, 1)
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return write_tensors(file, tensors, header)


@torch.no_grad()
def _measure(model: Autoencoder, unseen: np.ndarray) -> dict[str, float]:
    """Return the squared error and the size of the codes on unseen digits."""
    rows = as_rows(unseen)
    codes = model.encode(rows)
    return {
        "unseen_squared_error": float(((model.decode(codes) - rows) ** 2).mean()),
        "code_spread": float(codes.std()),
        "largest_code": float(codes.abs().max()),
    }
