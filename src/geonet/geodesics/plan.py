"""Paths given by a transport plan between cells.

Mass w_ij travels straight from cell i to cell j. At time t it fills a box of one cell's size around
(1−t)x_i + t·y_j, and every output cell takes the share of the box that lies in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.geodesics.base import Geodesic
from geonet.geodesics.gradients import with_dual_gradient
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.particles import deposit

DISTANCES = 2**22  # held at a time


class PlanGeodesic(Geodesic):
    """Boxes of mass moving straight. `cells` is the grid whose cell the boxes have the size of."""

    kind = "plan"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        start: Tensor,
        end: Tensor,
        mass: Tensor,
        cells: Grid,
        dual: Tensor | None = None,
    ):
        super().__init__(source, target, solver, notes)
        self.start, self.end, self.mass, self.cells = start, end, mass, cells
        self._dual = dual  # ψ at the plan's end points, (P,)

    def _distance(self) -> Tensor:
        distance = (self.mass * ((self.end - self.start) ** 2).sum(-1)).sum().sqrt()
        ends = self.source.resample(self.cells), self.target.resample(self.cells)
        return with_dual_gradient(distance, *ends, self._kantorovich)

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """φ is the least of ½|x − y|² − ψ(y) over the plan's end points, ψ likewise of φ.

        So cells without mass have what it would cost to put some there.
        """
        assert self._dual is not None
        points = self.cells.points().reshape(-1, self._dimension)
        first = _conjugate(points, self.end, self._dual)
        at_starts = _conjugate(self.start, self.end, self._dual)
        second = _conjugate(points, self.start, at_starts)
        return first.reshape(self.cells.shape), second.reshape(self.cells.shape)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = [
            deposit(torch.lerp(self.start, self.end, float(t)), self.mass, self.cells.spacing, grid)
            for t in times
        ]
        return torch.stack(frames)

    def _checks(self) -> dict[str, Tensor]:
        """Boxes of coarser cells than the grid's are the blur."""
        if self.cells == self.grid:
            return {}
        return {"blur": torch.tensor(max(self.cells.spacing), dtype=torch.float64)}

    def _state(self) -> dict[str, np.ndarray]:
        return {
            "start": self.start.numpy(),
            "end": self.end.numpy(),
            "mass": self.mass.numpy(),
            "cells": np.array(self.cells.shape),
        }

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> PlanGeodesic:
        start, end, mass = (torch.from_numpy(state[key]) for key in ("start", "end", "mass"))
        cells = source.grid.with_shape(state["cells"].tolist())
        return cls(source, target, solver, notes, start, end, mass, cells)


def _conjugate(points: Tensor, others: Tensor, dual: Tensor) -> Tensor:
    """min_j ½|x − y_j|² − ψ_j at points x (N, d), for y (M, d) and ψ (M,): (N,)."""
    rows = max(1, DISTANCES // len(others))
    parts = [(_distances(some, others) ** 2 / 2 - dual).amin(1) for some in points.split(rows)]
    return torch.cat(parts)


def _distances(points: Tensor, others: Tensor) -> Tensor:
    """(n, m); by differences, since squares would lose the digits of boxes far from zero."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")
