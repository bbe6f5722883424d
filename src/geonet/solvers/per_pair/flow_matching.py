"""Flow matching with optimal pairs in every batch: OT-CFM (Tong et al. 2024), for one pair.

Each step of the training pairs a batch of source particles with a batch of target particles
optimally and fits the velocity of the lines between them (`learned_flow`). The optimal pairs of a
batch are not those of the densities: lines of different batches cross, and the flow follows their
mean. It approaches the geodesic as the batch grows. A network is trained for every pair.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet.errors import SolverError
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.particles import deposit, sampled
from geonet.measures.unit_box import unit_box
from geonet.randomness import seeded
from geonet.solvers.base import Solver
from geonet.solvers.per_pair.learned_flow import (
    LearnedFlow,
    Training,
    any_pairs,
    optimal_pairs,
    standardised,
    train,
    velocity_network,
)


@dataclass(frozen=True)
class FlowSolver(Training, Solver):
    """Draws particles of both densities, learns a flow between them and answers with it.

    Attributes:
        particles: particles drawn from each density for the training.
        carried: particles that make up a density at later times; its cells are split into this many
            or fewer.
    """

    dimensions = None
    gives = ("velocity", "trajectories")

    particles: int = 3000
    carried: int = 30_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.particles < 2 or self.carried < 1:
            raise SolverError(
                f"particles is {self.particles} and carried {self.carried}; "
                "give at least 2 and at least 1."
            )

    def fit(self, source: ArrayLike | Tensor, target: ArrayLike | Tensor) -> LearnedFlow:
        """The flow from particles source (N, d) to particles target (M, d), in their own units."""
        first, second, centre, scale = standardised(source, target)
        d = first.shape[1]
        with seeded(self.seed):  # layers take no generator
            network = velocity_network(d + 1, *[self.width] * self.depth, d)
        generator = torch.Generator().manual_seed(self.seed)
        loss = self._learn(network, first, second, generator)
        return LearnedFlow(network, centre, scale, loss)

    @abstractmethod
    def _learn(
        self,
        network: torch.nn.Sequential,
        source: Tensor,
        target: Tensor,
        generator: torch.Generator,
    ) -> float:
        """Train the network on standardised particles (N, d) and (M, d); the last loss."""

    def _solve_pair(self, source: Density, target: Density) -> FlowGeodesic:
        generator, box = torch.Generator().manual_seed(self.seed), unit_box(source.grid)
        scaled = (Density.as_computed(end.values, box.cells) for end in (source, target))
        ends = [sampled(end, self.particles, generator) for end in scaled]
        flow = self.fit(*ends)
        step = flow.carry(ends[0], [1.0])[0] - ends[0]
        notes = {
            "loss": flow.loss,
            # Comparable to W2: larger by the detours, if the target is met.
            "root mean square displacement": box.from_velocity(
                float(step.square().sum(1).mean().sqrt())
            ),
        }
        return FlowGeodesic(source, target, self.name, notes, flow, self.carried)


@dataclass(frozen=True)
class FlowMatching(FlowSolver):
    """OT-CFM (Tong et al. 2024): a velocity field trained for the pair.

    The field is fitted to straight lines between particles of both densities, paired optimally
    within every batch. The density is that of particles that the field carries.

    It is a generative method and not the geodesic. It meets the target only approximately, and the
    pairs of a batch are optimal for that batch alone; it comes closer as `batch` grows.

    Attributes:
        reuse: steps that use the pairs of one batch, each at new times; pairing is the slow part.
    """

    name = "flow-matching"
    summary = "any dimension, OT-CFM trained for the pair: half a minute, ends met nearly"

    reuse: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse < 1:
            raise SolverError(f"reuse is {self.reuse}; give a positive number.")

    def _learn(
        self,
        network: torch.nn.Sequential,
        source: Tensor,
        target: Tensor,
        generator: torch.Generator,
    ) -> float:
        drawn = any_pairs(source, target, self.batch, generator)
        return train(network, optimal_pairs(drawn, self.reuse, generator), self, generator)


class FlowGeodesic(Geodesic):
    """A learned flow, on the box scaled so that its longest side is one and its corner zero.

    A density is the source's cells, split and carried by the flow; its mass is exact, and what the
    flow carries out of the box stays in the cells at its faces.
    """

    kind = "flow-matching"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        flow: LearnedFlow,
        carried: int,
    ):
        super().__init__(source, target, solver, notes)
        self.flow, self.carried, self.box = flow, carried, unit_box(source.grid)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        where = self.box.to_points(points)
        speeds = [self.flow.velocity(t, where) for t in times.tolist()]
        return self.box.from_velocity(torch.stack(speeds))

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        return self.box.from_points(self.flow.carry(self.box.to_points(points), times))

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        start, mass, size = split_cells(self.source, self.carried)
        box = unit_box(grid)  # other cells of the same box
        frames = [deposit(at, mass, size, box.cells) for at in self.flow.carry(start, times)]
        return box.from_density(torch.stack(frames))

    def _state(self) -> dict[str, np.ndarray]:
        return {"carried": np.array(self.carried), **self.flow.arrays()}

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> FlowGeodesic:
        flow = LearnedFlow.from_arrays(state)
        return cls(source, target, solver, notes, flow, int(state["carried"]))


def fit_flow(
    source: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    method: str = "flow-matching",
    **options: Any,
) -> LearnedFlow:
    """The flow from particles source (N, d) to target (M, d), by the method's name and options.

    `fit_flow(x0, x1, "rectified-flow", steps=500).carry(x0, [0.5, 1.0])` is (2, N, d).
    """
    from geonet.solvers.registry import make_solver

    solver = make_solver(method, **options)
    if not isinstance(solver, FlowSolver):
        raise SolverError(
            f"The solver {method!r} learns no flow from particles; "
            "choose 'flow-matching' or 'rectified-flow'."
        )
    return solver.fit(source, target)


def split_cells(density: Density, most: int) -> tuple[Tensor, Tensor, tuple[float, ...]]:
    """The filled cells, each cut into k^d equal parts with the largest k that gives `most` parts.

    Returns:
        Centres (P, d) in the scaled box, masses (P,) that sum to one, and a part's sides.
    """
    grid = unit_box(density.grid).cells
    mass = density.values.to(torch.float64).reshape(-1)
    filled = mass > 0
    mass = mass[filled] / mass[filled].sum()
    d = grid.dimension
    k = max(1, int((most / len(mass)) ** (1 / d) + 1e-9))
    size = tuple(h / k for h in grid.spacing)
    axes = [h * (torch.arange(k, dtype=torch.float64) - (k - 1) / 2) for h in size]
    parts = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, d)
    centres = grid.points().reshape(-1, 1, d)[filled] + parts
    return centres.reshape(-1, d), mass.repeat_interleave(k**d) / k**d, size
