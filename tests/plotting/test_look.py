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
from geonet.paths import QUARTERS
from geonet.plotting.style import Look, title_of

PICTURES = {
    "line": lambda paths: paths["line"].plot(),
    "plane": lambda paths: paths["shift"].plot(),
    "space": lambda paths: paths["space"].plot(),
    "together": lambda paths: plotting.plot_together({"a": paths["shift"]}),
    "history": lambda paths: plotting.plot_history(paths["line"]),
    "velocity": lambda paths: plotting.plot_velocity(paths["shift"]),
    "tracks": lambda paths: plotting.plot_tracks(paths["shift"]),
    "slices": lambda paths: plotting.plot_slices(paths["space"]),
    "slices of an array": lambda paths: plotting.plot_slices(_array(paths["space"])),
    "an array": lambda paths: _array(paths["shift"]).plot(),
    "an array in 3D": lambda paths: _array(paths["space"]).plot(),
    "density, 1D": lambda paths: paths["line"].source.plot(),
    "density, 2D": lambda paths: paths["shift"].source.plot(),
    "density, 3D": lambda paths: paths["space"].source.plot(),
    "roots": lambda paths: paths["shift"].plot(norm="sqrt"),
    "logarithms": lambda paths: paths["line"].plot(norm="log"),
    "error, 1D": lambda paths: plotting.plot_error(paths["line"], _mixed(paths["line"])),
    "error, 2D": lambda paths: plotting.plot_error(paths["shift"], _mixed(paths["shift"])),
    "error, 3D": lambda paths: plotting.plot_error(paths["space"], _still(paths["space"])),
}


def _mixed(path):
    return geonet.geodesic(path.source, path.target, "linear")


def _array(path):
    """The same path on a grid that is drawn as an image."""
    grid = geonet.Grid(path.grid.shape, path.grid.lower, path.grid.upper)
    ends = [geonet.Density(end.tensor, grid) for end in (path.source, path.target)]
    return geonet.geodesic(*ends, "linear")


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
    with pytest.raises(InputError, match=r"holds 3 pairs; draw one .*path\[0\]\.plot\(\)"):
        batch.plot()
    batch[0].plot()
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


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"cmap": "virids"}, "cmap is 'virids'; did you mean 'viridis'"),
        ({"cmap": 3}, "cmap is 3; give a name such as 'magma'"),
        ({"norm": "sqr"}, "norm is 'sqr'; did you mean 'sqrt'"),
        ({"norm": "zzz"}, "norm is 'zzz'; give a name such as 'linear', 'sqrt' or 'log'"),
        ({"vmin": "low"}, "vmin is 'low'; give a finite number"),
        ({"vmax": float("nan")}, "vmax is nan; give a finite number"),
        ({"vmin": 2, "vmax": 1}, "vmax is 1; give a number above vmin=2.0"),
        ({"vmax": 0}, "vmax is 0; give a number above zero"),
        ({"vmin": 0, "norm": "log"}, "vmin is 0; a logarithmic scale begins above zero"),
        ({"vmin": -1, "norm": "sqrt"}, "vmin is -1; a scale of roots begins at zero or above"),
        ({"vmin": 1e9}, "vmin is 1e.09 and the highest value drawn is .*; give a smaller vmin"),
    ],
)
def test_a_wrong_look_is_refused(asked, message, line, shift, tmp_path):
    for draw in (
        line.plot,
        shift.plot,
        shift.source.plot,
        lambda **look: line.animate(tmp_path / "a.gif", 2, **look),
        lambda **look: shift.animate(tmp_path / "a.gif", 2, **look),
    ):
        with pytest.raises(InputError, match=message):
            draw(**asked)


@pytest.mark.parametrize("norm", ["linear", "sqrt", "log"])
def test_where_nothing_is_all_has_the_first_colour(norm):
    colours = Look(norm=norm).scale(np.zeros(2)).to_rgba(np.zeros(2))
    assert colours == pytest.approx(matplotlib.colormaps["magma"]([0.0, 0.0]))


@pytest.mark.parametrize("norm", ["linear", "sqrt", "log"])
def test_colours_follow_the_norm_between_the_limits(norm):
    scale = Look("viridis", norm, 1.0, 16.0).scale(np.array([0.0, 20.0]))
    share = {"linear": 3 / 15, "sqrt": np.sqrt(3 / 15), "log": 0.5}[norm]
    expected = [0.0, 0.0, share, 1.0, 1.0]
    colours = matplotlib.colormaps["viridis"](expected)
    assert scale.to_rgba(np.array([0.0, 1.0, 4.0, 16.0, 20.0])) == pytest.approx(colours)


def test_limits_are_those_of_the_values_unless_given(shift):
    peak = float(shift.density([0, 1]).tensor.max())
    assert shift.plot([0, 1]).axes[0].images[0].get_clim() == pytest.approx((0, peak))
    chosen = shift.plot([0, 1], cmap="gray", vmin=0.1, vmax=2.0).axes[0].images[0]
    assert (chosen.get_clim(), chosen.get_cmap().name) == ((0.1, 2.0), "gray")
    mine = matplotlib.colors.ListedColormap(["#000000", "#ff0000"], "mine")
    assert shift.plot(cmap=mine).axes[0].images[0].get_cmap().name == "mine"


def test_logarithmic_colours_show_zeros_and_say_where_they_begin(inside):
    values = np.zeros((8, 8))
    values[:, 4:] = 1
    density = geonet.Density(values, geonet.Grid((8, 8)))
    figure = density.plot(norm="log")
    shown = inside(figure, figure.axes[0])
    assert (shown[20, 5] == np.array(plotting.DENSITY_MAP(0.0, bytes=True))[:3]).all()
    assert figure.axes[-1].get_ylabel() == "density\nat least 0.0002"


def test_curves_have_the_height_that_colours_have(line):
    peak = float(line.density(QUARTERS).tensor.max())
    for norm, low in (("linear", 0), ("sqrt", 0), ("log", peak * 1e-4)):
        axis = line.plot(norm=norm).axes[0]
        assert axis.get_ylim() == pytest.approx((low, 1.05 * peak))
        scale = {"linear": "linear", "sqrt": "function", "log": "log"}[norm]
        assert axis.get_yscale() == scale
    assert line.plot(vmin=0.5, vmax=1.0).axes[0].get_ylim() == pytest.approx((0.5, 1.05))
    assert line.source.plot(vmax=7.0).axes[0].get_ylim() == pytest.approx((0, 7.35))


def test_tracks_refuse_colours_of_densities(shift):
    with pytest.raises(InputError, match="Tracks have the colours of time; leave cmap"):
        shift.plot(kind="tracks", cmap="gray")


def test_titles_say_where_a_distance_is_a_lower_bound(line):
    bridge = geonet.geodesic(line.source, line.target, "schrodinger", epsilon=50.0)
    assert title_of(bridge) == f"schrodinger   W₂ ≥ {float(bridge.distance):.4g}"
    assert title_of(line) == f"{line.solver}   W₂ = {float(line.distance):.4g}"


def test_densities_with_gradients_are_drawn():
    grid = geonet.Grid(20)
    values = torch.linspace(1, 2, 20, dtype=torch.float64, requires_grad=True)
    source, target = geonet.Density(values, grid), geonet.Density(values.flip(0), grid)
    path = geonet.geodesic(source, target, "quantile")
    assert path.distance.requires_grad
    plotting.plot_geodesic(path)
    plotting.plot_error(path, _mixed(path))
