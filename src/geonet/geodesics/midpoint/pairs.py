"""Pairs of densities in the unit cube, ready to be read between their cells, some at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from geonet.geodesics.midpoint.ends import Ends, ends_of
from geonet.measures.density import Density
from geonet.measures.unit_box import unit_box

KEPT = 2**23  # numbers that are held on to, 32 MB for each end
POINTS = 2**19  # answered at a time: memory stays bounded, and near the processor


class Pairs:
    """The ends of one path, or of a batch of them.

    Attributes:
        grid: where the densities live.
        box: of the grid in the unit cube.
    """

    def __init__(self, source: Density, target: Density):
        self.grid = source.grid
        self.box = unit_box(self.grid)
        self.ends = [end.values.reshape(-1, *self.grid.shape) for end in (source, target)]
        self._kept: Ends | None = None

    def __len__(self) -> int:
        return len(self.ends[0])

    def chosen(self, which: Tensor) -> tuple[Density, Density]:
        """The ends of some pairs, which (B,) is true for, as a batch."""
        source, target = (Density(end[which], self.grid) for end in self.ends)
        return source, target

    def chunks(self, points: int) -> Iterator[tuple[slice, Ends]]:
        """As many pairs at a time as `points` of each allow, with their ends."""
        step = max(1, POINTS // max(points, self.grid.size))
        for start in range(0, len(self), step):
            some = slice(start, min(start + step, len(self)))
            yield some, self._ends(some)

    def _ends(self, some: slice) -> Ends:
        """The ends of some pairs; kept if those of all pairs are not too large."""
        if len(self) * self.grid.size > KEPT:
            return self._make(some)
        if self._kept is None:
            self._kept = self._make(slice(None))
        if some == slice(0, len(self)):
            return self._kept
        return self._kept[0][some], self._kept[1][some]  # pyright: ignore[reportReturnType]

    def _make(self, some: slice) -> Ends:
        source, target = self.ends
        return ends_of(source[some], target[some], self.grid)
