"""Orientation: arrays appear as `imshow` shows them, coordinates as in a scatter plot."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.quiver import Quiver
from PIL import Image

import geonet
from geonet import plotting

STROKES = np.array(  # an F, which no rotation and no reflection leaves unchanged
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
LETTER = np.kron(STROKES, np.ones((4, 4), int))  # interpolation blurs a cell or two
BOX = geonet.Grid((32, 24), 0, (1, 0.75))


def is_letter(picture):
    """Whether the brightness at the centres of 8 × 6 parts of a picture shows the letter."""
    rows, columns = (
        ((np.arange(n) + 0.5) * side / n).astype(int)
        for n, side in zip(STROKES.shape, picture.shape, strict=False)
    )
    return np.array_equal(picture.sum(-1)[np.ix_(rows, columns)] > 382, STROKES == 1)


@pytest.mark.parametrize("kind", ["image", "array"])
def test_arrays_are_drawn_as_imshow_does(kind, tmp_path, inside, read_gif):
    Image.fromarray((255 * LETTER).astype(np.uint8)).save(tmp_path / "letter.png")
    density = (
        geonet.Density(LETTER, BOX) if kind == "array" else geonet.read(tmp_path / "letter.png")
    )
    assert density.grid == BOX
    path = geonet.geodesic(density, density, "linear")
    for figure in (path.plot([0]), density.plot(), plotting.plot_together({"F": path}, [0])):
        axis = figure.axes[0]
        assert np.array_equal(axis.images[0].get_array(), density.tensor)
        assert is_letter(inside(figure, axis))
    arrows = geonet.geodesic(density, density, "midpoint").plot([0], kind="velocity")
    assert np.array_equal(arrows.axes[0].images[0].get_array(), density.tensor)
    frame, _ = read_gif(path.animate(tmp_path / "f.gif", 2, stamp=False))[-1]
    assert is_letter(frame)


AXIS_0 = ([1.0, 1.0], [2.0, 1.0])
AXIS_1 = ([1.0, 1.0], [1.0, 2.0])


def solve_translation(means, orientation):
    grid = geonet.Grid((30, 40), 0, (3, 4), orientation=orientation)
    ends = [geonet.GaussianMixture.isotropic([mean], [0.2]).to_density(grid) for mean in means]
    return geonet.geodesic(*ends, "bures")


@pytest.mark.parametrize(
    ("means", "orientation", "direction"),
    [  # on the screen: to the right, upwards
        (AXIS_0, "image", (0, -1)),
        (AXIS_1, "image", (1, 0)),
        (AXIS_0, "plane", (1, 0)),
        (AXIS_1, "plane", (0, 1)),
    ],
)
def test_arrows_and_tracks_point_along_the_motion(means, orientation, direction, pixels):
    path = solve_translation(means, orientation)
    figure = path.plot(kind="velocity", times=[0.5])
    pixels(figure)
    axis = figure.axes[0]
    (arrows,) = (part for part in axis.collections if isinstance(part, Quiver))
    start = axis.transData.transform(arrows.get_offsets())
    end = axis.transData.transform(arrows.get_offsets() + np.stack([arrows.U, arrows.V], axis=1))
    check_directions(end - start, direction)
    figure = path.plot(kind="tracks")
    pixels(figure)
    (lines,) = (p for p in figure.axes[0].collections if isinstance(p, LineCollection))
    segments = np.stack(lines.get_segments()).reshape(-1, 2)
    ends = figure.axes[0].transData.transform(segments).reshape(-1, 2, 2)
    check_directions(ends[:, 1] - ends[:, 0], direction)
    frames = [np.asarray(axis.images[0].get_array()) for axis in path.plot([0, 1]).axes[:2]]
    first, last = (np.array(np.unravel_index(frame.argmax(), frame.shape)) for frame in frames)
    row, column = last - first
    assert (np.sign(column), -np.sign(row)) == direction


def check_directions(steps, direction):
    sizes = np.linalg.norm(steps, axis=1)
    assert (sizes > 0).all()
    assert steps / sizes[:, None] == pytest.approx(np.tile(direction, (len(steps), 1)), abs=0.02)


@pytest.mark.parametrize(("orientation", "names"), [("image", "axis {}"), ("plane", "xyz")])
def test_projections_and_slices_have_the_same_orientation(orientation, names):
    grid = geonet.Grid((4, 5, 6), 0, (4, 5, 6), orientation=orientation)
    index = (0, 1, 4)
    values = np.zeros(grid.shape)
    values[index] = 1
    density = geonet.Density(values, grid)
    names = [names.format(i) if "{" in names else names[i] for i in range(3)]
    axes = [axis for axis in density.plot().axes if axis.images]
    path = geonet.geodesic(density, density, "linear")
    axes.append(plotting.plot_slices(path, [0], axis=0, at=0).axes[0])
    for axis, (first, second) in zip(axes, ((0, 1), (0, 2), (1, 2), (1, 2)), strict=True):
        image = np.asarray(axis.images[0].get_array())
        row, column = np.unravel_index(image.argmax(), image.shape)
        if orientation == "image":
            assert (row, column) == (index[first], index[second])
            assert (axis.get_ylabel(), axis.get_xlabel()) == (names[first], names[second])
        else:
            assert (row, column) == (grid.shape[second] - 1 - index[second], index[first])
            assert (axis.get_xlabel(), axis.get_ylabel()) == (names[first], names[second])


@pytest.mark.parametrize(("orientation", "lengths"), [("plane", (1, 50)), ("image", (50, 1))])
def test_very_long_boxes_are_drawn_as_squares(orientation, lengths, pixels, tmp_path):
    grid = geonet.Grid((24, 20), 0, lengths, orientation=orientation)
    density = geonet.Density(np.random.default_rng(0).random(grid.shape), grid)
    path = geonet.geodesic(density, density, "midpoint")
    for figure in (density.plot(), path.plot(kind="velocity"), path.plot(kind="tracks")):
        pixels(figure)
        frame = figure.axes[0].get_window_extent()
        assert frame.width == pytest.approx(frame.height, rel=0.01)
    with Image.open(path.animate(tmp_path / "path.gif", 2)) as gif:
        assert gif.size == (256, 256)
