# %% [markdown]
# # Rain between two radar images
#
# A radar image comes every ten minutes, but frames are needed every two. `rain.interp(time=...)`
# fades one image into the next: in between, every shower is there twice, at half its strength.
# `rain.geonet.interp(time=...)` moves the rain instead.
#
# Here every second image is left out and filled in again by three methods: fading, geodesics, and
# advection along the motion that pysteps finds, if `pip install 'geonet[radar]'` has brought it.
# The rain is made up, so its truth is known at any time: showers that travel with the wind, of
# which one grows, one decays and one splits, and a band of widespread rain. For rain of your own,
# set `RADAR_FILE` to a file that xarray opens, and `RADAR_VARIABLE` to a rain rate in it.

# %%
import os

import numpy as np
import xarray as xr
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from scipy.ndimage import map_coordinates

import geonet.xarray

if "RADAR_FILE" in os.environ:
    opened = xr.open_dataset(os.environ["RADAR_FILE"])
    rain = opened[os.environ["RADAR_VARIABLE"]].transpose("time", ...).load()
else:
    rain = geonet.xarray.synthetic_rain()
rain = rain[: len(rain) - (len(rain) + 1) % 2]  # the last one is kept
kept, left_out = rain[::2], rain[1::2]
print(dict(rain.sizes), rain.attrs.get("units"))

# %% [markdown]
# ## Three ways to fill the gaps


# %%
def advect(frames: xr.DataArray, times: np.ndarray) -> np.ndarray:
    """Carry both neighbours along pysteps' motion to each time, and mix them."""
    from pysteps import motion

    values, known, found = frames.fillna(0).values.astype(float), frames.time.values, []
    places = np.indices(values.shape[1:]).astype(float)
    for time in times:
        k = int((known < time).sum()) - 1
        share = float((time - known[k]) / (known[k + 1] - known[k]))
        # It wants logarithms, and gives cells along x and y for the step from image to image.
        flow = motion.get_method("LK")(np.log(values[k : k + 2] + 0.01), verbose=False)[::-1]
        before = map_coordinates(values[k], places - share * flow, order=1, mode="nearest")
        after = map_coordinates(values[k + 1], places + (1 - share) * flow, order=1, mode="nearest")
        found.append((1 - share) * before + share * after)
    return np.array(found)


moved = kept.geonet.interp(time=left_out.time, missing="exclude", flag="faded")
print(int(moved.faded.sum()), "images were faded, because one of their neighbours has no rain")
ways = {"fade": kept.interp(time=left_out.time), "geodesic": moved}
try:
    ways["advection"] = left_out.copy(data=advect(kept, left_out.time.values))
except ModuleNotFoundError as error:
    print(f"There is no {error.name}; pip install 'geonet[radar]' adds advection to the table.")

# %% [markdown]
# ## What is wrong, and by how much
# The **error** is the sum of all differences, relative to all rain. **Total**, **wet area** (0.1
# mm/h or more) and **sharpness** (the sum of slopes) are relative to the truth. **Drizzle** is the
# share of wet cells below 1 mm/h.

# %%
WET, DRIZZLE = 0.1, 1.0  # mm/h


def compare(field: xr.DataArray, truth: xr.DataArray) -> dict[str, float]:
    """Return the rows of the table; cells that are missing in either field do not count."""
    field, truth = field.where(truth.notnull()), truth.where(field.notnull())
    slopes = [
        sum(float(abs(one.diff(dim)).sum()) for dim in one.dims[1:]) for one in (field, truth)
    ]
    return {
        "error": float(abs(field - truth).sum() / truth.sum()),
        "total": float(field.sum() / truth.sum()),
        "wet area": float((field >= WET).sum() / (truth >= WET).sum()),
        "drizzle": float(((field >= WET) & (field < DRIZZLE)).sum() / (field >= WET).sum()),
        "sharpness": slopes[0] / slopes[1],
    }


fields = {"truth": left_out, **ways}
table = {way: compare(field, left_out) for way, field in fields.items()}
print(f"{'':10}" + "".join(f"{name:>11}" for name in table["truth"]))
for way, row in table.items():
    print(f"{way:10}" + "".join(f"{100 * value:9.1f} %" for value in row.values()))

k = len(left_out) // 2
shown = {
    "before": kept[k],
    **{way: field[k] for way, field in fields.items()},
    "after": kept[k + 1],
}
figure = Figure(figsize=(3 * len(shown), 3.2), layout="constrained")
axes = figure.subplots(1, len(shown))
norm = PowerNorm(0.5, vmin=0, vmax=float(rain.max()))
for ax, (name, field) in zip(axes, shown.items(), strict=True):
    drawn = ax.pcolormesh(field.where(field >= WET), cmap="viridis", norm=norm)
    ax.set(title=name, aspect="equal", xticks=[], yticks=[])
figure.colorbar(drawn, ax=axes, label=rain.attrs.get("units", ""), shrink=0.8)
figure.savefig("radar.png", dpi=100)

# %% [markdown]
# ## Where the geodesic is wrong
# Transport moves mass and makes none. Where one shower grows while another decays, it carries rain
# from the one to the other across the map. The report says how far rain moves from each image to
# the next, on average: a distance that no wind explains is a warning. The velocity is known too.

# %%
report = kept.geonet.report(missing="exclude")
print(report.distance.to_series(), report.error_estimate.to_series(), sep="\n")
wind = kept.geonet.velocity(time=left_out.time[k], missing="exclude").where(left_out[k] >= WET)
print({name: f"{float(wind[name].mean()):.3g} {wind[name].attrs.get('units')}" for name in wind})
