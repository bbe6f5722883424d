# %% [markdown]
# # Showers that grow and decay
#
# Balanced transport moves all mass. If one shower grows while another decays, it carries rain from
# the one to the other across the map. With a `reach`, mass moves about that far at most, and the
# rest grows or fades in place. Here three showers drift to the north-east; their masses are known
# at any time.

# %%
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

import geonet

grid = geonet.Grid((96, 96), 0, 100, orientation="plane")  # km
x, y = grid.points().numpy().transpose(2, 0, 1)
drift, WIDTH = np.array([8.0, 5.0]), 3.0  # km
showers = {  # position at t = 0, mass at t = 0 and at t = 1
    "growing": ((25, 25), (1.0, 2.0)),
    "decaying": ((75, 50), (1.0, 0.3)),
    "appearing": ((15, 82), (0.0, 0.5)),
}


def draw_map(t):
    """Return the true map at time t."""
    values = np.zeros(grid.shape)
    for place, masses in showers.values():
        px, py = place + t * drift
        mass = (1 - t) * masses[0] + t * masses[1]
        values += mass * np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * WIDTH**2))
    return geonet.Density(values / (2 * np.pi * WIDTH**2), grid)


before, after, truth = draw_map(0), draw_map(1), draw_map(0.5)
print(f"mass {before.mass:.2f} before, {after.mass:.2f} after")

# %% [markdown]
# ## Four paths
#
# A reach of 20 km is longer than the drift, 9.4 km, and the showers, and shorter than the distances
# between them. `growth` is one of two models, "hellinger" (the default) or "wfr".
# `numpy(mass="given")` has the units of the input.

# %%
paths = {
    "fade": geonet.geodesic(before, after, solver="linear"),
    "balanced": geonet.geodesic(before, after),
    "hellinger": geonet.geodesic(before, after, reach=20),
    "wfr": geonet.geodesic(before, after, reach=20, growth="wfr"),
}
regions = {"growing": x + y < 80, "appearing": (y - x > 30) & (x + y >= 80)}
regions["decaying"] = ~regions["growing"] & ~regions["appearing"]
halfway = {"truth": truth, **{name: path.density(0.5) for name, path in paths.items()}}
print(f"{'at t = 1/2':12}" + "".join(f"{name:>11}" for name in showers) + f"{'L1 error':>11}")
for name, density in halfway.items():
    values = density.numpy(mass="given")
    masses = [float(values[regions[k]].sum() * grid.cell_volume) for k in showers]
    error = np.abs(values - truth.numpy(mass="given")).sum() * grid.cell_volume / truth.mass
    print(f"{name:12}" + "".join(f"{mass:11.3f}" for mass in masses) + f"{error:11.1%}")

# %% [markdown]
# At t = ½ balanced transport has mass on the way between the showers. With the reach every shower
# keeps its own mass. The shower that appears grows in place, linearly with "hellinger" and by t²
# with "wfr".

# %%
figure = Figure(figsize=(9.6, 2.15), layout="constrained")
shown = {"Before": before, "After": after, "Truth halfway": truth}
shown |= {"Balanced transport": halfway["balanced"], "With a reach": halfway["hellinger"]}
for ax, (name, density) in zip(figure.subplots(1, 5), shown.items(), strict=True):
    image = density.numpy(mass="given").T
    ax.imshow(image, origin="lower", cmap="magma", norm=PowerNorm(0.5, vmin=0, vmax=0.03))
    ax.set(title=name, xticks=[], yticks=[])
figure.savefig("unbalanced.png", dpi=100)

# %% [markdown]
# ## Cost, motion and growth
#
# The cost lies between two bounds. The growth rate is the relative change of mass in unit time. The
# velocity is somewhat smaller than the drift, because a part of every shower fades at its rear and
# grows at its front. For Gaussians of standard deviation σ it is the drift over 1 + 4σ²/reach².

# %%
path = paths["hellinger"]
print(path.report.summary())
for name, (place, masses) in showers.items():
    if masses[0] > 0:
        middle = [place + 0.5 * drift]
        velocity, rate = path.velocity(0.5, middle)[0], float(path.growth_rate(0.5, middle)[0])
        exact = 2 * (masses[1] - masses[0]) / (masses[0] + masses[1])
        print(f"{name}: velocity {velocity.round(2)} km, growth rate {rate:.2f}, exact {exact:.2f}")
print("expected velocity", (drift / (1 + 4 * WIDTH**2 / 20**2)).round(2), "km")
for reach in (2, 5, 20, 60):  # a short reach fades, a long one moves mass between showers
    share = geonet.geodesic(before, after, reach=reach).transported_share
    print(f"reach {reach:3} km: {share:6.1%} transported")
