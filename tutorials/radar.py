# %% [markdown]
# # Rain between two radar images
#
# `rain.interp(time=...)` fades one radar image into the next: in between, every shower is there
# twice, at half its strength. `rain.geonet.interp(time=...)` carries both along their motion.
# Here every second image is left out and interpolated. Set `RADAR_FILES` to a folder or pattern of
# radar files (see `geonet.xarray.open_radar`). Without it the rain is synthetic, which shows how to
# call the functions, not how accurate they are: real rain has more texture and shorter lives.

# %%
import os

import numpy as np
import xarray as xr
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from scipy.ndimage import map_coordinates

import geonet.xarray

if "RADAR_FILES" in os.environ:
    fine = geonet.xarray.open_radar(os.environ["RADAR_FILES"])
    rain = fine.coarsen(y=4, x=4, boundary="trim").mean(skipna=False, keep_attrs=True).load()
else:
    rain = geonet.xarray.synthetic_rain()
rain = rain[: len(rain) - (len(rain) + 1) % 2]  # the last one is kept
kept, left_out = rain[::2], rain[1::2]
print(dict(rain.sizes), rain.attrs.get("units"))

# %% [markdown]
# ## Four ways to fill the gaps
# The geodesic of optimal transport (`motion=None`) moves all mass along the shortest ways, which is
# wrong for rain. pysteps is compared if `pip install 'geonet-ot[radar]'` has installed it.


# %%
def advect(frames: xr.DataArray, times: np.ndarray) -> np.ndarray:
    """Carry both neighbours of each time half-way along pysteps' motion, and return their mean."""
    from pysteps import motion

    values, found = frames.fillna(0).values.astype(float), []
    cells = np.indices(values.shape[1:]).astype(float)
    for k in np.searchsorted(frames.time.values, times) - 1:
        pair = values[k : k + 2]
        decibels = np.where(pair >= 0.1, 10 * np.log10(np.maximum(pair, 0.1)), -15.0)
        flow = motion.get_method("LK")(decibels, verbose=False)[::-1]  # cells along x and y
        ways = zip(pair, (-0.5, 0.5), strict=True)
        ends = [map_coordinates(f, cells + s * flow, order=1, mode="nearest") for f, s in ways]
        found.append((ends[0] + ends[1]) / 2)
    return np.array(found)


ways = {
    "fade": kept.interp(time=left_out.time),
    "geodesic": kept.geonet.interp(time=left_out.time, missing="exclude", motion=None),
    "motion": kept.geonet.interp(time=left_out.time, missing="exclude"),
}
try:
    ways["pysteps"] = left_out.copy(data=advect(kept, left_out.time.values))
except ModuleNotFoundError as error:
    print(f"There is no {error.name}; pip install 'geonet-ot[radar]' adds pysteps to the table.")

# %% [markdown]
# ## Scores
# **Error** is the sum of all differences, **CSI** the share of hits among the cells where the image
# or its interpolation has 1 mm/h or more, **wet area** that of 0.1 mm/h or more, **sharpness** the
# sum of slopes. All are relative to the truth.

# %%
WET, HEAVY = 0.1, 1.0  # mm/h


def compare(field: xr.DataArray, truth: xr.DataArray) -> dict[str, float]:
    """Return the rows of the table; cells that are missing in either field do not count."""
    field, truth = field.where(truth.notnull()), truth.where(field.notnull())
    slopes = [
        sum(float(abs(one.diff(dim)).sum()) for dim in one.dims[1:]) for one in (field, truth)
    ]
    hits, either = (field >= HEAVY) & (truth >= HEAVY), (field >= HEAVY) | (truth >= HEAVY)
    wet = [float((one >= WET).sum()) for one in (field, truth)]
    return {
        "error": float(abs(field - truth).sum() / truth.sum()),
        "CSI": float(hits.sum() / max(1, int(either.sum()))),
        "total": float(field.sum() / truth.sum()),
        "wet area": wet[0] / wet[1],
        "sharpness": slopes[0] / slopes[1],
    }


fields = {"truth": left_out, **ways}
table = {way: compare(field, left_out) for way, field in fields.items()}
print(" " * 10 + "".join(f"{name:>11}" for name in table["truth"]))
for way, row in table.items():
    print(f"{way:10}" + "".join(f"{100 * value:9.1f} %" for value in row.values()))

k = len(left_out) // 2
figure = Figure(figsize=(15, 3.2), layout="constrained")
axes = figure.subplots(1, len(fields))
norm = PowerNorm(0.5, vmin=0, vmax=float(rain.max()))
for ax, (name, field) in zip(axes, fields.items(), strict=True):
    drawn = ax.pcolormesh(field[k].where(field[k] >= WET), cmap="viridis", norm=norm)
    ax.set(title=name, aspect="equal", xticks=[], yticks=[])
figure.colorbar(drawn, ax=axes, label=rain.attrs.get("units", ""), shrink=0.8)
figure.savefig("radar.png", dpi=100)

# %% [markdown]
# ## Motion, totals and nowcasts
# Totals integrate the rate along the motion, so that a fast shower leaves a track and not one spot
# for each image. A nowcast carries the last image on, without growth and decay.

# %%
wind = kept.geonet.velocity(time=left_out.time[k], missing="exclude").where(left_out[k] >= WET)
print({name: f"{float(wind[name].mean()):.3g} {wind[name].attrs.get('units')}" for name in wind})

totals = kept[k : k + 2].geonet.accumulate("5min", missing="exclude")
print(f"{float(totals.sum('time').max()):.3g} {totals.attrs['units']} at most between two images")

soon = kept[:-1].geonet.nowcast(time=kept.time[-1], missing="exclude")
errors = (compare(f.where(soon.notnull()), kept[-1])["error"] for f in (kept[-2], soon))
print("errors of the last image and the nowcast:", *(f"{100 * error:.1f} %" for error in errors))
