"""Pictures in colour along a path of their luminance."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.colours import ColourImage, carry_colours, read_colours
from geonet.errors import FileError, InputError, UnavailableError
from geonet.plotting.animation import write_sheet

SHAPE = 20, 28
WEIGHTS = np.array([0.299, 0.587, 0.114])


def draw_spot(x, y, colour, ground=(30, 40, 50)):
    rows, columns = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]] + 0.5
    spot = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 18)[..., None]
    return (np.array(ground) + spot * (np.array(colour) - np.array(ground))).astype(np.uint8)


@pytest.fixture
def files(tmp_path):
    files = tmp_path / "a.png", tmp_path / "b.png"
    for file, place, colour in zip(
        files, ((7, 7), (20, 12)), ((250, 60, 40), (40, 90, 240)), strict=True
    ):
        Image.fromarray(draw_spot(*place, colour)).save(file)
    return files


@pytest.fixture
def pictures(files):
    return [read_colours(file) for file in files]


def solve(pictures, solver="auto", **options):
    return geonet.geodesic(*(one.density() for one in pictures), solver, **options)


@pytest.mark.parametrize("invert", [False, True])
def test_the_density_is_that_of_the_image(files, invert):
    picture, density = read_colours(files[0], invert), geonet.from_image(files[0], invert)
    assert picture.density().grid == density.grid
    assert picture.density().numpy("given") == pytest.approx(density.numpy("given"), abs=1e-12)
    with Image.open(files[0]) as image:
        assert picture.pixels() == pytest.approx(np.asarray(image) / 255, abs=1e-12)


@pytest.mark.parametrize("solver", ["auto", "schrodinger"])
def test_ends_and_luminance(pictures, solver):
    path = solve(pictures, solver)
    frames = carry_colours(path, *pictures, [0, 0.4, 1])
    assert frames.shape == (3, *SHAPE, 3)
    for frame, picture, error in (
        (frames[0], pictures[0], path.report.source_error),
        (frames[2], pictures[1], path.report.target_error),
    ):  # an end of the path may miss the density; its colours are exact
        assert abs(frame - picture.pixels()).max() <= 1e-5 + 10 * error
    luminance = path.density(0.4).numpy("given")
    is_dark = frames[1].max(-1) < 1  # brighter colours than white are darkened
    assert is_dark.mean() > 0.9
    assert (frames[1] @ WEIGHTS)[is_dark] == pytest.approx(luminance[is_dark], abs=1e-9)


def test_ends_are_exact(pictures):
    for ends in (pictures, pictures[::-1]):
        frames = carry_colours(solve(ends, "midpoint"), *ends, [0, 1])
        for frame, picture in zip(frames, ends, strict=True):
            assert np.array_equal((255 * frame).round(), (255 * picture.pixels()).round())


def test_colours_move_with_the_mass(tmp_path):
    """A red and a blue spot on black both move to the right."""
    ends, black = [], (0, 0, 0)
    for name, shift in (("a", 0), ("b", 12)):
        red = draw_spot(6 + shift, 5, (255, 0, 0), black)
        blue = draw_spot(6 + shift, 15, (0, 0, 255), black)
        Image.fromarray(np.maximum(red, blue)).save(tmp_path / f"{name}.png")
        ends.append(read_colours(tmp_path / f"{name}.png"))
    frame = carry_colours(solve(ends), *ends, 0.5)
    for channel, row in ((0, 5), (2, 15)):
        mass = frame[..., channel]
        rows, columns = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]] + 0.5
        assert (mass * columns).sum() / mass.sum() == pytest.approx(12, abs=0.5)
        assert (mass * rows).sum() / mass.sum() == pytest.approx(row, abs=0.5)


def test_ink_on_paper_stays_on_paper(tmp_path):
    ends = []
    for name, (x, y) in (("a", (7, 7)), ("b", (20, 12))):
        Image.fromarray(draw_spot(x, y, (20, 20, 160), (255,) * 3)).save(tmp_path / f"{name}.png")
        ends.append(read_colours(tmp_path / f"{name}.png", invert=True))
    frames = carry_colours(solve(ends), *ends, [0, 0.5, 1])
    assert abs(frames[0] - ends[0].pixels()).max() < 1e-5
    assert abs(frames[2] - ends[1].pixels()).max() < 1e-5
    assert frames[1][0, -1] == pytest.approx([1, 1, 1], abs=0.02)  # paper
    assert frames[1][10, 13] @ WEIGHTS < 0.5 and frames[1][10, 13, 2] > frames[1][10, 13, 0]


def test_one_end_may_be_inverted(files):
    ends = [read_colours(files[0], invert=True), read_colours(files[1])]
    frames = carry_colours(solve(ends), *ends, [0, 1])
    for frame, picture in zip(frames, ends, strict=True):
        assert abs(frame - picture.pixels()).max() < 1e-5


def test_other_pixels(pictures):
    grid = pictures[0].grid.with_shape([10, 14])
    frame = carry_colours(solve(pictures), *pictures, 0.0, grid)
    assert frame == pytest.approx(pictures[0].resample(grid).pixels(), abs=1e-4)


def test_animation_in_colour(pictures, tmp_path):
    file = solve(pictures).animate(tmp_path / "a.gif", 3, stamp=False, colours=pictures)
    frames = []
    with Image.open(file) as gif:
        for number in range(gif.n_frames):
            gif.seek(number)
            frames.append(np.asarray(gif.convert("RGB"), int))
    assert len(frames) == 4
    first = frames[0]
    height, width = first.shape[:2]
    spot = first[round(7 / 20 * height), round(7 / 28 * width)]
    assert spot[0] > 180 > 100 > spot[2]  # red
    spot = frames[2][round(12 / 20 * height), round(20 / 28 * width)]
    assert spot[2] > 180 > 100 > spot[0]  # blue


def test_a_gif_keeps_the_colours(tmp_path):
    """Every frame has its own palette: the pictures have many colours, and none in common."""
    rows, columns = np.mgrid[0:64, 0:64] / 63
    wave = 0.5 + 0.5 * np.sin(4 * rows)
    channels = np.stack([rows, columns, wave], -1)
    ends = []
    for name, values in (("a", 0.5 * channels), ("b", 0.5 + 0.5 * channels[..., ::-1])):
        Image.fromarray((255 * values).astype(np.uint8)).save(tmp_path / f"{name}.png")
        ends.append(read_colours(tmp_path / f"{name}.png"))
    path = solve(ends)
    file = path.animate(tmp_path / "a.gif", 3, stamp=False, size=64, colours=ends)
    exact = carry_colours(path, *ends, [0, 0.5, 1])
    with Image.open(file) as gif:
        for number, frame in enumerate(exact):
            gif.seek(number)
            assert abs(np.asarray(gif.convert("RGB"), float) - 255 * frame).mean() < 3


def test_sheets_in_colour_have_labels(pictures, tmp_path):
    file = write_sheet([solve(pictures)], tmp_path / "a.png", [0, 1], colours=pictures)
    with Image.open(file) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    for corner in (pixels[:24, :70], pixels[:24, sheet.width // 2 + 2 :][:, :70]):
        assert (corner.min(-1) > 250).sum() > 50


def test_bad_colours(pictures, files, tmp_path, write_volume):
    path = solve(pictures)
    with pytest.raises(InputError, match=r"give the result of geonet\.colours\.read_colours"):
        carry_colours(path, files[0], pictures[1], 0.5)
    with pytest.raises(UnavailableError, match="provides no velocity"):
        carry_colours(solve(pictures, "linear"), *pictures, 0.5)
    with pytest.raises(InputError, match="leave reach out"):
        carry_colours(solve(pictures, reach=0.3), *pictures, 0.5)
    with pytest.raises(FileError, match="is a stack"):
        read_colours(write_volume())
    grid = geonet.Grid((4, 4))
    other = [ColourImage(one.values[:, :4, :4], grid) for one in pictures]
    with pytest.raises(InputError, match="box"):
        carry_colours(path, *other, 0.5)


@pytest.fixture
def write_volume(tmp_path):
    def write():
        tifffile = pytest.importorskip("tifffile")
        values = np.ones((3, 4, 5), np.uint8)
        tifffile.imwrite(tmp_path / "stack.tif", values, photometric="minisblack")
        return tmp_path / "stack.tif"

    return write
