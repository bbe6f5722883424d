# %% [markdown]
# # The mean of several densities
#
# The mean of pictures, value by value, is a blur in which all of them are visible at once. The
# Wasserstein barycenter averages positions instead: it has the shape that lies between the
# others. Here handwritten digits, which come with geonet, are averaged. The tutorial writes
# its files into the current folder.

# %%
from pathlib import Path

import numpy as np

import geonet
from geonet.metrics import l1
from geonet.weights import make_table

sample = np.load(Path(geonet.__file__).with_name("demo_data") / "mnist-sample.npz")
images, labels = sample["images"], sample["labels"]
print(f"{len(images)} digits of {images.shape[1]}×{images.shape[2]} pixels")

# %% [markdown]
# Four fives become densities on one grid. A little blur suits pictures with 28 pixels along a
# side.

# %%
grid = geonet.Grid((28, 28))
chosen = images[labels == 5][:4]
fives = [geonet.Density(image.astype(float), grid).gaussian_blur(0.7) for image in chosen]

# %% [markdown]
# ## One barycenter
#
# Without weights all densities count the same. The report says how far from optimal the result can
# be: the weighted sum of squared distances lies between a lower bound, which no density can beat,
# and the upper bound of this density.

# %%
mean = geonet.barycenter(fives)
print(mean.report.summary())
print(f"objective {mean.objective:.5f}, gap {mean.gap:.2%}")
mean.plot(cmap="viridis").savefig("mean.png")

# %% [markdown]
# A mean of values spreads the mass over many more pixels. Both pictures have mass one, so the sum
# of squares measures how concentrated they are.

# %%
faded = np.mean([five.values for five in fives], axis=0)
sharp, blurred = (float((v**2).sum()) * grid.cell_volume for v in (mean.density.values, faded))
print(f"concentration: {sharp:.2f} (barycenter), {blurred:.2f} (mean of values)")

# %% [markdown]
# ## Maps
#
# The barycenter knows the optimal map to every density. The centre of mass of a density is
# the mean of the positions to which its map takes the barycenter.

# %%
points = grid.points().numpy()
mass = mean.density.values[..., None] * grid.cell_volume
for i, five in enumerate(fives):
    moved = (mean.map(i, points) * mass).sum((0, 1))
    print(f"density {i}: mapped to {moved.round(3)}, centre of mass {five.mean().round(3)}")

# %% [markdown]
# ## A table between four corners
#
# Weights of shape (5, 5, 4) give 25 barycenters, each of which starts from the potentials of a
# neighbour. The corners are the densities themselves.

# %%
table = geonet.barycenter(fives, make_table(4, 5), tolerance=5e-3)
print(table, f"largest residual {max(one.solution.residual for one in table.flat):.2%}")
table.plot().savefig("table.png")
apart = l1(table[2, 2].density, mean.density)
print(f"L1 between the centre of the table and the barycenter: {apart:.2%}")

# %% [markdown]
# `explore` writes a page for the browser with a point to drag between the four corners.

# %%
table.explore("table.html")
table.animate("table.gif")
table.save("table.npz")
print(geonet.load("table.npz"))

# %% [markdown]
# ## On the command line
#
# These commands do the same without Python:
#
# ```bash
# geonet barycenter a.png b.png c.png d.png -o mean.png
# geonet barycenter a.png b.png c.png d.png --table 5 -o table.html
# ```
