"""Properties of all figures: colours, masses, no clipped text, no global state."""

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
from geonet.plotting import Style

LIGHT, HEAVY = 2.0, 14.0
FIGURES = {
    "line": lambda paths: paths["line"].plot(),
    "plane": lambda paths: paths["shift"].plot(),
    "space": lambda paths: paths["space"].plot(),
    "history": lambda paths: plotting.plot_history(paths["line"]),
    "velocity": lambda paths: plotting.plot_velocity(paths["shift"]),
    "tracks": lambda paths: plotting.plot_tracks(paths["shift"]),
    "slices": lambda paths: plotting.plot_slices(paths["space"]),
    "array, 3D": lambda paths: _as_array(paths["space"]).plot(),
    "density, 2D": lambda paths: paths["shift"].source.plot(),
    "log": lambda paths: paths["line"].plot(norm="log"),
    "error, 1D": lambda paths: plotting.plot_error(paths["line"], _blend(paths["line"])),
    "error, 2D": lambda paths: plotting.plot_error(paths["shift"], _blend(paths["shift"])),
    "error, 3D": lambda paths: plotting.plot_error(paths["space"], _constant(paths["space"])),
}


def _blend(path):
    return geonet.geodesic(path.source, path.target, "linear")


def _constant(path):
    return geonet.geodesic(path.source, path.source, "linear")


def _as_array(path):
    """The same path on a grid with the orientation of an image."""
    grid = geonet.Grid(path.grid.shape, path.grid.lower, path.grid.upper)
    ends = [geonet.Density(end.tensor, grid) for end in (path.source, path.target)]
    return geonet.geodesic(*ends, "linear")


@pytest.fixture(scope="module")
def paths(line, shift, space):
    return {"line": line, "shift": shift, "space": space}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_show_something_and_clip_no_text(name, paths):
    file = BytesIO()
    FIGURES[name](paths).savefig(file, format="png")
    with Image.open(file) as image:
        picture = np.asarray(image.convert("RGB"))
    assert len(np.unique(picture.astype(int) @ (1 << 16, 1 << 8, 1))) > 100
    assert 0.02 < (picture < 240).any(-1).mean() < 0.98
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge == 255).all()


def test_figures_leave_no_global_state(paths):
    settings = dict(matplotlib.rcParams)
    for name in ("line", "plane", "space", "history"):
        FIGURES[name](paths)
    assert dict(matplotlib.rcParams) == settings
    assert not Gcf.figs  # the figures that pyplot keeps alive


def test_batches_four_dimensions_bad_times_and_grids_raise(batch, line, tmp_path):
    density = geonet.Density(torch.ones(3, 3, 3, 3), geonet.Grid((3, 3, 3, 3)))
    path = geonet.geodesic(density, density, "linear")
    for draw, error, message in (
        (batch.plot, InputError, r"3 pairs; draw one .*path\[0\]"),
        (lambda: batch.animate(tmp_path / "a.gif"), InputError, "3 pairs"),
        (lambda: plotting.plot_together({"many": batch}), InputError, "3 pairs"),
        (path.plot, InputError, "is 4D; figures exist for 1D, 2D and 3D"),
        (density.plot, InputError, "is 4D"),
        (lambda: path.animate(tmp_path / "a.gif", 2), InputError, "is 4D"),
        (lambda: line.plot((0, 1.5)), InputError, r"t = 1\.5"),
        (lambda: line.plot(grid=64), GridError, "grid is 64"),
        (lambda: plotting.plot_geodesic(line, style="magma"), InputError, "plotting.Style"),
    ):
        with pytest.raises(error, match=message):
            draw()


def test_matplotlib_is_imported_for_figures_only_and_pyplot_never():
    code = (
        "import sys, geonet\n"
        "assert 'matplotlib' not in sys.modules, 'geonet'\n"
        "import geonet.plotting\n"
        "assert 'matplotlib.pyplot' not in sys.modules, 'pyplot'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cmap": "virids"}, "did you mean 'viridis'"),
        ({"norm": "sqr"}, "did you mean 'sqrt'"),
        ({"vmax": float("nan")}, "vmax is nan"),
        ({"vmin": 2, "vmax": 1}, "vmax is 1; give a number above vmin=2"),
        ({"vmax": 0}, "vmax is 0; give a number above zero"),
        ({"vmin": 0, "norm": "log"}, "vmin is 0; norm='log'"),
        ({"vmin": 1e9}, "vmin is 1e.09 and the highest value drawn"),
        ({"mass": "two"}, "mass is 'two'"),
    ],
)
def test_bad_styles_raise(options, message, line, shift, tmp_path):
    for draw in (
        line.plot,
        shift.source.plot,
        lambda **style: shift.animate(tmp_path / "a.gif", 2, **style),
    ):
        with pytest.raises(InputError, match=message):
            draw(**options)


@pytest.mark.parametrize(("norm", "fraction"), [("linear", 0.2), ("sqrt", 0.2**0.5), ("log", 0.5)])
def test_colours_follow_the_norm_between_the_limits(norm, fraction):
    scale = Style("viridis", norm, 1.0, 16.0).scale(np.array([0.0, 20.0]))
    colours = matplotlib.colormaps["viridis"]([0.0, 0.0, fraction, 1.0, 1.0])
    assert scale.to_rgba(np.array([0.0, 1.0, 4.0, 16.0, 20.0])) == pytest.approx(colours)


def test_curves_have_the_limits_of_colours(line):
    peak = float(line.density(QUARTERS).tensor.max())
    scales = {"linear": ("linear", 0), "sqrt": ("function", 0), "log": ("log", peak * 1e-4)}
    for norm, (scale, low) in scales.items():
        axis = line.plot(norm=norm).axes[0]
        assert axis.get_ylim() == pytest.approx((low, 1.05 * peak))
        assert axis.get_yscale() == scale
    assert line.plot(vmin=0.5, vmax=1.0).axes[0].get_ylim() == pytest.approx((0.5, 1.05))
    assert line.source.plot(vmax=7.0).axes[0].get_ylim() == pytest.approx((0, 7.35))


# ---- masses


def images_of(figure):
    return [np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images]


def labels_of(figure):
    """The labels of values at colour bars and axes."""
    labels = {axis.get_ylabel() for axis in figure.axes}
    return {label for label in labels if label.startswith("density")}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("history", "line"), ("frames", "plane"), ("frames", "space"), ("velocity", "shift")],
)
def test_given_masses_are_drawn_and_mass_one_is_labelled(kind, name, scale_masses, request):
    path = scale_masses(request.getfixturevalue(name), LIGHT, HEAVY)
    times = None if kind == "history" else (0, 0.5, 1)
    one, given = (path.plot(times, kind=kind, mass=mass) for mass in ("one", "given"))
    assert labels_of(one) and all(label.endswith("mass one") for label in labels_of(one))
    assert labels_of(given) and not any("mass" in label for label in labels_of(given))
    if name == "line":  # rows of space × time
        (first,), (second,) = images_of(one), images_of(given)
        assert second == pytest.approx(first * np.linspace(LIGHT, HEAVY, len(first))[:, None])
    else:
        rows = len(images_of(one)) // 3  # three projections in 3D
        masses = np.tile([LIGHT, (LIGHT + HEAVY) / 2, HEAVY], rows)
        for first, second, mass in zip(images_of(one), images_of(given), masses, strict=True):
            assert second == pytest.approx(first * mass)
