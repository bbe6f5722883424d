"""TIFF stacks with voxel sizes, and pictures whose dark marks hold the mass."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw

import geonet
from geonet import Grid
from geonet.errors import FileError
from geonet.io import parse_file

tifffile = pytest.importorskip("tifffile")

STACK = np.random.default_rng(0).integers(0, 4000, (5, 6, 7)).astype(np.uint16)
GREY = {"photometric": "minisblack"}


@pytest.fixture
def save_tiff(tmp_path):
    def save(values, name="stack.tif", **options):
        tifffile.imwrite(tmp_path / name, values, **options)
        return tmp_path / name

    return save


# ---- Stacks


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": None},
        {},
        {"compression": "lzw"},
        {"compression": "zlib"},
        {"bigtiff": True},
        {"imagej": True, "metadata": {"axes": "ZYX"}},
        {"byteorder": ">"},
    ],
    ids=str,
)
def test_pages_are_slices_of_a_volume(save_tiff, options):
    density = geonet.read(save_tiff(STACK, **GREY | options))
    assert density.grid == Grid((5, 6, 7), 0, [5 / 7, 6 / 7, 1])
    assert density.numpy("given") == pytest.approx(STACK / 65535)


def test_48_pages(save_tiff):
    values = np.random.default_rng(1).integers(0, 255, (48, 48, 48)).astype(np.uint8)
    contents = parse_file(save_tiff(values, **GREY))
    assert contents.values().shape == (48, 48, 48)
    assert np.array_equal(contents.values(), values / 255)


def test_stacks_without_metadata_from_pillow(tmp_path):
    first, *rest = (Image.fromarray(page.astype(np.uint8)) for page in STACK)
    first.save(tmp_path / "stack.tif", save_all=True, append_images=rest)
    assert parse_file(tmp_path / "stack.tif").values().shape == (5, 6, 7)


def test_invert_and_white_is_zero(save_tiff):
    levels = STACK / 65535
    file = save_tiff(STACK, **GREY)
    assert parse_file(file, invert=True).values() == pytest.approx(1 - levels)
    file = save_tiff(STACK, photometric="miniswhite")
    assert parse_file(file).values() == pytest.approx(1 - levels)
    assert parse_file(file, invert=True).values() == pytest.approx(levels)


def test_nodata_of_a_stack(save_tiff):
    values = STACK.copy()
    values[1, 2, 3] = 5000
    density = geonet.read(save_tiff(values, **GREY), nodata=5000, missing="exclude")
    assert (density.numpy() == 0).sum() == (STACK == 0).sum() + 1 and density.numpy()[1, 2, 3] == 0


def test_floats_and_single_pages(save_tiff):
    file = save_tiff(STACK[0] / 4000)  # 64-bit floats, which Pillow does not know
    assert geonet.read(file).numpy("given") == pytest.approx(STACK[0] / 4000)


def test_a_thumbnail_is_no_page(tmp_path):
    with tifffile.TiffWriter(tmp_path / "photo.tif") as writer:
        writer.write(STACK[0], metadata=None)
        writer.write(STACK[0, :3, :3], subfiletype=1, metadata=None)
    assert parse_file(tmp_path / "photo.tif").values().shape == (6, 7)


# ---- Voxel sizes


def test_voxel_sizes_of_imagej(save_tiff):
    about = {"axes": "ZYX", "spacing": 0.5, "unit": "um"}
    file = save_tiff(STACK, imagej=True, resolution=(5, 4), metadata=about)
    contents = parse_file(file)
    assert contents.picture.voxel == pytest.approx((0.5, 0.25, 0.2))
    assert contents.picture.unit == "µm"
    assert geonet.read(file).grid == Grid((5, 6, 7), 0, contents.box[1])
    assert contents.box[1] == pytest.approx([2.5, 1.5, 1.4])


def test_pixel_sizes_of_one_page(save_tiff):
    file = save_tiff(STACK[0], imagej=True, resolution=(5, 4), metadata={"unit": "mm"})
    assert geonet.read(file).grid.lengths == pytest.approx((1.5, 1.4))


def test_no_sizes_without_calibration(save_tiff):
    file = save_tiff(STACK, imagej=True, metadata={"axes": "ZYX"})
    assert parse_file(file).box is None
    assert parse_file(save_tiff(STACK, resolution=(300, 300), **GREY)).box is None  # for a printer


def test_voxel_sizes_of_ome(save_tiff):
    about = {
        "axes": "ZYX",
        "PhysicalSizeX": 0.2,
        "PhysicalSizeXUnit": "µm",
        "PhysicalSizeY": 0.25,
        "PhysicalSizeYUnit": "µm",
        "PhysicalSizeZ": 500,
        "PhysicalSizeZUnit": "nm",
    }
    contents = parse_file(save_tiff(STACK, "stack.ome.tif", metadata=about))
    assert contents.picture.voxel == pytest.approx((0.5, 0.25, 0.2))
    assert contents.picture.unit == "µm"
    assert parse_file(save_tiff(STACK, "plain.ome.tif", metadata={"axes": "ZYX"})).box is None


@pytest.mark.parametrize(("size", "message"), [(0.0, "voxel sizes"), (-1.0, "voxel sizes")])
def test_impossible_voxel_sizes(save_tiff, size, message):
    about = {"axes": "ZYX", "PhysicalSizeX": 0.2, "PhysicalSizeY": 0.2, "PhysicalSizeZ": size}
    with pytest.raises(FileError, match=message):
        parse_file(save_tiff(STACK, "stack.ome.tif", metadata=about))


# ---- Files that hold no density

RGB = np.zeros((4, 6, 7, 3), np.uint8)
CHANNELS = {"imagej": True, "metadata": {"axes": "ZCYX"}}


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (RGB, {"photometric": "rgb"}, "stack of colour pictures; convert it to greyscale"),
        (np.stack([STACK, STACK], 1), CHANNELS, "holds 2 channels; .* save it with the axes ZYX"),
        (STACK, {"imagej": True, "metadata": {"axes": "TYX"}}, "holds 5 times of a film"),
        (np.stack([STACK, STACK]), GREY, "along the axes QQYX"),
        (STACK[:, :1], GREY, "7×1×5 pixels; a density needs at least 2"),
        (STACK.astype(complex), GREY, "holds complex128 values"),
    ],
)
def test_other_stacks_raise(save_tiff, values, options, message):
    with pytest.raises(FileError, match=message):
        parse_file(save_tiff(values, **options))


def test_two_pictures_raise(tmp_path):
    with tifffile.TiffWriter(tmp_path / "two.tif") as writer:
        writer.write(STACK[0])
        writer.write(STACK[0, :4, :4])
    with pytest.raises(FileError, match=r"holds 2 pictures or stacks \(6×7, 4×4\)"):
        parse_file(tmp_path / "two.tif")


@pytest.mark.parametrize("suffix", ["gif", "png", "webp"])
def test_animations_raise(tmp_path, suffix):
    first, *rest = (Image.fromarray(page.astype(np.uint8)) for page in STACK)
    file = tmp_path / f"film.{suffix}"
    first.save(file, save_all=True, append_images=rest)
    with pytest.raises(FileError, match="is an animation of 5 pictures"):
        parse_file(file)


def test_a_compression_without_its_package_names_the_extra(save_tiff, monkeypatch):
    file = save_tiff(STACK, **GREY)

    def fail(self, *args, **options):
        raise ValueError("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", fail)
    with pytest.raises(FileError, match=r"needs imagecodecs; install it: pip install 'geonet-ot"):
        parse_file(file)


OME = """<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{0}1"><Image ID="I:0">
<Pixels ID="P:0" DimensionOrder="XYZCT" Type="uint16" SizeX="7" SizeY="6" SizeC="1" SizeZ="2"
SizeT="1"><Channel ID="C:0:0" SamplesPerPixel="1"/>
<TiffData IFD="0" FirstZ="0" PlaneCount="1">
<UUID FileName="a.ome.tif">urn:uuid:{0}1</UUID></TiffData>
<TiffData IFD="0" FirstZ="1" PlaneCount="1">
<UUID FileName="b.ome.tif">urn:uuid:{0}2</UUID></TiffData>
</Pixels></Image></OME>""".format("aaaaaaaa-0000-0000-0000-00000000000")


def test_a_missing_part_of_a_stack_raises(save_tiff):
    """Its pages would be zeros."""
    file = save_tiff(STACK[0], "a.ome.tif", description=OME.encode(), metadata=None)
    with pytest.raises(FileError, match="some of these are missing; put all"):
        parse_file(file)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_cut_stacks_raise(save_tiff, share, capfd):
    file = save_tiff(np.tile(STACK, (4, 8, 8)), **GREY)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(FileError, match=r"stack\.tif"):
        parse_file(file)
    assert capfd.readouterr() == ("", "")  # tifffile logs what it finds


def test_a_header_that_exceeds_the_file_raises(save_tiff):
    """It must not make tifffile allocate memory first."""
    file = save_tiff(STACK, metadata=None, **GREY)
    with tifffile.TiffFile(file, mode="r+") as tiff:
        for page in tiff.pages:
            page.tags["ImageWidth"].overwrite(100_000)
    with pytest.raises(FileError, match=r"more than there are"):
        parse_file(file)


def test_large_stacks_raise(save_tiff):
    file = save_tiff(STACK, bigtiff=True, metadata=None, **GREY)
    with tifffile.TiffFile(file, mode="r+") as tiff:
        for page in tiff.pages:
            page.tags["ImageWidth"].overwrite(100_000)
            page.tags["ImageLength"].overwrite(100_000)
    with pytest.raises(FileError, match="50,000,000,000 voxels and geonet reads up to"):
        parse_file(file)


def test_without_tifffile(save_tiff, monkeypatch):
    stack = save_tiff(STACK, **GREY)
    calibrated = save_tiff(STACK[0], "one.tif", imagej=True)
    plain = save_tiff(STACK[0], "plain.tif", metadata=None)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for file, contents in ((stack, "5 pages"), (calibrated, "the size of its pixels")):
        with pytest.raises(FileError, match=rf"{contents}, .*install it: pip install '.*\[tiff\]'"):
            parse_file(file)
    assert parse_file(plain).values().shape == (6, 7)


# ---- Dark ink


def draw(background, ink, mode="L", size=(60, 40)):
    picture = Image.new(mode, size, background)
    ImageDraw.Draw(picture).ellipse((20, 10, 36, 28), fill=ink)
    return picture


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (draw(255, 0), True),
        (draw(200, 30), True),
        (draw((250, 245, 230), (20, 20, 90), "RGB"), True),
        (draw((0, 0, 0, 0), (0, 0, 0, 255), "RGBA"), True),
        (draw((0, 0, 0, 0), (60, 30, 30, 255), "RGBA"), True),
        (draw(0, 255), False),
        (draw(255, 220), False),
        (draw(255, 255), False),
        (draw((0, 0, 0, 0), (230, 230, 230, 255), "RGBA"), False),
        (Image.fromarray((STACK[0] // 16).astype(np.uint8)), False),
    ],
)
def test_ink_on_paper_is_recognised(tmp_path, picture, expected):
    file = tmp_path / "picture.png"
    picture.save(file)
    assert parse_file(file).picture.is_ink is expected
    assert not parse_file(file, invert=True).picture.is_ink


def test_black_ink_on_transparency_has_a_hint(tmp_path):
    file = tmp_path / "ink.png"
    draw((0, 0, 0, 0), (0, 0, 0, 255), "RGBA").save(file)
    with pytest.raises(FileError, match="zero everywhere.*invert=True.*--invert"):
        geonet.read(file)
    density = geonet.from_image(file, invert=True)
    assert (density.numpy() > 0).sum() == (np.asarray(draw(0, 1)) > 0).sum()
