"""Optimizers by name, and the learning rate over time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from geonet.optimizers.settings import OptimizerSettings
from geonet.optimizers.soap import SOAP


def make_optimizer(settings: OptimizerSettings, parameters: Iterable[Tensor]):
    """SOAP or Adam over the parameters that move."""
    moving = [p for p in parameters if p.requires_grad]
    if settings.name == "soap":
        return SOAP(moving, lr=settings.learning_rate)
    return torch.optim.Adam(moving, lr=settings.learning_rate)


def learning_rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """At `step` of `steps`, counted from 0."""
    warm = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    progress, final = step / steps, settings.final
    decay = {
        "cosine": final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)),
        "exponential": final**progress,
        "constant": 1.0,
    }[settings.schedule]
    return settings.learning_rate * warm * decay


@torch.no_grad()
def shrink(parameters: Iterable[Tensor], share: float) -> None:
    """Take away a share of every matrix that moves; biases stay as they are."""
    for parameter in parameters:
        if parameter.requires_grad and parameter.ndim > 1:
            parameter.mul_(1 - share)
