"""OTT-JAX's entropic barycenters with weights (1−t, t), debiased by default.

They minimise the same functional as POT's (`barycenter`), by a compiled iteration of OTT, in double
precision. The kernel exp(−|x − y|²/ε) itself is used and not its logarithm: that is much faster,
and in the log domain OTT 0.6.0 corrects its debiased barycenters with a wrong potential, so that
they come out blurred (`_discrete_barycenter` gives `update_potential` its two potentials in wrong
order).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.pot_barycenter import FrameByFrame
from geonet._utils import suppress_warnings
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid
from geonet.solvers.base import Solver, SolverInfo

DEFAULT_EPSILON = {1: 6e-4, 2: 4e-3, 3: 1e-2}  # by dimension; as for POT's, which take no 3D
CHECKED_EVERY = 10  # iterations: measuring the error costs nearly one


@dataclass(frozen=True)
class OttBarycenter(Solver):
    """OTT-JAX's debiased barycenters: `FixedBarycenter` on OTT's `Grid` geometry.

    It takes any box and any number of cells along each axis. JAX compiles the iteration, so the
    first call for a grid of a new shape takes a second or two longer. JAX computes in double
    precision here; its global setting stays as it is. It needs the extra `ott`:
    `pip install 'geonet-ot[ott]'`.

    If `epsilon` is too small for the distance that mass has to travel, the kernel underflows and
    `ConvergenceError` is raised. The log domain, POT's remedy, is not offered: in OTT 0.6.0 the
    debiased barycenter comes out blurred there. If it stops early, it warns, as `barycenter`
    does.

    Attributes:
        epsilon: weight of the entropy against the squared distance, in units in which the first and
            the last cell centre along the longest axis are one apart, as `reg` of `barycenter` is.
            None: 6e-4 in 1D, 4e-3 in 2D, 1e-2 in 3D.
        tolerance: L1 error of the plans' marginals at which it stops; OTT's threshold.
        max_iterations: rounded up to tens, as the error is measured after every tenth.
        debiased: remove the entropic blur (Janati, Cuturi and Gramfort 2020).
    """

    info = SolverInfo(
        name="ott-barycenter",
        summary="1D to 3D, OTT-JAX's debiased barycenter, compiled; needs the extra ott",
        family="entropic",
        dimensions=(1, 2, 3),
        provides=("density",),
        tolerance="L1 error of the plans' marginals",
        more_iterations="a larger max_iterations",
        less_blur="a smaller epsilon",
    )

    epsilon: float | None = None
    tolerance: float = 1e-4
    max_iterations: int = 10_000
    debiased: bool = True

    def __post_init__(self) -> None:
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise SolverError(f"epsilon is {self.epsilon:g}; give a positive number.")
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )

    def _solve_pair(self, source: Density, target: Density) -> OttBarycenterPath:
        import_library("ott")  # raise here, not at the first density, if it is missing
        epsilon = DEFAULT_EPSILON[source.grid.dimension] if self.epsilon is None else self.epsilon
        return OttBarycenterPath(source, target, dataclasses.replace(self, epsilon=epsilon))


class OttBarycenterPath(FrameByFrame):
    """Barycenters with weights (1−t, t), computed on demand and cached."""

    kind = "ott-barycenter"
    library = "OTT"
    softer = "epsilon"

    @property
    def _blurs(self) -> bool:
        return not self._options.debiased

    def __init__(self, source: Density, target: Density, options: OttBarycenter):
        info = {"epsilon": options.epsilon, "debiased": options.debiased}
        super().__init__(source, target, options, info)

    def _frame(self, t: float) -> Tensor:
        masses, errors = self._solve(t)
        if not (np.isfinite(masses).all() and math.isfinite(errors[-1])):
            raise ConvergenceError(
                f"OTT's barycenter at t = {t:g} is not finite: its kernel underflows at "
                f"epsilon = {self._options.epsilon:g}; give a larger epsilon or another solver.",
                float(errors[-1]),
            )
        if not errors[-1] <= self._options.tolerance:
            self._warn(t, float(errors[-1]), CHECKED_EVERY * len(errors))
        return torch.from_numpy(masses).reshape(self.grid.shape) / self.grid.cell_volume

    def _solve(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the masses (cells,) as OTT gives them, and the errors (E,) that it measured."""
        options, ends = self._options, self._masses()
        # This call only, since the setting is global and the user's own.
        with import_library("jax").enable_x64(True):
            masses, errors = _compiled_barycenter()(
                _scaled_axes(self.grid),
                np.stack([end.reshape(-1) for end in ends]),
                np.array([1 - t, t]),
                np.float64(options.epsilon),
                np.float64(options.tolerance),
                max_iterations=options.max_iterations,
                debiased=options.debiased,
            )
        measured = np.asarray(errors)
        return np.array(masses), measured[measured != -1]  # OTT marks unused entries by −1

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> OttBarycenterPath:
        options = {key: value.item() for key, value in state.items()}
        path = cls(source, target, OttBarycenter(**options))
        path.info = info
        return path


@cache
def _compiled_barycenter() -> Callable[..., Any]:
    """Return OTT's solver as a function that JAX compiles once per shape and static option.

    It maps the axes' points [(n_i,)], masses (2, cells), weights (2,), epsilon and tolerance to the
    barycenter (cells,) and the errors (E,), −1 if not measured. One call per time is as fast as a
    call that is vectorised over times, and needs no compilation for other numbers of times.
    """
    geometry = import_library("ott.geometry.grid")
    problem = import_library("ott.problems.linear.barycenter_problem")
    solver = import_library("ott.solvers.linear.discrete_barycenter")

    @partial(import_library("jax").jit, static_argnames=("max_iterations", "debiased"))
    def barycenter(axes, masses, weights, epsilon, tolerance, *, max_iterations, debiased):
        solve = solver.FixedBarycenter(
            threshold=tolerance,
            inner_iterations=CHECKED_EVERY,
            max_iterations=max_iterations,
            lse_mode=False,
            debiased=debiased,
        )
        grid = geometry.Grid(x=axes, epsilon=epsilon)
        answer = solve(problem.FixedBarycenterProblem(grid, masses, weights))
        return answer.histogram, answer.errors[:, 0]

    return barycenter


def _scaled_axes(grid: Grid) -> list[np.ndarray]:
    """Return cell centres along each axis, from zero; along the longest axis they end at one."""
    spans = [length - h for length, h in zip(grid.lengths, grid.spacing, strict=True)]
    return [
        np.linspace(0.0, span / max(spans), n) for span, n in zip(spans, grid.shape, strict=True)
    ]


def import_library(module: str) -> Any:
    """Return a module of JAX or OTT, which are optional dependencies."""
    try:
        with suppress_warnings():  # jaxopt, which OTT imports, says that it is deprecated
            return import_module(module)
    except ImportError as error:
        raise SolverError(
            "This solver needs OTT-JAX, which is not installed; run pip install 'geonet-ot[ott]'."
        ) from error
