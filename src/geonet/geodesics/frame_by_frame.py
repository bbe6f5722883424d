"""Paths of libraries that solve one frame after the other: computed when asked for, and kept."""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from geonet.advice import argument
from geonet.errors import ConvergenceWarning
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import resample
from geonet.progress import tell
from geonet.quiet import callers_level
from geonet.wording import number


class FrameByFrame(Geodesic):
    """Nothing but the density comes from it. `notes` tells at which times it stopped early.

    Attributes:
        library: whose barycenters they are.
        softer: the option that makes them easier when it is larger, and blurs them.
    """

    frames_are_slow = True
    library: ClassVar[str]
    softer: ClassVar[str]

    def __init__(self, source: Density, target: Density, options: Any, notes: dict[str, Any]):
        # the list is filled as frames are asked for; a stack of paths holds the same list
        super().__init__(source, target, options.name, notes | {"stopped early at t": []})
        self._options = options
        self._frames: dict[float, Tensor] = {}

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        for t in times.tolist():
            if t not in self._frames:
                tell(f"{self.solver}: the frame at t = {number(t)}, in one piece")
                self._frames[t] = self._frame(t)
        frames = torch.stack([self._frames[t] for t in times.tolist()])
        return frames if grid.shape == self.grid.shape else resample(frames, self.grid, grid)

    @abstractmethod
    def _frame(self, t: float) -> Tensor:
        """The barycenter at time t on the grid of the pair."""

    def _checks(self) -> dict[str, Tensor]:
        """A variance of half the regularisation, with the outer centres one apart."""
        if not self._blurs:
            return {}
        longest = max(range(self._dimension), key=lambda axis: self.grid.lengths[axis])
        extent = self.grid.lengths[longest] - self.grid.spacing[longest]
        share = math.sqrt(getattr(self._options, self.softer) / 2)
        return {"blur": torch.tensor(share * extent, dtype=torch.float64)}

    @property
    def _blurs(self) -> bool:
        """Whether the barycenter is that of the entropic cost, and not corrected for its bias."""
        return True

    def _masses(self) -> list[np.ndarray]:
        """Of the cells of both ends, (*grid.shape) each, double precision."""
        volume = self.grid.cell_volume
        return [end.values.detach().double().numpy() * volume for end in (self.source, self.target)]

    def _warn(self, t: float, error: float, iterations: int) -> None:
        if t not in self.notes["stopped early at t"]:  # a loaded path may have it already
            self.notes["stopped early at t"].append(t)
        warnings.warn(
            f"{self.library}'s barycenter at t = {t:g} stopped at an error of {number(error, 2)} "
            f"(tolerance {self._options.tolerance:g}) after {iterations} iterations; "
            f"give more {argument('max_iterations')} or a larger {argument(self.softer)}.",
            ConvergenceWarning,
            stacklevel=callers_level(),
        )

    def _state(self) -> dict[str, np.ndarray]:
        return {key: np.array(value) for key, value in dataclasses.asdict(self._options).items()}
