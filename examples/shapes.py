# %% [markdown]
# # Distances between shapes
#
# W2 measures how far the ink of one shape must move to form another one. Here a map is drawn from
# the distances between twenty shapes alone: rectangles and ellipses, of which some have a hole.

# %%
import numpy as np
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

import geonet

CELLS, PARTS = 48, 4  # cells along a side, and points along a side of each cell
grid = geonet.Grid((CELLS, CELLS))
y, x = geonet.Grid((CELLS * PARTS,) * 2, -0.5, 0.5).points().numpy().transpose(2, 0, 1)


def draw_shape(power, ratio, hole):
    """Return a rectangle (power 8) or an ellipse (power 2) as a density with smooth edges."""
    width, height = 0.25 * ratio**0.5, 0.25 / ratio**0.5
    radius = (abs(x / width) ** power + abs(y / height) ** power) ** (1 / power)
    inside = (radius < 1) & (radius > hole)
    return geonet.Density(inside.reshape(CELLS, PARTS, CELLS, PARTS).mean((1, 3)), grid)


ratios = np.geomspace(1 / 2.2, 2.2, 5)
kinds = [(power, ratio, hole) for ratio in ratios for power in (2, 8) for hole in (0, 0.6)]
shapes = [draw_shape(*kind) for kind in kinds]

# %% [markdown]
# ## The matrix of distances
#
# All 190 pairs are solved in one call. Every distance lies between two bounds, and `gap` is the
# largest difference of bounds relative to the largest distance.

# %%
result = geonet.pairwise_distances(shapes)
print(f"distances {result.distances.shape}, bounds within {result.gap:.2%} of the largest")
result.save("distances.csv", names=[f"shape-{k}" for k in range(len(shapes))])

# %% [markdown]
# ## A map of the shapes
#
# Classical multidimensional scaling places the shapes so that their distances in the plane are
# close to W2. The two largest eigenvalues give the share of the variance that a plane can show.

# %%
squares = result.distances**2
centred = -0.5 * (squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean())
values, vectors = np.linalg.eigh(centred)
places = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1])
print(f"the plane shows {values[-2:].sum() / values.clip(0).sum():.0%} of the variance")

# %%
figure = Figure(figsize=(9.6, 4.1), layout="constrained")
ax, table = figure.subplots(1, 2, width_ratios=(1.2, 1))
for place, shape in zip(places, shapes, strict=True):
    image = OffsetImage(shape.values, zoom=1.1, cmap="magma", interpolation="bilinear")
    image.get_children()[0].set_alpha(shape.values / shape.values.max())
    ax.add_artist(AnnotationBbox(image, place, frameon=False))
low, high = places.min(0) - 0.02, places.max(0) + 0.02
ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[], facecolor="black")
ax.set_title("Map drawn from the distances alone")
drawn = table.imshow(result.distances, cmap="magma")
table.set(title="W2 between all pairs", xticks=[], yticks=[])
figure.colorbar(drawn, ax=table, shrink=0.85, ticks=[0, 0.05, 0.1, 0.15])
figure.savefig("shapes.png", dpi=100)

# %% [markdown]
# On the command line, `geonet distances a.png b.png c.png -o matrix.csv --bounds` does the same.
