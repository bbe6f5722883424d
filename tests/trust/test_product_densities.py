"""W2 and its bounds on products of 1D densities, whose distance is known exactly.

For μ_k = ⊗ μ_k^a with 1D densities μ_k^a that are constant in each cell, W2² is the sum of the
squared 1D distances over the axes. These follow from the quantile functions, here in extended
precision and independently of geonet.
"""

import warnings
from collections.abc import Iterator
from functools import reduce

import numpy as np
import pytest

import geonet
from geonet import Density, Grid
from geonet.errors import ConvergenceWarning

MAX_ERROR = 5e-3  # relative error of W2 above which a report must be marked

SMALL = [(2, 2), (3, 2), (4, 4), (5, 8), (8, 8), (12, 7), (16, 16), (20, 6)]
SMALL += [(2, 2, 2), (2, 3, 4), (4, 4, 4), (6, 5, 4)]
LARGE = [(16, 16), (24, 24), (32, 32), (33, 17), (8, 48), (48, 48), (64, 64), (64, 20)]
LARGE += [(8, 8, 8), (12, 8, 10), (16, 16, 16), (24, 20, 8), (32, 32, 32)]
CHUNKS, CHUNK_SIZE = 25, 40


def smooth(n, rng):
    x = (np.arange(n) + 0.5) / n
    return rng.choice([0.0, 0.1]) + np.exp(-(((x - rng.random()) / rng.uniform(0.1, 0.5)) ** 2))


def with_zeros(n, rng):
    values = smooth(n, rng)
    values[: rng.integers(0, n)] = 0
    return values


def noise(n, rng):
    return rng.random(n) ** rng.integers(1, 6)


def spikes(n, rng):
    values = np.full(n, rng.choice([0.0, 1e-6, 1e-2]))
    values[rng.integers(0, n, 2)] += 1
    return values


def islands(n, rng):
    values, edges = np.zeros(n), np.sort(rng.integers(0, n + 1, 6))
    for k in (0, 2, 4):
        values[edges[k] : edges[k + 1]] = rng.random() + 0.1
    return values


def stripes(n, rng):
    width, phase = rng.integers(1, 3), rng.integers(0, 4)
    is_high = (np.arange(n) + phase) // width % 2 == 0
    return np.where(is_high, 1.0, rng.choice([0.0, 1e-3, 0.3]))


def wide_gap(n, rng):
    values = np.zeros(n)
    values[0], values[-1] = rng.random(2)
    return values


def one_cell(n, rng):
    return np.eye(n)[rng.integers(n)]


def uniform(n, rng):
    return np.ones(n)


MARGINALS = smooth, with_zeros, noise, spikes, islands, stripes, wide_gap, one_cell, uniform


def draw_marginal(n, rng):
    values = MARGINALS[rng.integers(len(MARGINALS))](n, rng)
    return values if values.sum() > 0 else np.ones(n)


def draw_products(seed: int, count: int, shapes: list) -> Iterator[tuple[Density, Density, float]]:
    """Yield source, target and exact distance."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        shape = shapes[rng.integers(len(shapes))]
        sides = rng.choice([0.1, 1.0, 1.0, 1.0, 5.0], len(shape))
        yield make_products([[draw_marginal(n, rng) for n in shape] for _ in range(2)], sides)


def make_products(marginals: list[list[np.ndarray]], sides) -> tuple[Density, Density, float]:
    grid = Grid([len(values) for values in marginals[0]], 0.0, list(map(float, sides)))
    source, target = (Density(reduce(np.multiply.outer, values), grid) for values in marginals)
    axes = zip(*marginals, sides, strict=True)
    squares = [float(side) ** 2 * squared_distance(first, second) for first, second, side in axes]
    return source, target, float(np.sqrt(sum(squares)))


def squared_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return W2² of densities on [0, 1] that are constant in each of n cells."""
    n = len(first)
    levels = [np.cumsum(values, dtype=np.longdouble) for values in (first, second)]
    levels = [np.concatenate([[0], values / values[-1]]) for values in levels]
    merged = np.unique(np.concatenate(levels))
    middle, ends = (merged[1:] + merged[:-1]) / 2, []
    for level in levels:
        cell = np.searchsorted(level, middle, side="right") - 1
        mass = level[cell + 1] - level[cell]
        ends.append([(cell + (at - level[cell]) / mass) / n for at in (merged[:-1], merged[1:])])
    a, b = ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]
    return float((np.diff(merged) * (a * a + a * b + b * b)).sum() / 3)


def find_violations(source: Density, target: Density, exact: float, solver: str) -> list[str]:
    """Return the statements of the path and its report that are wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        path = geonet.geodesic(source, target, solver)
        report = path.report
    lower, upper = report.distance_lower_bound, report.distance_upper_bound
    rounding = 8 * np.finfo(float).eps * sum(side**2 for side in source.grid.lengths)
    violations = []
    if lower**2 > exact**2 * (1 + 1e-9) + rounding:
        violations.append(f"lower bound {lower:.9g}")
    if upper**2 < exact**2 * (1 - 1e-9) - rounding:
        violations.append(f"upper bound {upper:.9g}")
    if not lower * (1 - 1e-9) <= report.distance <= upper * (1 + 1e-9):
        violations.append(f"W2 {report.distance:.9g} outside [{lower:.9g}, {upper:.9g}]")
    is_marked = bool(caught) or report.info.get("converged") is False
    is_marked |= report.is_distance_uncertain or "Not reliable" in str(report.summary())
    error = abs(report.distance - exact)
    if error > MAX_ERROR * exact + 1e-3 * min(source.grid.spacing) and not is_marked:
        violations.append(f"W2 {report.distance:.6g}, {error / exact:.2%} off without a mark")
    return [f"{path.solver} on {source.grid}, exact {exact:.9g}: {text}" for text in violations]


def check(pairs, solver="auto"):
    found = [text for pair in pairs for text in find_violations(*pair, solver)]
    assert not found, f"{len(found)} violations:\n" + "\n".join(found[:40])


def test_the_exact_distance_equals_the_solver_in_1d():
    rng = np.random.default_rng(0)
    for _ in range(50):
        ends = [Density(draw_marginal(11, rng), Grid(11)) for _ in range(2)]
        exact = squared_distance(*(end.numpy() for end in ends)) ** 0.5
        path = geonet.geodesic(*ends, "quantile")
        assert float(path.distance) == pytest.approx(exact, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("solver", "count"), [("auto", 20), ("midpoint", 40), ("linear-program", 10)]
)
def test_small_products(solver, count):
    check(draw_products(1, count, SMALL), solver)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_products(chunk):
    """Every second chunk has small grids; 1,000 pairs in total."""
    check(draw_products(100 + chunk, CHUNK_SIZE, SMALL if chunk % 2 else LARGE))


def alternate(n: int, width: int, low: float) -> np.ndarray:
    return np.where(np.arange(n) // width % 2 == 0, 1.0, low)


STRIPES = {
    "antiphase": (alternate(64, 1, 0.3), alternate(64, 1, 0.3)[::-1], 0.009101),
    "two cells": (np.ones(64), alternate(64, 2, 0.0), 0.018042),
}


@pytest.mark.parametrize("name", STRIPES)
def test_stripes(name):
    first, second, distance = STRIPES[name]
    pair = make_products([[first, np.ones(64)], [second, np.ones(64)]], (1.0, 1.0))
    assert pair[2] == pytest.approx(distance, rel=1e-4)
    check([pair])


def test_checkerboard():
    """It is not a product, but the bounds of two solvers must overlap."""
    grid = Grid((16, 16))
    board = np.indices((16, 16)).sum(0) % 2.0
    ends = Density(np.ones((16, 16)), grid), Density(board, grid)
    first, second = (geonet.geodesic(*ends, name).report for name in ("auto", "linear-program"))
    assert first.distance_lower_bound <= second.distance_upper_bound
    assert second.distance_lower_bound <= first.distance_upper_bound
    assert first.distance_lower_bound <= first.distance <= first.distance_upper_bound
