"""What `imshow` shows upright is upright everywhere; x and y run as on a scatter plot."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from PIL import Image

import geonet
from geonet import plotting
from geonet.cli.job import read_pair

STROKES = np.array(  # an F, which no turn and no reflection leaves as it is
    [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
)
LETTER = np.kron(STROKES, np.ones((4, 4), int))  # pictures are smoothed over a cell or two
BOX = geonet.Grid((32, 24), 0, (1, 0.75))


def written(kind, folder):
    """The letter in a file of this kind, or as an array."""
    file = folder / f"letter{kind}"
    if kind == ".png":
        Image.fromarray((255 * LETTER).astype(np.uint8)).save(file)
    elif kind == ".npy":
        np.save(file, LETTER)
    elif kind == ".csv":
        np.savetxt(file, LETTER, delimiter=",", fmt="%d")
    else:
        return geonet.Density(LETTER, BOX)
    return geonet.read(file)


def by_imshow(inside, values):
    """What `imshow` alone makes of an array."""
    figure = Figure(figsize=(3, 4))
    axis = figure.subplots()
    axis.imshow(values, cmap="magma")
    axis.set(xticks=(), yticks=())
    return inside(figure, axis)


def cells(picture, shape):
    """The brightness at the middle of each of so many parts of a picture."""
    rows, columns = (
        ((np.arange(n) + 0.5) * side / n).astype(int)
        for n, side in zip(shape, picture.shape, strict=False)
    )
    return picture.sum(-1)[np.ix_(rows, columns)]


def is_letter(picture):
    return np.array_equal(cells(picture, STROKES.shape) > 382, STROKES == 1)


def last_frame(file):
    with Image.open(file) as gif:
        return np.asarray(gif.convert("RGB"), dtype=int)


@pytest.mark.parametrize("kind", [".png", ".npy", ".csv", "array"])
def test_an_array_is_drawn_as_imshow_draws_it(kind, tmp_path, inside):
    density = written(kind, tmp_path)
    assert density.grid == BOX
    path = geonet.geodesic(density, density, "linear")
    figures = [path.plot([0]), density.plot(), plotting.plot_together({"F": path}, [0])]
    assert is_letter(by_imshow(inside, LETTER))
    for figure in figures:
        axis = figure.axes[0]
        assert np.array_equal(axis.images[0].get_array(), density.tensor)
        assert is_letter(inside(figure, axis))
    arrows = geonet.geodesic(density, density, "midpoint").plot([0], kind="velocity")
    assert np.array_equal(arrows.axes[0].images[0].get_array(), density.tensor)
    assert is_letter(last_frame(path.animate(tmp_path / "f.gif", 2, stamp=False)))


def test_a_saved_path_is_drawn_as_before(tmp_path, inside):
    density = geonet.Density(LETTER, BOX)
    file = geonet.geodesic(density, density, "linear").save(tmp_path / "f.npz", [0, 1])
    with np.load(file) as arrays:
        assert np.array_equal(arrays["density"][0], density.tensor)
    figure = geonet.load(file).plot([0])
    assert is_letter(inside(figure, figure.axes[0]))


@pytest.fixture
def cloud(tmp_path):
    """Points of the letter as a scatter plot would show it: x to the right, y upwards."""
    row, column = np.nonzero(STROKES)
    file = tmp_path / "cloud.csv"
    points = np.stack([column + 0.5, 7.5 - row], axis=1)
    np.savetxt(file, points, delimiter=",", header="x,y", comments="")
    return file


def test_a_cloud_has_x_to_the_right_and_y_upwards(cloud, inside):
    source, target = read_pair(cloud, cloud, invert=False, resolution=11)
    assert source.grid.drawn == "plane"
    path = geonet.geodesic(source, target, "linear")
    figure = path.plot([0])
    axis = figure.axes[0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("x", "y")
    left, right, bottom, top = axis.images[0].get_extent()
    assert left < 1.5 < 4.5 < right
    assert bottom < 1.5 < 6.5 < top
    assert axis.get_ylim() == (bottom, top)
    rows, columns = np.nonzero(np.asarray(axis.images[0].get_array()))
    spread = np.asarray(axis.images[0].get_array())
    x = left + (columns + 0.5) * (right - left) / spread.shape[1]
    y = top - (rows + 0.5) * (top - bottom) / spread.shape[0]
    found = {(int(a), int(b)) for a, b in zip(x, y, strict=True)}
    row, column = np.nonzero(STROKES)
    assert found == set(zip(column.tolist(), (7 - row).tolist(), strict=True))
    bright = inside(figure, axis).sum(-1) > 382
    assert bright[: len(bright) // 2].sum() > 1.3 * bright[len(bright) // 2 :].sum()


def test_a_cloud_beside_a_picture_stands_upright_on_it(cloud, tmp_path):
    np.save(tmp_path / "picture.npy", STROKES)
    scaled = np.loadtxt(cloud, delimiter=",", skiprows=1) / 8
    np.savetxt(cloud, scaled, delimiter=",", header="x,y", comments="")
    for files in ((cloud, tmp_path / "picture.npy"), (tmp_path / "picture.npy", cloud)):
        first, second = read_pair(*files, invert=False, resolution=None)
        assert first.numpy() == pytest.approx(second.numpy())
        assert first.grid == second.grid == BOX.with_shape(STROKES.shape)


# ---- what moves

DOWN = ([1.0, 1.0], [2.0, 1.0])  # along axis 0
ACROSS = ([1.0, 1.0], [1.0, 2.0])  # along axis 1


def moving(means, drawn):
    grid = geonet.Grid((30, 40), 0, (3, 4), drawn=drawn)
    ends = [geonet.GaussianMixture.isotropic([mean], [0.2]).on(grid) for mean in means]
    return geonet.geodesic(*ends, "bures")


@pytest.mark.parametrize(
    ("means", "drawn", "direction"),
    [  # on the screen: to the right, upwards
        (DOWN, "image", (0, -1)),
        (ACROSS, "image", (1, 0)),
        (DOWN, "plane", (1, 0)),
        (ACROSS, "plane", (0, 1)),
    ],
)
def test_arrows_and_tracks_point_where_the_mass_goes(means, drawn, direction, pixels):
    path = moving(means, drawn)
    figure = path.plot(kind="velocity", times=[0.5])
    pixels(figure)
    axis = figure.axes[0]
    (arrows,) = (part for part in axis.collections if isinstance(part, Quiver))
    start = axis.transData.transform(arrows.get_offsets())
    end = axis.transData.transform(arrows.get_offsets() + np.stack([arrows.U, arrows.V], axis=1))
    _points_along(end - start, direction)
    figure = path.plot(kind="tracks")
    pixels(figure)
    (lines,) = (p for p in figure.axes[0].collections if isinstance(p, LineCollection))
    pieces = np.stack(lines.get_segments())
    ends = figure.axes[0].transData.transform(pieces.reshape(-1, 2)).reshape(-1, 2, 2)
    _points_along(ends[:, 1] - ends[:, 0], direction)
    frames = [np.asarray(axis.images[0].get_array()) for axis in path.plot([0, 1]).axes[:2]]
    rows, columns = (np.array(np.unravel_index(f.argmax(), f.shape)) for f in frames)
    row, column = columns - rows  # from the first frame to the second
    assert (np.sign(column), -np.sign(row)) == direction


def _points_along(steps, direction):
    sizes = np.linalg.norm(steps, axis=1)
    assert (sizes > 0).all()
    assert steps / sizes[:, None] == pytest.approx(np.tile(direction, (len(steps), 1)), abs=0.02)


def test_tracks_begin_where_the_mass_is():
    for drawn, expected in (("image", (2.5, 1.0)), ("plane", (1.0, 2.5))):
        path = moving(([1.0, 2.5], [2.0, 2.5]), drawn)
        figure = path.plot(kind="tracks")
        first = figure.axes[0].collections[1].get_offsets().mean(0)
        assert np.asarray(first) == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize(("drawn", "names"), [("image", "axis {}"), ("plane", "xyz")])
def test_projections_and_slices_follow_the_same_rule(drawn, names):
    grid = geonet.Grid((4, 5, 6), 0, (4, 5, 6), drawn=drawn)
    values = np.zeros(grid.shape)
    values[0, 1, 4] = 1
    density = geonet.Density(values, grid)
    named = [names.format(i) if "{" in names else names[i] for i in range(3)]
    axes = [axis for axis in density.plot().axes if axis.images]
    path = geonet.geodesic(density, density, "linear")
    axes.append(plotting.plot_slices(path, [0], axis=0, at=0).axes[0])
    for axis, (first, second) in zip(axes, ((0, 1), (0, 2), (1, 2), (1, 2)), strict=True):
        place = (0, 1, 4)
        shown = np.asarray(axis.images[0].get_array())
        row, column = np.unravel_index(shown.argmax(), shown.shape)
        if drawn == "image":
            assert (row, column) == (place[first], place[second])
            assert (axis.get_ylabel(), axis.get_xlabel()) == (named[first], named[second])
        else:
            assert (row, column) == (grid.shape[second] - 1 - place[second], place[first])
            assert (axis.get_xlabel(), axis.get_ylabel()) == (named[first], named[second])


@pytest.mark.parametrize("drawn", ["plane", "image"])
@pytest.mark.parametrize("lengths", [(1, 50), (50, 1)])
def test_a_very_long_box_is_drawn_square(drawn, lengths, pixels, tmp_path):
    """With room for its colour bar; its sides have scales of their own, and arrows fill it."""
    grid = geonet.Grid((24, 20), 0, lengths, drawn=drawn)
    spread, middle = np.diag(np.square(lengths) / 60), np.array(lengths) / 2
    density, target = (
        geonet.GaussianMixture([mean], [spread]).on(grid) for mean in (middle, 1.1 * middle)
    )
    path = geonet.geodesic(density, target, "bures")
    kinds = ("frames", "velocity", "tracks")
    for figure in (density.plot(), *(path.plot(kind=kind) for kind in kinds)):
        pixels(figure)
        frame, bar = figure.axes[0].get_window_extent(), figure.axes[-1].get_window_extent()
        assert frame.width == pytest.approx(frame.height, rel=0.01)
        assert bar.height > 0.8 * frame.height
    (arrows,) = path.plot(0.5, kind="velocity").axes[0].collections
    across, along = (len(set(np.asarray(part).round(6))) for part in (arrows.X, arrows.Y))
    assert across == along > 2
    with Image.open(path.animate(tmp_path / "path.gif", 2)) as gif:
        assert gif.size == (256, 256)


def test_arrows_in_a_very_long_box_stay_in_proportion():
    """Mass that moves across the short side has arrows of the size of a cell, not of the box."""
    grid = geonet.Grid((40, 40), 0, (1, 50), drawn="plane")
    spread = [[0.01, 0], [0, 25]]
    ends = [geonet.GaussianMixture([[x, 25]], [spread]).on(grid) for x in (0.4, 0.6)]
    (arrows,) = geonet.geodesic(*ends, "bures").plot(0.5, kind="velocity").axes[0].collections
    assert np.abs(arrows.U).max() == pytest.approx(1.2 / 12, rel=0.01)


def test_a_long_box_keeps_its_proportions():
    grid = geonet.Grid((12, 60), 0, (1, 5.9), drawn="image")
    figure = geonet.Density(np.ones((12, 60)), grid).plot()
    assert figure.axes[0].get_aspect() == 1
    assert figure.get_figheight() >= 1.6  # inches, for the name of the colours
