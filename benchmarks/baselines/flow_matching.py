"""Flow matching with optimal pairs in every batch: OT-CFM (Tong et al. 2024), for one pair.

Each step of the training pairs a batch of source particles with a batch of target particles
optimally and fits the velocity of the lines between them. The pairs are optimal within a batch
only: lines of different batches cross, and the flow follows their mean. It approaches the geodesic
as the batch grows. A network is trained for every pair.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import ot
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from geonet._progress import report_progress
from geonet._utils import fork_rng
from geonet.density import Density, as_tensor
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.ode import integrate_particles
from geonet.paths import Geodesic
from geonet.samples import deposit, sample_particles
from geonet.solvers.base import Solver, SolverInfo

# ---- A velocity field learned from particles of two densities.
#
# A network v(x, t) is fitted to the velocities of straight lines between pairs of particles,
#
#     min over v of  E|v(x_t, t) − (x1 − x0)|²,      x_t = (1 − t)·x0 + t·x1,  t uniform in [0, 1],
#
# and particles then follow dx/dt = v(x, t). The minimiser is v = E[x1 − x0 | x_t = x]. Its flow
# pushes the density of x0 to the density of x1 for any pairs; the path depends on the pairs.
#
# A trained network with some thousand particles reaches the target only approximately.


STEPS_OF_THE_FLOW = 16  # per unit of time, of fourth order

DrawPairs = Callable[[], tuple[Tensor, Tensor]]  # x0 and x1, (batch, d) each, row by row


@dataclass(frozen=True)
class Training:
    """Training options of a velocity network, shared by flow-matching and rectified-flow.

    Attributes:
        steps: steps of Adam in every round; its rate falls to zero along a cosine.
        batch: particles of either end in a step, or all if there are fewer.
        rate: Adam's rate at the start.
        width: the width of the network's hidden layers.
        depth: the number of hidden layers.
        seed: the seed of all random numbers.
    """

    steps: int = 4000
    batch: int = 256
    rate: float = 1e-2
    width: int = 128
    depth: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("steps", "batch", "rate", "width", "depth"):
            if not getattr(self, option) > 0:
                raise SolverError(f"{option} is {getattr(self, option)}; give a positive number.")
        if not 0 <= self.seed < 2**63:  # the range of torch
            raise SolverError(f"seed is {self.seed}; give a whole number from 0 to 2^63 − 1.")


class LearnedFlow:
    """The flow of dx/dt = scale · network((x − centre) / scale, t).

    Attributes:
        network: (N, d + 1) to (N, d) in single precision; the last input is the time.
        centre: mean of the particles of both ends, (d,), float64.
        scale: their spread: one length for all axes, so that optimal pairs stay optimal.
        loss: E|v − (x1 − x0)|² in units of scale², over the last tenth of the training. The spread
            of x1 − x0 among lines through one point is part of it, so it does not fall to zero.
    """

    def __init__(self, network: torch.nn.Sequential, centre: Tensor, scale: float, loss: float):
        self.network, self.centre, self.scale, self.loss = network, centre, scale, loss

    def velocity(self, t: float, points: ArrayLike | Tensor) -> Tensor:
        """Return v(x, t) at points (N, d): (N, d), float64."""
        return self._speed(torch.as_tensor(points, dtype=torch.float64), t)

    def carry(self, points: ArrayLike | Tensor, times: Sequence[float] | Tensor) -> Tensor:
        """Return the positions of particles from points (N, d) at times in [0, 1]: (T, N, d),
        float64.
        """
        where = torch.as_tensor(points, dtype=torch.float64)
        moments = torch.as_tensor(times, dtype=torch.float64)
        return integrate_particles(self._speed, where, moments, STEPS_OF_THE_FLOW)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays from which `from_arrays` rebuilds the flow."""
        weights = self.network.state_dict().items()
        return {
            "centre": self.centre.numpy(),
            "scale": np.array(self.scale),
            "loss": np.array(self.loss),
            **{f"network.{name}": value.numpy() for name, value in weights},
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> LearnedFlow:
        """Rebuild the flow from the arrays of `arrays`."""
        weights = {
            name.removeprefix("network."): torch.from_numpy(value)
            for name, value in arrays.items()
            if name.startswith("network.")
        }
        matrices = [value for name, value in weights.items() if name.endswith("weight")]
        network = make_velocity_network(matrices[0].shape[1], *(len(matrix) for matrix in matrices))
        network.load_state_dict(weights)
        centre = torch.from_numpy(arrays["centre"])
        return cls(network, centre, float(arrays["scale"]), float(arrays["loss"]))

    @torch.no_grad()
    def _speed(self, points: Tensor, t: float) -> Tensor:
        """Return v(x, t); positions stay in double precision, the network is single."""
        inputs = pad((points - self.centre) / self.scale, (0, 1), value=t)
        return self.scale * self.network(inputs.float()).to(torch.float64)


def make_velocity_network(*sides: int) -> torch.nn.Sequential:
    """Return linear layers from sides[0] inputs to sides[-1] outputs, with SiLU between them."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(sides):
        layers += [torch.nn.Linear(inputs, outputs, dtype=torch.float32), torch.nn.SiLU()]
    return torch.nn.Sequential(*layers[:-1])


def standardise(source: ArrayLike | Tensor, target: ArrayLike | Tensor):
    """Return particles (N, d) and (M, d) as single-precision tensors around zero with spread one.

    Returns:
        The two tensors, and the centre (d,) and the scale that lead back.
    """
    ends = [as_tensor(end).to(torch.float64) for end in (source, target)]
    for end in ends:
        if end.ndim != 2 or len(end) < 2 or not end.shape[1]:
            raise SolverError(
                f"Particles of shape {tuple(end.shape)} are no cloud; give an array (n, d) of at "
                "least two."
            )
        if not bool(torch.isfinite(end).all()):
            raise SolverError("Particles have NaN or infinite coordinates; remove them first.")
    if ends[0].shape[1] != ends[1].shape[1]:
        raise SolverError(
            f"Source particles lie in {ends[0].shape[1]}D and target particles in "
            f"{ends[1].shape[1]}D; give both in the same space."
        )
    both = torch.cat(ends)
    centre = both.mean(0)
    scale = float((both - centre).square().mean().sqrt()) or 1.0  # one point has no spread
    first, second = (((end - centre) / scale).float() for end in ends)
    return first, second, centre, scale


def train(
    network: torch.nn.Sequential, pairs: DrawPairs, training: Training, generator: torch.Generator
) -> float:
    """Fit the network to the lines between pairs; the mean loss of the last tenth of the steps."""
    optimiser = torch.optim.Adam(network.parameters(), training.rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, training.steps)
    losses = torch.zeros(training.steps)
    for k in range(training.steps):
        report_progress(f"training a flow: step {k + 1} of {training.steps}")
        t, where, velocity = sample_on_lines(*pairs(), generator)
        with torch.enable_grad():  # even if the caller disabled gradients
            loss = (network(torch.cat((where, t[:, None]), 1)) - velocity).square().sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        schedule.step()
        losses[k] = loss.detach()
    last = float(losses[-max(1, training.steps // 10) :].mean())
    if not np.isfinite(last):
        raise ConvergenceError("The training diverged; lower its rate.", last)
    return last


def sample_on_lines(
    x0: Tensor, x1: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return uniform times (n,), the places x_t (n, d) on the lines of pairs then, and x1 − x0 (n,
    d).
    """
    t = torch.rand(len(x0), generator=generator, dtype=x0.dtype)
    return t, t[:, None] * x1 + (1 - t[:, None]) * x0, x1 - x0


def draw_independent_pairs(
    source: Tensor, target: Tensor, batch: int, generator: torch.Generator
) -> DrawPairs:
    """Return a function that draws particles of both ends independently, without repetition in a
    batch.
    """
    size = min(batch, len(source), len(target))

    def draw(end: Tensor) -> Tensor:
        return end[torch.randperm(len(end), generator=generator)[:size]]

    return lambda: (draw(source), draw(target))


def draw_optimal_pairs(drawn: DrawPairs, reuse: int, generator: torch.Generator) -> DrawPairs:
    """Return a function that pairs every drawn batch optimally for |x1 − x0|² and yields it `reuse`
    times.
    """

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from repeat(pair_optimally(*drawn(), generator), reuse)

    return endless().__next__


def pair_optimally(x0: Tensor, x1: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw n pairs from the optimal plan between x0 (n, d) and x1 (m, d)."""
    cost = ot.dist(x0.double().numpy(), x1.double().numpy())
    # POT's default limit of iterations stops it early, with a warning, on batches of thousands.
    plan = torch.as_tensor(ot.emd([], [], cost, numItermax=10_000_000))
    rows, columns = plan.nonzero(as_tuple=True)  # few: torch draws from 2^24 entries at most
    chosen = plan[rows, columns].multinomial(len(x0), replacement=True, generator=generator)
    return x0[rows[chosen]], x1[columns[chosen]]


def draw_own_pairs(
    source: Tensor, target: Tensor, batch: int, generator: torch.Generator
) -> DrawPairs:
    """Return a function that draws rows: each source particle with its own target particle."""

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(source), generator=generator)[:batch]
        return source[rows], target[rows]

    return draw


@dataclass(frozen=True)
class FlowSolver(Training, Solver):
    """Solver that draws particles of both densities and learns a flow between them.

    Attributes:
        particles: particles drawn from each density for the training.
        carried: particles that make up a density at later times; its cells are split into this many
            or fewer.
    """

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
        """Return the flow from particles source (N, d) to particles target (M, d), in their own
        units.
        """
        first, second, centre, scale = standardise(source, target)
        d = first.shape[1]
        with fork_rng(self.seed):  # layers take no generator
            network = make_velocity_network(d + 1, *[self.width] * self.depth, d)
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
        scaled = (Density.from_unnormalized(end.tensor, box.cells) for end in (source, target))
        ends = [sample_particles(end, self.particles, generator) for end in scaled]
        flow = self.fit(*ends)
        step = flow.carry(ends[0], [1.0])[0] - ends[0]
        info = {
            "loss": flow.loss,
            # Comparable to W2: larger by the detours, if the target is met.
            "root mean square displacement": box.from_length(
                float(step.square().sum(1).mean().sqrt())
            ),
        }
        return FlowGeodesic(source, target, self.name, info, flow, self.carried)


@dataclass(frozen=True)
class FlowMatching(FlowSolver):
    """OT-CFM (Tong et al. 2024): a velocity field trained for the pair.

    The field is fitted to straight lines between particles of both densities, paired optimally
    within every batch. Particles that follow the field make up the density.

    It is a generative method and not the geodesic. It meets the target only approximately, and the
    pairs of a batch are optimal for that batch alone; it comes closer as `batch` grows.

    Attributes:
        reuse: steps that use the pairs of one batch, each at new times; pairing is the slow part.
    """

    info = SolverInfo(
        name="flow-matching",
        summary="any dimension, OT-CFM trained for the pair: half a minute, ends met nearly",
        family="neural",
        provides=("density", "velocity", "trajectories"),
    )

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
        drawn = draw_independent_pairs(source, target, self.batch, generator)
        return train(network, draw_optimal_pairs(drawn, self.reuse, generator), self, generator)


class FlowGeodesic(Geodesic):
    """A learned flow, on the box scaled so that its longest side is one and its corner zero.

    A density is the source's cells, split and carried by the flow; its mass is exact, and
    mass that leaves the box stays in the cells at its faces.
    """

    kind = "flow-matching"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        flow: LearnedFlow,
        carried: int,
    ):
        super().__init__(source, target, solver, info)
        self.flow, self.carried, self.box = flow, carried, unit_box(source.grid)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        where = self.box.to_points(points)
        speeds = [self.flow.velocity(t, where) for t in times.tolist()]
        return self.box.from_length(torch.stack(speeds))

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
    def _from_state(cls, source, target, solver, info, state) -> FlowGeodesic:
        flow = LearnedFlow.from_arrays(state)
        return cls(source, target, solver, info, flow, int(state["carried"]))


def fit_flow(
    source: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    method: str = "flow-matching",
    **options: Any,
) -> LearnedFlow:
    """Return the flow from particles source (N, d) to target (M, d), by the method's name and
    options.

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
    """Return the filled cells, each cut into k^d equal parts with the largest k that gives `most`
    parts.

    Returns:
        Centres (P, d) in the scaled box, masses (P,) that sum to one, and a part's sides.
    """
    grid = unit_box(density.grid).cells
    mass = density.tensor.to(torch.float64).reshape(-1)
    filled = mass > 0
    mass = mass[filled] / mass[filled].sum()
    d = grid.dimension
    k = max(1, int((most / len(mass)) ** (1 / d) + 1e-9))
    size = tuple(h / k for h in grid.spacing)
    axes = [h * (torch.arange(k, dtype=torch.float64) - (k - 1) / 2) for h in size]
    parts = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, d)
    centres = grid.points().reshape(-1, 1, d)[filled] + parts
    return centres.reshape(-1, d), mass.repeat_interleave(k**d) / k**d, size


# ---- Rectified flow (Liu, Gong and Liu 2023), for one pair.
#
# The first round fits the velocity of lines between source and target particles that are paired at
# random. Such lines cross; the flow follows their mean, which bends its paths. The next round pairs
# every source particle with the end that the flow led it to and fits the lines between those, which
# straightens the paths (*reflow*). A round never lengthens the way of the mass, but it meets the
# target no better than the one before. Straight paths that do not cross are the geodesic in 1D; in
# more dimensions they need not be optimal.


@dataclass(frozen=True)
class RectifiedFlow(FlowSolver):
    """Rectified flow (Liu, Gong and Liu 2023): random pairs, then rounds of reflow.

    A velocity field is fitted to particles that are paired at random. Its own flow then gives new
    pairs, and a second round of fitting straightens the paths.

    It fails as `flow-matching` does. In more than one dimension its straight paths need not be the
    shortest.

    Attributes:
        rounds: rounds of reflow, each with `steps` more steps of the same network.
    """

    info = SolverInfo(
        name="rectified-flow",
        summary="any dimension, rectified flow trained for the pair: straight paths, not optimal",
        family="neural",
        provides=("density", "velocity", "trajectories"),
    )

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
        pairs = draw_independent_pairs(source, target, self.batch, generator)
        loss = train(network, pairs, self, generator)
        origin = torch.zeros(source.shape[1], dtype=torch.float64)
        for _ in range(self.rounds):
            reached = LearnedFlow(network, origin, 1.0, loss).carry(source, [1.0])[0].float()
            pairs = draw_own_pairs(source, reached, self.batch, generator)
            loss = train(network, pairs, self, generator)
        return loss
