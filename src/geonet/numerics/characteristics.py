"""Straight characteristics of a geodesic that is given by its potential at t = 0.

A particle moves from x_0 to x_t = x_0 + t∇u_0(x_0), and along its path

    u_t(x_t) = u_0(x_0) + (t/2)|∇u_0(x_0)|²                                    (Hopf–Lax)
    μ_t(x_t) = μ_0(x_0) / det(I + tD²u_0(x_0))
             = μ_1(x_1) · det(I + D²u_0(x_0)) / det(I + tD²u_0(x_0)).

To evaluate a field at x, Newton's method solves x_0 + t∇u_0(x_0) = x for x_0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from geonet._format import format_number
from geonet.errors import ConvergenceError
from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.cosine import CosineSeries


class Preimage(NamedTuple):
    """Starting points x_0 (N, d) of particles, with u_0 (N,), ∇u_0 (N, d) and D²u_0 (N, d, d)."""

    point: Tensor
    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def determinant(self, t: float) -> Tensor:
        """Return det(I + tD²u_0), (N,): the volume ratio of the map from time 0 to t."""
        return packed.determinant(packed.pack(self.hessian), t)


class Characteristics:
    """The lines x_0 + t∇u_0(x_0) of a potential with I + D²u_0 > 0, traced back to t = 0.

    Args:
        series: u_0. Up to `max_direct_modes` coefficients are summed term by term; splines are
            faster for more.

    Attributes:
        accuracy: largest error of x_0, as a fraction of the longest side of the box.
        max_iterations: largest number of Newton steps.
    """

    accuracy = 1e-10
    max_iterations = 50
    max_direct_modes = 512

    def __init__(self, series: CosineSeries):
        self.grid = series.grid
        self._requires_grad = series.coefficients.requires_grad
        direct = series.coefficients.numel() <= self.max_direct_modes
        finer = self.grid.with_shape([2 * n for n in series.coefficients.shape])
        self.potential_at = series.at if direct else series.tabulate(finer)
        self._corners = self.grid.lower_tensor, self.grid.upper_tensor
        largest = float(torch.stack(self._corners).abs().max())
        rounding = 8 * torch.finfo(torch.float64).eps * largest
        self._tolerance = self.accuracy * self.grid.max_side + rounding

    def trace_back(self, times: Tensor, points: Tensor) -> list[Preimage]:
        """Return, for each t, the starting points of the particles that are at `points` (N, d)."""
        solutions: dict[int, Preimage] = {}
        with torch.no_grad():
            origin, before = self._evaluate(points), 0.0
            for k in torch.argsort(times).tolist():  # each time starts from the one before
                t = float(times[k])
                origin = solutions[k] = self._solve(t, points, self._predict(origin, before, t))
                before = t
        origins = [solutions[k] for k in range(len(times))]
        if torch.is_grad_enabled() and (self._requires_grad or points.requires_grad):
            pairs = zip(times.tolist(), origins, strict=True)
            return [self._attach_gradient(t, points, origin) for t, origin in pairs]
        return origins

    def _evaluate(self, points: Tensor) -> Preimage:
        return Preimage(points, *self.potential_at(points))

    def _predict(self, origin: Preimage, before: float, t: float) -> Preimage:
        """Follow x_0 from the time `before` to t along its derivative in t."""
        if t == before:
            return origin
        rate = _solve_jacobian(origin.hessian, before, origin.gradient)
        return self._evaluate((origin.point - (t - before) * rate).clamp(*self._corners))

    def _solve(self, t: float, points: Tensor, origin: Preimage) -> Preimage:
        """Solve x_0 + t∇u_0(x_0) = points by Newton's method."""
        error = float("inf")
        for _ in range(self.max_iterations):
            residual = origin.point + t * origin.gradient - points
            error = float(residual.abs().max())
            if error <= self._tolerance:
                return origin
            step = _solve_jacobian(origin.hessian, t, residual)
            origin = self._line_search(t, points, origin, step, residual.norm(dim=-1))
        raise ConvergenceError(
            f"Tracing the particles at t = {t:g} back stopped at error {format_number(error, 2)}, "
            "since the map is nearly singular; smooth the densities.",
            error,
        )

    def _line_search(
        self, t: float, points: Tensor, origin: Preimage, step: Tensor, before: Tensor
    ) -> Preimage:
        """Take the Newton step, halved for each point until its residual decreases."""
        size = torch.ones(len(points), 1, dtype=torch.float64)
        trial = origin
        for _ in range(8):
            trial = self._evaluate((origin.point - size * step).clamp(*self._corners))
            worse = (trial.point + t * trial.gradient - points).norm(dim=-1) > before
            if not bool(worse.any()):
                break
            size[worse] /= 2
        return trial

    def _attach_gradient(self, t: float, points: Tensor, origin: Preimage) -> Preimage:
        """Make a solution differentiable in the potential and the points by one last Newton step.

        At a solution of x_0 + t∇u_0(x_0) = x a Newton step has the derivative of the solution.
        """
        _, gradient, hessian = self.potential_at(origin.point)
        residual = origin.point + t * gradient - points
        return self._evaluate(origin.point - _solve_jacobian(hessian.detach(), t, residual))


def _solve_jacobian(hessian: Tensor, t: float, right: Tensor) -> Tensor:
    """Return (I + tD²u)⁻¹·right, (N, d)."""
    return torch.stack(packed.solve(packed.pack(hessian), t, right.unbind(-1)), -1)
