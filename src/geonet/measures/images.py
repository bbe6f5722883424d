"""The brightness of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from geonet.errors import FileError, InputError
from geonet.files import PACKED, reading
from geonet.measures.density import as_tensor
from geonet.measures.nodata import without_data
from geonet.quiet import quiet

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp"),
    *(".pgm", ".ppm"),
)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # no other, such as EPS, is run
LUMA = (299, 587, 114)  # thousandths, ITU-R BT.601; whole numbers keep white exactly 1


def image_values(file: Path, invert: bool, nodata: float | None) -> np.ndarray:
    """Brightness (or darkness) in [0, 1] times opacity, (height, width)."""
    with (
        reading(file, "an image"),
        quiet(),  # about metadata
        Image.open(file, formats=FORMATS) as image,
    ):
        _check_pixels(image, file.stat().st_size)
        grey, opacity = _grey_and_opacity(ImageOps.exif_transpose(image), nodata)
    height, width = grey.shape
    if min(width, height) < 2:
        raise FileError(
            f"{file} is {width}×{height} pixels; a density needs at least 2 pixels along each side."
        )
    return (1 - grey if invert else grey) * opacity


def _check_pixels(image: Image.Image, size: int) -> None:
    """Refuse more pixels than Pillow's limit, or than a PNG of so many bytes can hold.

    Pillow refuses twice its limit by itself, and only warns of what is above it. It believes the
    header and makes room first; a byte holds eight pixels at most before it is packed.
    """
    pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        raise Image.DecompressionBombError(
            f"Image size ({pixels} pixels) exceeds Pillow's limit of {most} pixels"
        )
    if image.format == "PNG" and pixels > 8 * PACKED * size:
        raise ValueError(f"its header says {pixels} pixels, more than there are")


def _grey_and_opacity(
    image: Image.Image, nodata: float | None
) -> tuple[np.ndarray, np.ndarray | float]:
    """Luminance (height, width) in [0, 1], masked where a pixel is `nodata`; alpha in [0, 1]."""
    if image.mode[0] in "IF":  # 16-bit or 32-bit integers, or floats: one channel, no alpha
        levels = as_tensor(np.asarray(image)).double().numpy()
        if nodata is not None:
            levels = np.ma.masked_array(levels, without_data(np.asarray(image), nodata))
        white = 1.0 if image.mode == "F" else 65535.0
        brightest = 0.0 if np.ma.getmaskarray(levels).all() else levels.max()
        return levels / max(white, brightest), 1.0
    channels = np.asarray(image.convert("RGBA"))
    grey = np.zeros(channels.shape[:2])
    for k, weight in enumerate(LUMA):  # one at a time: all would take four times the memory
        grey += np.float64(weight) * channels[..., k]
    if nodata is not None:
        if nodata not in range(256):
            raise InputError(
                f"nodata is {nodata:g} and a pixel of 8 bits is a whole number from 0 to 255; "
                "give the value of pixels without data."
            )
        grey = np.ma.masked_array(grey, without_data(channels[..., :3], nodata).all(-1))
    return grey / (255 * sum(LUMA)), channels[..., 3] / 255
