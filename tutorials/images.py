# %% [markdown]
# # Two images to a morph
#
# A picture is a density: bright pixels hold mass. The Wasserstein geodesic carries the mass of
# one picture to the other and moves it as little as possible. Here a spiral becomes a heart; both
# pictures come with geonet. The tutorial writes its files into the current folder.

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
# Read your own pictures in the same way, with `geonet.from_image("a.png")`. Add `invert=True` for
# dark ink on bright paper. Both pictures must have the same size; `density.resample(grid)`
# changes it.
#
# ## The path
#
# One call solves the pair. `auto`, the default, looks at the pair and chooses a solver; the report
# names it.

# %%
path = geonet.geodesic(spiral, heart)
print(path.report.summary())
print(path.report)

# %% [markdown]
# The summary is in plain sentences, the table has the numbers. Mass error, mass below zero and
# the errors at both ends should be zero. W2 lies between "at least" and "at most". The network was
# not trained on empty cells and sharp edges ("in distribution" is false), so Newton's method
# corrected its answer. The error is estimated from the mismatch of both ends halfway.

# %%
report = path.report
assert max(report.mass_error, report.source_error, report.target_error) < 1e-3
assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
print(f"W2 = {report.distance:.4f} of the picture's side")

# %% [markdown]
# ## A second opinion
#
# The best check is a second solver that shares nothing with the first. The Schrödinger bridge takes
# any densities. It adds a little noise to the particles, which blurs the frames between the ends
# by about a hundredth of the picture's side.

# %%
noisy = geonet.geodesic(spiral, heart, solver="schrodinger", epsilon=3e-4, tolerance=1e-4)
apart = l1(path.density(0.5), noisy.density(0.5))
print(f"L1 between the two at t = ½: {apart:.2%}; expected: {report.error_estimate or 0:.2%}")
print(f"W2: {path.distance:.4f} and {noisy.distance:.4f}")

# %% [markdown]
# ## Pictures
#
# The geodesic moves the ink; the linear mixture, at the bottom, fades one drawing out and the
# other one in.

# %%
faded = geonet.geodesic(spiral, heart, solver="linear")
figure = plot_together({"auto": path, "with noise": noisy, "mixture": faded})
figure.savefig("frames.png")

# %%
tracks = path.plot(kind="tracks")
tracks.savefig("tracks.png")

# %% [markdown]
# You can evaluate a path on any grid of the same box, so the animation may be finer than the
# drawings. If ffmpeg is installed, the name may also end in `.mp4`. `explore` writes a page for the
# browser with a time slider; a notebook shows it if a cell ends with `path`.

# %%
path.animate("morph.gif", frames=21, grid=path.grid.with_shape(128))
path.explore("morph.html")
path.save("path.npz")
again = geonet.load("path.npz")
print(again.density(0.3))

# %% [markdown]
# ## On the command line
#
# These commands do the same without Python:
#
# ```bash
# geonet geodesic a.png b.png -o morph.gif --report
# geonet geodesic a.png b.png -o fine.gif --solver schrodinger --option epsilon=3e-4
# ```
