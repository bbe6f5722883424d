"""Files become densities or raise FileError; geodesics survive saving and loading."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import geonet
from geonet import Density, Grid
from geonet.errors import FileError, InputError
from geonet.io import parse_file

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


# ---- Images


def test_image_orientation_and_box(save_image):
    pixels = np.zeros((3, 6), np.uint8)
    pixels[0, 4] = 255  # top row, fifth column
    density = geonet.from_image(save_image(pixels))
    assert density.grid == Grid((3, 6), 0, (0.5, 1)) and density.grid.orientation == "image"
    assert np.argwhere(density.numpy() > 0).tolist() == [[0, 4]]
    assert density.mean() == pytest.approx([0.5 / 6, 0.75])


def test_a_picture_is_the_same_in_every_format(save_image, tmp_path):
    pixels = np.arange(15, dtype=np.uint8).reshape(3, 5) + 1
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "a.npz", values=pixels)
    np.savetxt(tmp_path / "a.csv", pixels, delimiter=",")
    image = geonet.from_image(save_image(pixels))
    expected = Density(pixels, image.grid)
    for name in ("a.npy", "a.npz", "a.csv"):
        density = geonet.read(tmp_path / name)
        assert (density.grid, density.grid.orientation) == (image.grid, "image")
        assert np.array_equal(density.values, expected.values)
    assert image.values == pytest.approx(expected.values, rel=1e-12)


def test_colours_count_by_luminance(save_image):
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0, 0], pixels[0, 1], pixels[1, 0] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    values = geonet.from_image(save_image(pixels)).numpy(mass="given")
    assert values.ravel() == pytest.approx([0.299, 0.587, 0.114, 0])


@pytest.mark.parametrize("invert", [False, True])
def test_transparent_pixels_hold_no_mass(save_image, invert):
    pixels = np.full((2, 2, 4), 128, np.uint8)
    pixels[..., 3] = [[255, 0], [0, 0]]
    density = geonet.from_image(save_image(pixels), invert)
    assert np.argwhere(density.numpy() > 0).tolist() == [[0, 0]]


def test_sixteen_bit_images_keep_their_precision(save_image):
    pixels = np.array([[0, 1], [300, 65535]], np.uint16)
    file = save_image(pixels)
    assert geonet.from_image(file).numpy("given") == pytest.approx(pixels / 65535)
    assert geonet.from_image(file, True).numpy("given") == pytest.approx(1 - pixels / 65535)


@pytest.mark.parametrize("mode", ["1", "LA", "P", "PA", "CMYK", "I", "F"])
def test_modes_of_pillow(tmp_path, mode):
    grey = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8))
    file = tmp_path / "image.tif"
    grey.convert("LA" if mode == "PA" else mode).convert(mode).save(file)
    values = geonet.from_image(file).numpy()
    assert np.argwhere(values > 0.5 * values.max()).tolist() == [[0, 1], [1, 0]]


def test_camera_orientation(tmp_path):
    photo = Image.new("L", (4, 2))
    photo.putpixel((0, 0), 255)
    exif = photo.getexif()
    exif[0x0112] = 6  # rotate by 90° clockwise to view
    photo.save(tmp_path / "photo.png", exif=exif)
    density = geonet.from_image(tmp_path / "photo.png")
    assert density.grid.shape == (4, 2)
    assert np.argwhere(density.numpy() > 0).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("pixels", "invert", "message"),
    [
        (np.full((1, 5), 255), False, "is 5×1 pixels"),
        (np.zeros((3, 3)), False, "zero everywhere"),
    ],
)
def test_images_without_a_density_raise(save_image, pixels, invert, message):
    with pytest.raises(FileError, match=message):
        geonet.from_image(save_image(pixels.astype(np.uint8)), invert)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    ("pixels", "nodata"),
    [
        (np.array([[10, 255], [0, 100]], np.uint8), 255),
        (np.array([[0.5, -9999.9], [0.0, 1.0]], np.float32), -9999.9),
        (np.array([[0.5, np.nan], [0.0, 3.0]], np.float32), np.nan),
    ],
)
def test_missing_pixels(save_image, invert, pixels, nodata):
    """The marker is compared in the units of the file, and does not count for the scale."""
    file = save_image(pixels, "image.tif")
    values = geonet.from_image(file, invert, "exclude", nodata).numpy(mass="given")
    others = np.delete(pixels.astype(float).ravel(), 1)
    white = {"u1": 255, "u2": 65535, "f4": max(1, others.max())}[pixels.dtype.str[1:]]
    expected = np.insert(1 - others / white if invert else others / white, 1, 0)
    assert values.ravel() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(FileError, match="1 of 4 cells has no value"):
        geonet.read(file, nodata=nodata)


def test_the_marker_of_an_eight_bit_image(save_image):
    with pytest.raises(InputError, match="0 to 255"):
        geonet.from_image(save_image(np.ones((2, 2), np.uint8)), nodata=300)


def test_too_many_pixels_raise(save_image, monkeypatch):
    file = save_image(np.full((4, 4), 200, np.uint8))
    content = bytearray(file.read_bytes())
    content[16:24] = struct.pack(">II", 7, 8_388_617)  # width and height
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    file.write_bytes(content)
    with pytest.raises(FileError, match="its header says 58720319 pixels, more than there are"):
        geonet.from_image(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    for side in (8, 20):  # Pillow warns, and Pillow raises
        with pytest.raises(FileError, match="Image size"):
            geonet.from_image(save_image(np.ones((side, side), np.uint8)))


def test_postscript_is_not_run(tmp_path):
    file = tmp_path / "picture.png"
    Image.new("L", (8, 8), 200).save(file, format="EPS")
    with pytest.raises(FileError, match="no known format"):
        geonet.from_image(file)


# ---- NumPy files


def test_npz_with_box_or_a_single_array(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, values=np.ones((2, 3)), lower=[1, 2], upper=[3, 4], note="x")
    assert geonet.read(file).grid == Grid((2, 3), (1, 2), (3, 4))
    np.savez_compressed(file, values=np.ones((2, 3)), lower=0, upper=5)
    assert geonet.read(file).grid == Grid((2, 3), 0, 5)
    np.savez(file, anything=np.ones(4))
    assert geonet.read(file).grid == Grid(4)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 2, 2, 2)), "one to 3 axes"),
        (np.ones((1, 4)), "Axis 0 has 1 cells"),
        (np.array([1, np.nan, 1]), "1 of 3 values is NaN; .*missing="),
        (np.array([1, np.longdouble("1e4000")]), "1 of 2 values is infinite"),
        (np.array([1j, 2]), "holds complex128 values"),
        (np.zeros(3, [("a", "f8")]), "save an array of real numbers"),
    ],
)
def test_invalid_arrays_raise(tmp_path, array, message):
    np.save(tmp_path / "bad.npy", array)
    np.savez(tmp_path / "bad.npz", values=array)
    for name in ("bad.npy", "bad.npz"):
        with pytest.raises(FileError, match=re.escape(name) + ".*" + message):
            geonet.read(tmp_path / name)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3), "b": np.ones(3)}, "holds the arrays a, b"),
        ({"values": np.ones(3), "lower": 0}, "only one of 'lower' and 'upper'"),
        ({"values": np.ones(3), "lower": "a", "upper": "b"}, "could not convert string"),
        ({"values": np.ones(3), "lower": 0j, "upper": 1 + 0j}, "box is complex"),
        ({"a\nb": np.ones(3), "c": np.ones(3)}, "holds the arrays a b, c"),
    ],
)
def test_invalid_archives_raise(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileError, match=message):
        geonet.read(tmp_path / "a.npz")


def test_false_headers_take_no_memory(tmp_path, write):
    """Inside an archive, too, whose own list of sizes may be false as well."""
    stream = io.BytesIO()
    np.save(stream, np.ones(8))
    forged = stream.getvalue().replace(b"(8,), }            ", b"(1000000000000,), }")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("values.npy", forged)
    long = b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"{}"
    for file, message in (
        (write(forged, "a.npy"), r"its header says \(1000000000000,\) values, more"),
        (tmp_path / "a.npz", r"its header says \(1000000000000,\) values, more"),
        (write(long, "long.npy"), "its header says that it is longer than the file"),
    ):
        tracemalloc.start()
        with pytest.raises(FileError, match=message):
            geonet.read(file)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


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
        with pytest.raises(FileError, match="pickled objects"):
            geonet.read(tmp_path / name)
    for name in ("b.npy", "b.npz"):
        with pytest.raises(FileError, match="Cannot read"):
            geonet.read(write(pickle.dumps(Dangerous(str(trap))), name))
    assert not trap.exists()


# ---- Tables and point clouds


@pytest.mark.parametrize("separator", [",", "; ", "\t", "   "])
def test_separators(write, separator):
    rows = [separator.join(row) for row in (("x", "y"), ("0.1", "2"), ("-3e2", "4"))]
    for header in (rows[0], f"# {rows[0]}", "# x,y"):  # np.savetxt writes the last one
        points, weights = parse_file(write("\n".join([header, *rows[1:]]), "cloud.csv")).points()
        assert points.tolist() == [[0.1, 2], [-300, 4]] and weights is None
    table = "\n".join([separator.join("1234"), separator.join("5678")])
    values = geonet.read(write(table, "table.csv")).numpy(mass="given")
    assert values == pytest.approx(np.arange(1, 9).reshape(2, 4))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((3, 2), None),
        ((2, 3), "values"),
        ((4, 3), None),
        ((9, 4), "values"),
    ],
)
def test_tables_that_may_be_points(tmp_path, shape, kind):
    """A table of two or three columns and more rows, in a csv, an npy or an npz with one array."""
    np.savetxt(tmp_path / "a.csv", np.ones(shape), delimiter=",")
    np.save(tmp_path / "a.npy", np.ones(shape))
    np.savez(tmp_path / "a.npz", np.ones(shape))
    np.savez(tmp_path / "named.npz", values=np.ones(shape))
    for suffix in ("csv", "npy", "npz"):
        assert parse_file(tmp_path / f"a.{suffix}").kind == kind
    assert parse_file(tmp_path / "named.npz").kind == "values"


def test_an_ambiguous_table_needs_its_kind(write):
    file = write("0.1,0.2\n0.3,0.4\n0.5,0.9\n", "table.csv")
    with pytest.raises(FileError, match='3 rows of 2 numbers .* kind="points" or kind="values"'):
        geonet.read(file, Grid((2, 2)))
    with pytest.raises(InputError, match="kind is 'cloud'"):
        geonet.read(file, kind="cloud")  # type: ignore[arg-type]
    assert geonet.read(file, kind="values").grid == Grid((3, 2), 0, (1, 2 / 3))
    counts = geonet.read(file, Grid((2, 2)), kind="points").numpy(mass="given")
    assert counts == pytest.approx(np.array([[2, 0], [0, 1]]))


def test_points_in_one_column(tmp_path, write):
    np.save(tmp_path / "line.npy", [0.1, 0.3, 0.5])
    for file in (write("0.1\n0.3\n0.5\n", "line.csv"), tmp_path / "line.npy"):
        assert geonet.read(file).grid == Grid(3)
        counts = geonet.read(file, Grid(5), kind="points").numpy(mass="given")
        assert counts.tolist() == [1, 1, 1, 0, 0]
    np.save(tmp_path / "none.npy", np.ones((0, 2)))
    with pytest.raises(FileError, match="no rows"):
        geonet.read(tmp_path / "none.npy", Grid((2, 2)), kind="points")


def test_kinds_that_contradict_the_file_raise(write, save_image):
    cloud, wide = write("x,y\n0,0\n", "cloud.csv"), write("1,2,3,4\n5,6,7,8\n", "wide.csv")
    with pytest.raises(FileError, match="holds points and no values"):
        geonet.read(cloud, kind="values")
    for file in (wide, save_image(np.ones((3, 3), np.uint8))):
        with pytest.raises(FileError, match="holds values and no points"):
            geonet.read(file, kind="points")


@pytest.mark.parametrize(
    "text",
    ["x,y,weight\n0.1,0.1,1\n0.9,0.6,3\n", ' "Weight", "Y", "X" \n1,0.1,0.1\n3,0.6,0.9\n'],
)
def test_a_cloud_is_counted_on_the_grid(write, text):
    file = write(text, "cloud.csv")
    points, weights = parse_file(file).points()
    assert points.tolist() == [[0.1, 0.1], [0.9, 0.6]]
    assert weights is not None and weights.tolist() == [1, 3]
    assert (geonet.read(file, Grid((2, 2))).values / 4).tolist() == [[0.25, 0], [0, 0.75]]
    corner = Grid((2, 2), 0, 0.5)
    with pytest.raises(FileError, match="1 of 2 points lies outside .*outside='drop'"):
        geonet.read(file, corner)
    assert geonet.read(file, corner, outside="drop").mass == pytest.approx(corner.cell_volume)
    with pytest.raises(FileError, match="points in 2D but the grid is 1D"):
        geonet.read(file, Grid(4))
    with pytest.raises(FileError, match="nodata marks cells"):
        geonet.read(file, Grid((2, 2)), nodata=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n", "needs a grid"),
        ("x,z\n1,2\n", "has the columns x, z"),
        ("x,y\n1\n", "names 2 columns but has 1"),
        ("x\nnan\n1\n", "1 of 2 rows of .* has NaN or infinite"),
        ("x,y\n", "no rows of numbers"),
        ("1,2\n3\n", "the row '3', not 2 numbers separated by commas"),
        ("1\t2\n3\tfour\n", "separated by spaces or tabs"),
        ("1,5;2,5\n3,5;4,5\n", "both commas and semicolons"),
        ("lon;lat\n20,5;50,1\n", "both commas and semicolons; .* decimals with a point"),
        (b"1,\xff\xfe\n", "as a csv table: .*codec can't decode"),
    ],
)
def test_invalid_csv_files_raise(write, text, message):
    with pytest.raises(FileError, match=message):
        geonet.read(write(text, "bad.csv"))


@pytest.mark.parametrize(
    ("header", "first"),
    [("id,longitude,latitude,weight", 7), ("n,lon,lat", 0), ("n,lon,lat", 1), (",lon,lat", 5)],
)
def test_a_column_that_numbers_the_rows_is_not_a_coordinate(write, header, first):
    places = [(3.5, 51.0), (4.5, 50.0), (3.0, 49.0)]
    rows = [f"{first + k},{lon},{lat}" for k, (lon, lat) in enumerate(places)]
    rows = [row + ",1" for row in rows] if "weight" in header else rows
    file = write("\n".join([header, *rows]), "cloud.csv")
    name = header.partition(",")[0]
    with pytest.raises(FileError, match=f"column '{name}' .* number the rows; .* --columns"):
        parse_file(file)
    columns = header.split(",")[1:3]
    assert parse_file(file, columns=columns).points()[0].tolist() == [list(row) for row in places]


def test_coordinates_may_count(write):
    for names in ("x,y", "lon,lat", "easting,northing"):
        rows = ["0,5", "1,6", "2,6"] if names != "easting,northing" else ["1,5", "2,6"]
        file = write("\n".join([names, *rows]), "cloud.csv")
        assert len(parse_file(file).points()[0]) == len(rows)


# ---- Damaged files of any kind


def test_missing_empty_and_unknown_files(tmp_path, write, monkeypatch):
    (tmp_path / "folder.npy").mkdir()
    for file, message in (
        (tmp_path / "nowhere.png", "There is no file"),
        (tmp_path / "folder.npy", "is a folder"),
        (write(b"", "a.npz"), "is empty"),
        (write(b"1", "a.xyz"), r"unknown suffix '\.xyz'"),
        ("a\0b.png", "Cannot open"),
    ):
        with pytest.raises(FileError, match=message):
            geonet.read(file)
    for wrong in (np.ones((3, 3)), 3):
        with pytest.raises(InputError, match="give the name of a file"):
            geonet.read(wrong)  # type: ignore[arg-type]

    def deny(self, *args, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", deny)  # chmod would not stop root
    with pytest.raises(FileError, match="Permission denied"):
        geonet.read(write(b"1,2,3", "secret.csv"))


def write_sample(tmp_path, name):
    file = tmp_path / name
    pixels = RNG.integers(0, 256, (24, 24), dtype=np.uint8)
    if name.endswith(".npy"):
        np.save(file, pixels)
    elif name.endswith(".npz"):
        np.savez_compressed(file, values=pixels, lower=[0, 0], upper=[1, 1])
    else:
        Image.fromarray(pixels).save(file)
    return file.read_bytes()


FILES = ["a.png", "a.jpg", "a.gif", "a.tif", "a.bmp", "a.webp", "a.pgm", "a.npy", "a.npz"]


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_give_a_density_or_a_file_error(tmp_path, write, name):
    content = write_sample(tmp_path, name)
    with pytest.raises(FileError, match="Cannot read"):
        geonet.read(write("text under a false name\n" * 5, name))
    for share in (0.02, 0.1, 0.5, 0.9):
        with pytest.raises(FileError, match="Cannot read"):
            geonet.read(write(content[: max(1, int(share * len(content)))], name))
    rng = np.random.default_rng(1)
    for _ in range(60):
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[rng.integers(0, min(len(damaged), 120), 4)] = rng.integers(0, 256, 4)
        try:
            density = geonet.read(write(damaged.tobytes(), name))
        except FileError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(density.values).all()


# ---- Geodesics


@pytest.fixture
def path(pair_1d):
    return geonet.geodesic(*pair_1d)


def test_saved_frames_for_other_readers(path, tmp_path):
    file = path.save(tmp_path / "p.npz", times=[0.0, 0.5], grid=path.grid.with_shape(50))
    with np.load(file) as archive:
        assert archive["times"].tolist() == [0.0, 0.5]
        assert archive["density"].shape == (2, 50)
        assert (archive["lower"], archive["upper"]) == (0.0, 10.0)
        assert json.loads(str(archive["geonet"]))["solver"] == "quantile"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.npz"]
    with pytest.raises(FileError, match=r"is a saved geodesic; open it with geonet\.load"):
        geonet.read(file)


@pytest.mark.parametrize(("mass", "expected"), [("one", [1, 1, 1]), ("given", [5, 3, 1])])
def test_saved_masses(pair_1d, tmp_path, mass, expected):
    source, target = (Density(m * d.tensor, d.grid) for d, m in zip(pair_1d, (5, 1), strict=True))
    path, cell = geonet.geodesic(source, target), source.grid.cell_volume
    with np.load(path.save(tmp_path / "p.npz", [0, 0.5, 1], mass=mass)) as archive:
        assert archive["mass"].tolist() == pytest.approx(expected)
        assert (archive["density"].sum(-1) * cell).tolist() == pytest.approx(expected)
    loaded = geonet.load(tmp_path / "p.npz")
    assert torch.equal(loaded.density(0.5).tensor, path.density(0.5).tensor)
    assert loaded.density([0, 0.5, 1]).mass.tolist() == pytest.approx([5, 3, 1])


def test_files_that_are_no_geodesic_raise(path, tmp_path):
    file = path.save(tmp_path / "p.npz")
    content, arrays = file.read_bytes(), dict(np.load(file))
    for damaged in (content[:400], b"not an archive"):
        file.write_bytes(damaged)
        with pytest.raises(FileError, match="Cannot read .* as a saved geodesic"):
            geonet.load(file)
    newer = np.array(str(arrays["geonet"]).replace('"format": 1', '"format": 99'))
    for changed, message in (
        ({"values": np.ones(3)}, "not a saved geodesic"),
        (arrays | {"geonet": newer}, "this version does not support"),
    ):
        np.savez(file, **changed)
        with pytest.raises(FileError, match=message):
            geonet.load(file)


@pytest.mark.parametrize("key", ["source", "state/mass", "lower", "geonet"])
def test_changed_geodesics_raise(pair_1d, tmp_path, key):
    file = geonet.geodesic(*pair_1d, "linear-program").save(tmp_path / "p.npz")
    arrays = dict(np.load(file))
    changed = np.array(str(arrays[key]).replace("plan entries", "entries"))
    arrays[key] = changed if key == "geonet" else arrays[key][:-1]
    np.savez(file, **arrays)
    with pytest.raises(FileError, match="was changed after it was written"):
        geonet.load(file)


def test_loaded_tensors_are_aligned(pair_1d, tmp_path, misaligned_files):
    """Products round by the alignment of their factors, so a loaded path gives the same bits."""
    loaded = geonet.load(geonet.geodesic(*pair_1d, "geonet-1d").save(tmp_path / "p.npz"))
    weights = loaded.bases.model.state_dict().values()
    tensors = (loaded.source.tensor, loaded.target.tensor, *loaded.coefficients, *weights)
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}


@pytest.mark.parametrize("solver", ["monge-ampere", "linear-program", "auto"])
def test_a_fresh_process_can_load(pair_2d, tmp_path, solver):
    """Solvers are imported on use; loading must not depend on it."""
    ends = [Density(torch.stack([end.tensor] * 2), end.grid) for end in pair_2d]
    file = geonet.geodesic(*ends, solver).save(tmp_path / "p.npz", times=[0.0])
    code = f"import geonet; print(float(geonet.load({str(file)!r}).distance[1]))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(process.stdout) == pytest.approx(geonet.load(file).distance[1])


def test_failed_writes_leave_no_trace(path, tmp_path, monkeypatch):
    for file, message in (("p.txt", "does not end in .npz"), ("nowhere/p.npz", "create it first")):
        with pytest.raises(FileError, match=message):
            path.save(tmp_path / file)
    assert list(tmp_path.iterdir()) == []
    file = path.save(tmp_path / "p.npz")
    before = file.read_bytes()

    def raise_full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", raise_full_disk)
    with pytest.raises(FileError, match="No space left"):
        path.save(file)
    assert file.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


# ---- periodic axes


@pytest.mark.parametrize("solver", ["linear", "back-and-forth", "schrodinger"])
def test_saved_paths_keep_their_periodic_axes(tmp_path, solver):
    grid = Grid((16, 12), periodic=(True, False))
    wave = 2 * np.pi * (np.arange(16) + 0.5)[:, None] / 16 + np.zeros(12)
    ends = (Density(1.1 + np.cos(wave - shift), grid) for shift in (0.0, 2.0))
    path = geonet.geodesic(*ends, solver)
    file = path.save(tmp_path / "path.npz")
    loaded = geonet.load(file)
    assert loaded.grid == grid and loaded.grid.periodic == (True, False)
    assert np.array_equal(loaded.density(0.3).values, path.density(0.3).values)
    assert np.load(file)["periodic"].tolist() == [True, False]


def test_a_saved_circle_loads(tmp_path):
    grid = Grid(16, periodic=True)
    path = geonet.geodesic(*(Density(RNG.random(16), grid) for _ in range(2)))
    loaded = geonet.load(path.save(tmp_path / "path.npz"))
    assert loaded.grid.periodic == (True,) and loaded.distance == path.distance


def test_npz_files_may_have_periodic_axes(tmp_path):
    file = tmp_path / "density.npz"
    values = RNG.random((4, 6))
    for flags, expected in ((True, (True, True)), ([False, True], (False, True))):
        np.savez(file, values=values, lower=0, upper=2, periodic=flags)
        assert geonet.read(file).grid == Grid((4, 6), 0, 2, periodic=expected)
    np.savez(file, values=values, periodic=[True, True])
    assert geonet.read(file).grid.periodic == (True, True)
    for flags in (1, ["yes"], [True], [[True, False]]):
        np.savez(file, values=values, periodic=flags)
        with pytest.raises(FileError, match="periodic"):
            geonet.read(file)
