"""Pairs of densities as tables in the unit cube, some at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from geonet.measures.density import Density
from geonet.solvers.midpoint.lookup import FINER, density_table

Tables = tuple[Tensor, Tensor]  # of source and target, (B, 1, *nodes) each
KEPT = 2**23  # nodes that are held on to, 32 MB for each end
POINTS = 2**19  # answered at a time: memory stays bounded, and near the processor


class Pairs:
    """The ends of one path, or of a batch of them.

    Attributes:
        grid: where the densities live.
        length: L, the side of the cube around the grid's box.
    """

    def __init__(self, source: Density, target: Density):
        self.grid = source.grid
        self.length = max(self.grid.lengths)
        self.ends = [end.values.reshape(-1, *self.grid.shape) for end in (source, target)]
        self._nodes = FINER**self.grid.dimension * self.grid.size  # of one table
        self._kept: Tables | None = None

    def __len__(self) -> int:
        return len(self.ends[0])

    def chosen(self, which: Tensor) -> tuple[Density, Density]:
        """The ends of some pairs, which (B,) is true for, as a batch."""
        source, target = (Density(end[which], self.grid) for end in self.ends)
        return source, target

    def chunks(self, points: int) -> Iterator[tuple[slice, Tables]]:
        """As many pairs at a time as `points` of each allow, with the tables of their ends."""
        step = max(1, POINTS // max(points, self._nodes))
        for start in range(0, len(self), step):
            some = slice(start, start + step)
            yield some, self._tables(some)

    def _tables(self, some: slice) -> Tables:
        """The tables of some pairs; kept if those of all pairs are not too large."""
        if len(self) * self._nodes > KEPT:
            return self._make(some)
        if self._kept is None:
            self._kept = self._make(slice(None))
        return self._kept[0][some], self._kept[1][some]

    def _make(self, some: slice) -> Tables:
        source, target = (density_table(end[some], self.grid) for end in self.ends)
        return source, target
