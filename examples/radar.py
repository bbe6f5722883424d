# %% [markdown]
# # Rain between two radar images
#
# `rain.interp(time=...)` fades one radar image into the next: in between, every shower appears
# twice, at half its strength. `rain.geonet.interp(time=...)` carries both along their motion.
# Here every second image is left out and interpolated. Set `RADAR_FILES` to a folder or pattern of
# radar files (see `geonet.xarray.open_radar`). Without it the rain is synthetic, which shows how to
# call the functions, not how accurate they are: real showers have more texture and live shorter.

# %%
import os

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

import geonet.xarray

if "RADAR_FILES" in os.environ:
    images = geonet.xarray.open_radar(os.environ["RADAR_FILES"])[::2]
    rain = images.coarsen(y=4, x=4, boundary="trim").reduce(np.mean, keep_attrs=True).load()
else:
    rain = geonet.xarray.synthetic_rain()
rain = rain[: len(rain) - (len(rain) + 1) % 2]  # the last one is kept
kept, left_out = rain[::2], rain[1::2]
print(dict(rain.sizes), rain.attrs.get("units"))

# %% [markdown]
# ## Three ways to fill the gaps
#
# The geodesic of optimal transport (`motion=None`) moves all mass along the shortest ways, which
# underestimates the motion of rain.

# %%
ways = {
    "fade": kept.interp(time=left_out.time),
    "geodesic": kept.geonet.interp(time=left_out.time, missing="exclude", motion=None),
    "motion": kept.geonet.interp(time=left_out.time, missing="exclude"),
}

# %% [markdown]
# **Error** is the sum of all differences, **CSI** the share of hits among the cells in which the
# image or its interpolation has 1 mm/h or more, **sharpness** the sum of slopes. All are relative
# to the truth. Cells that are missing in either field do not count.

# %%
print(f"{'':10}{'error':>11}{'CSI':>11}{'total':>11}{'sharpness':>11}")
for way, field in {"truth": left_out, **ways}.items():
    field, truth = field.where(left_out.notnull()), left_out.where(field.notnull())
    hits, either = (field >= 1) & (truth >= 1), (field >= 1) | (truth >= 1)
    slopes = [sum(abs(one.diff(dim)).sum() for dim in one.dims[1:]) for one in (field, truth)]
    row = [abs(field - truth).sum() / truth.sum(), hits.sum() / either.sum()]
    row += [field.sum() / truth.sum(), slopes[0] / slopes[1]]
    print(f"{way:10}" + "".join(f"{100 * float(value):9.1f} %" for value in row))

# %% [markdown]
# The picture shows the square of 48 × 48 measured cells with the most rain.

# %%
k, side = len(left_out) // 2, 48
sums = left_out[k].rolling(dict.fromkeys(rain.dims[1:], side)).sum()
corner = sums.argmax(rain.dims[1:])
square = {dim: slice(int(end) - side + 1, int(end) + 1) for dim, end in corner.items()}
shown = {"Before": kept[k], "After": kept[k + 1], "Left out, truth": left_out[k]}
shown |= {"rain.interp": ways["fade"][k], "rain.geonet.interp": ways["motion"][k]}
figure = Figure(figsize=(9.6, 2.3), layout="constrained")
axes = figure.subplots(1, len(shown))
norm = PowerNorm(0.5, vmin=0, vmax=float(left_out[k].quantile(0.999)))
for ax, (name, field) in zip(axes, shown.items(), strict=True):
    image = field[square].sortby(field.dims[1])
    drawn = ax.imshow(image, origin="lower", cmap="magma", norm=norm, interpolation="bicubic")
    ax.set(title=name, xticks=[], yticks=[])
    ax.title.set_fontsize("medium")
figure.colorbar(drawn, ax=axes, label="mm/h", shrink=0.8, aspect=15)
figure.savefig("radar.png", dpi=100)

# %% [markdown]
# ## Motion, totals and nowcasts
#
# Totals integrate the rate along the motion, so that a fast shower leaves a track and not one spot
# for each image. A nowcast carries the last image on, without growth and decay.

# %%
wind = kept.geonet.velocity(time=left_out.time[k], missing="exclude").where(left_out[k] >= 0.1)
print({name: f"{float(wind[name].mean()):.3g} {wind[name].attrs.get('units')}" for name in wind})

totals = kept[k : k + 2].geonet.accumulate("5min", missing="exclude")
print(f"{float(totals.sum('time').max()):.3g} {totals.attrs['units']} at most between two images")

soon = kept[:-1].geonet.nowcast(time=kept.time[-1], missing="exclude")
last = kept[-1].where(soon.notnull())
errors = (float(abs(f - last).sum() / last.sum()) for f in (kept[-2], soon))
print("errors of the last image and the nowcast:", *(f"{100 * error:.1f} %" for error in errors))
