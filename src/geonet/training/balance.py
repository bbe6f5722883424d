"""Weights of the terms by the norms of their gradients (Wang et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from geonet.training.processes import Processes

MEMORY = 0.9  # of the weights before
LEAST = 1e-3  # of the largest norm: a term that is solved is not blown up


def balanced_weights(
    terms: dict[str, Tensor],
    weights: dict[str, float],
    given: dict[str, float],
    parameters: Sequence[Tensor],
    processes: Processes,
) -> dict[str, float]:
    """Move the weights of the terms L_i towards equal gradients, w_i ∝ 1/|∇L_i|.

    Their scale is such that Σ w_i|∇L_i| is what it would be with the `given` weights.
    """
    norms = []
    for term in terms.values():
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        squares = [(g**2).sum() for g in gradients if g is not None]
        norms.append(torch.stack(squares).sum().sqrt())
    size = processes.mean(torch.stack(norms))
    size = size.clamp(min=float(LEAST * size.max()) or 1.0)
    total = sum(given[name] * float(n) for name, n in zip(terms, size, strict=True))
    return {
        name: MEMORY * weights[name] + (1 - MEMORY) * total / (len(terms) * float(n))
        for name, n in zip(terms, size, strict=True)
    }
