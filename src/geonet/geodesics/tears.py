"""Whether a pair tears: mass that lies together in the source and ends far apart."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.errors import UnavailableError
from geonet.geodesics.base import Geodesic

PLACES = {1: 64, 2: 32, 3: 16}  # an axis, at most: neighbours are as far apart on finer grids
FAINT = 1e-3  # of the highest density: a place with less counts as empty
APART = 0.1  # of the box: neighbours whose ways differ by less stay together
UNUSUAL = 3.0  # times what neighbours usually part by, where everything is stretched


def torn_share(path: Geodesic) -> float | None:
    """The share of the mass with a neighbour that ends elsewhere; None where no way is known.

    The source is looked at on at most 32 × 32 places, in 1D on 64 and in 3D on 16³. Two
    neighbouring places with mass part where their displacements differ by more than a tenth of the
    box, and by more than three times the median of all neighbours: what is stretched evenly is not
    torn.
    """
    most = PLACES.get(path.grid.dimension)
    if most is None:
        return None
    grid = path.grid.with_shape([min(n, most) for n in path.grid.shape])
    density = path.source.resample(grid).values.double()
    full = density > FAINT * density.max()
    points = grid.points()[full]
    try:
        ends = path.trajectories(1.0, points)
    except UnavailableError:
        return None
    ways = torch.zeros(*grid.shape, grid.dimension, dtype=torch.float64)
    ways[full] = ends - points
    torn = _torn(ways, full, grid.longest)
    return float(density[torn].sum() / density[full].sum())


def _torn(ways: Tensor, full: Tensor, longest: float) -> Tensor:
    """Places (*shape) that part from a neighbour, for displacements (*shape, d)."""
    pairs = []
    for axis, n in enumerate(full.shape):
        first, second = (_slice_of(k, n, axis) for k in (0, 1))
        both = full[first] & full[second]
        pairs.append((first, second, both, (ways[first] - ways[second]).norm(dim=-1)))
    gaps = torch.cat([gap[both] for _, _, both, gap in pairs])
    torn = torch.zeros_like(full)
    if not len(gaps):
        return torn
    limit = max(APART * longest, UNUSUAL * float(gaps.median()))
    for first, second, both, gap in pairs:
        parted = both & (gap > limit)
        torn[first] |= parted
        torn[second] |= parted
    return torn


def _slice_of(k: int, n: int, axis: int) -> tuple[slice, ...]:
    """All places but the last (k = 0) or the first (k = 1) along an axis of n."""
    return (*(slice(None),) * axis, slice(k, n - 1 + k))
