"""A table of barycenters between a disc, a ring, a square and a cross.

python examples/barycenter_table.py docs/images/barycenters.png
"""

import sys

import numpy as np

import geonet
from geonet.weights import make_table

CELLS, PARTS = 96, 4  # cells along a side, and points along a side of each cell


def shape(mask: np.ndarray) -> geonet.Density:
    """Return the density of a shape whose edge cells are filled in part."""
    cells = mask.astype(float).reshape(CELLS, PARTS, CELLS, PARTS).mean((1, 3))
    return geonet.Density(cells, geonet.Grid((CELLS, CELLS)))


x, y = geonet.Grid((CELLS * PARTS,) * 2, -0.5, 0.5).points().numpy().transpose(2, 0, 1)
radius, near, far = np.hypot(x, y), np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))
corners = [
    shape(radius < 0.3),
    shape((radius < 0.36) & (radius > 0.23)),
    shape(far < 0.27),
    shape((near < 0.08) & (far < 0.36)),
]
table = geonet.barycenter(corners, make_table(4, 5))
print(f"largest residual: {max(table.report.residual):.2%}")
gaps = table.gap[table.gap > 0]  # without the corners
print(f"gap between the bounds: {np.median(gaps):.1%} (median), {gaps.max():.1%} (largest)")
table.plot().savefig(sys.argv[1] if len(sys.argv) > 1 else "barycenters.png", dpi=100)
