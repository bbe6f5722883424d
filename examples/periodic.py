# %% [markdown]
# # Directions, and maps around the globe
#
# Mass that leaves through one face of a periodic axis enters through the other, and distances are
# the shorter way round. Here wind directions turn through north, and a cloud drifts across the date
# line.

# %%
import numpy as np
from matplotlib.figure import Figure

import geonet
from geonet.metrics import l1

# %% [markdown]
# ## Directions on a circle
#
# Two stations record wind directions, in degrees from north: one around 330°, the other around
# 40°. Samples on a periodic axis may have any value; they are taken modulo 360.

# %%
rng = np.random.default_rng(1)
circle = geonet.Grid(72, 0, 360, periodic=True)
first, second = (
    geonet.from_samples(np.degrees(rng.vonmises(np.radians(mean), 8, 20_000)), circle)
    for mean in (330, 40)
)
path = geonet.geodesic(first, second)  # exact, by quantiles
line = geonet.Grid(72, 0, 360)  # the same cells with walls at north
walls = geonet.geodesic(geonet.Density(first.values, line), geonet.Density(second.values, line))
print(f"W2 = {path.distance:.1f}° on the circle, {walls.distance:.1f}° on a line")

# %% [markdown]
# A wind of 340° turns through north. Along trajectories angles are wrapped into [0, 360). The mean
# of both stations is a barycenter; the mean of the numbers would point to the south.

# %%
turned = path.trajectories([0, 0.25, 0.5, 0.75, 1], [340.0])
print("from 340°:", ", ".join(f"{float(angle):.0f}°" for angle in np.ravel(turned)))
mean = geonet.barycenter([first, second])
phases = np.exp(1j * np.radians(circle.points().numpy()[:, 0]))
angle = np.degrees(np.angle((mean.density.values * phases).sum())) % 360
print(f"the mean wind blows from {angle:.0f}°")

# %% [markdown]
# ## A map across the date line
#
# The axis of longitudes is periodic, the axis of latitudes has walls: `periodic=(False, True)`. A
# cloud drifts 40° to the east, across the date line, and widens.

# %%
globe = geonet.Grid((48, 144), [-60, -180], [60, 180], periodic=(False, True))
positions, widths = ([5, 160], [10, 180], [15, 200]), (8, 9, 10)  # latitude and longitude
before, truth, after = (
    geonet.GaussianMixture.isotropic([position], width).to_density(globe)
    for position, width in zip(positions, widths, strict=True)
)
drift = geonet.geodesic(before, after)
box = geonet.Grid(globe.shape, globe.lower, globe.upper)
around = geonet.geodesic(*(geonet.Density(end.values, box) for end in (before, after)))
print(f"W2 = {drift.distance:.1f}° across the date line, {around.distance:.1f}° with walls")
for name, other in {"periodic": drift, "walls": around}.items():
    frame = geonet.Density(other.density(0.5).values, globe)
    print(f"L1 error at t = ½, {name}: {l1(frame, truth):.1%}")

# %%
figure = Figure(figsize=(9.6, 4.2), layout="constrained")
shown = {"Before": before, "After": after}
shown |= {"Halfway, periodic": drift.density(0.5), "Halfway, with walls": around.density(0.5)}
for ax, (name, density) in zip(figure.subplots(2, 2).flat, shown.items(), strict=True):
    ax.imshow(density.values, origin="lower", extent=(-180, 180, -60, 60), cmap="magma")
    ax.set(title=name, xticks=range(-180, 181, 90), yticks=(-60, 0, 60))
    ax.xaxis.set_major_formatter("{x:.0f}°")
    ax.yaxis.set_major_formatter("{x:.0f}°")
figure.savefig("periodic.png", dpi=100)

# %% [markdown]
# These degrees are plane coordinates. `da.geonet` of `geonet.xarray` weights cells by their areas
# and measures lengths in metres: `da.geonet.interp(time=…, periodic="lon")`.
