"""The mixture (1−t)·μ_0 + t·μ_1."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.geodesics.base import Geodesic
from geonet.measures.grid import Grid


class LinearPath(Geodesic):
    """Not a geodesic of W2 but of L2; it has no velocity."""

    kind = "linear"

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        first, second = (end.resample(grid).values for end in (self.source, self.target))
        dtype = torch.promote_types(first.dtype, second.dtype)
        first, second = first.to(dtype), second.to(dtype)
        axis = len(self.batch)
        t = times.to(first.dtype).reshape(-1, *(1,) * grid.dimension)
        return torch.lerp(first.unsqueeze(axis), second.unsqueeze(axis), t)

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> LinearPath:
        return cls(source, target, solver, notes)
