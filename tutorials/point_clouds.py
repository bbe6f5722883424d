# %% [markdown]
# # Point clouds
#
# Take two clouds of points, say a ring of eight groups and two half-moons. Where does each point
# go, and what do the clouds look like halfway? Libraries for flow matching train a network for
# every such pair. Here we count the clouds on a grid, and the geodesic between the two histograms
# carries the points.

# %%
import numpy as np
import ot

import geonet

rng = np.random.default_rng(0)
angles = 2 * np.pi * rng.integers(0, 8, 4000) / 8
groups = 3 * np.stack([np.cos(angles), np.sin(angles)], 1) + 0.3 * rng.normal(size=(4000, 2))
turn = np.pi * rng.random(3000)
upper = rng.random(3000) < 0.5
moons = np.stack([np.cos(turn), np.sin(turn)], 1) * np.where(upper, 1, -1)[:, None]
moons = 2 * (moons + np.where(upper, -0.5, 0.5)[:, None] * [1, 0.5]) + 0.2 * rng.normal(
    size=(3000, 2)
)

# %% [markdown]
# ## Clouds to densities
#
# The numbers of points need not agree, since a density has mass one. Points can have weights:
# `from_samples(points, grid, weights=…)`. Counts are noisy. A blur of about a cell makes them
# smooth, and smooth densities have better paths.

# %%
grid = geonet.Grid((64, 64), -5, 5, orientation="plane")  # pictures: x to the right, y upwards


def estimate_density(points):
    """Return the histogram of a cloud, blurred by a cell and a half."""
    return geonet.from_samples(points, grid).gaussian_blur(1.5)


source, target = estimate_density(groups), estimate_density(moons)

# %% [markdown]
# ## The path
#
# There is no smooth map between islands: the map is discontinuous inside a group that splits.
# `schrodinger` takes any densities. Its velocity is defined everywhere, so it can carry particles.

# %%
path = geonet.geodesic(source, target, solver="schrodinger")
print(path.report)

# %% [markdown]
# ## Particles
#
# The points move with the flow: from the groups at t = 0 to the moons at t = 1.

# %%
times = [0, 0.25, 0.5, 0.75, 1]
few = groups[:500]
moved = path.trajectories(times, few)  # (5, 500, 2)
print(moved.shape)

path.plot(times).savefig("clouds.png")
path.plot(kind="tracks").savefig("tracks.png")
path.explore("clouds.html")  # a page: drag time, and switch on "Particles"

# %% [markdown]
# Do they arrive? The target should be as dense where they end as where its own points are.

# %%
reached = path.target.at(moved[-1])
own = path.target.at(moons[:500])
print(f"median density at the ends: {np.median(reached):.3f}, at the moons: {np.median(own):.3f}")

# %% [markdown]
# ## The distance
#
# POT computes the exact distance between the clouds themselves, without a grid: `ot.emd2` gives
# W2², so we compare its root. The two differ for two reasons. Blur and cells change the densities
# a little, and 500 points of each cloud are only a sample.

# %%
exact = float(np.sqrt(ot.emd2([], [], ot.dist(groups[:500], moons[:500]))))
print(f"W2: {path.distance:.3f} on the grid, {exact:.3f} between 500 points of each")

# %% [markdown]
# ## Files
#
# geonet reads a csv file whose first line is `x,y` or `x,y,weight` as a cloud, on the command line
# too:
#
# ```bash
# geonet geodesic groups.csv moons.csv -o clouds.gif --resolution 64
# ```

# %%
np.savetxt("groups.csv", groups, delimiter=",", header="x,y", comments="")
again = geonet.read("groups.csv", grid)
assert np.allclose(again.numpy(), geonet.from_samples(groups, grid).numpy())
