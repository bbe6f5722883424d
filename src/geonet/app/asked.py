"""What the page asks for: a JSON body, checked and turned into two densities."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from geonet.app.offers import (
    LEAST_CELLS,
    LEAST_EPSILON,
    MOST_CELLS,
    MOST_EPSILON,
    SOLVERS,
    Offer,
    offer_of,
)
from geonet.arguments import is_number, is_whole, shown
from geonet.errors import DensityError, GridError, InputError, SolverError
from geonet.measures.density import Density
from geonet.measures.grid import Grid

KEYS = ("client", "number", "shape", "source", "target", "solver", "epsilon", "frames")
CLIENT = re.compile(r"[A-Za-z0-9-]{1,64}")
LARGEST = 2**53  # up to which JavaScript counts
LEAST_FRAMES, MOST_FRAMES = 2, 65
MOST_PARTICLES = 1000
SIDES = {"source": "left", "target": "right"}


@dataclass(frozen=True, eq=False)
class Asked:
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
    solver: Offer
    epsilon: float | None
    frames: int
    key: str


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; NaN and Infinity, which Python would take, are refused."""
    try:
        found = json.loads(body, parse_constant=_refuse_constant)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError("The request is not JSON; reload the page.") from error
    if not isinstance(found, dict):
        raise InputError(f"The request is {shown(found)}; give a JSON object.")
    return found


def asked_from(given: dict[str, Any]) -> Asked:
    """The question of a JSON object; refuses whatever is not as the contract says."""
    _check_keys(given)
    client, number = given["client"], given["number"]
    if not isinstance(client, str) or not CLIENT.fullmatch(client):
        raise InputError(f"client is {shown(client)}; give 1 to 64 letters, digits or hyphens.")
    _check_whole(number, "number", 0, LARGEST)
    _check_whole(given["frames"], "frames", LEAST_FRAMES, MOST_FRAMES)
    shape = _shape(given["shape"])
    offer = _offer(given["solver"], shape)
    epsilon = _epsilon(given["epsilon"], offer)
    drawn = {end: _drawn(given[end], shape, side) for end, side in SIDES.items()}
    grid = Grid(shape)
    source, target = (Density(values.astype(np.float64), grid) for values in drawn.values())
    key = _key(shape, offer.name, epsilon, *drawn.values())
    return Asked(client, number, shape, source, target, offer, epsilon, given["frames"], key)


def particles_in(given: dict[str, Any]) -> int:
    """How many particles are asked for, taken out of a JSON object."""
    count = given.pop("particles", None)
    _check_whole(count, "particles", 1, MOST_PARTICLES)
    return count


def _refuse_constant(name: str) -> NoReturn:
    raise InputError(f"The request holds {name}, which is no number; give finite numbers.")


def _check_keys(given: dict[str, Any]) -> None:
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise InputError(f"The request has the unknown key {shown(unknown[0])}; leave it out.")
    missing = [key for key in KEYS if key not in given]
    if missing:
        raise InputError(f"The request has no key {missing[0]!r}; reload the page.")


def _check_whole(value: Any, name: str, least: int, most: int) -> None:
    if not is_whole(value) or not least <= value <= most:
        raise InputError(f"{name} is {shown(value)}; give a whole number from {least} to {most}.")


def _shape(given: Any) -> tuple[int, ...]:
    """(n,) or (n, n)."""
    if not isinstance(given, list) or len(given) not in MOST_CELLS or not all(map(is_whole, given)):
        raise GridError(f"shape is {shown(given)}; give [n] or [n, n].")
    most = MOST_CELLS[len(given)]
    if min(given) < LEAST_CELLS:
        raise GridError(
            f"shape is {shown(given)}, too few cells to draw on; "
            f"give at least {LEAST_CELLS} along each axis."
        )
    if max(given) > most:
        raise GridError(
            f"shape is {shown(given)}, too many cells for this page; "
            f"give at most {most} along each axis."
        )
    if len(set(given)) > 1:
        raise GridError(f"shape is {shown(given)}, not a square; give as many rows as columns.")
    return tuple(given)


def _offer(name: Any, shape: tuple[int, ...]) -> Offer:
    dimension = len(shape)
    offer = offer_of(name, dimension) if isinstance(name, str) else None
    if offer is None:
        names = ", ".join(known.name for known in SOLVERS[dimension])
        raise SolverError(
            f"The page offers no solver {shown(name)} in {dimension}D; choose from {names}."
        )
    if offer.most is not None and max(shape) > offer.most:
        raise SolverError(
            f"The solver {offer.name!r} is slow on so many cells; "
            f"choose at most {offer.most} along each axis, or another solver."
        )
    return offer


def _epsilon(given: Any, offer: Offer) -> float | None:
    if given is None:
        return None
    if not offer.epsilon:
        raise SolverError(f"The solver {offer.name!r} takes no epsilon; give null.")
    if not is_number(given) or not LEAST_EPSILON <= given <= MOST_EPSILON:
        raise SolverError(
            f"epsilon is {shown(given)}; give a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}."
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
