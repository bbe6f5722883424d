"""POT's entropic barycenters with weights (1−t, t): the paper's reference, and the debiased ones.

The plain barycenter of a pair is not the geodesic: entropy blurs it, at t = 0 and t = 1 as well.
With the first and the last cell centre one apart, the variance of a Gaussian grows by about reg/2
along each axis. It is left as POT gives it, since published figures refer to it.
The debiased barycenter (Janati, Cuturi and Gramfort 2020) takes most of the blur away.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import ot
import torch
from torch import Tensor

from geonet._format import format_number
from geonet._progress import report_progress
from geonet._utils import user_stacklevel
from geonet.density import Density
from geonet.errors import ConvergenceError, ConvergenceWarning, SolverError
from geonet.grid import Grid
from geonet.numerics.interpolation import resample
from geonet.paths import Geodesic
from geonet.solvers.base import Solver, SolverInfo

# ---- Paths of libraries that solve frame by frame: computed on demand and cached.


class FrameByFrame(Geodesic):
    """Path that provides only the density. `info` lists the times at which it stopped early.

    Attributes:
        library: name of the library.
        softer: option that makes the problem easier, and the result more blurred, if larger.
    """

    frames_are_slow = True
    library: ClassVar[str]
    softer: ClassVar[str]

    def __init__(self, source: Density, target: Density, options: Any, info: dict[str, Any]):
        # frames on demand fill the list; a stack of paths holds the same list
        super().__init__(source, target, options.name, info | {"stopped early at t": []})
        self._options = options
        self._frames: dict[float, Tensor] = {}

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        for t in times.tolist():
            if t not in self._frames:
                report_progress(f"{self.solver}: the frame at t = {format_number(t)}, in one piece")
                self._frames[t] = self._frame(t)
        frames = torch.stack([self._frames[t] for t in times.tolist()])
        return frames if grid.shape == self.grid.shape else resample(frames, self.grid, grid)

    @abstractmethod
    def _frame(self, t: float) -> Tensor:
        """Return the barycenter at time t on the grid of the pair."""

    def _diagnostics(self) -> dict[str, Tensor]:
        """Return a variance of half the regularisation, with the outer centres one apart."""
        if not self._blurs:
            return {}
        longest = max(range(self._dimension), key=lambda axis: self.grid.lengths[axis])
        extent = self.grid.lengths[longest] - self.grid.spacing[longest]
        share = math.sqrt(getattr(self._options, self.softer) / 2)
        return {"blur": torch.tensor(share * extent, dtype=torch.float64)}

    @property
    def _blurs(self) -> bool:
        """Return True if the entropic bias is not corrected."""
        return True

    def _masses(self) -> list[np.ndarray]:
        """Return the masses of the cells of both ends, (*grid.shape) each, double precision."""
        volume = self.grid.cell_volume
        return [end.tensor.detach().double().numpy() * volume for end in (self.source, self.target)]

    def _warn(self, t: float, error: float, iterations: int) -> None:
        if t not in self.info["stopped early at t"]:  # a loaded path may have it already
            self.info["stopped early at t"].append(t)
        warnings.warn(
            f"{self.library}'s barycenter at t = {t:g} stopped at an error of "
            f"{format_number(error, 2)} (tolerance {self._options.tolerance:g}) after {iterations} "
            f"iterations; give a larger max_iterations or a larger {self.softer}.",
            ConvergenceWarning,
            stacklevel=user_stacklevel(),
        )

    def _state(self) -> dict[str, np.ndarray]:
        return {key: np.array(value) for key, value in dataclasses.asdict(self._options).items()}


METHODS = ("sinkhorn", "sinkhorn_log")
DEFAULT_REG = {1: 6e-4, 2: 4e-3}  # the paper's, by dimension


@dataclass(frozen=True)
class Barycenter(Solver):
    """POT's entropic barycenters with weights (1 − t, t): the paper's reference, left as it is.

    It calls `ot.bregman.barycenter` in 1D and `ot.bregman.convolutional_barycenter2d` in 2D. Frames
    are computed on demand and cached.

    Entropy blurs the path, at both ends too. For small `reg` the kernel underflows. A result
    that is not finite raises `ConvergenceError`, but POT may also report convergence to a wrong
    one; look at the errors of the ends in the report. If POT stops early, a `ConvergenceWarning`
    is given and the report lists the times. In 2D it takes square grids only.

    Attributes:
        reg: weight of the entropy against the squared distance, in units in which the first and the
            last cell centre along an axis are one apart. None: 6e-4 in 1D, 4e-3 in 2D.
        max_iterations: POT's numItermax.
        tolerance: POT's stopThr.
        method: POT's method; "sinkhorn_log" is slower and does not underflow.
    """

    info = SolverInfo(
        name="barycenter",
        summary="1D and 2D, POT's entropic barycenter, blurred; the paper's reference",
        family="entropic",
        dimensions=(1, 2),
        provides=("density",),
        tolerance="POT's stopThr",
        more_iterations="a larger max_iterations",
        less_blur="a smaller reg",
    )

    reg: float | None = None
    max_iterations: int = 10_000
    tolerance: float = 1e-4
    method: str = "sinkhorn"

    def __post_init__(self) -> None:
        if self.reg is not None and not (math.isfinite(self.reg) and self.reg > 0):
            raise SolverError(f"reg is {self.reg:g}; give a positive number.")
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )
        if self.method not in METHODS:
            raise SolverError(
                f"The solver {self.name!r} has no method {self.method!r}; "
                f"choose from {', '.join(METHODS)}."
            )

    def _solve_pair(self, source: Density, target: Density) -> BarycenterPath:
        grid = source.grid
        self._check_grid(grid)
        reg = DEFAULT_REG[grid.dimension] if self.reg is None else self.reg
        return BarycenterPath(source, target, dataclasses.replace(self, reg=reg))

    def _check_grid(self, grid: Grid) -> None:
        uneven = grid.max_side - min(grid.lengths) > 1e-9 * grid.max_side
        if len(set(grid.shape)) > 1 or uneven:
            raise SolverError(
                f"POT's 2D barycenter takes a square box with as many cells either way, "
                f"not {grid}; "
                "use density.resample(grid) or choose another solver."
            )

    def _pot(self, dimension: int) -> Callable[..., Any]:
        return ot.bregman.barycenter if dimension == 1 else ot.bregman.convolutional_barycenter2d


@dataclass(frozen=True)
class DebiasedBarycenter(Barycenter):
    """POT's debiased barycenters (Janati, Cuturi and Gramfort 2020), by default in the log domain.

    It calls `ot.bregman.barycenter_debiased` in 1D and `convolutional_barycenter2d_debiased` in 2D.
    Most of the blur is gone, and densities need not be smooth. It is slow and has the
    other limits of `barycenter`.

    Attributes:
        reg: as for `barycenter`, with the same defaults.
        max_iterations: POT's numItermax.
        tolerance: POT's stopThr.
        method: POT's method; "sinkhorn" is faster and may underflow.
    """

    info = dataclasses.replace(
        Barycenter.info,
        name="debiased-barycenter",
        summary="1D and 2D, POT's debiased barycenter: slow, takes densities that are not smooth",
        less_blur=None,
    )

    method: str = "sinkhorn_log"

    def _pot(self, dimension: int) -> Callable[..., Any]:
        if dimension == 1:
            return ot.bregman.barycenter_debiased
        return ot.bregman.convolutional_barycenter2d_debiased


class BarycenterPath(FrameByFrame):
    """Barycenters with weights (1−t, t), computed on demand and cached."""

    kind = "pot-barycenter"
    library = "POT"
    softer = "reg"

    @property
    def _blurs(self) -> bool:
        return not isinstance(self._options, DebiasedBarycenter)

    def __init__(self, source: Density, target: Density, options: Barycenter):
        super().__init__(source, target, options, {"reg": options.reg, "method": options.method})

    def _frame(self, t: float) -> Tensor:
        masses, error = self._solve(t)
        if not np.isfinite(masses).all():
            raise ConvergenceError(
                f"POT's barycenter at t = {t:g} is not finite: its kernel underflows at "
                f"reg = {self._options.reg:g}; "
                "give a larger reg, method='sinkhorn_log' or another solver.",
                error,
            )
        if not error < self._options.tolerance:
            self._warn(t, error, self._options.max_iterations)
        return torch.from_numpy(masses) / self.grid.cell_volume

    def _solve(self, t: float) -> tuple[np.ndarray, float]:
        """Return the masses (*grid.shape) as POT gives them, and the error at which it stopped."""
        options, ends = self._options, self._masses()
        if self._dimension == 1:
            problem = (np.stack(ends, axis=1), _squared_distances(self.grid))
        else:
            problem = (np.stack(ends),)
        with np.errstate(all="ignore"):  # underflow is judged by its outcome
            masses, log = options._pot(self._dimension)(
                *problem,
                options.reg,
                weights=np.array([1 - t, t]),
                method=options.method,
                numItermax=options.max_iterations,
                stopThr=options.tolerance,
                log=True,
                warn=False,
            )
        return masses, float(log["err"][-1]) if log["err"] else math.inf

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> BarycenterPath:
        options = {key: value.item() for key, value in state.items()}
        path = cls(source, target, _BY_NAME[solver](**options))
        path.info = info
        return path


_BY_NAME = {options.info.name: options for options in (Barycenter, DebiasedBarycenter)}


def _squared_distances(grid: Grid) -> np.ndarray:
    """Return squared distances of the cell centres over their maximum, (n, n)."""
    x = np.linspace(0.0, 1.0, grid.shape[0])
    return (x[:, None] - x) ** 2
