"""A geodesic given by its potential at t = ½ as a cosine series, for a batch of pairs.

With s = t − ½, the particle at y at t = ½ is at x = y + s∇u(y) at time t. It moves along a straight
line at constant speed, so the Hamilton–Jacobi equation holds by construction,

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|²

and the density follows from either end,

    ρ0 = μ0(x − t v)·det(I − t Dv)            ρ1 = μ1(x + (1 − t)v)·det(I + (1 − t)Dv),

which agree for the exact u. The frames are (1 − t)ρ0 + tρ1, exact at both ends for any u.
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
from geonet.numerics.characteristics import Characteristics, Preimage
from geonet.numerics.cosine import CosineSeries
from geonet.paths import Geodesic
from geonet.solvers.bures import gaussian_distance
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.certificate import Calibration, Certificate, certify
from geonet.solvers.neural.transport.potential import (
    VELOCITY,
    interpolate_velocity,
    relative_acceleration,
    solve_velocity,
)
from geonet.solvers.neural.transport.splines import DensityPairs, DifferentiableDensity, Splines


class CosineGeodesic(Geodesic):
    """The path of a batch of pairs from their potentials at t = ½.

    Args:
        source: one density, or a batch of B.
        target: likewise.
        solver: name of the solver.
        info: entries of the report.
        coefficients: c, (B, modes, …, modes), of u(x) = Σ_k c_k Π_i cos(k_i π x_i) in the unit cube
            around the box, with |eigenvalues of ½D²u| < 1.
        calibration: relation of mismatch and error of this solver; None if it was not measured.
        in_distribution: whether each pair is in the distribution of the training, (B,).
        pairs: source and target with their splines, if these were computed already.
        differentiable_coefficients: the coefficients in double precision, with gradients in source
            and target.
    """

    kind = "cosine"
    has_bounds = True

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        coefficients: Tensor,
        calibration: Calibration | None = None,
        in_distribution: Tensor | None = None,
        pairs: DensityPairs | None = None,
        differentiable_coefficients: Tensor | None = None,
    ):
        super().__init__(source, target, solver, info)
        self.differentiable_coefficients = differentiable_coefficients
        self.coefficients = coefficients
        self.calibration = calibration
        self.in_distribution = in_distribution
        self.pairs = pairs or DensityPairs(source.detach(), target.detach())
        self.box = self.pairs.box

    def _pair(self, k: int) -> CosineGeodesic:
        differentiable = self.differentiable_coefficients
        return CosineGeodesic(
            self.source[k],
            self.target[k],
            self.solver,
            self._pair_info(k),
            self.coefficients[k : k + 1],
            self.calibration,
            None if self.in_distribution is None else self.in_distribution[k : k + 1],
            None,
            None if differentiable is None else differentiable[k : k + 1],
        )

    # ---- frames: single precision, unless gradients are needed

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        if self.differentiable_coefficients is not None and torch.is_grad_enabled():
            return self._differentiable_density(self.differentiable_coefficients, times, grid)
        shape = (len(self.coefficients), len(times), grid.size)
        frames, moments = torch.empty(shape, dtype=torch.float64), times.tolist()
        inner = [k for k, t in enumerate(moments) if t not in (0, 1)]
        size = max(grid.size, VELOCITY[self._dimension].cells ** self._dimension)
        for pairs, ends in self.pairs.chunks(size * len(times)):
            for k in set(range(len(times))) - set(inner):
                frames[pairs, k] = self._end_frame(ends, pairs, int(moments[k]), grid)
            step = max(1, self.pairs.chunk_points // (size * len(ends[0])))
            for start in range(0, len(inner), step):
                now = inner[start : start + step]
                coefficients, t = self.coefficients[pairs], times[now].float()
                write_frames(frames[pairs], now, coefficients, ends, t, grid)
        return frames.reshape(*self.batch, len(times), *grid.shape)

    def _differentiable_density(self, coefficients: Tensor, times: Tensor, grid: Grid) -> Tensor:
        source, target = map(DifferentiableDensity.from_density, (self.source, self.target))
        frames = list(differentiable_frames(coefficients, (source, target), times, grid).unbind(1))
        for k, t in enumerate(times.tolist()):
            if t in (0, 1) and grid == self.grid:  # exactly, although splines round zeros
                frames[k] = (target if t else source).tensor.double().flatten(1)
        return torch.stack(frames, 1).reshape(*self.batch, len(times), *grid.shape)

    def _end_frame(
        self, ends: tuple[Splines, Splines], pairs: slice, index: int, grid: Grid
    ) -> Tensor:
        """Return source or target, (B, cells)."""
        if grid == self.grid:
            return self.pairs.ends[index][pairs].flatten(1)
        return resample_endpoint(ends[index], grid)

    # ---- diagnostics

    @cached_property
    def certificate(self) -> Certificate:
        """Mismatch and bounds of every pair."""
        return certify(self.pairs, self.coefficients)

    @property
    def is_certified(self) -> Tensor:
        """Boolean per pair, (B,): the mismatch is within the limit of the training pairs."""
        limit = -1.0 if self.calibration is None else self.calibration.limit
        return self.certificate.mismatch <= limit

    def estimate_error(self) -> Tensor:
        """Return the expected L1 error of each pair, (B,); infinite without a calibration."""
        mismatch = self.certificate.mismatch
        if self.calibration is None:
            return torch.full_like(mismatch, torch.inf)
        return self.calibration.estimate_error(mismatch)

    def _distance(self) -> Tensor:
        """Return W2 from the dual value W2² = ½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0) at t = ½.

        For a poor u the distance of mean and covariance, another lower bound, may be larger.
        """
        dual = self.box.from_length(self.certificate.distance).reshape(self.batch)
        dual = with_dual_gradient(dual, self.source, self.target, self._kantorovich)
        covariances = self.source._covariance(), self.target._covariance()
        moments = gaussian_distance(self.target._mean() - self.source._mean(), *covariances)
        return torch.maximum(dual, moments)

    def _diagnostics(self) -> dict[str, Tensor]:
        certificate = self.certificate
        accelerations = [relative_acceleration(c) for c in self.coefficients.split(64)]
        checks = {
            "distance_lower_bound": self.box.from_length(certificate.lower),
            "distance_upper_bound": self.box.from_length(certificate.upper),
            "mismatch": certificate.mismatch,
            "hamilton_jacobi": torch.cat(accelerations),
            "smallest_determinant": certificate.determinant,
        }
        if self.calibration is not None:
            checks["error_estimate"] = self.estimate_error()
        if self.in_distribution is not None:
            checks["in_distribution"] = self.in_distribution
        return {name: check.reshape(self.batch) for name, check in checks.items()}

    # ---- scattered points: double precision, one pair after the other

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._map_points(times, points, lambda _, origin: origin.gradient)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return self._map_points(
            times, points, lambda t, o: o.value + 0.5 * (t - 0.5) * (o.gradient**2).sum(-1)
        )

    def _map_points(
        self, times: Tensor, points: Tensor, function: Callable[[float, Preimage], Tensor]
    ) -> Tensor:
        """Apply a function of t and the preimages at t = ½ of points at time t."""
        coefficients = self.coefficients
        if self.differentiable_coefficients is not None and torch.is_grad_enabled():
            coefficients = self.differentiable_coefficients
        results = []
        for own in coefficients:
            scaled = self.box.from_potential(own.to(torch.float64))
            lines = Characteristics(CosineSeries(scaled, self.box.cube))
            origins = lines.trace_back(times - 0.5, points)
            values = [function(t, o) for t, o in zip(times.tolist(), origins, strict=True)]
            results.append(torch.stack(values))
        return torch.stack(results) if self.batch else results[0]

    # ---- files

    def _state(self) -> dict[str, np.ndarray]:
        state = {"coefficients": self.coefficients.numpy()}
        if self.calibration is not None:
            state["calibration"] = np.array([self.calibration.slope, self.calibration.limit])
        if self.in_distribution is not None:
            state["in_distribution"] = self.in_distribution.numpy()
        return state

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> CosineGeodesic:
        tensors = {name: torch.from_numpy(value) for name, value in state.items()}
        calibration = tensors.get("calibration")
        return cls(
            source,
            target,
            solver,
            info,
            tensors["coefficients"],
            None if calibration is None else Calibration(*calibration.tolist()),
            tensors.get("in_distribution"),
        )


# ---- frames on grids


def write_frames(
    frames: Tensor,
    indices: Sequence[int],
    coefficients: Tensor,
    ends: tuple[Splines, Splines],
    times: Tensor,
    grid: Grid,
) -> None:
    """Write the densities at times (T,) to frames[:, indices], frames (B, times, cells).

    Args:
        frames: double precision, in the units of the grid's box.
        indices: indices of the T times in `frames`.
        coefficients: potentials (B, modes, …) at t = ½.
        ends: source and target.
        times: t, (T,), single precision.
        grid: the grid of the frames.
    """
    if compiled.supports(ends[0].grid):
        velocity = compiled.solve_velocity(coefficients, times, VELOCITY[2])
        compiled.write_frames(frames, indices, ends, velocity, times, grid)
        return
    velocity, jacobian = interpolate_velocity(solve_velocity(coefficients, times), grid)
    t, invariants = times[:, None], packed.invariants(jacobian)
    source, target = (
        end.at(unit_points(grid), velocity, s) * packed.characteristic_polynomial(invariants, -s)
        for end, s in zip(ends, (t, t - 1), strict=True)
    )
    mean = torch.lerp(source, target, t).clamp_(min=0)
    frames[:, indices] = unit_box(grid).from_density(mean)


def differentiable_frames(
    coefficients: Tensor,
    ends: tuple[DifferentiableDensity, DifferentiableDensity],
    times: Tensor,
    grid: Grid,
) -> Tensor:
    """Return the densities at times (T,) with gradients, (B, T, cells), in the grid's units.

    In contrast to `write_frames`, v and Dv are computed at the cells of the grid itself, along the
    characteristics, in double precision.
    """
    box, d = unit_box(grid), grid.dimension
    points = box.to_points(grid.points()).reshape(-1, d)
    velocity, before, after = [], [], []
    for own in coefficients:
        lines = Characteristics(CosineSeries(own, Grid((2,) * d)))
        for t, origin in zip(times.tolist(), lines.trace_back(times - 0.5, points), strict=True):
            determinant = origin.determinant(t - 0.5)
            velocity.append(origin.gradient)
            before.append(origin.determinant(-0.5) / determinant)
            after.append(origin.determinant(0.5) / determinant)
    shape = (len(coefficients), len(times), len(points))
    fields = torch.stack(velocity).reshape(*shape, d).unbind(-1)
    determinants = (torch.stack(part).reshape(shape) for part in (before, after))
    t = times[:, None]
    source, target = (
        end.at(points.T, fields, s) * determinant
        for end, s, determinant in zip(ends, (t, t - 1), determinants, strict=True)
    )
    return box.from_density(torch.lerp(source, target, t).clamp(min=0))


def resample_endpoint(end: Splines, grid: Grid) -> Tensor:
    """Return an endpoint on a grid, in the units of its box, (B, cells)."""
    zero = [torch.zeros(len(end), 1, grid.size, dtype=torch.float32)] * grid.dimension
    return unit_box(grid).from_density(end.at(unit_points(grid), zero, 0.0)[:, 0])


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def unit_points(grid: Grid) -> Tensor:
    """Return the cell centres of a grid in the unit cube, (d, cells), single precision."""
    points = unit_box(grid).to_points(grid.points())
    return points.reshape(-1, grid.dimension).T.float().contiguous()
