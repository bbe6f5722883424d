"""A physics-informed network for one pair: GeONet's equations and ends, without its branches."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from geonet._format import format_number
from geonet._progress import report_progress
from geonet._toml import from_table, to_table
from geonet._utils import fork_rng
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, UnitBox, unit_box
from geonet.numerics.interpolation import CubicSpline
from geonet.numerics.ode import integrate_particles
from geonet.paths import Geodesic
from geonet.solvers.base import Solver, SolverInfo
from geonet.solvers.neural.jets import Jet, Z, make_variables
from geonet.solvers.neural.layers import build_trunk
from geonet.solvers.neural.losses import (
    DensityFunctions,
    continuity_residual,
    hamilton_jacobi_residual,
)
from geonet.solvers.neural.model import MAX_SIZE, Trunk
from geonet.training.config import OptimizerSettings
from geonet.training.optim import learning_rate, make_optimizer

POTENTIAL_SCALE = 0.1  # of H in the box of side one: displacements are some tenths
WEIGHTS = {"continuity": 1.0, "hamilton_jacobi": 1e5, "source": 10.0, "target": 10.0}
FLOOR = 0.1  # of the density by which Hamilton–Jacobi is weighed, relative to uniform
PLACES = 4  # points of the interior for one at either end
WARMUP = 20  # the learning rate rises during 1/20 of the steps
LAST = 10  # the reported loss is the mean of the last 1/10 of the steps
RANGES = {
    "steps": (1, 10**9),
    "points": (PLACES, MAX_SIZE),
    "width": (1, MAX_SIZE),
    "depth": (2, 100),
    "modes": (1, MAX_SIZE),
    "seed": (0, 2**31 - 1),
}
STEPS = 16  # of Runge–Kutta from t = 0 to 1


@dataclass(frozen=True)
class Pinn(Solver):
    """Physics-informed networks C(x, t) and H(x, t), trained on the equations and ends of one pair.

    These are two small networks of (x, t) alone, trained for some tens of seconds. They provide
    the same quantities as GeONet; ends and mass are approximate. With the longest side of the box
    scaled to one and C relative to uniform, the training minimises the mean of

        (∂tC + div(C∇H))² + 10⁵·(C + 0.1)·(∂tH + ½|∇H|²)² + 10·(C_0 − μ0)² + 10·(C_1 − μ1)²

    over random points, new ones at every step.

    Prefer an exact solver if one works: this is the slowest method for one pair, and the networks
    are of no use for other pairs. The error varies much between pairs even if both ends are
    accurate, so accurate ends do not imply an accurate path.

    Attributes:
        steps: steps of the optimiser, SOAP. Its rate rises briefly, then falls along a cosine to a
            hundredth.
        points: points (x, t) in each step; a quarter as many x at either end.
        learning_rate: the highest rate.
        width: the width of the layers of both networks.
        depth: the number of layers of both networks.
        modes: cosines along each axis that the networks are given.
        seed: the seed of weights and points.
    """

    info = SolverInfo(
        name="pinn",
        summary="1D and 2D, a physics-informed network trained anew for every pair; a minute each",
        family="neural",
        dimensions=(1, 2),
    )

    steps: int = 1500
    points: int = 512
    learning_rate: float = 1e-2
    width: int = 64
    depth: int = 4
    modes: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for option, (least, most) in RANGES.items():
            value = getattr(self, option)
            if not least <= value <= most:
                raise SolverError(f"{option} of pinn is {value}; give {least} to {most}.")
        if not 0 < self.learning_rate < math.inf:
            raise SolverError(f"learning_rate of pinn is {self.learning_rate}; give a number > 0.")

    def _solve_pair(self, source: Density, target: Density) -> PinnPath:
        began = perf_counter()
        trunk = Trunk("mlp", self.width, self.depth, "cosines", self.modes)
        fields = _build_networks(trunk, source.grid, self.seed)
        loss = self._train(fields, _unit_ends(source, target))
        info = {
            "steps": self.steps,
            "loss": loss,
            "seconds": round(perf_counter() - began, 1),
        }
        return PinnPath(source, target, self.name, info, fields)

    @torch.enable_grad()
    def _train(self, fields: PairNetworks, ends: DensityFunctions) -> float:
        """Train in place and return the mean loss of the last steps."""
        warmup = self.steps // WARMUP
        settings = OptimizerSettings(learning_rate=self.learning_rate, warmup=warmup)
        optimizer = make_optimizer(settings, fields.parameters())
        generator = torch.Generator().manual_seed(self.seed)
        losses: list[float] = []
        for step in range(self.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, step, self.steps)
            loss = _loss(fields, ends, self.points, generator)
            losses.append(float(loss.detach()))
            report_progress(
                f"pinn: step {step + 1} of {self.steps}, loss {format_number(losses[-1], 2)}"
            )
            if not math.isfinite(losses[-1]):
                raise _make_divergence_error(step)
            optimizer.zero_grad()
            loss.backward()
            try:
                optimizer.step()
            except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
                raise _make_divergence_error(step) from None  # SOAP needs finite gradients
        if not all(bool(torch.isfinite(p).all()) for p in fields.parameters()):
            raise _make_divergence_error(self.steps)
        fields.requires_grad_(False)
        last = losses[-max(1, self.steps // LAST) :]
        return sum(last) / len(last)


class PairNetworks(Module):
    """Networks C, relative to uniform, and H of one pair; the longest side of the box is one.

    C = T(x, t) and H = 0.1·T'(x, t), two trunks on cosines that are even at the faces of the box.

    Attributes:
        sides: (d,), the box's sides.
    """

    sides: Tensor
    stretch: Tensor

    def __init__(self, trunk: Trunk, box: UnitBox):
        super().__init__()
        self.trunk = trunk
        self.density_trunk, self.potential_trunk = (
            build_trunk(trunk, len(box.sides), 1) for _ in range(2)
        )
        sides = torch.tensor(box.sides, dtype=torch.float64)
        self.register_buffer("sides", sides.float(), persistent=False)
        stretch = torch.cat([1 / sides, torch.ones(1, dtype=torch.float64)])  # time stays as it is
        self.register_buffer("stretch", stretch.float(), persistent=False)

    def density(self, z: Z) -> Z:
        """Return C at (x, t), rows (..., d + 1) to (...)."""
        return _scale_column(self.density_trunk(_times(z, self.stretch)), 1.0)

    def potential(self, z: Z) -> Z:
        """Return H at (x, t), rows (..., d + 1) to (...)."""
        return _scale_column(self.potential_trunk(_times(z, self.stretch)), POTENTIAL_SCALE)


def _times(z: Z, factor: Tensor) -> Z:
    return z * factor if isinstance(z, Tensor) else z.like(z.data * factor)


def _scale_column(z: Z, factor: float) -> Z:
    """Drop the last axis, of length one, and multiply by a factor."""
    return factor * z[..., 0] if isinstance(z, Tensor) else z.like(factor * z.data[..., 0])


def _build_networks(trunk: Trunk, grid: Grid, seed: int) -> PairNetworks:
    with fork_rng(seed):
        return PairNetworks(trunk, unit_box(grid))


def _unit_ends(source: Density, target: Density) -> DensityFunctions:
    """Return both ends relative to uniform, as splines on the scaled box."""
    grid, cells = source.grid, unit_box(source.grid).cells
    splines = [
        CubicSpline((end.tensor.to(torch.float64) * grid.volume).float(), cells)
        for end in (source, target)
    ]
    return splines[0], splines[1]


def _loss(
    fields: PairNetworks, ends: DensityFunctions, points: int, generator: torch.Generator
) -> Tensor:
    """Return the weighted squares of both equations and both ends, at new random points."""
    d = len(fields.sides)
    where = fields.sides * torch.rand(points, d, generator=generator)
    z = make_variables(where, torch.rand(points, generator=generator), "laplacian")
    density = fields.density(Jet(z.data[: d + 2], d, "none"))  # its Laplacian is not needed
    potential = fields.potential(z)
    # Without mass the potential has no meaning and may be rough.
    weight = density.value.detach().clamp(min=0) + FLOOR
    loss = WEIGHTS["continuity"] * (continuity_residual(density, potential) ** 2).mean()
    loss = (
        loss
        + WEIGHTS["hamilton_jacobi"] * (weight * hamilton_jacobi_residual(potential) ** 2).mean()
    )
    there = fields.sides * torch.rand(points // PLACES, d, generator=generator)
    for (name, t), end in zip((("source", 0.0), ("target", 1.0)), ends, strict=True):
        computed = fields.density(_rows(there, t))
        loss = loss + WEIGHTS[name] * ((computed - end(there)) ** 2).mean()
    return loss


def _rows(points: Tensor, t: float) -> Tensor:
    """Return (x, t) at one time, (N, d + 1)."""
    return torch.cat([points, torch.full_like(points[:, :1], t)], dim=1)


def _make_divergence_error(step: int) -> ConvergenceError:
    return ConvergenceError(
        f"The loss of pinn is no longer finite at step {step}; lower its learning_rate.", math.nan
    )


class PinnPath(Geodesic):
    """The two networks of one pair."""

    kind = "pinn"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        fields: PairNetworks,
    ):
        super().__init__(source, target, solver, info)
        self.fields, self.box = fields, unit_box(source.grid)

    @torch.no_grad()
    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """Return C on the grid; the network does not enforce mass and sign."""
        points = self._unit(grid.points().reshape(-1, self._dimension))
        frames = [self.fields.density(_rows(points, t)) for t in times.tolist()]
        values = torch.stack(frames).to(torch.float64) / grid.volume
        return values.reshape(len(times), *grid.shape)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([self._flow(points, t) for t in times.tolist()])

    def _flow(self, points: Tensor, t: float) -> Tensor:
        """Return ∇H at t, (N, d)."""
        return self.box.from_length(self._potential_jet(points, t).gradient.T.to(torch.float64))

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Integrate the learned velocity, which is nearly constant along a trajectory."""
        box = self.grid.lower_tensor, self.grid.upper_tensor
        return integrate_particles(self._flow, points, times, STEPS, box)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        values = [self._potential_jet(points, t).value for t in times.tolist()]
        return self.box.from_potential(torch.stack(values).to(torch.float64))

    def _distance(self) -> Tensor:
        """Return W2² = ∫|∇H_0|² dμ0 = ∫|∇H_1|² dμ1: the mean of both, since each end is known."""
        points = self.grid.points().reshape(-1, self._dimension)
        squares = []
        for t, end in ((0.0, self.source), (1.0, self.target)):
            speed = (self._flow(points, t) ** 2).sum(-1)
            squares.append((speed * end.tensor.reshape(-1)).sum() * self.grid.cell_volume)
        return (0.5 * (squares[0] + squares[1])).sqrt()

    @torch.no_grad()
    def _potential_jet(self, points: Tensor, t: float) -> Jet:
        """Return H with its first derivatives at points (N, d), in the units of `PairNetworks`."""
        unit = self._unit(points)
        return self.fields.potential(make_variables(unit, torch.full_like(unit[:, 0], t), "none"))

    def _unit(self, points: Tensor) -> Tensor:
        """Return points (N, d) in the scaled box."""
        return self.box.to_points(points).float()

    def _state(self) -> dict[str, np.ndarray]:
        weights = self.fields.state_dict().items()
        return {
            "trunk": np.array(json.dumps(to_table(self.fields.trunk))),
            **{f"weights/{name}": value.numpy() for name, value in weights},
        }

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> PinnPath:
        trunk = from_table(Trunk, json.loads(str(state["trunk"])))
        fields = _build_networks(trunk, source.grid, seed=0)
        prefix = "weights/"
        fields.load_state_dict(
            {
                name.removeprefix(prefix): torch.from_numpy(value)
                for name, value in state.items()
                if name.startswith(prefix)
            }
        )
        return cls(source, target, solver, info, fields.requires_grad_(False))
