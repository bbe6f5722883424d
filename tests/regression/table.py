"""Compute a table of numbers that summarise the solvers' answers, to guard refactoring.

    python tests/regression/table.py            # write the table beside this file
    python tests/regression/table.py --check    # compare with it to 1e-9

Every row has W2, three frames and the velocity at some points, each projected onto fixed random
vectors. The table holds to 1e-9 on the machine that wrote it; `test_regression.py` compares a part
of it with tolerances that hold on other processors too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import geonet
from geonet.errors import GeonetError, SolverError, UnavailableError

FILE = Path(__file__).with_name("table.json")
TIMES = (0.25, 0.5, 0.8)
PROJECTIONS = 4

Pair = tuple[np.ndarray, np.ndarray]


def make_pairs() -> dict[str, Pair]:
    """Return the pairs by name: smooth, touching zero, discontinuous, noisy and sparse ones."""
    pairs: dict[str, Pair] = {}
    for size in (16, 65):
        pairs[f"1d-smooth-{size}"] = (_bumps(size, [0.3], 0.08), _bumps(size, [0.6, 0.8], 0.05))
        pairs[f"1d-zeros-{size}"] = (_box((size,), 0.1, 0.3), _box((size,), 0.5, 0.95))
        pairs[f"1d-noise-{size}"] = (_noise((size,), 1), _noise((size,), 2))
    for shape in ((24, 24), (48, 48), (32, 20)):
        name = "x".join(map(str, shape))
        smooth = _gaussian(shape, (0.35, 0.4), 0.12), _gaussian(shape, (0.6, 0.65), 0.1)
        pairs[f"2d-smooth-{name}"] = smooth
        pairs[f"2d-lifted-{name}"] = (smooth[0] + 0.3, smooth[1] + 0.3)
        pairs[f"2d-split-{name}"] = (
            _gaussian(shape, (0.5, 0.5), 0.08),
            _gaussian(shape, (0.2, 0.3), 0.08) + _gaussian(shape, (0.8, 0.7), 0.08),
        )
        pairs[f"2d-shapes-{name}"] = (_disc(shape, (0.4, 0.4), 0.25), _ring(shape))
        pairs[f"2d-noise-{name}"] = (_noise(shape, 3), _noise(shape, 4))
        pairs[f"2d-sparse-{name}"] = (_atoms(shape, 5), _atoms(shape, 6))
    for shape in ((12, 12, 12), (16, 12, 10)):
        name = "x".join(map(str, shape))
        pairs[f"3d-smooth-{name}"] = (
            _gaussian(shape, (0.4, 0.4, 0.5), 0.18) + 0.2,
            _gaussian(shape, (0.6, 0.5, 0.4), 0.15) + 0.2,
        )
        pairs[f"3d-zeros-{name}"] = (
            _disc(shape, (0.4, 0.4, 0.4), 0.3),
            _disc(shape, (0.55, 0.6, 0.6), 0.25),
        )
    return pairs


SOLVERS: dict[str, dict[str, object]] = {
    "auto": {},
    "quantile": {},
    "midpoint": {},
    "monge-ampere": {"floor": 0.05},
    "linear-program": {},
    "back-and-forth": {},
    "schrodinger": {},
    "linear": {},
    "universal-2d": {},
    "universal-3d": {},
    "transport-1d": {},
    "transport-2d": {},
    "transport-3d": {},
    "geonet-1d": {},
    "geonet-2d": {},
}
SLOW = {"linear-program": 1200, "schrodinger": 1200, "monge-ampere": 3000}


def compute(
    accept: Callable[[str, str], bool] = lambda pair, solver: True,
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield the rows 'pair/solver' of the table that `accept` selects."""
    for pair, (a, b) in make_pairs().items():
        lower = (0.0,) * a.ndim
        upper = tuple(np.array([2.0, 2.0, 2.0])[: a.ndim] * np.array(a.shape) / a.shape[0])
        grid = geonet.Grid(a.shape, lower, upper)
        for name, options in SOLVERS.items():
            if accept(pair, name) and a.size <= SLOW.get(name, 10**9):
                try:
                    row = _row(geonet.Density(a, grid), geonet.Density(b, grid), name, options)
                except SolverError:  # another dimension
                    continue
                except GeonetError as error:
                    row = {"error": type(error).__name__}
                yield f"{pair}/{name}", row


def _row(source, target, solver: str, options: dict[str, object]) -> dict[str, list[float]]:
    path = geonet.geodesic(source, target, solver, **options)
    row = {"frames": _project(_array(path.density(TIMES).values))}
    lower, upper = np.array(source.grid.lower), np.array(source.grid.upper)
    points = lower + np.random.default_rng(7).uniform(0.2, 0.8, (6, len(lower))) * (upper - lower)
    for key, ask in {
        "distance": lambda: [float(path.distance)],
        "velocity": lambda: _project(_array(path.velocity(TIMES, points))),
        "potential": lambda: _project(_array(path.potential(TIMES, points))),
    }.items():
        try:
            row[key] = ask()
        except UnavailableError:
            continue
    return row


def _array(values) -> np.ndarray:
    return np.asarray(values.detach() if hasattr(values, "detach") else values)


def _project(values: np.ndarray) -> list[float]:
    """Return projections of every frame onto fixed random vectors, scaled by its size."""
    flat = values.reshape(len(values), -1)
    vectors = np.random.default_rng(11).standard_normal((flat.shape[1], PROJECTIONS))
    return (flat @ vectors / np.sqrt(flat.shape[1])).ravel().tolist()


# ---- densities


def _centres(shape: tuple[int, ...]) -> list[np.ndarray]:
    return list(np.meshgrid(*((np.arange(n) + 0.5) / n for n in shape), indexing="ij"))


def _bumps(size: int, places: list[float], width: float) -> np.ndarray:
    (x,) = _centres((size,))
    return sum((np.exp(-0.5 * ((x - p) / width) ** 2) for p in places), np.full(size, 0.02))


def _gaussian(shape: tuple[int, ...], centre: tuple[float, ...], width: float) -> np.ndarray:
    square = sum((x - c) ** 2 for x, c in zip(_centres(shape), centre, strict=True))
    return np.exp(-0.5 * square / width**2)


def _box(shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    return np.prod([(x > low) & (x < high) for x in _centres(shape)], axis=0).astype(float)


def _disc(shape: tuple[int, ...], centre: tuple[float, ...], radius: float) -> np.ndarray:
    square = sum((x - c) ** 2 for x, c in zip(_centres(shape), centre, strict=True))
    return (square < radius**2).astype(float)


def _ring(shape: tuple[int, ...]) -> np.ndarray:
    centre = (0.55,) * len(shape)
    return _disc(shape, centre, 0.35) - _disc(shape, centre, 0.2)


def _noise(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.05, 1, shape)


def _atoms(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = np.zeros(shape)
    values.ravel()[rng.choice(values.size, 12, replace=False)] = rng.uniform(0.5, 1, 12)
    return values


def compare(found: dict, stored: dict, tolerance: float) -> list[str]:
    """Return a line for every number that differs by more than `tolerance`, relative to its row."""
    lines = []
    for name, row in stored.items():
        for key, values in row.items():
            if key not in found.get(name, {}):
                lines.append(f"{name} {key}: missing ({found.get(name)})")
            elif key == "error":
                if found[name][key] != values:
                    lines.append(f"{name}: {found[name][key]} instead of {values}")
            else:
                a, b = np.array(found[name][key]), np.array(values)
                difference = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12))
                if not difference <= tolerance:
                    lines.append(f"{name} {key}: differs by {difference:.1e}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="", help="part of a row's name")
    options = parser.parse_args()
    rows = dict(compute(lambda pair, solver: options.only in f"{pair}/{solver}"))
    if not options.check:
        FILE.write_text(
            "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in rows.items()) + "\n}\n"
        )
        print(f"{len(rows)} rows in {FILE}")
        return 0
    stored = {k: v for k, v in json.loads(FILE.read_text()).items() if options.only in k}
    lines = compare(rows, stored, 1e-9)
    print("\n".join([*lines, f"{len(stored)} rows, {len(lines)} differences above 1e-9"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
