"""What the page asks for: a JSON body, checked and turned into two densities."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zipfile
from dataclasses import dataclass, field
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
from geonet.io import FORMATS, parse_file
from geonet.plotting.style import DENSITY_MAP
from geonet.solvers.registry import load_solver_classes

# ---- What the page offers: solvers, cells and noise, with limits that keep every answer quick.


PATIENCE = 5.0  # seconds after which a solver answers with what it has
MOST_CELLS = {1: 1024, 2: 256}  # an axis
LEAST_CELLS = 2
CELLS = {1: (128, 256, 512), 2: (32, 64, 128)}
USUAL_CELLS = {1: 256, 2: 64}


@dataclass(frozen=True)
class SolverChoice:
    """A solver on the page.

    Attributes:
        name: in the registry.
        label: what people read.
        options: that it always gets.
        epsilon: whether people choose its noise.
        most: cells an axis, where it is slower than others.
    """

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    epsilon: bool = False
    most: int | None = None


def _read_menu() -> dict[int, tuple[SolverChoice, ...]]:
    """Return the solvers that the page offers in each dimension, from their metadata."""
    choices: dict[int, tuple[SolverChoice, ...]] = {1: (), 2: ()}
    for name, cls in load_solver_classes().items():
        menu = cls.info.menu
        if menu is None:
            continue
        options = {"time_limit": PATIENCE} if hasattr(cls, "time_limit") else {}
        has_epsilon = menu.epsilon is not None
        choice = SolverChoice(name, menu.label, options, has_epsilon, menu.max_cells)
        for dimension in menu.dimensions:
            choices[dimension] += (choice,)
    return choices


SOLVERS = _read_menu()
LEAST_EPSILON, USUAL_EPSILON, MOST_EPSILON = next(
    cls.info.menu.epsilon
    for cls in load_solver_classes().values()
    if cls.info.menu is not None and cls.info.menu.epsilon is not None
)


def find_choice(name: str, dimension: int) -> SolverChoice | None:
    """The offer of this name in so many dimensions."""
    return next((offer for offer in SOLVERS[dimension] if offer.name == name), None)


def page_settings() -> dict[str, Any]:
    """All that the page has to know, as plain data."""
    colours = DENSITY_MAP(range(256), bytes=True)[:, :3]
    return {
        "solvers": {
            str(dimension): [
                {"name": offer.name, "label": offer.label, "epsilon": offer.epsilon}
                for offer in offers
            ]
            for dimension, offers in SOLVERS.items()
        },
        "epsilon": {"least": LEAST_EPSILON, "most": MOST_EPSILON, "usual": USUAL_EPSILON},
        "cells": {str(dimension): list(cells) for dimension, cells in CELLS.items()},
        "usual": {str(dimension): cells for dimension, cells in USUAL_CELLS.items()},
        "colours": base64.b64encode(colours.tobytes()).decode(),
        "version": VERSION,
    }


KEYS = ("client", "number", "shape", "source", "target", "solver", "epsilon", "frames")
CLIENT = re.compile(r"[A-Za-z0-9-]{1,64}")
LARGEST = 2**53  # up to which JavaScript counts
LEAST_FRAMES, MOST_FRAMES = 2, 65
MOST_PARTICLES = 1000
SIDES = {"source": "left", "target": "right"}


@dataclass(frozen=True, eq=False)
class SolveRequest:
    """A question of the page.

    Attributes:
        client: the page that asks.
        number: of the question, counted by the page.
        shape: of the grid, which is the unit box.
        source: what is drawn on the left; its given mass is that of the numbers of the page.
        target: what is drawn on the right.
        solver: its offer.
        epsilon: the noise; None for the solver's own.
        frames: how many, at even times.
        key: of the path: equal for questions that the same path answers.
    """

    client: str
    number: int
    shape: tuple[int, ...]
    source: Density
    target: Density
    solver: SolverChoice
    epsilon: float | None
    frames: int
    key: str


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; NaN and Infinity, which Python would take, are refused."""
    try:
        found = json.loads(body, parse_constant=_refuse_constant)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError("The request is not JSON; reload the page.") from error
    if not isinstance(found, dict):
        raise InputError(f"The request is {short_repr(found)}; give a JSON object.")
    return found


def parse_request(given: dict[str, Any]) -> SolveRequest:
    """The question of a JSON object; refuses whatever is not as the contract says."""
    _check_keys(given)
    client, number = given["client"], given["number"]
    if not isinstance(client, str) or not CLIENT.fullmatch(client):
        raise InputError(
            f"client is {short_repr(client)}; give 1 to 64 letters, digits or hyphens."
        )
    _check_whole(number, "number", 0, LARGEST)
    _check_whole(given["frames"], "frames", LEAST_FRAMES, MOST_FRAMES)
    shape = _shape(given["shape"])
    offer = _offer(given["solver"], shape)
    epsilon = _epsilon(given["epsilon"], offer)
    drawn = {end: _drawn(given[end], shape, side) for end, side in SIDES.items()}
    grid = Grid(shape)
    source, target = (Density(values.astype(np.float64), grid) for values in drawn.values())
    key = _key(shape, offer.name, epsilon, *drawn.values())
    return SolveRequest(client, number, shape, source, target, offer, epsilon, given["frames"], key)


def pop_particles(given: dict[str, Any]) -> int:
    """How many particles are asked for, taken out of a JSON object."""
    count = given.pop("particles", None)
    _check_whole(count, "particles", 1, MOST_PARTICLES)
    return count


def _refuse_constant(name: str) -> NoReturn:
    raise InputError(f"The request holds {name}, which is no number; give finite numbers.")


def _check_keys(given: dict[str, Any]) -> None:
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise InputError(f"The request has the unknown key {short_repr(unknown[0])}; leave it out.")
    missing = [key for key in KEYS if key not in given]
    if missing:
        raise InputError(f"The request has no key {missing[0]!r}; reload the page.")


def _check_whole(value: Any, name: str, least: int, most: int) -> None:
    if not is_integer(value) or not least <= value <= most:
        raise InputError(
            f"{name} is {short_repr(value)}; give a whole number from {least} to {most}."
        )


def _shape(given: Any) -> tuple[int, ...]:
    """(n,) or (n, n)."""
    if (
        not isinstance(given, list)
        or len(given) not in MOST_CELLS
        or not all(map(is_integer, given))
    ):
        raise GridError(f"shape is {short_repr(given)}; give [n] or [n, n].")
    most = MOST_CELLS[len(given)]
    if min(given) < LEAST_CELLS:
        raise GridError(
            f"shape is {short_repr(given)}, too few cells to draw on; "
            f"give at least {LEAST_CELLS} along each axis."
        )
    if max(given) > most:
        raise GridError(
            f"shape is {short_repr(given)}, too many cells for this page; "
            f"give at most {most} along each axis."
        )
    if len(set(given)) > 1:
        raise GridError(
            f"shape is {short_repr(given)}, not a square; give as many rows as columns."
        )
    return tuple(given)


def _offer(name: Any, shape: tuple[int, ...]) -> SolverChoice:
    dimension = len(shape)
    offer = find_choice(name, dimension) if isinstance(name, str) else None
    if offer is None:
        names = ", ".join(known.name for known in SOLVERS[dimension])
        raise SolverError(
            f"The page offers no solver {short_repr(name)} in {dimension}D; choose from {names}."
        )
    if offer.most is not None and max(shape) > offer.most:
        raise SolverError(
            f"The solver {offer.name!r} is slow on so many cells; "
            f"choose at most {offer.most} along each axis, or another solver."
        )
    return offer


def _epsilon(given: Any, offer: SolverChoice) -> float | None:
    if given is None:
        return None
    if not offer.epsilon:
        raise SolverError(f"The solver {offer.name!r} takes no epsilon; give null.")
    if not is_number(given) or not LEAST_EPSILON <= given <= MOST_EPSILON:
        raise SolverError(
            f"epsilon is {short_repr(given)}; give a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}."
        )
    return float(given)


def _drawn(text: Any, shape: tuple[int, ...], side: str) -> np.ndarray:
    """The numbers of a drawing, (*shape), uint16."""
    try:
        content = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise DensityError(f"The {side} drawing is not base64; reload the page.") from error
    needed = 2 * math.prod(shape)
    if len(content) != needed:
        raise DensityError(
            f"The {side} drawing has {len(content)} bytes and its grid needs {needed}; "
            "give two bytes a cell."
        )
    values = np.frombuffer(content, "<u2")
    if not values.any():
        raise DensityError(f"The {side} drawing is empty; draw something first.")
    return values.reshape(shape)


def _key(shape: tuple[int, ...], solver: str, epsilon: float | None, *drawn: np.ndarray) -> str:
    digest = hashlib.sha256(json.dumps([shape, solver, epsilon]).encode())
    for values in drawn:
        digest.update(values.tobytes())
    return digest.hexdigest()


# ---- A file that was dropped on the page, as a density on the page's cells.


IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")
SUFFIXES = (*IMAGES, ".npy", ".npz", ".csv")
MOST_VALUES = 2**24  # pixels or numbers
MOST_UNPACKED = 2**27  # bytes of an npz
MOST_TEXT = 2**23  # bytes of a csv
LONGEST = 80  # characters of a label
NOUNS = {1: "a curve", 2: "a picture", 3: "a volume"}


def read_upload(content: bytes, name: str, dimension: int, cells: int) -> dict[str, Any]:
    """What a file holds: its values (base64 of uint16), a label, and what was changed.

    The name that came with the file is its label, and says what kind of file it is. On the disk the
    file has a name of ours, for as long as it is read.
    """
    label = _label(name)
    suffix = PurePosixPath(label).suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(f"{label} cannot be read here; drop one of {', '.join(SUFFIXES)}.")
    with TemporaryDirectory(prefix="geonet-") as folder:
        file = Path(folder) / f"dropped{suffix}"
        file.write_bytes(content)
        try:
            density = _read(file)
        except FileError as error:
            raise FileError(str(error).replace(str(file), label)) from error
    if density.grid.dimension != dimension:
        raise FileError(
            f"{label} holds {NOUNS[density.grid.dimension]}; drop {NOUNS[dimension]} here."
        )
    values, changed = fit_to_cells(density, cells)
    return {"values": encode_values(values), "label": label, "changed": changed}


def fit_to_cells(density: Density, cells: int) -> tuple[np.ndarray, list[str]]:
    """Values on so many cells along each axis, and sentences on what was changed.

    The longest side of the box fills the page, the others have empty margins. Every region keeps
    its mass.
    """
    grid = density.grid
    shape = [max(2, round(cells * length / grid.max_side)) for length in grid.lengths]
    values = density.resample(grid.with_shape(shape)).numpy()
    margins = [(cells - n) // 2 for n in shape]
    around = [(m, cells - n - m) for m, n in zip(margins, shape, strict=True)]
    changed, wanted = [], (cells,) * grid.dimension
    if grid.shape != wanted:
        changed.append(f"Resampled from {_size(grid.shape)} to {_size(wanted)}.")
    if any(after for _, after in around):
        where = "above and below" if around[0][1] else "left and right"
        changed.append(f"Its proportions are kept, with empty margins {where}.")
    return np.pad(values, around), changed


def _label(name: str) -> str:
    """The last part of a name, as people read it."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(character if character.isprintable() else "?" for character in last)
    if len(short_repr) > LONGEST:
        shown = f"…{short_repr[-LONGEST:]}"
    return shown or "The file"


def _read(file: Path) -> Density:
    _check_size(file)
    contents = parse_file(file)
    if "values" not in contents.kinds:
        raise FileError(f"{file} holds points; count them on a grid, and drop a table of values.")
    if contents.numbers.size > MOST_VALUES:
        raise FileError(f"{file} holds {contents.numbers.size} values; drop one of fewer.")
    return contents.told("values").density()


def _check_size(file: Path) -> None:
    """Refuse a small file that becomes a large one, before it is unpacked."""
    suffix = file.suffix
    if suffix in IMAGES:
        with (
            wrap_read_errors(file, "an image"),
            suppress_warnings(),
            Image.open(file, formats=FORMATS) as image,
        ):
            width, height = image.size
        if width * height > MOST_VALUES:
            raise FileError(f"{file} has {width}×{height} pixels; drop a smaller one.")
    elif suffix == ".npz":
        with wrap_read_errors(file, "an npz archive"), zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_UNPACKED:
            raise FileError(f"{file} holds {size >> 20} MiB when unpacked; drop a smaller one.")
    elif suffix == ".csv" and file.stat().st_size > MOST_TEXT:
        raise FileError(f"{file} is larger than {MOST_TEXT >> 20} MiB; save its values as .npy.")


def _size(shape: tuple[int, ...]) -> str:
    """Width × height, or the number of cells."""
    return "×".join(map(str, reversed(shape))) + ("" if shape[1:] else " cells")
