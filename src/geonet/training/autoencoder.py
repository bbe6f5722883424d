"""Training the autoencoder of digits: squared error, and a little on the size of the codes."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from geonet.operators.autoencoder import Autoencoder
from geonet.operators.model_file import write_tensors
from geonet.randomness import seeded

EPOCHS, BATCH, LEARNING_RATE = 40, 500, 4e-3  # the paper's batch; 120 steps an epoch
PENALTY = 1e-4  # on mean z²: codes with a spread of about 2, as a shift of 10 asks for


def as_rows(images: np.ndarray) -> Tensor:
    """Images (n, 28, 28), uint8, as rows (n, 784) in [0, 1]."""
    return torch.from_numpy(images).float().flatten(1) / 255


def train_autoencoder(
    images: np.ndarray, unseen: np.ndarray, file: Path, epochs: int = EPOCHS, seed: int = 0
) -> Path:
    """Train on digits (n, 28, 28) and write the weights, with their error on unseen digits."""
    began = perf_counter()
    with seeded(seed):
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
    header = {"kind": "autoencoder", "epochs": epochs, "seed": seed, **_measured(model, unseen)}
    header["seconds"] = round(perf_counter() - began, 1)
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return write_tensors(file, tensors, header)


@torch.no_grad()
def _measured(model: Autoencoder, unseen: np.ndarray) -> dict[str, float]:
    """On unseen digits: the squared error, and how large codes are."""
    rows = as_rows(unseen)
    codes = model.encode(rows)
    return {
        "unseen_squared_error": float(((model.decode(codes) - rows) ** 2).mean()),
        "code_spread": float(codes.std()),
        "largest_code": float(codes.abs().max()),
    }
