"""Digits to 32 numbers and back: the code on which the paper's MNIST experiment works."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import GELU, Linear, Module, Sequential, Sigmoid

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
        """Φ: (n, 784) to (n, 32)."""
        return BOUND * torch.tanh(self.encoder(images) / BOUND)

    def decode(self, codes: Tensor) -> Tensor:
        """Φ⁻¹: (n, 32) to (n, 784)."""
        return self.decoder(codes)
