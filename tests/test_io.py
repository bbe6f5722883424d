"""Files, images, samples and functions become densities; what is wrong is a FileError."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import geonet
from geonet.errors import DensityError, FileError, GridError, InputError
from geonet.io import opened, read_points

RNG = np.random.default_rng(0)


@pytest.fixture
def save_image(tmp_path):
    def save(array, name="image.png"):
        Image.fromarray(np.asarray(array)).save(tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def write(tmp_path):
    def write(content, name):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


# ---- functions


@pytest.mark.parametrize("numpy_out", [True, False])
def test_function_is_evaluated_at_cell_centres(numpy_out):
    grid = geonet.Grid((4, 3), 0, (2, 1))

    def bump(points):
        values = 1 + points[..., 0] + 10 * points[..., 1]
        return values.numpy() if numpy_out else values

    density = geonet.from_function(bump, grid)
    expected = 1 + grid.points()[..., 0] + 10 * grid.points()[..., 1]
    assert torch.allclose(density.tensor * density.mass, expected)


def test_function_of_wrong_shape_is_refused():
    with pytest.raises(DensityError, match=r"shape \(4, 3, 2\).*one value per point, \(4, 3\)"):
        geonet.from_function(lambda points: points, geonet.Grid((4, 3)))


# ---- samples


def test_samples_are_counted_like_numpy_does():
    grid = geonet.Grid((5, 7), (-1, 0), (1, 3))
    points = RNG.uniform((-1, 0), (1, 3), (500, 2))
    weights = RNG.uniform(0, 2, 500)
    density = geonet.from_samples(points, grid, weights)
    edges = [e.numpy() for e in grid.edges()]
    counts = np.histogramdd(points, bins=edges, weights=weights)[0]
    assert np.allclose(density.numpy() * weights.sum() * grid.cell_volume, counts)
    assert density.mass == pytest.approx(weights.sum() * grid.cell_volume)


def test_samples_on_the_faces_belong_to_the_outer_cells():
    density = geonet.from_samples([0.0, 0.3, 1.0], geonet.Grid(4))
    assert (density.tensor * density.mass).tolist() == pytest.approx([1, 1, 0, 1])


def test_samples_outside_are_counted_and_the_remedy_is_named():
    points = [[0.5, 0.5], [2.0, 0.5], [0.5, -0.1]]
    grid = geonet.Grid((4, 4))
    with pytest.raises(DensityError, match=r"2 of 3 points lie outside.*outside='drop'"):
        geonet.from_samples(points, grid)
    assert geonet.from_samples(points, grid, outside="drop").mass == pytest.approx(1 / 16)
    with pytest.raises(DensityError, match="None of 1 points lies in the box"):
        geonet.from_samples(points[1:2], grid, outside="drop")
    with pytest.raises(InputError, match="outside is 'clip'; give 'error' or 'drop'"):
        geonet.from_samples(points, grid, outside="clip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"shape \(1,\) do not fit 2 points"),
        ([1.0, -1.0], "1 of 2 weights are negative, infinite or NaN"),
        ([np.nan, np.inf], "2 of 2 weights are negative, infinite or NaN"),
        ([0.0, 0.0], "zero everywhere"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(DensityError, match=message):
        geonet.from_samples([0.2, 0.4], geonet.Grid(4), weights)


def test_masked_samples_are_refused():
    grid, masked = geonet.Grid(4), np.ma.masked_greater([0.2, 0.9], 0.5)
    for arguments in ((masked, grid), ([0.2, 0.4], grid, masked)):
        with pytest.raises(DensityError, match="1 numbers are masked"):
            geonet.from_samples(*arguments)


def test_masked_values_of_a_function_are_empty():
    right = geonet.from_function(lambda x: np.ma.masked_less(x.numpy()[:, 0], 0.5), geonet.Grid(4))
    assert right.numpy(mass="given").tolist() == pytest.approx([0, 0, 0.625, 0.875])


GRIDS = [geonet.Grid(6, -1, 2), geonet.Grid((5, 4), 0, (2, 1)), geonet.Grid((3, 4, 2), -1, 1)]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.dimension}D")
def test_the_linear_kernel_keeps_weights_and_centres(grid):
    """Between the outermost centres the mean is that of the points, which counting blurs."""
    lower, upper = (np.array(corner) for corner in (grid.lower, grid.upper))
    margin = np.array(grid.spacing) / 2
    points = RNG.uniform(lower + margin, upper - margin, (50, grid.dimension))
    weights = RNG.uniform(0, 2, 50)
    density = geonet.from_samples(points, grid, weights, kernel="linear")
    assert float(density.mass) == pytest.approx(weights.sum() * grid.cell_volume, rel=1e-12)
    mean = weights @ points / weights.sum()
    assert density.mean().tolist() == pytest.approx(mean.tolist(), rel=1e-9, abs=1e-12)


def test_the_linear_kernel_by_hand():
    grid = geonet.Grid((4, 2), 0, (4, 2))
    density = geonet.from_samples([[1.75, 0.6]], grid, [8.0], kernel="linear")
    expected = np.zeros((4, 2))
    expected[1:3] = 8 * np.outer([0.75, 0.25], [0.9, 0.1])
    assert density.numpy(mass="given") == pytest.approx(expected)


def test_at_the_walls_the_linear_kernel_stays_in_the_outer_cells():
    for x, cell in ((0.0, 0), (0.1, 0), (0.125, 0), (0.875, 3), (0.95, 3), (1.0, 3)):
        counts = geonet.from_samples([x], geonet.Grid(4), kernel="linear").numpy(mass="given")
        assert counts == pytest.approx(np.eye(4)[cell])


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.dimension}D")
def test_the_linear_kernel_is_differentiable(grid):
    """At points at least a tenth of a cell away from the centres, where shares have kinks."""
    cells = RNG.integers(0, np.array(grid.shape) - 1, (6, grid.dimension))
    places = cells + 0.5 + RNG.uniform(0.1, 0.9, cells.shape)
    lower, spacing = np.array(grid.lower), np.array(grid.spacing)
    points = torch.from_numpy(lower + places * spacing).requires_grad_()
    weights = torch.from_numpy(RNG.uniform(1, 2, 6)).requires_grad_()

    def values(points, weights):
        return geonet.from_samples(points, grid, weights, kernel="linear").tensor

    assert torch.autograd.gradcheck(values, (points, weights))


@pytest.mark.parametrize("kernel", ["cell", "linear"])
def test_samples_are_differentiable_in_their_weights(kernel):
    points, grid = RNG.uniform(0, 1, (7, 2)), geonet.Grid((3, 3))
    weights = torch.from_numpy(RNG.uniform(1, 2, 7)).requires_grad_()

    def values(weights):
        return geonet.from_samples(points, grid, weights, kernel=kernel).tensor

    assert torch.autograd.gradcheck(values, (weights,))


def test_counting_refuses_points_that_want_a_gradient():
    points, grid = torch.rand(5, 2, requires_grad=True), geonet.Grid((3, 3))
    with pytest.raises(InputError, match="no gradient in the points; .*kernel='linear', or points"):
        geonet.from_samples(points, grid)
    geonet.from_samples(points.detach(), grid)
    with torch.no_grad():
        geonet.from_samples(points, grid)
    with pytest.raises(InputError, match="kernel is 'cubic'; give 'cell' or 'linear'"):
        geonet.from_samples(points, grid, kernel="cubic")  # type: ignore[arg-type]


def test_samples_of_another_dimension_or_with_nan_are_refused():
    with pytest.raises(GridError, match="do not lie in 2D"):
        geonet.from_samples([[0.1, 0.2, 0.3]], geonet.Grid((4, 4)))
    with pytest.raises(GridError, match="NaN or infinite coordinates"):
        geonet.from_samples([[0.1, np.nan]], geonet.Grid((4, 4)))


# ---- images


def test_image_orientation_and_box(save_image):
    pixels = np.zeros((3, 6), np.uint8)
    pixels[0, 4] = 255  # top row, fifth column
    density = geonet.from_image(save_image(pixels))
    assert density.grid == geonet.Grid((3, 6), 0, (0.5, 1))
    assert density.grid.drawn == "image"
    assert np.argwhere(density.numpy() > 0).tolist() == [[0, 4]]
    assert density.mean().tolist() == pytest.approx([0.5 / 6, 0.75])


def test_a_picture_is_the_same_in_every_kind_of_file(save_image, tmp_path):
    pixels = np.arange(15, dtype=np.uint8).reshape(3, 5) + 1
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "a.npz", values=pixels)
    np.savetxt(tmp_path / "a.csv", pixels, delimiter=",")
    image = geonet.from_image(save_image(pixels))
    given = geonet.Density(pixels, image.grid)
    for name in ("a.npy", "a.npz", "a.csv"):
        density = geonet.read(tmp_path / name)
        assert (density.grid, density.grid.drawn) == (image.grid, "image")
        assert np.array_equal(density.tensor, given.tensor)
    assert image.numpy() == pytest.approx(given.numpy(), rel=1e-12)  # it was divided by white
    assert float(geonet.geodesic(image, geonet.read(tmp_path / "a.npy")).distance) < 1e-6


def test_invert_makes_ink_the_mass(save_image):
    pixels = np.full((4, 4), 255, np.uint8)
    pixels[1, 2] = 51
    density = geonet.from_image(save_image(pixels), invert=True)
    values = (density.tensor * density.mass).numpy()
    assert values[1, 2] == pytest.approx(0.8)
    assert np.count_nonzero(values) == 1


def test_colours_count_by_luminance(save_image):
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0, 0], pixels[0, 1], pixels[1, 0] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    density = geonet.from_image(save_image(pixels))
    values = (density.tensor * density.mass).numpy()
    assert values.ravel() == pytest.approx([0.299, 0.587, 0.114, 0])


@pytest.mark.parametrize("invert", [False, True])
def test_transparent_pixels_hold_no_mass(save_image, invert):
    pixels = np.full((2, 2, 4), 128, np.uint8)
    pixels[..., 3] = [[255, 0], [0, 0]]
    density = geonet.from_image(save_image(pixels), invert)
    assert np.argwhere(density.numpy() > 0).tolist() == [[0, 0]]


def test_sixteen_bit_greys_keep_their_precision(save_image):
    pixels = np.array([[0, 1], [300, 65535]], np.uint16)
    file = save_image(pixels)
    values = [geonet.from_image(file, invert) for invert in (False, True)]
    grey, ink = ((d.tensor * d.mass).numpy() for d in values)
    assert grey == pytest.approx(pixels / 65535)
    assert ink == pytest.approx(1 - pixels / 65535)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "I", "F"])
def test_every_mode_of_pillow_reads(tmp_path, mode):
    grey = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8))
    file = tmp_path / "image.tif"
    grey.convert("LA" if mode == "PA" else mode).convert(mode).save(file)
    values = geonet.from_image(file).numpy()
    assert np.argwhere(values > 0.5 * values.max()).tolist() == [[0, 1], [1, 0]]


def test_palette_transparency_and_camera_orientation(tmp_path):
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 255, 255, 255])
    palette.putpixel((0, 0), 0)
    palette.save(tmp_path / "palette.png", transparency=bytes([255, 128]))
    values = geonet.from_image(tmp_path / "palette.png")
    assert (values.tensor * values.mass).max() == pytest.approx(128 / 255)
    photo = Image.new("L", (4, 2))
    photo.putpixel((0, 0), 255)
    exif = photo.getexif()
    exif[0x0112] = 6  # rotate by 90° clockwise to view
    photo.save(tmp_path / "photo.png", exif=exif)
    density = geonet.from_image(tmp_path / "photo.png")
    assert density.grid.shape == (4, 2)
    assert np.argwhere(density.numpy() > 0).tolist() == [[0, 1]]


@pytest.mark.parametrize(("shape", "said"), [((1, 1), "1×1"), ((1, 5), "5×1")])
def test_a_single_pixel_or_line_has_its_own_message(save_image, shape, said):
    with pytest.raises(FileError, match=f"is {said} pixels; a density needs at least 2 pixels"):
        geonet.read(save_image(np.full(shape, 255, np.uint8)))


def test_black_image_is_no_density(save_image):
    file = save_image(np.zeros((3, 3), np.uint8))
    with pytest.raises(FileError, match=r"image\.png does not hold a density: .*zero everywhere"):
        geonet.from_image(file)
    white = save_image(np.full((3, 3, 3), 255, np.uint8))
    with pytest.raises(FileError, match="zero everywhere"):
        geonet.from_image(white, invert=True)


def test_an_image_takes_few_times_its_density(save_image):
    file = save_image(np.full((500, 400, 3), 200, np.uint8))
    tracemalloc.start()
    geonet.from_image(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 500 * 400  # 8 bytes a cell


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    ("pixels", "nodata"),
    [
        (np.array([[10, 255], [0, 100]], np.uint8), 255),
        (np.array([[10, 0], [60, 100]], np.uint8), 0),
        (np.array([[10, 65535], [0, 100]], np.uint16), 65535),
        (np.array([[0.5, -9999.9], [0.0, 1.0]], np.float32), -9999.9),
        (np.array([[0.5, np.nan], [0.0, 3.0]], np.float32), np.nan),
        (np.array([[0.5, 1e30], [0.0, 3.0]], np.float32), 1e30),
    ],
)
def test_pixels_without_data_are_empty(save_image, invert, pixels, nodata):
    """By the value in the file, before it is scaled; they do not count for the scale."""
    file = save_image(pixels, "image.tif")
    for read in (geonet.from_image, lambda file, invert, nodata: geonet.read(file, nodata=nodata)):
        if invert and read is not geonet.from_image:
            continue
        values = read(file, invert, nodata=nodata).numpy(mass="given")
        seen = np.delete(pixels.astype(float).ravel(), 1)
        white = {"u1": 255, "u2": 65535, "f4": max(1, seen.max())}[pixels.dtype.str[1:]]
        expected = np.insert(1 - seen / white if invert else seen / white, 1, 0)
        assert values.ravel() == pytest.approx(expected, abs=1e-6)


def test_no_pixel_of_eight_bits_can_be_300(save_image):
    file = save_image(np.full((2, 2), 255, np.uint8))
    for nodata in (300, -1, 0.5):
        with pytest.raises(InputError, match=r"nodata is .*; give the value of pixels without"):
            geonet.from_image(file, nodata=nodata)


def test_points_outside_the_box_can_be_dropped(tmp_path):
    file = tmp_path / "cloud.csv"
    file.write_text("x,y\n0.5,0.5\n3,3\n")
    with pytest.raises(FileError, match="1 of 2 points lie outside .*outside='drop'"):
        geonet.read(file, geonet.Grid((4, 4)))
    assert float(geonet.read(file, geonet.Grid((4, 4)), outside="drop").mass) == 1 / 16


def test_a_colour_without_data_has_that_value_in_all_channels(save_image):
    pixels = np.full((2, 2, 3), 255, np.uint8)
    pixels[0, 0], pixels[1, 1] = (255, 255, 0), (10, 20, 30)
    values = geonet.from_image(save_image(pixels), nodata=255).numpy()
    assert np.argwhere(values > 0).tolist() == [[0, 0], [1, 1]]


def test_what_is_no_file_name_is_refused():
    array = np.ones((3, 3))
    for function in (geonet.read, geonet.from_image):
        for wrong in (array, array.tolist(), None, 3, b"a.png", Image.fromarray(array)):
            message = rf"takes the name of a file, not {type(wrong).__name__}; use geonet\.Density"
            with pytest.raises(InputError, match=message):
                function(wrong)


def test_enormous_image_is_refused(save_image, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    for side in (8, 20):  # a warning of Pillow's, and an error of Pillow's
        with pytest.raises(FileError, match=r"Cannot read .* as an image: Image size"):
            geonet.from_image(save_image(np.ones((side, side), np.uint8)))


# ---- arrays


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8", "f2", "g", "u1", "u2", "u8", "?", "i4"])
def test_npy_of_any_real_type(tmp_path, dtype):
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    np.save(tmp_path / "a.npy", values)
    density = geonet.read(tmp_path / "a.npy")
    assert density.grid == geonet.Grid((2, 3), 0, (2 / 3, 1))
    assert np.allclose(density.numpy() * float(density.mass), values.astype(float))


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4)])
def test_arrays_of_one_to_three_axes(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.ones(shape))
    assert geonet.read(tmp_path / "a.npy").grid.shape == shape
    grid = geonet.Grid(shape, -1, 7)
    assert geonet.read(str(tmp_path / "a.npy"), grid).grid == grid


def test_npz_with_box_or_a_single_array(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, values=np.ones((2, 3)), lower=[1, 2], upper=[3, 4], note="x")
    assert geonet.read(file).grid == geonet.Grid((2, 3), (1, 2), (3, 4))
    np.savez_compressed(file, values=np.ones((2, 3)), lower=0, upper=5)
    assert geonet.read(file).grid == geonet.Grid((2, 3), 0, 5)
    np.savez(file, anything=np.ones(4))
    assert geonet.read(file).grid == geonet.Grid(4)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 2, 2, 2)), r"shape \(2, 2, 2, 2\); a density has one to 3 axes"),
        (np.array(1.0), r"shape \(\); a density has one to 3 axes"),
        (np.ones((1, 4)), "Axis 0 has 1 cells"),
        (np.ones((0, 4)), "Axis 0 has 0 cells"),
        (np.array([1, np.nan, 1]), "1 of 3 values are NaN; fill them, or give nodata="),
        (np.array([1, np.inf, 1]), "1 of 3 values are infinite"),
        (np.array([1, -1, 1]), "1 of 3 values are negative"),
        (np.zeros(3), "zero everywhere"),
        (np.array([1j, 2]), "holds complex128 values; save an array of real numbers"),
        (np.array(["a", "b"]), "holds <U1 values"),
        (np.zeros(3, [("a", "f8")]), "save an array of real numbers"),
    ],
)
def test_bad_arrays_have_their_own_message(tmp_path, array, message):
    np.save(tmp_path / "bad.npy", array)
    np.savez(tmp_path / "bad.npz", values=array)
    for name in ("bad.npy", "bad.npz"):
        with pytest.raises(FileError, match=re.escape(name) + ".*" + message):
            geonet.read(tmp_path / name)


def test_a_header_that_claims_terabytes_takes_no_memory(tmp_path):
    """Inside an archive, too, whose own list of sizes may say anything as well."""
    stream = io.BytesIO()
    np.save(stream, np.ones(8))
    forged = stream.getvalue().replace(b"(8,), }            ", b"(1000000000000,), }")
    assert b"(1000000000000,)" in forged
    (tmp_path / "a.npy").write_bytes(forged)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("values.npy", forged)
    for name in ("a.npy", "a.npz"):
        tracemalloc.start()
        with pytest.raises(FileError, match=r"its header says \(1000000000000,\) values, more"):
            geonet.read(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


def test_a_header_that_claims_to_be_long_takes_no_memory(write):
    file = write(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"{}", "a.npy")
    tracemalloc.start()
    with pytest.raises(FileError, match="its header says that it is longer than the file"):
        geonet.read(file)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_member_of_an_archive_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("values.npy", "1, 2, 3")
    with pytest.raises(FileError, match=r"Cannot read .*a\.npz as an npz archive: .*magic"):
        geonet.read(tmp_path / "a.npz")


def test_numbers_that_no_type_holds_are_not_finite(tmp_path):
    """Casting a signalling NaN, or what is too large, makes numpy warn."""
    signalling = np.array([1, 0x7F800001], np.uint32).view(np.float32)
    Image.fromarray(np.tile(signalling, (2, 1))).save(tmp_path / "a.tif")
    with pytest.raises(FileError, match="2 of 4 values are NaN"):
        geonet.read(tmp_path / "a.tif")
    np.save(tmp_path / "a.npy", np.array([1, np.longdouble("1e4000")]))
    with pytest.raises(FileError, match="1 of 2 values are infinite"):
        geonet.read(tmp_path / "a.npy")


def test_array_that_does_not_fit_the_given_grid(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 3)))
    with pytest.raises(FileError, match=r"a\.npy.*do not match the grid's \(4, 4\)"):
        geonet.read(tmp_path / "a.npy", geonet.Grid((4, 4)))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3), "b": np.ones(3)}, "holds the arrays a, b; name the one .* 'values'"),
        ({}, r"holds the arrays \(none\)"),
        ({"values": np.ones(3), "lower": 0}, "only one of 'lower' and 'upper'"),
        ({"values": np.ones(3), "lower": 1, "upper": 0}, "box is empty along axis 0"),
        ({"values": np.ones(3), "lower": [0, 0], "upper": [1, 1]}, "lower has 2 entries"),
        ({"values": np.ones(3), "lower": "a", "upper": "b"}, "could not convert string"),
        ({"values": np.ones(3), "lower": 0j, "upper": 1 + 0j}, "a corner of its box is complex"),
        ({"a\nb": np.ones(3), "c": np.ones(3)}, "holds the arrays a b, c; name"),
    ],
)
def test_bad_archives_have_their_own_message(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileError, match=message):
        geonet.read(tmp_path / "a.npz")


def test_saved_geodesic_is_refused_with_a_hint(tmp_path):
    grid = geonet.Grid(8)
    ends = geonet.Density(np.ones(8), grid), geonet.Density(np.arange(8), grid)
    file = geonet.geodesic(*ends, "linear").save(tmp_path / "path.npz")
    with pytest.raises(FileError, match=r"is a saved geodesic; open it with geonet\.load"):
        geonet.read(file)


class Dangerous:
    """Unpickling it would make a folder."""

    def __init__(self, where):
        self.where = where

    def __reduce__(self):
        return os.mkdir, (self.where,)


def test_pickles_are_never_loaded(tmp_path, write):
    trap = tmp_path / "trap"
    objects = np.array([Dangerous(str(trap)), None], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", values=objects)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(FileError, match=r"holds pickled objects, which are never loaded"):
            geonet.read(tmp_path / name)
    for name in ("b.npy", "b.npz"):
        with pytest.raises(FileError, match="Cannot read"):
            geonet.read(write(pickle.dumps(Dangerous(str(trap))), name))
    assert not trap.exists()


# ---- tables and clouds


def test_table_without_header(write):
    file = write("0,1,2\n3,4,5\n", "table.csv")
    density = geonet.read(file)
    assert (density.tensor * density.mass).numpy() == pytest.approx(np.arange(6).reshape(2, 3))
    assert opened(file).kind == "values"


@pytest.mark.parametrize("text", ["1,2,3", "1\n2\n3\n", "\ufeff1\r\n2\r\n\r\n3\r\n"])
def test_one_row_or_one_column_is_1d(write, text):
    assert geonet.read(write(text, "line.csv")).grid == geonet.Grid(3)


TABLE = "0.1,0.2\n0.3,0.4\n0.5,0.9\n"
COLUMN = "0.1\n0.3\n0.5\n"


def test_a_table_that_may_be_points_is_refused_until_somebody_says(write):
    file = write(TABLE, "table.csv")
    assert opened(file).kind is None
    message = 'holds 3 rows of 2 numbers .* points or .* give kind="points" or kind="values"'
    for grid in (None, geonet.Grid((2, 2))):
        with pytest.raises(FileError, match=message):
            geonet.read(file, grid)
    with pytest.raises(FileError, match='has no header, .* or give kind="points"'):
        read_points(file)
    with pytest.raises(InputError, match="kind is 'cloud'; give 'points' or 'values'"):
        geonet.read(file, kind="cloud")  # type: ignore[arg-type]
    assert geonet.read(file, kind="values").grid == geonet.Grid((3, 2), 0, (1, 2 / 3))
    points, weights = read_points(file, kind="points")
    assert points.tolist() == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.9]] and weights is None
    counted = geonet.read(file, geonet.Grid((2, 2)), kind="points").numpy(mass="given")
    assert counted == pytest.approx(np.array([[2, 0], [0, 1]]))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((5, 1), "values"),
        ((1, 2), "values"),
        ((2, 2), "values"),
        ((3, 2), None),
        ((100, 2), None),
        ((2, 3), "values"),
        ((3, 3), "values"),
        ((4, 3), None),
        ((9, 4), "values"),
        ((4, 64), "values"),
    ],
)
def test_which_tables_may_be_points(tmp_path, shape, kind):
    """Two or three columns and more rows, in a csv, an npy and an npz with one array."""
    np.savetxt(tmp_path / "a.csv", np.ones(shape), delimiter=",")
    np.save(tmp_path / "a.npy", np.ones(shape))
    np.savez(tmp_path / "a.npz", np.ones(shape))
    np.savez(tmp_path / "named.npz", values=np.ones(shape))
    assert [opened(tmp_path / f"a.{suffix}").kind for suffix in ("csv", "npy", "npz")] == [kind] * 3
    assert opened(tmp_path / "named.npz").kind == "values"


def test_points_in_arrays_and_in_one_column(tmp_path, write):
    np.save(tmp_path / "line.npy", [0.1, 0.3, 0.5])
    np.save(tmp_path / "space.npy", np.ones((5, 3), np.float32))
    for file in (write(COLUMN, "line.csv"), tmp_path / "line.npy"):
        assert geonet.read(file).grid == geonet.Grid(3)
        assert read_points(file, "points")[0].tolist() == [[0.1], [0.3], [0.5]]
        counts = geonet.read(file, geonet.Grid(5), kind="points").numpy(mass="given")
        assert counts.tolist() == [1, 1, 1, 0, 0]
    points, _ = read_points(tmp_path / "space.npy", "points")
    assert points.shape == (5, 3) and points.dtype == torch.float64
    np.save(tmp_path / "none.npy", np.ones((0, 2)))
    with pytest.raises(FileError, match=r"none\.npy has no rows"):
        geonet.read(tmp_path / "none.npy", geonet.Grid((2, 2)), kind="points")


def test_a_file_that_says_what_it_holds_is_not_contradicted(write, save_image):
    cloud, wide = write("x,y\n0,0\n", "cloud.csv"), write("1,2,3,4\n5,6,7,8\n", "wide.csv")
    with pytest.raises(FileError, match=r"cloud\.csv holds points and no values; leave kind out"):
        geonet.read(cloud, kind="values")
    for file in (wide, save_image(np.ones((3, 3), np.uint8))):
        with pytest.raises(FileError, match="holds values and no points; leave kind out"):
            geonet.read(file, kind="points")
        assert geonet.read(file, kind="values").grid.dimension == 2
    assert geonet.read(cloud, geonet.Grid((2, 2)), kind="points").grid.shape == (2, 2)


def test_cells_without_data_in_tables_and_arrays(tmp_path, write):
    np.save(tmp_path / "a.npy", [-9999.0, 1, 2, 3])
    np.savez(tmp_path / "a.npz", values=[np.nan, 1, 2, 3], lower=0, upper=4)
    file = write("-9999,1\n2,3", "a.csv")
    for name, nodata in ((tmp_path / "a.npy", -9999), (tmp_path / "a.npz", np.nan), (file, -9999)):
        values = geonet.read(name, nodata=nodata).numpy(mass="given")
        assert values.ravel().tolist() == pytest.approx([0, 1, 2, 3])
    with pytest.raises(FileError, match='4 values are NaN; fill them, or give nodata=float."nan".'):
        geonet.read(tmp_path / "a.npz")
    cloud = write("x\n0\n1\n", "cloud.csv")
    with pytest.raises(FileError, match="holds points, and nodata is for cells; leave it out"):
        geonet.read(cloud, geonet.Grid(3), nodata=0)
    with pytest.raises(InputError, match="nodata is '0'; give the number"):
        geonet.read(file, nodata="0")  # type: ignore[arg-type]


@pytest.mark.parametrize("separator", [",", ", ", ";", "; ", "\t", " ", "   "])
def test_commas_semicolons_tabs_or_spaces_separate(write, separator):
    rows = [separator.join(row) for row in (("x", "y"), ("0.1", "2"), ("-3e2", "4"))]
    for header in (rows[0], f"# {rows[0]}", "# x,y"):  # the last is what np.savetxt writes
        points, _ = read_points(write("\n".join([header, *rows[1:]]), "cloud.csv"))
        assert points.tolist() == [[0.1, 2], [-300, 4]]
    table = "\n".join([separator.join("1234"), separator.join("5678")])
    values = geonet.read(write(table, "table.csv")).numpy(mass="given")
    assert values == pytest.approx(np.arange(1, 9).reshape(2, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,5;2,5\n3,5;4,5\n", "has both commas and semicolons; .* decimals with a point"),
        ("x;y\n1,5;2,5\n", "has both commas and semicolons"),
        ("1;2\n3\n", "has the row '3', not 2 numbers separated by semicolons"),
        ("1 2\n3\n", "has the row '3', not 2 numbers separated by spaces or tabs"),
        ("1\t2\n3\tfour\n", "not 2 numbers separated by spaces or tabs"),
        ("1 2\n3,4\n", "has the row '1 2', not 1 numbers separated by commas"),
    ],
)
def test_separators_are_named(write, text, message):
    with pytest.raises(FileError, match=message):
        geonet.read(write(text, "bad.csv"))


@pytest.mark.parametrize(
    "text",
    [
        "x,y,weight\n0.1,0.1,1\n0.9,0.6,3\n",
        ' "Weight", "Y", "X" \n1,0.1,0.1\n3,0.6,0.9\n',
        "# x,y,weight\n0.1,0.1,1\n0.9,0.6,3\n",
    ],
)
def test_cloud_is_counted_on_the_grid(write, text):
    file = write(text, "cloud.csv")
    points, weights = read_points(file)
    assert points.tolist() == [[0.1, 0.1], [0.9, 0.6]]
    assert weights is not None and weights.tolist() == [1, 3]
    density = geonet.read(file, geonet.Grid((2, 2)))
    assert (density.tensor / 4).tolist() == [[0.25, 0], [0, 0.75]]
    assert opened(file).kind == "points"


def test_cloud_without_weights_in_1d_and_3d(write):
    points, weights = read_points(write("x\n1\n2\n", "line.csv"))
    assert points.shape == (2, 1) and weights is None
    points, _ = read_points(write("x,y,z\n1,2,3\n", "space.csv"))
    assert points.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n", "is a point cloud and needs a grid"),
        ("x,z\n1,2\n", "has the columns x, z; a point cloud has x, then y and z"),
        ("weight\n1\n", "has the columns weight"),
        ("x,x\n1,2\n", "has the columns x, x"),
        ("x,colour\n1,2\n", "has the columns x, colour"),
        ("x,y\n1\n", "names 2 columns but has 1"),
        ("x\nnan\n1\n", "1 of 2 rows of .* are NaN or infinite"),
        ("x,y\n", "has no rows of numbers"),
        ("\n \n", "has no rows of numbers"),
        ("1,2\n3\n", "has the row '3', not 2 numbers separated by commas"),
        ("1,2,\n3,4,\n", "has the row '1,2,', not 3 numbers"),
        ("1,2\n3,four\n", "has the row '3,four', not 2 numbers"),
        ("1_000,2\n", "has the row '1_000,2'"),
        ("1\n", "Axis 0 has 1 cells"),
        ("1,nan\n", "1 of 2 values are NaN"),
        (b"1,\xff\xfe\n", "Cannot read .* as a csv table: .*codec can't decode"),
    ],
)
def test_bad_csv_files_have_their_own_message(write, text, message):
    with pytest.raises(FileError, match=message):
        geonet.read(write(text, "bad.csv"))


def test_cloud_must_fit_its_grid(write):
    file = write("x,y\n1,2\n0.5,0.5\n", "cloud.csv")
    with pytest.raises(FileError, match="points in 2D but the grid is 1D"):
        geonet.read(file, geonet.Grid(4))
    with pytest.raises(FileError, match="1 of 2 points lie outside"):
        geonet.read(file, geonet.Grid((4, 4)))
    with pytest.raises(FileError, match="has no header"):
        read_points(write("1,2\n", "table.csv"))


# ---- any file


def test_missing_empty_and_unknown_files(tmp_path, write):
    with pytest.raises(FileError, match=r"There is no file .*nowhere\.png; check the path"):
        geonet.read(tmp_path / "nowhere.png")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(FileError, match="is a folder; give a file"):
        geonet.read(tmp_path / "folder.npy")
    for name in ("a.png", "a.npy", "a.npz", "a.csv"):
        with pytest.raises(FileError, match=f"{re.escape(name)} is empty"):
            geonet.read(write(b"", name))
    with pytest.raises(FileError, match=r"suffix '\.xyz' what .* holds; use one of \.png"):
        geonet.read(write(b"1", "a.xyz"))
    with pytest.raises(FileError, match="Cannot open"):
        geonet.read("a\0b.png")


def test_file_without_permission(write, monkeypatch):
    def refuse(self, *args, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)  # chmod would not stop root
    with pytest.raises(FileError, match=r"Cannot read .*secret\.csv .*: Permission denied;"):
        geonet.read(write(b"1,2,3", "secret.csv"))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.tif", "a.bmp", "a.npy", "a.npz"])
def test_text_under_a_false_name(write, name):
    with pytest.raises(FileError, match=r"Cannot read .*; check that it is whole and readable"):
        geonet.read(write("this is not what the name says\n" * 5, name))


def _whole_file(tmp_path, name):
    file = tmp_path / name
    pixels = RNG.integers(0, 256, (24, 24), dtype=np.uint8)
    if name.endswith(".npy"):
        np.save(file, pixels)
    elif name.endswith(".npz"):
        np.savez_compressed(file, values=pixels, lower=[0, 0], upper=[1, 1])
    else:
        Image.fromarray(pixels).save(file)
    return file.read_bytes()


FORMATS = ["a.png", "a.jpg", "a.gif", "a.tif", "a.bmp", "a.webp", "a.pgm", "a.npy", "a.npz"]


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_files_are_refused(tmp_path, write, name):
    whole = _whole_file(tmp_path, name)
    for share in (0.02, 0.1, 0.5, 0.9):
        file = write(whole[: max(1, int(share * len(whole)))], name)
        with pytest.raises(FileError, match="Cannot read"):
            geonet.read(file)


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_density_or_a_file_error(tmp_path, write, name):
    whole = np.frombuffer(_whole_file(tmp_path, name), np.uint8)
    rng = np.random.default_rng(1)
    for _ in range(60):
        damaged = whole.copy()
        damaged[rng.integers(0, min(len(whole), 120), 4)] = rng.integers(0, 256, 4)
        try:
            density = geonet.read(write(damaged.tobytes(), name))
        except FileError as error:
            assert "\n" not in str(error)
        else:
            assert torch.isfinite(density.tensor).all()


def test_no_other_format_hides_behind_a_suffix(tmp_path):
    """PostScript is a program, which Pillow would run."""
    file = tmp_path / "picture.png"
    Image.new("L", (8, 8), 200).save(file, format="EPS")
    with pytest.raises(FileError, match="as an image: no known format"):
        geonet.from_image(file)


def test_a_header_that_claims_too_many_pixels_is_not_believed(save_image):
    file = save_image(np.full((4, 4), 200, np.uint8))
    content = bytearray(file.read_bytes())
    content[16:24] = struct.pack(">II", 7, 8_388_617)  # width and height
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    file.write_bytes(content)
    with pytest.raises(FileError, match="its header says 58720319 pixels, more than there are"):
        geonet.from_image(file)


def test_a_large_even_picture_is_read(save_image):
    """The densest that there is: one bit a pixel, all equal."""
    file = save_image(np.full((3000, 3000), True))
    assert float(geonet.from_image(file).mass) == pytest.approx(1)
