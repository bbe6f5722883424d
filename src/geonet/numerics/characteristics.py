"""A geodesic given by its potential at t = 0: everything else follows along straight lines.

A particle goes from x_0 to x_t = x_0 + t∇u_0(x_0), and with it go

    u_t(x_t) = u_0(x_0) + (t/2)|∇u_0(x_0)|²                                    (Hopf–Lax)
    μ_t(x_t) = μ_0(x_0) / det(I + tD²u_0(x_0))
             = μ_1(x_1) · det(I + D²u_0(x_0)) / det(I + tD²u_0(x_0)).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from geonet._format import format_number
from geonet.errors import ConvergenceError
from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.cosine import CosineSeries

ACCURACY = 1e-10  # of x_0, in units of the box
MAX_STEPS = 50  # of Newton's method for x_0
FEW_MODES = 512  # series up to here are summed term by term; for longer ones splines are faster


class Origin(NamedTuple):
    """Where particles came from, and the potential there: x_0 (N, d), u_0, ∇u_0, D²u_0."""

    point: Tensor
    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def determinant(self, t: float) -> Tensor:
        """det(I + tD²u_0), (N,): how far neighbouring particles have spread by time t."""
        return packed.determinant(packed.entries(self.hessian), t)


class Characteristics:
    """The straight lines x_0 + t∇u_0(x_0) of a potential with I + D²u_0 > 0, followed backwards."""

    def __init__(self, series: CosineSeries):
        self.grid = series.grid
        self._varies = series.coefficients.requires_grad
        few = series.coefficients.numel() <= FEW_MODES
        finer = self.grid.with_shape([2 * n for n in series.coefficients.shape])
        self.potential_at = series.at if few else series.sampled(finer)
        self._corners = self.grid.corner("lower"), self.grid.corner("upper")
        rounding = (
            8 * torch.finfo(torch.float64).eps * float(torch.stack(self._corners).abs().max())
        )
        self._accuracy = ACCURACY * self.grid.longest + rounding

    def origins(self, times: Tensor, points: Tensor) -> list[Origin]:
        """For each t, the origins of the particles that are at `points` (N, d) then."""
        answers: dict[int, Origin] = {}
        with torch.no_grad():
            origin, before = self._start(points), 0.0
            for k in torch.argsort(times).tolist():  # each time starts from the one before
                t = float(times[k])
                origin = answers[k] = self._solve(t, points, self._predict(origin, before, t))
                before = t
        found = [answers[k] for k in range(len(times))]
        if torch.is_grad_enabled() and (self._varies or points.requires_grad):
            return [
                self._attached(t, points, o) for t, o in zip(times.tolist(), found, strict=True)
            ]
        return found

    def _attached(self, t: float, points: Tensor, origin: Origin) -> Origin:
        """The same with its gradient in the potential and in the points: one last Newton step.

        At a solution of x_0 + t∇u_0(x_0) = x the derivative of a step is that of the solution.
        """
        _, gradient, hessian = self.potential_at(origin.point)
        miss = origin.point + t * gradient - points
        return self._start(origin.point - _solved(hessian.detach(), t, miss))

    def _start(self, points: Tensor) -> Origin:
        return Origin(points, *self.potential_at(points))

    def _predict(self, origin: Origin, before: float, t: float) -> Origin:
        """Differentiate x_0 + t∇u_0(x_0) = x in t and follow x_0 from `before` to t."""
        if t == before:
            return origin
        rate = _solved(origin.hessian, before, origin.gradient)
        return self._start((origin.point - (t - before) * rate).clamp(*self._corners))

    def _solve(self, t: float, points: Tensor, origin: Origin) -> Origin:
        """Newton's method for x_0 + t∇u_0(x_0) = points."""
        worst = float("inf")
        for _ in range(MAX_STEPS):
            miss = origin.point + t * origin.gradient - points
            worst = float(miss.abs().max())
            if worst <= self._accuracy:
                return origin
            step = _solved(origin.hessian, t, miss)
            origin = self._damped(t, points, origin, step, miss.norm(dim=-1))
        raise ConvergenceError(
            f"The particles at t = {t:g} were traced back only to {format_number(worst, 2)}, since the "
            "map is nearly singular; smooth the densities.",
            worst,
        )

    def _damped(
        self, t: float, points: Tensor, origin: Origin, step: Tensor, before: Tensor
    ) -> Origin:
        """The Newton step, halved point by point while it brings the image no nearer."""
        size = torch.ones(len(points), 1, dtype=torch.float64)
        trial = origin
        for _ in range(8):
            trial = self._start((origin.point - size * step).clamp(*self._corners))
            worse = (trial.point + t * trial.gradient - points).norm(dim=-1) > before
            if not bool(worse.any()):
                break
            size[worse] /= 2
        return trial


def _solved(hessian: Tensor, t: float, right: Tensor) -> Tensor:
    """(I + tD²u)⁻¹·right, (N, d)."""
    return torch.stack(packed.solved(packed.entries(hessian), t, right.unbind(-1)), -1)
