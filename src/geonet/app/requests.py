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
from geonet._images import FORMATS
from geonet._utils import VERSION, suppress_warnings
from geonet._validation import is_integer, is_number, short_repr
from geonet.app.gallery import FULL, encode_values
from geonet.density import Density, Mass
from geonet.errors import DensityError, FileError, GridError, InputError, SolverError
from geonet.grid import Grid
from geonet.io import parse_file
from geonet.plotting.style import DENSITY_MAP
from geonet.solvers.base import MenuEntry
from geonet.solvers.registry import load_solver_classes
from geonet.weights import check_weights, corner_positions, polygon_order


@dataclass(frozen=True)
class PageLimits:
    """Choices of the page and limits that keep its answers fast.

    Attributes:
        cells: numbers of cells along an axis that the page offers, by dimension.
        default_cells: initial number of cells, by dimension.
        max_cells: largest number of cells along an axis, by dimension.
        max_densities: largest number of densities.
        reach: smallest, default and largest length of the slider for the reach.
        growths: labels of the growth models, by name.
        table: number of barycenters along a side of the table in a web page.
        time_limit: seconds for barycenters and for solvers with that option.
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
    max_densities: int = 4
    reach: tuple[float, float, float] = (0.05, 0.2, 1.0)
    growths: Mapping[str, str] = field(
        default_factory=lambda: {
            "hellinger": "Gaussian–Hellinger",
            "wfr": "Wasserstein–Fisher–Rao",
        }
    )
    table: int = 5
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
        has_reach: whether it has the option `reach`.
    """

    name: str
    menu: MenuEntry
    options: Mapping[str, Any]
    has_reach: bool


@cache
def list_solvers(dimension: int) -> dict[str, SolverChoice]:
    """Return the solvers that the page offers in a dimension, by name."""
    choices = {}
    for name, cls in load_solver_classes().items():
        menu = cls.info.menu
        if menu is not None and dimension in menu.dimensions and cls.info.takes(dimension):
            options = {"time_limit": LIMITS.time_limit} if hasattr(cls, "time_limit") else {}
            choices[name] = SolverChoice(name, menu, options, hasattr(cls, "reach"))
    return choices


def page_settings() -> dict[str, Any]:
    """Return the settings in the page, as JSON data."""
    colours = DENSITY_MAP(range(256), bytes=True)[:, :3]
    return {
        "solvers": {
            dimension: [
                {
                    "name": name,
                    "label": choice.menu.label,
                    "epsilon": choice.menu.epsilon,
                    "reach": choice.has_reach,
                }
                for name, choice in list_solvers(dimension).items()
            ]
            for dimension in (1, 2)
        },
        "cells": LIMITS.cells,
        "default_cells": LIMITS.default_cells,
        "reach": LIMITS.reach,
        "growths": LIMITS.growths,
        "polygons": {
            count: {
                "corners": corner_positions(count).tolist(),
                "order": polygon_order(count),
                "centre": corner_positions(count).mean(0).tolist(),
            }
            for count in range(3, LIMITS.max_densities + 1)
        },
        "colours": base64.b64encode(colours.tobytes()).decode(),
        "version": VERSION,
    }


@dataclass(frozen=True, eq=False)
class SolveRequest:
    """Drawings to solve: two for a path, more for a barycenter.

    Attributes:
        client: identifier of the page.
        number: number of the request, counted by the page.
        densities: a batch on the unit box, from 0 to 1 where they are given.
        weights: weights of a barycenter; None for a path.
        solver: name of the solver of a path; None for a barycenter.
        options: all options of the solver or of the barycenter.
        frames: number of frames at equally spaced times.
        key: identifier of the result, equal for requests with the same result.
    """

    client: str
    number: int
    densities: Density
    weights: tuple[float, ...] | None
    solver: str | None
    options: Mapping[str, Any]
    frames: int
    key: str

    @property
    def mass(self) -> Mass:
        """The unit in which densities are shown: as given if they have a reach."""
        return "given" if "reach" in self.options else "one"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the drawings in files."""
        return name_drawings(len(self.densities))


def name_drawings(count: int) -> tuple[str, ...]:
    """Return "source" and "target" for two drawings, numbered names for more."""
    if count == 2:
        return "source", "target"
    return tuple(f"density-{k + 1}" for k in range(count))


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
    texts = data["densities"]
    if not isinstance(texts, list) or not 2 <= len(texts) <= LIMITS.max_densities:
        found = len(texts) if isinstance(texts, list) else short_repr(texts)
        raise InputError(f"densities is {found}; send a list of 2 to {LIMITS.max_densities}.")
    weights = _parse_weights(data["weights"], len(texts))
    if weights is None:
        solver = _parse_solver(data["solver"], shape)
        options = {**solver.options, **_parse_epsilon(data["epsilon"], solver)}
        options |= _parse_reach(data["reach"], data["growth"], solver)
        name = solver.name
    else:
        for key in ("solver", "epsilon", "growth"):
            if data[key] is not None:
                raise InputError(f"{key} is {short_repr(data[key])}; barycenters have none.")
        options = {"time_limit": LIMITS.time_limit, **_parse_reach(data["reach"])}
        name = None
    labels = [label.replace("-", " ") for label in name_drawings(len(texts))]
    decoded = [_decode_drawing(*pair, shape) for pair in zip(texts, labels, strict=True)]
    drawings = np.stack(decoded)
    problem = json.dumps([drawings.shape, weights, name, options]).encode() + drawings.tobytes()
    return SolveRequest(
        client=client,
        number=data["number"],
        densities=Density(drawings / FULL, Grid(shape)),
        weights=weights,
        solver=name,
        options=options,
        frames=data["frames"],
        key=hashlib.sha256(problem).hexdigest(),
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
    keys = {"client", "number", "shape", "densities", "weights", "frames"}
    keys |= {"solver", "epsilon", "reach", "growth"}
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


def _parse_reach(
    value: Any, growth: Any = None, solver: SolverChoice | None = None
) -> dict[str, Any]:
    """Return the options of a path, or of a barycenter if `solver` is None."""
    if value is None:
        if growth is not None:
            raise InputError(f"growth is {short_repr(growth)} without a reach; give null.")
        return {}
    if solver is not None and not solver.has_reach:
        names = [name for name, choice in list_solvers(1).items() if choice.has_reach]
        raise SolverError(
            f"The solver {solver.name!r} has no reach; give null or choose {' or '.join(names)}."
        )
    least, _, most = LIMITS.reach
    if not is_number(value) or not least <= value <= most:
        raise InputError(
            f"reach is {short_repr(value)}; give a number from {least:g} to {most:g}, or null."
        )
    if solver is None:
        return {"reach": float(value)}
    if not isinstance(growth, str) or growth not in LIMITS.growths:
        raise InputError(f"growth is {short_repr(growth)}; give {' or '.join(LIMITS.growths)}.")
    return {"reach": float(value), "growth": growth}


def _parse_weights(value: Any, count: int) -> tuple[float, ...] | None:
    """Return the weights of a barycenter; None for two densities, which have a path."""
    if count == 2:
        if value is not None:
            raise InputError("Two densities have a path, which has no weights; give null.")
        return None
    if not isinstance(value, list) or not all(map(is_number, value)):
        raise InputError(f"weights is {short_repr(value)}; give {count} numbers.")
    return tuple(check_weights(value, count).tolist())


def _decode_drawing(text: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Decode the base64 values of a drawing, (*shape), uint16."""
    try:
        content = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise DensityError(f"The drawing of the {name} is not base64; reload the page.") from error
    needed = 2 * math.prod(shape)
    if len(content) != needed:
        raise DensityError(
            f"The drawing of the {name} has {len(content)} bytes and its grid needs {needed}; "
            "send two bytes for each cell."
        )
    values = np.frombuffer(content, "<u2")
    if not values.any():
        raise DensityError(f"The drawing of the {name} is empty; draw something first.")
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
            Image.open(file, formats=FORMATS) as image,
        ):
            width, height = image.size
            pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
        if width * height * pages > LIMITS.max_values:
            size = f"{width}×{height}{f'×{pages}' if pages > 1 else ''}"
            raise FileError(f"{file} has {size} pixels; open a smaller image.")
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
        The values, (cells,) * d, and sentences that name the changes.
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
