"""Figures of densities, paths, errors, slices, velocities and tracks."""

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.quiver import Quiver

import geonet
from geonet import plotting
from geonet.errors import GridError, InputError, UnavailableError
from geonet.metrics import l1
from geonet.plotting import plot_error, plot_history, plot_slices, plot_together
from geonet.plotting.figures import plot_tracks, plot_velocity
from geonet.samples import sample_particles


def images(figure):
    return [a.images[0] for a in figure.axes if a.images and a.get_label() != "<colorbar>"]


def arrays(figure):
    return [np.asarray(image.get_array()) for image in images(figure)]


# ---- densities


# ---- paths


def test_a_1d_path_has_curves_and_history(line):
    figure = line.plot((0, 0.5, 1))
    curves, history, bar = figure.axes
    labels = [entry.get_text() for entry in curves.get_legend().get_texts()]
    assert labels == ["t = 0", "t = 0.5", "t = 1"]
    for curve, t in zip(curves.lines, (0, 0.5, 1), strict=True):
        assert curve.get_ydata() == pytest.approx(line.density(t).numpy())
        assert curve.get_xdata() == pytest.approx(line.grid.axes()[0].numpy())
    assert len({curve.get_color() for curve in curves.lines}) == 3
    assert curves.get_ylim()[0] == 0
    image = history.images[0]
    assert list(image.get_extent()) == [0, 2, 0, 1]
    assert np.asarray(image.get_array())[100] == pytest.approx(line.density(0.5).numpy())
    assert (history.get_xlabel(), history.get_ylabel()) == ("x", "t")
    assert bar.get_ylabel() == "density, mass one"  # the box cuts off more of the source
    assert f"W₂ = {float(line.distance):.4g}" in figure.get_suptitle()


def test_a_2d_path_is_a_strip_with_one_colour_scale(plane):
    figure = plane.plot((0, 0.25, 1))
    *frames, bar = figure.axes
    assert [axis.get_title() for axis in frames] == ["t = 0", "t = 0.25", "t = 1"]
    scales = {image.norm for axis in frames for image in axis.images}
    assert len(scales) == 1
    highest = float(plane.density((0, 0.25, 1)).tensor.max())
    assert (scales.pop().vmin, bar.get_ylim()[1]) == (0, pytest.approx(highest))
    for axis, t in zip(frames, (0, 0.25, 1), strict=True):
        image = axis.images[0]
        assert list(image.get_extent()) == [0, 2, 0, 1]
        assert image.origin == "upper"
        assert np.asarray(image.get_array()) == pytest.approx(plane.density(t).numpy().T[::-1])
        assert axis.get_aspect() == 1
    assert figure.get_suptitle() == "linear"  # this solver has no distance


def test_paths_together_have_one_row_each(plane, line, space):
    figure = plot_together({"2D": plane, "1D": line}, (0, 1))
    assert [axis.get_ylabel() for axis in figure.axes] == ["2D", "", "1D", ""]
    assert [axis.get_title() for axis in figure.axes] == ["t = 0", "t = 1", "", ""]
    assert figure.axes[2].lines[0].get_ydata() == pytest.approx(line.density(0).numpy())
    assert figure.axes[2].get_ylim() == figure.axes[3].get_ylim()
    with pytest.raises(InputError, match="is 3D; rows are for 1D and 2D paths"):
        plot_together({"3D": space})
    with pytest.raises(InputError, match="no paths"):
        plot_together({})


# ---- path.plot(kind=...)


@pytest.mark.parametrize(
    ("kind", "name", "draw"),
    [
        ("frames", "plane", plotting.plot_geodesic),
        ("velocity", "shift", plot_velocity),
        ("slices", "space", plot_slices),
        ("history", "line", plot_history),
        ("tracks", "shift", plot_tracks),
    ],
)
def test_each_kind_calls_its_function(kind, name, draw, request, pixels):
    path = request.getfixturevalue(name)
    assert np.array_equal(pixels(path.plot(kind=kind)), pixels(draw(path)))


# ---- errors


@pytest.fixture(scope="module")
def blend(line):
    """The linear blend of the ends of `line`, which is wrong at t = 1/2."""
    return geonet.geodesic(line.source, line.target, "linear")


def error_labels(path, reference, times):
    errors = l1(path.density(times), reference.density(times)).tolist()
    return [f"L1 = {100 * error:.2f} %" for error in errors]


def test_1d_errors_are_signed(line, blend):
    times = (0, 0.5, 1)
    figure = plot_error(blend, line, times)
    curves, history, bar = figure.axes
    difference = blend.density(0.5).numpy() - line.density(0.5).numpy()
    assert curves.lines[1].get_ydata() == pytest.approx(difference)
    assert curves.get_ylim()[0] == pytest.approx(-curves.get_ylim()[1])
    assert np.asarray(history.images[0].get_array())[100] == pytest.approx(difference)
    low, high = history.images[0].get_clim()
    assert low == -high
    assert high >= np.abs(difference).max()
    entries = [entry.get_text() for entry in curves.get_legend().get_texts()]
    assert [entry.split(", ")[1] for entry in entries] == error_labels(blend, line, times)
    assert (curves.get_ylabel(), bar.get_ylabel()) == ("error", "error")
    assert figure.get_suptitle() == "linear − quantile"


def test_2d_errors_are_signed_maps(shift):
    blend = geonet.geodesic(shift.source, shift.target, "linear")
    times = (0, 0.5)
    figure = plot_error(blend, shift, times)
    first, second = images(figure)
    difference = blend.density(0.5).numpy() - shift.density(0.5).numpy()
    assert np.asarray(second.get_array()) == pytest.approx(difference.T[::-1])
    assert first.norm is second.norm
    assert first.norm.vmax == -first.norm.vmin == pytest.approx(np.abs(difference).max())
    titles = [axis.get_title() for axis in figure.axes[:2]]
    assert [title.split("\n")[1] for title in titles] == error_labels(blend, shift, times)


# ---- slices


@pytest.mark.parametrize(
    ("axis", "extent", "names", "position"),
    [(0, [0, 4, 0, 3], ("y", "z"), "x = 2.75"), (2, [0, 5, 0, 4], ("x", "y"), "z = 1.75")],
)
def test_slices_are_layers_of_the_density(axis, extent, names, position, space):
    figure = plot_slices(space, (0, 0.5, 1), axis=axis, at=0.5)
    middle = space.grid.shape[axis] // 2
    for image, t in zip(images(figure), (0, 0.5, 1), strict=True):
        layer = space.density(t).numpy().take(middle, axis=axis)
        assert np.asarray(image.get_array()) == pytest.approx(layer.T[::-1])
        assert list(image.get_extent()) == extent
    first = figure.axes[0]
    assert (first.get_xlabel(), first.get_ylabel()) == names
    assert figure.get_suptitle().endswith(f"at {position}")
    assert len({image.norm for image in images(figure)}) == 1


@pytest.mark.parametrize(("at", "layer"), [(0, 0), (0.2, 1), (0.99, 5), (1, 5)])
def test_the_layer_can_be_chosen(at, layer, space):
    (image,) = arrays(plot_slices(space, 0.5, at=at))
    assert image == pytest.approx(space.density(0.5).numpy()[:, :, layer].T[::-1])


@pytest.mark.parametrize(("orientation", "name"), [("image", "axis 0"), ("plane", "z")])
def test_the_default_layer_has_x_and_y_in_the_middle_of_the_mass(orientation, name):
    """Arrays have the order z, y, x."""
    grid, ends = geonet.Grid((8, 8, 8), 0, 8, orientation), []
    for corner in (1, 4):
        values = np.zeros((8, 8, 8))
        values[5:8, corner, 5:8] = 1.0  # layer 6 on the first and on the last axis
        ends.append(geonet.Density(values, grid))
    figure = plot_slices(geonet.geodesic(*ends, "linear"))
    assert figure.get_suptitle().endswith(f"at {name} = 6.5")


# ---- velocity


def arrows_of(figure):
    """Positions and vectors (n, 2) of the arrows of each frame."""
    quivers = [c for axis in figure.axes for c in axis.collections if isinstance(c, Quiver)]
    return [(np.asarray(q.get_offsets()), np.stack([q.U, q.V], axis=-1)) for q in quivers]


def test_arrows_point_along_a_translation(shift):
    figure = plot_velocity(shift, (0, 0.5, 1), arrows=20)
    frames = arrows_of(figure)
    assert len(frames) == 3
    longest = 1.2 * 4 / 20  # 4 is the longer side
    for _, arrows in frames:
        assert len(arrows) > 5
        expected = np.tile(np.array([1, -0.5]) / np.hypot(1, 0.5), (len(arrows), 1))
        assert arrows / longest == pytest.approx(expected)
    assert "longest arrow |v| = 1.12" in figure.get_suptitle()
    assert arrays(figure)[2] == pytest.approx(shift.density(1.0).numpy().T[::-1])


# ---- tracks


def test_tracks_are_trajectories_of_sampled_particles(shift):
    axis = plot_tracks(shift, particles=30, seed=4).axes[0]
    generator = torch.Generator().manual_seed(4)
    starts = np.asarray(sample_particles(shift.density(0.0), 30, generator))
    lines, first, last = axis.collections
    assert isinstance(lines, LineCollection)
    assert np.asarray(first.get_offsets()) == pytest.approx(starts)
    assert np.asarray(last.get_offsets()) == pytest.approx(starts + np.array([1, -0.5]))
    pieces = np.asarray(lines.get_segments()).reshape(-1, 30, 2, 2)
    assert pieces[0, :, 0] == pytest.approx(starts)
    assert pieces[-1, :, 1] == pytest.approx(np.asarray(shift.trajectories(1.0, starts)))
    assert pieces[1:, :, 0] == pytest.approx(pieces[:-1, :, 1])  # without a gap
    assert (axis.get_xlim(), axis.get_ylim(), axis.get_aspect()) == ((0, 4), (0, 3), 1)


# ---- errors of the user


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("line", (), {"kind": "film"}, "kind is 'film'; choose one of frames, velocity, slices"),
        ("plane", ("velocity",), {}, "pass a kind of figure as kind='velocity'"),
        ("line", ((0, 1),), {"kind": "history"}, "kind='history' shows all times"),
        ("shift", (), {"kind": "tracks", "cmap": "gray"}, "leave out cmap"),
        ("line", (), {"kind": "slices"}, "is 1D and kind='slices' is for 3D"),
        ("plane", (), {"kind": "history"}, "is 2D and kind='history' is for 1D"),
    ],
)
def test_bad_kinds_raise(name, arguments, options, message, request):
    with pytest.raises(InputError, match=message):
        request.getfixturevalue(name).plot(*arguments, **options)


def test_bad_arguments_raise(line, plane, shift, space, batch):
    for draw, error, message in (
        (lambda: plot_error(line, line.source), InputError, "reference is"),
        (lambda: plot_error(line, plane), GridError, "give one in the same box"),
        (lambda: plot_error(batch[0], batch), InputError, "3 pairs"),
        (lambda: plot_slices(space, axis=3), InputError, "axis is 3"),
        (lambda: plot_slices(space, at=1.5), InputError, r"at is 1\.5"),
        (lambda: plot_velocity(plane), UnavailableError, "'linear'"),
        (lambda: plot_velocity(shift, arrows=1), InputError, "arrows is 1"),
        (lambda: plot_tracks(shift, particles=0), InputError, "particles is 0"),
    ):
        with pytest.raises(error, match=message):
            draw()


# ---- periodic axes


@pytest.fixture(scope="module", params=["plane", "image"])
def seam(request):
    grid = geonet.Grid((24, 16), 0, (3, 2), request.param, periodic=(True, False))
    ends = (geonet.GaussianMixture.isotropic([[x, 1.0]], 0.2) for x in (2.6, 0.5))
    return geonet.geodesic(*(end.to_density(grid) for end in ends), "schrodinger")


def test_tracks_are_broken_at_the_seam(seam):
    figure = plot_tracks(seam, particles=20)
    (lines,) = (c for c in figure.axes[0].collections if isinstance(c, LineCollection))
    segments = np.stack(lines.get_segments())
    assert len(segments) > 40 * 20  # those that cross the seam are there twice
    assert np.abs(segments[:, 1] - segments[:, 0]).max() < 0.2
    axis = 0 if seam.grid.orientation == "plane" else 1
    inside = (segments[..., axis] >= 0) & (segments[..., axis] <= 3)
    assert inside.any(1).all()


def test_periodic_paths_can_be_drawn(seam, tmp_path):
    for kind in ("frames", "velocity"):
        assert images(seam.plot(kind=kind))
    assert seam.animate(tmp_path / "seam.gif", frames=3).stat().st_size
