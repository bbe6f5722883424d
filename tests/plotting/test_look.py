"""What holds for every picture: it shows something, whole, and leaves no trace in matplotlib."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib._pylab_helpers import Gcf
from PIL import Image

import geonet
from geonet import plotting
from geonet.errors import GridError, InputError

PICTURES = {
    "line": lambda paths: paths["line"].plot(),
    "plane": lambda paths: paths["shift"].plot(),
    "space": lambda paths: paths["space"].plot(),
    "together": lambda paths: plotting.plot_together({"a": paths["shift"]}),
    "history": lambda paths: plotting.plot_history(paths["line"]),
    "velocity": lambda paths: plotting.plot_velocity(paths["shift"]),
    "tracks": lambda paths: plotting.plot_tracks(paths["shift"]),
    "slices": lambda paths: plotting.plot_slices(paths["space"]),
    "error, 1D": lambda paths: plotting.plot_error(paths["line"], _mixed(paths["line"])),
    "error, 2D": lambda paths: plotting.plot_error(paths["shift"], _mixed(paths["shift"])),
    "error, 3D": lambda paths: plotting.plot_error(paths["space"], _still(paths["space"])),
}


def _mixed(path):
    return geonet.geodesic(path.source, path.target, "linear")


def _still(path):
    return geonet.geodesic(path.source, path.source, "linear")


@pytest.fixture(scope="module")
def paths(line, shift, space):
    return {"line": line, "shift": shift, "space": space}


@pytest.fixture(scope="module", params=PICTURES)
def drawn(request, paths):
    """The pixels of a PNG, (height, width, 3)."""
    file = BytesIO()
    PICTURES[request.param](paths).savefig(file, format="png")
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB"))


def test_pictures_are_not_blank(drawn):
    colours = drawn.astype(int) @ (1 << 16, 1 << 8, 1)
    assert len(np.unique(colours)) > 100
    assert 0.02 < (drawn < 240).any(-1).mean() < 0.98


def test_text_is_inside_the_picture(drawn):
    """Nothing is cut off at the edges: the outermost pixels are all white."""
    for edge in (drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]):
        assert (edge == 255).all()


def test_no_global_state(paths):
    settings = dict(matplotlib.rcParams)
    for draw in PICTURES.values():
        draw(paths)
    assert dict(matplotlib.rcParams) == settings
    assert not Gcf.figs  # the figures that pyplot knows and keeps alive


def test_matplotlib_is_loaded_for_pictures_only_and_pyplot_never():
    code = (
        "import sys, geonet\n"
        "assert 'matplotlib' not in sys.modules, 'geonet'\n"
        "import geonet.plotting\n"
        "assert 'matplotlib.pyplot' not in sys.modules, 'pyplot'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_batches_are_refused(batch, tmp_path):
    with pytest.raises(InputError, match=r"holds 3 pairs; plot one pair: .*source\[0\]"):
        batch.plot()
    with pytest.raises(InputError, match="holds 3 pairs"):
        batch.animate(tmp_path / "path.gif")
    with pytest.raises(InputError, match="holds 3 pairs"):
        plotting.plot_together({"many": batch})


def test_four_dimensions_are_refused(tmp_path):
    grid = geonet.Grid((3, 3, 3, 3))
    density = geonet.Density(torch.ones(grid.shape), grid)
    path = geonet.geodesic(density, density, "linear")
    for draw in (
        path.plot,
        lambda: path.animate(tmp_path / "a.gif", 2),
        lambda: plotting.plot_together({"four": path}),
        lambda: plotting.plot_error(path, path),
    ):
        with pytest.raises(InputError, match="is 4D; pictures are made in one to three dimensions"):
            draw()


def test_bad_times_and_grids_are_refused(line):
    with pytest.raises(InputError, match=r"t = 1\.5 is outside \[0, 1\]"):
        line.plot((0, 1.5))
    with pytest.raises(GridError, match="grid is 64; give a Grid"):
        line.plot(grid=64)


def test_densities_with_gradients_are_drawn():
    grid = geonet.Grid(20)
    values = torch.linspace(1, 2, 20, dtype=torch.float64, requires_grad=True)
    source, target = geonet.Density(values, grid), geonet.Density(values.flip(0), grid)
    path = geonet.geodesic(source, target, "quantile")
    assert path.distance.requires_grad
    plotting.plot_geodesic(path)
    plotting.plot_error(path, _mixed(path))
