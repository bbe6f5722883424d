# %% [markdown]
# # Histograms that change in time
#
# Someone measures every four hours and gets a histogram each time: temperatures, sizes of grains,
# ages of cells. What did it look like in between, and when did it change fastest? Fading from one
# histogram to the next invents two humps where one has moved. Geodesics move the hump.
#
# Here the measurements are made up, so that we know the truth at every hour.

# %%
import numpy as np
from matplotlib.figure import Figure

import geonet
from geonet.metrics import l1

grid = geonet.Grid(80, 0, 40)
rng = np.random.default_rng(3)


def draw_readings(hour, count):
    """Draw readings of many sensors at an hour: warmer and more spread by day."""
    warmth = np.exp(-((hour - 14) ** 2) / 30)
    return rng.normal(10 + 15 * warmth, 1.5 + 1.5 * warmth, count).clip(0.01, 39.99)


hours = np.arange(0, 25, 4)
counts = rng.integers(3_000, 6_000, len(hours))
snapshots = [
    geonet.from_samples(draw_readings(hour, count), grid)
    for hour, count in zip(hours, counts, strict=True)
]

# %% [markdown]
# ## One path for each gap
#
# Two batches give all paths at once: all snapshots but the last, and all but the first. In 1D
# `auto` takes `quantile`, which is exact.

# %%
values = np.stack([snapshot.numpy() for snapshot in snapshots])
paths = geonet.geodesic(geonet.Density(values[:-1], grid), geonet.Density(values[1:], grid))
print(paths)

# %% [markdown]
# Every hour lies in a gap, at a time t within it. The snapshots hold different numbers of readings.
# A density has mass one and keeps its original mass in `mass`, so we interpolate the number beside
# it.


# %%
def interpolate(hour, paths):
    """Return the density and the number of readings at any hour of the day."""
    gap = min(int(np.searchsorted(hours, hour, side="right")) - 1, len(hours) - 2)
    t = (hour - hours[gap]) / (hours[gap + 1] - hours[gap])
    number = (1 - t) * counts[gap] + t * counts[gap + 1]
    return paths.density(float(t))[gap], number


density, number = interpolate(10.5, paths)
print(density, round(float(number)), "readings")

# %% [markdown]
# ## Is it right?
#
# At hours without a measurement, we compare with many fresh readings. The geodesic must beat the
# linear mixture of the two snapshots.

# %%
faded = geonet.geodesic(paths.source, paths.target, solver="linear")
between = [hour + 2 for hour in hours[:-1]]
truth = [geonet.from_samples(draw_readings(hour, 200_000), grid) for hour in between]
moved_error = np.mean(
    [l1(interpolate(h, paths)[0], d) for h, d in zip(between, truth, strict=True)]
)
faded_error = np.mean(
    [l1(interpolate(h, faded)[0], d) for h, d in zip(between, truth, strict=True)]
)
print(f"mean L1 error between snapshots: {moved_error:.0%} moved, {faded_error:.0%} faded")

# %% [markdown]
# ## Distance as a curve
#
# W2 between neighbours, divided by the hours between them, is the speed at which the readings
# change, in degrees per hour. W2 to the first snapshot shows how far the day has come from its
# beginning.

# %%
speed = paths.distance / np.diff(hours)
first = geonet.Density(np.repeat(values[:1], len(values), axis=0), grid)
away = geonet.geodesic(first, geonet.Density(values, grid)).distance
for hour, far in zip(hours, away, strict=True):
    print(f"{hour:2d} h   {far:5.2f} degrees from midnight")

# %%
figure = Figure(figsize=(9, 3), layout="constrained")
left, right = figure.subplots(1, 2)
day = np.linspace(0, 24, 97)
picture = np.stack([interpolate(hour, paths)[0].numpy() for hour in day], axis=1)
left.imshow(picture, origin="lower", aspect="auto", extent=(0, 24, 0, 40))
left.set(xlabel="hour", ylabel="degrees", title="between the snapshots")
right.plot(hours, away, "o-", label="W2 from midnight, degrees")
right.stairs(speed, hours, label="speed, degrees per hour")
right.set(xlabel="hour", title="distance")
right.legend()
figure.savefig("day.png")

# %% [markdown]
# Fields in 2D and 3D work the same way: stack the snapshots `(times, n, m)`, make two batches of
# neighbours, and evaluate each path within its gap.
