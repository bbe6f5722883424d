# %% [markdown]
# # The mean of several densities
#
# The mean of pictures, value by value, shows all of them at once. The Wasserstein barycenter
# averages positions instead: its shape lies between the others.

# %%
import numpy as np

import geonet
from geonet.weights import make_table

CELLS, PARTS = 64, 4  # cells along a side, and points along a side of each cell
x, y = geonet.Grid((CELLS * PARTS,) * 2, -0.5, 0.5).points().numpy().transpose(2, 0, 1)
radius, near, far = np.hypot(x, y), np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))


def draw_shape(mask):
    """Return the density of a shape whose edge cells are filled in part."""
    cells = mask.astype(float).reshape(CELLS, PARTS, CELLS, PARTS).mean((1, 3))
    return geonet.Density(cells, geonet.Grid((CELLS, CELLS)))


disc, ring = draw_shape(radius < 0.3), draw_shape((radius < 0.36) & (radius > 0.23))
square, cross = draw_shape(far < 0.27), draw_shape((near < 0.08) & (far < 0.36))

# %% [markdown]
# ## One barycenter
#
# Without weights all densities count the same. The weighted sum of squared distances, `objective`,
# lies between a lower bound for all densities and an upper bound for this density.

# %%
mean = geonet.barycenter([ring, cross])
print(mean.report.summary())
print(f"objective {mean.objective:.5f}, gap {mean.gap:.2%}")
faded = (ring.values + cross.values) / 2
concentrations = ((v**2).mean() for v in (mean.density.values, faded))
print("concentration: {:.2f} (barycenter), {:.2f} (mean of values)".format(*concentrations))

# %% [markdown]
# The barycenter has the optimal map to every density. The mean of the positions to which its map
# takes the barycenter is the centre of mass of the density.

# %%
mass = mean.density.values[..., None] * mean.grid.cell_volume
moved = (mean.map(1, mean.grid.points().numpy()) * mass).sum((0, 1))
print(f"cross: mapped to {moved.round(3)}, centre of mass {cross.mean().round(3)}")

# %% [markdown]
# ## A table between four corners
#
# Weights of shape (5, 5, 4) give 25 barycenters, each of which starts from the potentials of a
# neighbour. The corners are the densities themselves. `table.report` has the bounds of all entries.

# %%
table = geonet.barycenter([disc, ring, square, cross], make_table(4, 5))
print(f"{table}, in the middle: {table[2, 2].report.summary().headline}")
table.plot().savefig("barycenters.png", dpi=100)
table.explore("table.html")  # a page with a point to drag between the corners

# %% [markdown]
# The command line does the same:
#
# ```bash
# geonet barycenter a.png b.png c.png d.png --table 5 -o table.html
# ```
