"""Rectified flow (Liu, Gong and Liu 2023), for one pair.

The first round fits the velocity of lines between source and target particles that are paired at
random. Such lines cross; the flow follows their mean, which bends its paths. The next round pairs
every source particle with the end that the flow led it to and fits the lines between those, which
straightens the paths (*reflow*). A round never lengthens the way of the mass, but it meets the
target no better than the one before. Straight paths that do not cross are the geodesic in 1D; in
more dimensions they need not be optimal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.errors import SolverError
from geonet.solvers.per_pair.flow_matching import FlowSolver
from geonet.solvers.per_pair.learned_flow import LearnedFlow, any_pairs, own_pairs, train


@dataclass(frozen=True)
class RectifiedFlow(FlowSolver):
    """Rectified flow (Liu, Gong and Liu 2023): random pairs, then rounds of reflow.

    A velocity field is fitted to particles that are paired at random. Its own flow then gives new
    pairs, and a second round of fitting straightens the paths.

    It fails as `flow-matching` does. In more than one dimension its straight paths need not be the
    shortest.

    Attributes:
        rounds: rounds of reflow, each with `steps` more steps; each goes on with the last network.
    """

    name = "rectified-flow"
    summary = "any dimension, rectified flow trained for the pair: straight but not optimal paths"

    rounds: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 0:
            raise SolverError(f"rounds is {self.rounds}; give 0 or more.")

    def _learn(
        self,
        network: torch.nn.Sequential,
        source: Tensor,
        target: Tensor,
        generator: torch.Generator,
    ) -> float:
        pairs = any_pairs(source, target, self.batch, generator)
        loss = train(network, pairs, self, generator)
        origin = torch.zeros(source.shape[1], dtype=torch.float64)
        for _ in range(self.rounds):
            reached = LearnedFlow(network, origin, 1.0, loss).carry(source, [1.0])[0].float()
            pairs = own_pairs(source, reached, self.batch, generator)
            loss = train(network, pairs, self, generator)
        return loss
