"""A geodesic given by its potential at t = ½, for a batch of pairs at once.

With s = t − ½, the particle that is at y halfway is at x = y + s∇u(y) at time t: all along a
straight line at constant speed, so Hamilton–Jacobi holds by construction,

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|²

and the density there is known from either end,

    ρ0 = μ0(x − t v)·det(I − t Dv)            ρ1 = μ1(x + (1 − t)v)·det(I + (1 − t)Dv),

which agree where u is right. The answer is (1 − t)ρ0 + tρ1: exact at both ends whatever u is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.autograd import with_dual_gradient
from geonet.numerics.characteristics import Characteristics, Origin
from geonet.numerics.cosine import CosineSeries
from geonet.paths import Geodesic
from geonet.solvers.bures import gaussian_distance
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.certificate import (
    POINTS,
    Calibration,
    Ends,
    Halfway,
    Pairs,
    Traced,
    compiled_ends,
    density_at,
    look_halfway,
    traced,
    traced_frames,
)
from geonet.solvers.neural.transport.potential import CELLS, acceleration, refined, velocity_on_cube
from geonet.solvers.neural.transport.splines import Splines

# ---- Densities between the ends, on grids, in single precision: what is asked for most.
#
# In the unit cube, with v and Dv at the cells of a grid,
#
#     ρ0 = μ0(x − t v)·det(I − t Dv)            ρ1 = μ1(x + (1 − t)v)·det(I + (1 − t)Dv)
#
# and the answer is (1 − t)ρ0 + tρ1.


def put_frames(
    answer: Tensor,
    moments: Sequence[int],
    coefficients: Tensor,
    ends: Ends,
    times: Tensor,
    grid: Grid,
) -> None:
    """Fill answer[:, moments], answer (B, times, cells), with the densities at times (T,).

    From potentials (B, modes, …) at t = ½, in the units of the grid's box.
    """
    if (splines := compiled_ends(ends)) is not None:
        velocity = compiled.velocity(coefficients, times)
        compiled.put_frames(answer, moments, splines, velocity, times, grid)
        return
    velocity, slope = refined(velocity_on_cube(coefficients, times), grid)
    t, spread = times[:, None], packed.invariants(slope)
    source, target = (
        density_at(end, unit_points(grid), velocity, s) * packed.characteristic(spread, -s)
        for end, s in zip(ends, (t, t - 1), strict=True)
    )
    mean = torch.lerp(source, target, t).clamp_(min=0)
    answer[:, moments] = unit_box(grid).from_density(mean)


def at_rest(end: Splines | Traced, grid: Grid) -> Tensor:
    """The density of an end on a grid, in the units of its box, (B, cells)."""
    still = [torch.zeros(len(end), 1, grid.size, dtype=torch.float32)] * grid.dimension
    return unit_box(grid).from_density(density_at(end, unit_points(grid), still, 0.0)[:, 0])


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def unit_points(grid: Grid) -> Tensor:
    """The cells of a grid in the unit cube around its box, (d, cells), single precision."""
    points = unit_box(grid).to_points(grid.points())
    return points.reshape(-1, grid.dimension).T.float().contiguous()


class MidpointGeodesic(Geodesic):
    """The path of a batch of pairs from its potentials at t = ½.

    Args:
        source: one density, or a batch of B.
        target: likewise.
        solver: the name.
        notes: for the report.
        coefficients: c, (B, modes, …, modes), of u(x) = Σ_k c_k Π_i cos(k_i π x_i) in the unit cube
            around the box, with |eigenvalues of ½D²u| < 1.
        calibration: what the mismatch means for this solver; None if that was not measured.
        usual: per pair, whether it is like those that the solver was made for, (B,).
        pairs: source and target once more, where their ends were made ready already.
        followed: the coefficients once more, in double precision, where autograd is to follow them
            back to source and target.
    """

    kind = "midpoint"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        coefficients: Tensor,
        calibration: Calibration | None = None,
        usual: Tensor | None = None,
        pairs: Pairs | None = None,
        followed: Tensor | None = None,
    ):
        super().__init__(source, target, solver, notes)
        self.followed = followed
        self.coefficients = coefficients
        self.calibration = calibration
        self.usual = usual
        self.pairs = pairs or Pairs(source.detach(), target.detach())
        self.box = self.pairs.box

    def _pair(self, k: int) -> MidpointGeodesic:
        notes = self._notes_of(k)
        usual = None if self.usual is None else self.usual[k : k + 1]
        own = self.coefficients[k : k + 1]
        followed = None if self.followed is None else self.followed[k : k + 1]
        known = self.source[k], self.target[k], self.solver, notes, own, self.calibration, usual
        return MidpointGeodesic(*known, followed=followed)

    # ---- densities: single precision, on grids, unless gradients are wanted

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        if self.followed is not None and torch.is_grad_enabled():
            return self._followed_density(self.followed, times, grid)
        shape = (len(self.coefficients), len(times), grid.size)
        answer, moments = torch.empty(shape, dtype=torch.float64), times.tolist()
        inside = [k for k, t in enumerate(moments) if t not in (0, 1)]
        frame = max(grid.size, CELLS[self._dimension] ** self._dimension)
        for some, ends in self.pairs.chunks(frame * len(times)):
            for k in set(range(len(times))) - set(inside):  # nothing has moved
                answer[some, k] = self._end(ends, some, int(moments[k]), grid)
            step = max(1, POINTS // (frame * len(ends[0])))
            for start in range(0, len(inside), step):
                now = inside[start : start + step]
                moving = self.coefficients[some], ends, times[now].float()
                put_frames(answer[some], now, *moving, grid)
        return answer.reshape(*self.batch, len(times), *grid.shape)

    def _followed_density(self, coefficients: Tensor, times: Tensor, grid: Grid) -> Tensor:
        ends = traced(self.source), traced(self.target)
        frames = list(traced_frames(coefficients, ends, times, grid).unbind(1))
        for k, t in enumerate(times.tolist()):
            if t in (0, 1) and grid == self.grid:  # also where splines round zeros
                frames[k] = ends[int(t)].tensor.double().flatten(1)
        return torch.stack(frames, 1).reshape(*self.batch, len(times), *grid.shape)

    def _end(self, ends: Ends, some: slice, which: int, grid: Grid) -> Tensor:
        """Source or target, (B, cells)."""
        if grid == self.grid:
            return self.pairs.ends[which][some].flatten(1)
        return at_rest(ends[which], grid)

    @property
    def trusted(self) -> Tensor:
        """Per pair, (B,), whether its mismatch is within the limit of the solver's own pairs."""
        limit = -1.0 if self.calibration is None else self.calibration.limit
        return self.halfway.mismatch <= limit

    def expected_error(self) -> Tensor:
        """Per pair, (B,), the L1 error to expect; infinite where that was never measured."""
        mismatch = self.halfway.mismatch
        if self.calibration is None:
            return torch.full_like(mismatch, torch.inf)
        return self.calibration.error(mismatch)

    @cached_property
    def halfway(self) -> Halfway:
        """What can be said about every pair from t = ½ alone."""
        return look_halfway(self.pairs, self.coefficients)

    def _distance(self) -> Tensor:
        """W2² = ½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0) at t = ½: Kantorovich's dual value of u.

        A useless u may give less than the moments alone, which bound W2 from below as well.
        """
        dual = self.box.from_velocity(self.halfway.distance).reshape(self.batch)
        dual = with_dual_gradient(dual, self.source, self.target, self._kantorovich)
        spreads = self.source.covariance(), self.target.covariance()
        moments = gaussian_distance(self.target.mean() - self.source.mean(), *spreads)
        return torch.maximum(dual, moments)

    def _checks(self) -> dict[str, Tensor]:
        halfway = self.halfway
        checks = {
            "distance_lower_bound": self.box.from_velocity(halfway.lower),
            "distance_upper_bound": self.box.from_velocity(halfway.upper),
            "mismatch": halfway.mismatch,
            "hamilton_jacobi": torch.cat([acceleration(c) for c in self.coefficients.split(64)]),
            "smallest_determinant": halfway.determinant,
        }
        if self.calibration is not None:
            checks["error_estimate"] = self.expected_error()
        if self.usual is not None:
            checks["in_distribution"] = self.usual
        return {name: check.reshape(self.batch) for name, check in checks.items()}

    # ---- at scattered points: double precision, one pair after the other

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._each(times, points, lambda _, origin: origin.gradient)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return self._each(
            times, points, lambda t, o: o.value + 0.5 * (t - 0.5) * (o.gradient**2).sum(-1)
        )

    def _each(
        self, times: Tensor, points: Tensor, answer: Callable[[float, Origin], Tensor]
    ) -> Tensor:
        """What `answer` makes of where the particles at `points` are halfway."""
        answers = []
        followed = self.followed if torch.is_grad_enabled() else None
        for own in self.coefficients if followed is None else followed:
            scaled = self.box.from_potential(own.to(torch.float64))
            lines = Characteristics(CosineSeries(scaled, self.box.cube))
            origins = lines.origins(times - 0.5, points)
            moments = zip(times.tolist(), origins, strict=True)
            answers.append(torch.stack([answer(t, origin) for t, origin in moments]))
        return torch.stack(answers) if self.batch else answers[0]

    def _state(self) -> dict[str, np.ndarray]:
        state = {"coefficients": self.coefficients.numpy()}
        if self.calibration is not None:
            state["calibration"] = np.array([self.calibration.slope, self.calibration.limit])
        if self.usual is not None:
            state["usual"] = self.usual.numpy()
        return state

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> MidpointGeodesic:
        tensors = {name: torch.from_numpy(value) for name, value in state.items()}
        calibration = tensors.get("calibration")
        return cls(
            source,
            target,
            solver,
            notes,
            tensors["coefficients"],
            None if calibration is None else Calibration(*calibration.tolist()),
            tensors.get("usual"),
        )
