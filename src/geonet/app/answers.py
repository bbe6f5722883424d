"""The answers of the page's questions, as bytes and as plain data."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from geonet.app.asked import Asked
from geonet.app.solving import Solved
from geonet.errors import SolverError, UnavailableError
from geonet.geodesics.base import Geodesic
from geonet.geodesics.plain_words import in_plain_words
from geonet.plotting.scene import MOMENTS, QUARTERS, Floats, particle_tracks, potential_values
from geonet.wording import number


def frames_answer(asked: Asked, solved: Solved) -> bytes:
    """Header and frames, uint8 levels (frames, *shape), of which 255 is the highest density."""
    began = perf_counter()
    path, times = solved.path, np.linspace(0, 1, asked.frames)
    values = path.density(times).numpy()
    top = float(values.max())
    if not np.isfinite(values).all() or not top > 0:
        raise SolverError(f"The solver {path.solver!r} has no answer here; choose another one.")
    levels = np.rint(values.clip(0) * (255 / top)).astype(np.uint8)
    distance = _distance(path)
    header = {
        "key": asked.key,
        "shape": asked.shape,
        "times": times.tolist(),
        "top": top,
        "solver": path.solver,
        "milliseconds": 1000 * (solved.seconds + perf_counter() - began),
        "distance": distance,
        "distance_text": None if distance is None else number(distance),
    }
    return packed(header, levels)


def report_answer(asked: Asked, solved: Solved) -> dict[str, Any]:
    """What is known of a path, in numbers and in words."""
    began = perf_counter()
    report = solved.path.report
    return {
        "key": asked.key,
        "solver": report.solver,
        **in_plain_words(solved.path, report),  # headline, sentences, rows and tears
        "distance": _finite(report.distance),
        "lower": _finite(report.distance_lower_bound),
        "upper": _finite(report.distance_upper_bound),
        "error_estimate": _finite(report.error_estimate),
        "milliseconds": 1000 * (perf_counter() - began),
    }


def overlays_answer(asked: Asked, solved: Solved, count: int) -> bytes:
    """Header, particles (times, count, d) and the potential (times, cells…), float32.

    Args:
        asked: the question.
        solved: its path.
        count: of particles, started where the source's mass is.
    """
    path = solved.path
    layers: dict[str, Callable[[], Floats]] = {
        "particles": lambda: particle_tracks(path, count),
        "potential": lambda: potential_values(path),
    }
    arrays: dict[str, Floats] = {}
    why: dict[str, str] = {}
    for name, compute in layers.items():
        try:
            arrays[name] = compute()
        except UnavailableError:
            why[name] = f"The solver {path.solver!r} gives no {name}; choose another solver."
    shapes = {name: list(arrays[name].shape) if name in arrays else None for name in layers}
    header = {
        "key": asked.key,
        "times": np.linspace(0, 1, MOMENTS).tolist(),
        **shapes,
        "potential_times": np.linspace(0, 1, QUARTERS).tolist(),
        "why": why,
    }
    return packed(header, *(array.astype("<f4") for array in arrays.values()))


def packed(header: dict[str, Any], *arrays: np.ndarray) -> bytes:
    """The length of the header, the header padded to whole words, and the arrays behind it."""
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return b"".join((struct.pack("<I", len(text)), text, *(array.tobytes() for array in arrays)))


def _distance(path: Geodesic) -> float | None:
    try:
        return _finite(float(path.distance))
    except UnavailableError:
        return None


def _finite(value: Any) -> float | None:
    """A number that JSON can hold."""
    return value if isinstance(value, float) and math.isfinite(value) else None
