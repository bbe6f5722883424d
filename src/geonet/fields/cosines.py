"""The tables of cos(kπx) and of their derivatives; networks build their own, as jets.

All in double precision on the processor, whatever torch's defaults are.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def frequencies(modes: int, length: float = 1.0, first: int = 0) -> Tensor:
    """κ_k = kπ/length for `modes` modes k = first, first + 1, …, (modes,)."""
    k = torch.arange(first, first + modes, dtype=torch.float64, device="cpu")
    return k * (math.pi / length)


def centres(cells: int) -> Tensor:
    """The centres of the cells of [0, 1], (cells,)."""
    return (torch.arange(cells, dtype=torch.float64, device="cpu") + 0.5) / cells


def faces(cells: int) -> Tensor:
    """The faces of the cells of [0, 1], (cells + 1,)."""
    return torch.arange(cells + 1, dtype=torch.float64, device="cpu") / cells


def waves(x: Tensor, kappa: Tensor, orders: int, odd: bool = False) -> Tensor:
    """cos κx at points x (N,) for κ (K,) and its first derivatives in x, (orders, N, K).

    Or those of sin κx, which are `odd` at zero. Autograd follows x.
    """
    phase = x[:, None] * kappa
    turns = (torch.sin, torch.cos) if odd else (torch.cos, torch.sin)
    signs = (1, 1, -1, -1) if odd else (1, -1, -1, 1)
    known = [turn(phase) for turn in turns[:orders]]
    return torch.stack([known[m % 2] * (signs[m % 4] * kappa**m) for m in range(orders)])


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def cosine_transform(n: int, odd: bool = False) -> Tensor:
    """(n, n): values at n cell centres to coefficients of cos(kπx), the inverse of their table.

    Or to those of sin(kπx), k = 1, …, n, where the function is `odd` at the faces.
    """
    (table,) = waves(centres(n), frequencies(n, first=int(odd)), 1, odd)
    matrix = table.T * (2.0 / n)
    matrix[-1 if odd else 0] /= 2
    return matrix
