"""Requests of the page: solver menu, JSON bodies and uploaded files, with their limits."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from geonet._files import wrap_read_errors
from geonet._utils import VERSION, suppress_warnings
from geonet._validation import is_integer, is_number, short_repr
from geonet.app.gallery import encode_values
from geonet.density import Density
from geonet.errors import DensityError, FileError, GridError, InputError, SolverError
from geonet.grid import Grid
from geonet.io import IMAGE_FORMATS, parse_file
from geonet.plotting.style import DENSITY_MAP
from geonet.solvers.base import MenuEntry
from geonet.solvers.registry import load_solver_classes


@dataclass(frozen=True)
class PageLimits:
    """Choices of the page and limits that keep its answers fast.

    Attributes:
        cells: numbers of cells along an axis that the page offers, by dimension.
        default_cells: initial number of cells, by dimension.
        max_cells: largest number of cells along an axis, by dimension.
        time_limit: seconds for solvers with that option.
        max_frames: largest number of frames of a path.
        max_values: largest number of pixels or values in an uploaded file.
        max_npz_bytes: largest size of an uploaded .npz file when unpacked.
        max_csv_bytes: largest size of an uploaded .csv file.
    """

    cells: Mapping[int, tuple[int, ...]] = field(
        default_factory=lambda: {1: (128, 256, 512), 2: (32, 64, 128)}
    )
    default_cells: Mapping[int, int] = field(default_factory=lambda: {1: 256, 2: 64})
    max_cells: Mapping[int, int] = field(default_factory=lambda: {1: 1024, 2: 256})
    time_limit: float = 5.0
    max_frames: int = 65
    max_values: int = 2**24
    max_npz_bytes: int = 2**27
    max_csv_bytes: int = 2**23


LIMITS = PageLimits()


@dataclass(frozen=True)
class SolverChoice:
    """A solver in the menu of the page.

    Attributes:
        name: name in the registry.
        menu: label and limits from its metadata.
        options: options that it always gets.
    """

    name: str
    menu: MenuEntry
    options: Mapping[str, Any]


@cache
def list_solvers(dimension: int) -> dict[str, SolverChoice]:
    """Return the solvers that the page offers in a dimension, by name."""
    choices = {}
    for name, cls in load_solver_classes().items():
        menu = cls.info.menu
        if menu is not None and dimension in menu.dimensions and cls.info.takes(dimension):
            options = {"time_limit": LIMITS.time_limit} if hasattr(cls, "time_limit") else {}
            choices[name] = SolverChoice(name, menu, options)
    return choices


def page_settings() -> dict[str, Any]:
    """Return the settings in the page, as JSON data."""
    colours = DENSITY_MAP(range(256), bytes=True)[:, :3]
    return {
        "solvers": {
            dimension: [
                {"name": name, "label": choice.menu.label, "epsilon": choice.menu.epsilon}
                for name, choice in list_solvers(dimension).items()
            ]
            for dimension in (1, 2)
        },
        "cells": LIMITS.cells,
        "default_cells": LIMITS.default_cells,
        "colours": base64.b64encode(colours.tobytes()).decode(),
        "version": VERSION,
    }


@dataclass(frozen=True, eq=False)
class SolveRequest:
    """A pair of drawings to solve.

    Attributes:
        client: identifier of the page.
        number: number of the request, counted by the page.
        source: the left drawing on the unit box; its given mass is in the units of the page.
        target: the right drawing.
        solver: name of the solver.
        options: all options of the solver.
        frames: number of frames at equally spaced times.
        key: identifier of the path, equal for requests with the same path.
    """

    client: str
    number: int
    source: Density
    target: Density
    solver: str
    options: Mapping[str, Any]
    frames: int
    key: str


def parse_request(body: bytes) -> SolveRequest:
    """Parse and check the JSON body of a request."""
    data = _parse_json(body)
    client = data["client"]
    if not isinstance(client, str) or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", client):
        raise InputError(
            f"client is {short_repr(client)}; give 1 to 64 letters, digits or hyphens."
        )
    _check_integer(data["number"], "number", 0, 2**53)
    _check_integer(data["frames"], "frames", 2, LIMITS.max_frames)
    shape = _parse_shape(data["shape"])
    solver = _parse_solver(data["solver"], shape)
    options = {**solver.options, **_parse_epsilon(data["epsilon"], solver)}
    source = _decode_drawing(data["source"], shape, "left")
    target = _decode_drawing(data["target"], shape, "right")
    path = json.dumps([shape, solver.name, options]).encode() + source.tobytes() + target.tobytes()
    return SolveRequest(
        client=client,
        number=data["number"],
        source=Density(source.astype(np.float64), Grid(shape)),
        target=Density(target.astype(np.float64), Grid(shape)),
        solver=solver.name,
        options=options,
        frames=data["frames"],
        key=hashlib.sha256(path).hexdigest(),
    )


def _parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object with exactly the expected keys; reject NaN and Infinity."""

    def reject_constant(name: str) -> NoReturn:
        raise InputError(f"The request contains {name}; give finite numbers.")

    try:
        data = json.loads(body, parse_constant=reject_constant)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError("The request is not JSON; reload the page.") from error
    keys = {"client", "number", "shape", "source", "target", "solver", "epsilon", "frames"}
    if not isinstance(data, dict) or set(data) != keys:
        raise InputError(f"The request is not an object with the keys {', '.join(sorted(keys))}.")
    return data


def _check_integer(value: Any, name: str, least: int, most: int) -> None:
    if not is_integer(value) or not least <= value <= most:
        raise InputError(f"{name} is {short_repr(value)}; give an integer from {least} to {most}.")


def _parse_shape(value: Any) -> tuple[int, ...]:
    """Return (n,) or (n, n)."""
    if not isinstance(value, list) or len(value) not in (1, 2) or value[0] != value[-1]:
        raise GridError(f"shape is {short_repr(value)}; give [n] or [n, n].")
    for n in value:
        check_cells(len(value), n)
    return tuple(value)


def check_cells(dimension: int, cells: int) -> None:
    """Raise GridError unless the page can show this number of cells along an axis."""
    if dimension not in LIMITS.max_cells:
        raise GridError(f"dimension is {dimension}; give 1 or 2.")
    most = LIMITS.max_cells[dimension]
    if not is_integer(cells) or not 2 <= cells <= most:
        raise GridError(
            f"The number of cells is {short_repr(cells)}; give 2 to {most} in {dimension}D."
        )


def _parse_solver(name: Any, shape: tuple[int, ...]) -> SolverChoice:
    solvers = list_solvers(len(shape))
    if not isinstance(name, str) or name not in solvers:
        raise SolverError(
            f"solver is {short_repr(name)}; choose one of {', '.join(solvers)} in {len(shape)}D."
        )
    solver = solvers[name]
    most = solver.menu.max_cells
    if most is not None and len(shape) == 2 and max(shape) > most:
        raise SolverError(
            f"The solver {name!r} is slow on grids of this size; "
            f"choose at most {most} cells along each axis, or another solver."
        )
    return solver


def _parse_epsilon(value: Any, solver: SolverChoice) -> dict[str, float]:
    if value is None:
        return {}
    if solver.menu.epsilon is None:
        raise SolverError(f"The solver {solver.name!r} has no epsilon; give null.")
    least, _, most = solver.menu.epsilon
    if not is_number(value) or not least <= value <= most:
        raise SolverError(
            f"epsilon is {short_repr(value)}; give a number from {least:g} to {most:g}."
        )
    return {"epsilon": float(value)}


def _decode_drawing(text: Any, shape: tuple[int, ...], side: str) -> np.ndarray:
    """Decode the base64 values of a drawing, (*shape), uint16."""
    try:
        content = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise DensityError(f"The {side} drawing is not base64; reload the page.") from error
    needed = 2 * math.prod(shape)
    if len(content) != needed:
        raise DensityError(
            f"The {side} drawing has {len(content)} bytes and its grid needs {needed}; "
            "send two bytes for each cell."
        )
    values = np.frombuffer(content, "<u2")
    if not values.any():
        raise DensityError(f"The {side} drawing is empty; draw something first.")
    return values.reshape(shape)


def read_upload(content: bytes, name: str, dimension: int, cells: int) -> dict[str, Any]:
    """Read an uploaded file as a drawing: `values` (base64 of uint16) and `notes` on changes.

    The name of the file is used in messages and for its suffix, never as a path.
    """
    images = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")
    label = _printable_name(name)
    suffix = PurePosixPath(label).suffix.lower()
    if suffix not in (*images, ".npy", ".npz", ".csv"):
        raise FileError(f"{label} has an unknown format; open an image, .npy, .npz or .csv file.")
    with TemporaryDirectory(prefix="geonet-") as folder:
        file = Path(folder) / f"upload{suffix}"
        file.write_bytes(content)
        try:
            _check_unpacked_size(file, is_image=suffix in images)
            density = _read_values(file)
        except FileError as error:
            raise FileError(str(error).replace(str(file), label)) from error
    if density.grid.dimension != dimension:
        nouns = {1: "a curve", 2: "an image", 3: "a volume"}
        raise FileError(
            f"{label} contains {nouns[density.grid.dimension]}; open {nouns[dimension]} here."
        )
    values, notes = fit_to_cells(density, cells)
    return {"values": encode_values(values), "notes": notes}


def _printable_name(name: str) -> str:
    """Return the last part of a path, without control characters, at most 80 characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(character if character.isprintable() else "?" for character in last)
    return f"…{printable[-80:]}" if len(printable) > 80 else printable or "The file"


def _check_unpacked_size(file: Path, is_image: bool) -> None:
    """Raise FileError for a compressed file that would need much memory."""
    if is_image:
        with (
            wrap_read_errors(file, "an image"),
            suppress_warnings(),
            Image.open(file, formats=IMAGE_FORMATS) as image,
        ):
            width, height = image.size
        if width * height > LIMITS.max_values:
            raise FileError(f"{file} has {width}×{height} pixels; open a smaller image.")
    elif file.suffix == ".npz":
        with wrap_read_errors(file, "an npz archive"), zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LIMITS.max_npz_bytes:
            raise FileError(f"{file} has {size >> 20} MiB when unpacked; open a smaller file.")
    elif file.suffix == ".csv" and file.stat().st_size > LIMITS.max_csv_bytes:
        raise FileError(
            f"{file} is larger than {LIMITS.max_csv_bytes >> 20} MiB; save its values as .npy."
        )


def _read_values(file: Path) -> Density:
    contents = parse_file(file)
    if "values" not in contents.kinds:
        raise FileError(f"{file} contains points; count them on a grid and open a table of values.")
    if contents.numbers.size > LIMITS.max_values:
        raise FileError(f"{file} contains {contents.numbers.size} values; open a smaller file.")
    return contents.with_kind("values").density()


def fit_to_cells(density: Density, cells: int) -> tuple[np.ndarray, list[str]]:
    """Resample a density to `cells` along each axis, with margins that keep its proportions.

    Returns:
        The values, (cells,) * d, and sentences on what was changed.
    """
    grid = density.grid
    shape = [max(2, round(cells * length / grid.max_side)) for length in grid.lengths]
    values = density.resample(grid.with_shape(shape)).numpy()
    margins = [((cells - n) // 2, cells - n - (cells - n) // 2) for n in shape]
    notes, square = [], (cells,) * grid.dimension
    if grid.shape != square:
        notes.append(f"Resampled from {_format_size(grid.shape)} to {_format_size(square)}.")
    if any(after for _, after in margins):
        sides = "above and below" if margins[0][1] else "left and right"
        notes.append(f"Empty margins {sides} keep its proportions.")
    return np.pad(values, margins), notes


def _format_size(shape: tuple[int, ...]) -> str:
    """Return width × height, or the number of cells."""
    return "×".join(map(str, reversed(shape))) + ("" if shape[1:] else " cells")
