"""Draw the picture of the README: a geodesic, rain between two radar images, and barycenters.

python examples/readme_picture.py RADAR_FILES overview.png

RADAR_FILES is a folder or pattern of radar images (`geonet.xarray.open_radar`), five minutes apart.
The committed picture has images of the Finnish Meteorological Institute of 9 May 2017, CC BY 4.0.
Without arguments, the rain is synthetic and the file is overview.png.
"""

import sys
from importlib.resources import as_file, files

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

import geonet.xarray
from geonet.weights import make_table

CELLS, PARTS = 96, 4  # cells of the shapes along a side, and points along a side of each cell
WIDTH, HEIGHT, INK = 1600, 622, "#333333"
REGION = {"y": slice(760, 1080), "x": slice(80, 400)}  # pixels of one kilometre
SHOWN = (slice(70, 250), slice(55, 235))  # part of the region that is drawn

figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100)


def draw(image, x, y, side, label="", **options):
    """Draw an image in a square of pixels, with a label above it."""
    box = (x / WIDTH, 1 - (y + side) / HEIGHT, side / WIDTH, side / HEIGHT)
    ax = figure.add_axes(box, xticks=[], yticks=[])
    ax.imshow(image, cmap="magma", **options)
    ax.spines[:].set_visible(False)
    write(label, x, y - 9, fontsize=12)


def write(text, x, y, **options):
    """Write a line whose lower left corner is at a pixel."""
    figure.text(x / WIDTH, 1 - y / HEIGHT, text, color=INK, **options)


# ---- a geodesic

with as_file(files("geonet") / "demo_data") as folder:
    spiral, heart = (geonet.from_image(folder / f"{name}.png") for name in ("spiral", "heart"))
path = geonet.geodesic(spiral, heart)
frames = path.density(np.linspace(0, 1, 5)).values
write("Geodesic between two images: geonet.geodesic(a, b)", 20, 32, fontsize=15)
for k, frame in enumerate(frames):
    label = f"t = {k / 4:g}"
    draw(frame[2:62, 2:62], 20 + 199 * k, 68, 192, label, interpolation="bicubic", vmin=0)

# ---- rain

if len(sys.argv) > 1:
    rain = geonet.xarray.open_radar(sys.argv[1])[5:10:2].isel(REGION).load()
else:
    rain, SHOWN = geonet.xarray.synthetic_rain(range(0, 21, 10)), (slice(None), slice(None))
between = rain[::2].geonet.interp(time=rain.time[[1]], missing="exclude")[0]
panels = {"10 minutes before": rain[0], "Interpolated": between}
panels |= {"Observed, left out": rain[1], "10 minutes after": rain[2]}
write("Rain between two radar images: rain.geonet.interp(time=…)", 20, 318, fontsize=15)
norm = PowerNorm(0.5, vmin=0, vmax=float(rain[1].quantile(0.9995)))
for k, (label, field) in enumerate(panels.items()):
    draw(field.values[SHOWN], 20 + 249 * k, 354, 241, label, norm=norm, interpolation="bilinear")

# ---- barycenters

x, y = geonet.Grid((CELLS * PARTS,) * 2, -0.5, 0.5).points().numpy().transpose(2, 0, 1)
radius, near, far = np.hypot(x, y), np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))
masks = radius < 0.3, (radius < 0.36) & (radius > 0.23), far < 0.27, (near < 0.08) & (far < 0.36)
cells = [mask.reshape(CELLS, PARTS, CELLS, PARTS).mean((1, 3)) for mask in masks]
corners = [geonet.Density(values, geonet.Grid((CELLS, CELLS))) for values in cells]
table = geonet.barycenter(corners, make_table(4, 5))
rows = [np.hstack([one.density.values[6:-6, 6:-6] for one in row]) for row in table]
write("Barycenters: geonet.barycenter(shapes, weights)", 1053, 32, fontsize=15)
draw(np.vstack(rows), 1053, 68, 527, interpolation="bilinear", vmin=0)

figure.savefig(sys.argv[2] if len(sys.argv) > 2 else "overview.png")
