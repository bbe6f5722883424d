# %% [markdown]
# # Two images to a morph
#
# A picture is a density: bright pixels hold mass. The geodesic carries the mass of one picture to
# the other with the least total squared displacement. Here a spiral becomes a heart; both pictures
# come with geonet.

# %%
from importlib.resources import as_file, files

import geonet
from geonet.metrics import l1
from geonet.plotting import plot_together

with as_file(files("geonet") / "demo_data") as folder:
    spiral = geonet.from_image(folder / "spiral.png")
    heart = geonet.from_image(folder / "heart.png")
print(spiral, heart, sep="\n")

# %% [markdown]
# Read your own pictures with `geonet.from_image("a.png")`. `invert=True` is for dark ink on bright
# paper. Both pictures must have the same size; `density.resample(grid)` changes it.
#
# ## The path
#
# The summary of the report is in plain sentences, the table has the numbers. W2 lies between the
# bounds "at least" and "at most".

# %%
path = geonet.geodesic(spiral, heart)
print(path.report.summary())
print(path.report)

# %% [markdown]
# ## A second solver
#
# The Schrödinger bridge is computed by a different method. It adds noise to the particles, which
# blurs the frames by about a hundredth of the picture's side.

# %%
noisy = geonet.geodesic(spiral, heart, solver="schrodinger", epsilon=3e-4, tolerance=1e-4)
apart = l1(path.density(0.5), noisy.density(0.5))
print(f"L1 between the two at t = ½: {apart:.2%}; expected: {path.report.error_estimate or 0:.2%}")
print(f"W2: {path.distance:.4f} and {noisy.distance:.4f}")

# %% [markdown]
# ## Pictures
#
# The geodesic moves the ink. The linear blend fades one drawing out and the other one in. A path
# can be evaluated on any grid of the same box, so the animation may be finer than the drawings.

# %%
blend = geonet.geodesic(spiral, heart, solver="linear")
plot_together({"Geodesic": path, "Linear blend": blend}).savefig("images.png", dpi=110)
path.animate("morph.gif", frames=21, grid=path.grid.with_shape(128))
path.explore("morph.html")  # a page with a time slider and particles
path.save("path.npz")
print(geonet.load("path.npz").density(0.3))

# %% [markdown]
# The command line does the same:
#
# ```bash
# geonet geodesic a.png b.png -o morph.gif --report
# ```
