"""How weights move: the settings of an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from geonet.settings import require


@dataclass(frozen=True)
class OptimizerSettings:
    """How the weights move.

    Attributes:
        name: "soap" or "adam".
        learning_rate: at the top of the schedule.
        schedule: "cosine" or "exponential", both down to `final` of it, or "constant".
        final: share of the learning rate that is left at the end.
        warmup: steps over which it rises from zero.
        balance_every: rescale the weights of the terms so that their gradients have equal norms,
            every so many steps; 0 for never.
        weight_decay: every step takes this share, times the learning rate, off all matrices.
            Without it, weights that matter to no density of the training walk at random, and to
            other densities they matter.
        clip: the largest norm of a gradient, to which larger ones are shortened; 0 for any.
    """

    name: Literal["soap", "adam"] = "soap"
    learning_rate: float = 3e-3
    schedule: Literal["cosine", "exponential", "constant"] = "cosine"
    final: float = 0.01
    warmup: int = 200
    balance_every: int = 0
    weight_decay: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}; give > 0.")
        require(0 < self.final <= 1, f"final is {self.final}; give a share in (0, 1].")
        require(self.warmup >= 0, f"warmup is {self.warmup}; give ≥ 0.")
        require(self.clip >= 0, f"clip is {self.clip:g}; give a norm, or 0 for none.")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay:g}; give ≥ 0.")
        require(self.balance_every >= 0, f"balance_every is {self.balance_every}; give ≥ 0.")
