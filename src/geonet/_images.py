"""Brightness of pictures, read by Pillow, and of TIFF stacks, read by tifffile."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageOps

from geonet._files import MAX_COMPRESSION, wrap_read_errors
from geonet._utils import suppress_warnings
from geonet.density import as_tensor, nodata_mask
from geonet.errors import FileError, InputError

TIFF_SUFFIXES = (".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # EPS would run code
LUMINANCE = (299, 587, 114)  # thousandths, ITU-R BT.601; integers keep white exactly 1


@dataclass(frozen=True)
class InkRules:
    """Properties of a picture whose dark marks probably hold the mass.

    Attributes:
        border: width of the border, as a fraction of the shorter side.
        paper: least brightness of the paper, the median of the border.
        uneven: largest deviation of the paper from its median.
        covered: least shares of the border and of the picture that are paper.
        ink: largest brightness of a mark relative to the paper.
        marks: least share of the pixels in marks.
        dark: largest mean brightness of marks on a transparent ground.
        ground: least share of the picture in a bright ground, beside a picture of ink.
    """

    border: float = 0.02
    paper: float = 0.65
    uneven: float = 0.1
    covered: tuple[float, float] = (0.85, 0.6)
    ink: float = 0.5
    marks: float = 0.002
    dark: float = 0.25
    ground: float = 0.25


INK_RULES = InkRules()


@dataclass(frozen=True)
class Picture:
    """Brightness of a picture or of a stack, and facts about its file.

    Attributes:
        brightness: (height, width) or (depth, height, width) in [0, 1], times the opacity; the
            darkness if the picture is inverted. Masked at pixels without data.
        is_ink: whether the picture is not inverted, and its dark marks probably hold the mass.
        has_bright_ground: whether the border and much of the picture are bright in the file.
        rgba: (height, width, 4), 8 bits, of a picture in colour.
        is_inverted: whether dark pixels hold the mass.
        voxel: side lengths of a pixel or voxel, in the order of the axes, if the file has them.
        unit: unit of the side lengths.
    """

    brightness: np.ndarray
    is_ink: bool = False
    has_bright_ground: bool = False
    rgba: np.ndarray | None = None
    is_inverted: bool = False
    voxel: tuple[float, ...] | None = None
    unit: str = ""

    def colours(self) -> np.ndarray:
        """Return colours (3, height, width) in [0, 1] with the luminance `brightness`.

        They are the complements of the colours if the picture is inverted.
        """
        if self.rgba is None:
            return np.broadcast_to(self.brightness, (3, *self.brightness.shape))
        levels = self.rgba[..., :3].transpose(2, 0, 1) / 255
        return (1 - levels if self.is_inverted else levels) * (self.rgba[..., 3] / 255)


def read_picture(file: Path, invert: bool, nodata: float | None) -> Picture:
    """Read a picture, or a TIFF stack of two or more pages as a volume."""
    if file.suffix.lower() in TIFF_SUFFIXES:
        reason = _find_reason_for_tifffile(file)
        stack = _read_stack(file, invert, nodata, reason) if reason else None
        if stack is not None:
            return stack
    with (
        wrap_read_errors(file, "an image"),
        suppress_warnings(),  # about metadata
        Image.open(file, formats=FORMATS) as image,
    ):
        _check_pixels(image, file.stat().st_size)
        _check_single_frame(file, image)
        image = ImageOps.exif_transpose(image)
        if image.mode[0] in "IF":  # 16-bit or 32-bit integers, or floats: one channel, no alpha
            grey, rgba = _scale_levels(np.asarray(image), nodata), None
        else:
            rgba = np.asarray(image.convert("RGBA"))
            grey = _luminance(rgba, nodata)
    _check_sides(file, grey.shape)
    opacity = 1.0 if rgba is None else rgba[..., 3] / 255
    levels, alpha = np.ma.getdata(grey), np.broadcast_to(opacity, grey.shape)
    is_ink, is_bright = not invert and _is_ink(levels, alpha), _has_bright_ground(levels, alpha)
    if rgba is not None and not np.ptp(rgba[..., :3], axis=-1).any():
        rgba = None
    return Picture((1 - grey if invert else grey) * opacity, is_ink, is_bright, rgba, invert)


def _check_sides(file: Path, shape: tuple[int, ...]) -> None:
    if min(shape) < 2:
        sides = "×".join(map(str, (*shape[-2:][::-1], *shape[:-2])))
        raise FileError(
            f"{file} is {sides} pixels; a density needs at least 2 pixels along each side."
        )


def _check_single_frame(file: Path, image: Image.Image) -> None:
    frames = getattr(image, "n_frames", 1)
    # Further pages of a TIFF are thumbnails here, those of an MPO previews of a camera.
    if frames > 1 and image.format not in ("TIFF", "MPO"):
        raise FileError(
            f"{file} is an animation of {frames} pictures, and a density is one; save the one to "
            "transport as a file of its own."
        )


def _check_pixels(image: Image.Image, size: int) -> None:
    """Raise if there are more pixels than Pillow's limit, or than a PNG of `size` bytes can hold.

    Pillow raises only above twice its limit. It allocates by the header; a byte holds eight pixels
    at most before compression.
    """
    pixels, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if limit is not None and pixels > limit:
        raise Image.DecompressionBombError(
            f"Image size ({pixels} pixels) exceeds Pillow's limit of {limit} pixels"
        )
    if image.format == "PNG" and pixels > 8 * MAX_COMPRESSION * size:
        raise ValueError(f"its header says {pixels} pixels, more than there are")


def _scale_levels(levels: np.ndarray, nodata: float | None) -> np.ndarray:
    """Return levels of one channel in [0, 1], masked at `nodata`."""
    white = {"b": 1.0, "f": 1.0}.get(levels.dtype.kind, 65535.0)
    if levels.dtype == np.uint8:
        white = 255.0
    scaled = as_tensor(levels).double().numpy()
    if nodata is not None:
        scaled = np.ma.masked_array(scaled, nodata_mask(levels, nodata))
    brightest = 0.0 if np.ma.getmaskarray(scaled).all() else scaled.max()
    return scaled / max(white, brightest)


def _luminance(rgba: np.ndarray, nodata: float | None) -> np.ndarray:
    """Return the luminance (height, width) in [0, 1] of 8-bit colours, masked at `nodata`."""
    grey = np.zeros(rgba.shape[:2])
    for k, weight in enumerate(LUMINANCE):  # one at a time, to save memory
        grey += np.float64(weight) * rgba[..., k]
    if nodata is not None:
        if nodata not in range(256):
            raise InputError(
                f"nodata is {nodata:g} and a pixel of 8 bits is an integer from 0 to 255; "
                "give the value of pixels without data."
            )
        grey = np.ma.masked_array(grey, np.asarray(nodata_mask(rgba[..., :3], nodata)).all(-1))
    return grey / (255 * sum(LUMINANCE))


def _is_ink(grey: np.ndarray, alpha: np.ndarray, rules: InkRules = INK_RULES) -> bool:
    """Return whether dark marks on bright paper, or on a transparent ground, fill the picture."""
    is_border = _find_border(grey.shape, rules)
    if np.median(alpha[is_border]) < 0.5:
        visible = alpha.sum()
        return bool(visible > 0 and (grey * alpha).sum() <= rules.dark * visible)
    paper = float(np.median(grey[is_border]))
    is_paper = abs(grey - paper) <= rules.uneven
    return bool(
        paper >= rules.paper
        and is_paper[is_border].mean() >= rules.covered[0]
        and is_paper.mean() >= rules.covered[1]
        and (grey <= rules.ink * paper).mean() >= rules.marks
    )


def _has_bright_ground(grey: np.ndarray, alpha: np.ndarray, rules: InkRules = INK_RULES) -> bool:
    """Return whether most of the border, and enough of all pixels, are opaque and bright."""
    is_bright = grey * alpha >= rules.paper
    is_border = _find_border(grey.shape, rules)
    return bool(is_bright[is_border].mean() > 0.5 and is_bright.mean() >= rules.ground)


def _find_border(shape: tuple[int, ...], rules: InkRules) -> np.ndarray:
    """Return the mask of the pixels of the border, (height, width)."""
    width = max(1, round(rules.border * min(shape)))
    is_border = np.ones(shape, bool)
    is_border[width:-width, width:-width] = False
    return is_border


# ---- TIFF stacks


def _find_reason_for_tifffile(file: Path) -> str:
    """Return the contents of a TIFF that Pillow cannot read alone, or "" if it can."""
    with wrap_read_errors(file, "an image"), suppress_warnings(), file.open("rb") as stream:
        head = stream.read(4)
        stream.seek(0)
        if head in (b"II+\0", b"MM\0+"):
            return "a BigTIFF"
        try:
            with Image.open(stream, formats=("TIFF",)) as image:
                pages = getattr(image, "n_frames", 1)
                about = str(getattr(image, "tag_v2", {}).get(270, ""))
        except Image.UnidentifiedImageError:
            return "a TIFF of a kind that Pillow cannot read" if head[:2] in (b"II", b"MM") else ""
    if pages > 1:
        return f"{pages} pages"
    return "the size of its pixels" if about.startswith("ImageJ=") or "<OME" in about else ""


def _read_stack(file: Path, invert: bool, nodata: float | None, reason: str) -> Picture | None:
    """Read a greyscale TIFF by tifffile; None if it is a single picture in colour."""
    try:
        import tifffile
    except ModuleNotFoundError as error:
        raise FileError(
            f"{file} holds {reason}, for which geonet needs tifffile; "
            "install it: pip install 'geonet-ot[tiff]'."
        ) from error
    with (
        wrap_read_errors(file, "a TIFF stack"),
        suppress_warnings(),
        _quiet_log("tifffile"),
        tifffile.TiffFile(file) as tiff,
    ):
        series = _choose_series(file, tiff)
        page = series.keyframe
        if set(series.axes) == set("YXS"):
            return None
        axes = _check_axes(file, series)
        _check_size(file, series, page.compression == 1)
        if page.photometric == tifffile.PHOTOMETRIC.PALETTE and not tiff.is_imagej:
            raise FileError(f"{file} is a stack in palette colours; save it as greyscale.")
        values = _decode(file, series).reshape([n for _, n in axes])
        levels = _scale_levels(values, nodata)
        sizes, unit = _read_voxel_sizes(file, tiff)
        if page.photometric == tifffile.PHOTOMETRIC.MINISWHITE:
            invert = not invert
    voxel = None
    if sizes:
        names = ["X" if name == "X" else "Y" if name == "Y" else "Z" for name, _ in axes]
        voxel = tuple(sizes[name] for name in names)
    brightness = 1 - levels if invert else levels
    return Picture(brightness, is_inverted=invert, voxel=voxel, unit=unit)


@contextmanager
def _quiet_log(name: str) -> Iterator[None]:
    """Keep the messages of a library's logger from standard error; its errors are raised."""
    handler, logger = logging.NullHandler(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _choose_series(file: Path, tiff: Any) -> Any:
    """Return the only series of pages that is not a thumbnail."""
    series = [one for one in tiff.series if not one.keyframe.is_reduced]
    if len(series) != 1:
        shapes = ", ".join("×".join(map(str, one.shape)) for one in series[:4])
        raise FileError(
            f"{file} holds {len(series)} pictures or stacks ({shapes}), and a density is one; "
            "save the one to transport as a file of its own."
        )
    if any(page is None for page in series[0].pages):  # tifffile would return zeros
        raise FileError(
            f"{file} is part of a stack in several files, and some of these are missing; put all "
            "of them into one folder."
        )
    return series[0]


def _check_axes(file: Path, series: Any) -> list[tuple[str, int]]:
    """Return names and lengths of two or three axes; raise if there are others."""
    axes = [
        (name, n)
        for name, n in zip(series.axes, series.shape, strict=True)
        if n > 1 or name in "YX"
    ]
    counts = dict(axes)
    names, one = "".join(counts), "save the one to transport as a file of its own"
    if "S" in names:
        raise FileError(
            f"{file} is a stack of colour pictures; convert it to greyscale, or save one channel."
        )
    if "C" in names:
        raise FileError(
            f"{file} holds {counts['C']} channels; {one}; if its pages are slices of a volume, "
            "save it with the axes ZYX."
        )
    if "T" in names:
        raise FileError(
            f"{file} holds {counts['T']} times of a film; {one}. If its pages are slices of a "
            "volume, correct that in ImageJ: Image > Properties."
        )
    if len(axes) != len(names) or names not in ("YX", "ZYX", "QYX", "IYX"):
        shape = "×".join(map(str, series.shape))
        raise FileError(
            f"{file} holds {shape} values along the axes {series.axes}; a density has the axes YX "
            f"or ZYX; {one}."
        )
    _check_sides(file, tuple(counts.values()))
    return axes


def _check_size(file: Path, series: Any, is_plain: bool, limit: int = 2**28) -> None:
    """Raise if a stack is larger than `limit` voxels, or than the file can hold."""
    voxels, dtype = math.prod(series.shape), np.dtype(series.dtype)
    if dtype.kind not in "biuf":
        raise FileError(f"{file} holds {dtype} values; save real numbers.")
    if voxels > limit:
        raise FileError(
            f"{file} has {voxels:,} voxels and geonet reads up to {limit:,}; scale it down first."
        )
    bound = file.stat().st_size * (1 if is_plain else 2 * MAX_COMPRESSION)
    if voxels * dtype.itemsize > bound:
        raise ValueError(f"its header says {voxels:,} voxels, more than there are")


def _decode(file: Path, series: Any) -> np.ndarray:
    """Return the values of a series; most compressions need imagecodecs."""
    try:
        return series.asarray()
    except (ImportError, ValueError) as error:
        if isinstance(error, ValueError) and "imagecodecs" not in str(error):
            raise
        raise FileError(
            f"{file} is compressed by {series.keyframe.compression.name}, for which geonet needs "
            "imagecodecs; install it: pip install 'geonet-ot[tiff]'."
        ) from error


def _read_voxel_sizes(file: Path, tiff: Any) -> tuple[dict[str, float], str]:
    """Return the sizes of a voxel along X, Y and Z, and their unit; nothing if there are none."""
    if tiff.is_ome:
        sizes, unit = _parse_ome_sizes(tiff.ome_metadata)
    elif tiff.is_imagej:
        sizes, unit = _parse_imagej_sizes(tiff)
    else:
        return {}, ""
    if any(not (0 < size < math.inf) for size in sizes.values()):
        raise FileError(f"{file} gives the voxel sizes {sizes}; correct them, or remove them.")
    return sizes, unit


def _parse_imagej_sizes(tiff: Any) -> tuple[dict[str, float], str]:
    """Return the calibration of ImageJ; a spacing that is not given is one unit."""
    about, tags = tiff.imagej_metadata or {}, tiff.pages[0].tags
    unit = _name_unit(str(about.get("unit", "")))
    if unit in ("", "pixel", "pixels") and "spacing" not in about:
        return {}, ""
    sizes = {"Z": abs(float(about.get("spacing", 1.0)))}
    for axis, name in (("X", "XResolution"), ("Y", "YResolution")):
        pixels, units = tags[name].value if name in tags else (1, 1)
        sizes[axis] = units / pixels if pixels else 1.0
    return sizes, "" if unit.startswith("pixel") else unit


def _parse_ome_sizes(xml: str) -> tuple[dict[str, float], str]:
    """Return the physical sizes of an OME file in one unit; an axis without one is like X."""
    about = next((e for e in ElementTree.fromstring(xml).iter() if e.tag.endswith("}Pixels")), None)
    given = {} if about is None else about.attrib
    sizes = {a: float(given[f"PhysicalSize{a}"]) for a in "XYZ" if f"PhysicalSize{a}" in given}
    if "X" not in sizes:
        return {}, ""
    units = {a: _name_unit(given.get(f"PhysicalSize{a}Unit", "µm")) for a in sizes}
    metres = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "µm": 1e-6, "nm": 1e-9, "pm": 1e-12, "Å": 1e-10}
    unit = units["X"]
    for axis, other in units.items():
        if other != unit:
            if not {unit, other} <= metres.keys():
                raise ValueError(f"its voxel sizes have the units {unit} and {other}")
            sizes[axis] *= metres[other] / metres[unit]
    return {"Y": sizes["X"], "Z": sizes["X"]} | sizes, unit


def _name_unit(unit: str) -> str:
    plain = unit.strip().replace("\\u00B5", "µ").replace("\u03bc", "µ")
    return "µm" if plain.lower() in ("um", "µm", "micron", "microns", "micrometer") else plain
