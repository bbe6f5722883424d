# %% [markdown]
# # Volumes
#
# Paths exist in 3D, too, with the same calls: a grid has three axes, and so have the frames. Here
# a trefoil knot becomes a ring. Read stacks of microscopes with `geonet.read("stack.tif")`.

# %%
import numpy as np
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter, map_coordinates

import geonet

grid = geonet.Grid((32, 32, 32), -4, 4)


def draw_tube(curve):
    """Return a tube around a closed curve, with a smooth surface."""
    offsets = grid.points().numpy()[..., None, :] - np.stack(curve, axis=-1)
    distance = np.sqrt((offsets**2).sum(-1)).min(-1)
    return geonet.Density(1 / (1 + np.exp((distance - 0.7) / 0.1)), grid)


s = np.linspace(0, 2 * np.pi, 200, endpoint=False)
knot = np.sin(s) + 2 * np.sin(2 * s), np.cos(s) - 2 * np.cos(2 * s), -1.2 * np.sin(3 * s)
source = draw_tube(knot)
target = draw_tube((2.3 * np.cos(s), 2.3 * np.sin(s), 0 * s))

# %% [markdown]
# ## The path
#
# Frames may be finer than the grid of the solver. Every frame has mass one.

# %%
path = geonet.geodesic(source, target)
print(path.report.summary())
fine = grid.with_shape(64)
frames = path.density([0, 0.25, 0.5, 0.75, 1], grid=fine)
print(frames, frames.values.sum((1, 2, 3)) * fine.cell_volume)

# %% [markdown]
# ## A picture of surfaces
#
# `path.plot()` shows projections. Here rays find the surface at which the density is a share of its
# maximum, and the direction of its gradient gives the light.


# %%
def render(values, pixels=220, tilt=0.9):
    """Return an image of the surface of a volume, seen from above at an angle."""
    values = gaussian_filter(values, 1)
    side = np.linspace(-1, 1, pixels)
    v, u, depth = np.meshgrid(side[::-1], side, side, indexing="ij")  # rays run along `depth`
    y = v * np.sin(tilt) + depth * np.cos(tilt)
    z = v * np.cos(tilt) - depth * np.sin(tilt)
    cells = len(values) / 2 * (np.stack((u, y, z)) + 1) - 0.5
    inside = map_coordinates(values, cells, order=1) > 0.35 * values.max()
    hit = inside.argmax(-1)
    surface = np.take_along_axis(cells, hit[None, ..., None], axis=-1)[..., 0]
    normal = -np.stack([map_coordinates(g, surface, order=1) for g in np.gradient(values)])
    normal /= np.linalg.norm(normal, axis=0) + 1e-12
    light = np.array([-0.4, -0.1, 0.9]) / np.linalg.norm([0.4, 0.1, 0.9])
    shade = 0.3 + 0.6 * np.tensordot(light, normal, 1).clip(0)
    return np.where(inside.any(-1), shade, 0)


figure = Figure(figsize=(9.6, 2.15), layout="constrained")
for ax, t, values in zip(
    figure.subplots(1, 5), (0, 0.25, 0.5, 0.75, 1), frames.values, strict=True
):
    ax.imshow(render(values), cmap="magma", vmin=0, vmax=1)
    ax.set(title=f"t = {t}", xticks=[], yticks=[])
figure.savefig("volumes.png", dpi=100)
