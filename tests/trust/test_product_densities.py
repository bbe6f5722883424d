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


def squared_circle_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return W2² of densities on the circle of length one that are constant in each of n cells.

    It is the smallest one of the plans that move the mass at level s of the first quantile function
    to the mass at level s + θ of the second one, and convex in θ.
    """
    n, periods = len(first), np.arange(-2, 3)
    levels = [np.cumsum(values, dtype=np.longdouble) for values in (first, second)]
    levels = [np.concatenate([[0], values / values[-1]]) for values in levels]
    wide = np.concatenate([levels[1][:-1] + k for k in periods] + [[periods[-1] + 1.0]])

    def find(level, at, middle):
        cell = np.searchsorted(level, middle, side="right") - 1
        return cell + (at - level[cell]) / (level[cell + 1] - level[cell])

    def cost(shift):
        moved = wide - shift
        merged = np.unique(np.concatenate([levels[0], moved[(moved > 0) & (moved < 1)]]))
        middle = (merged[1:] + merged[:-1]) / 2
        a, b = (
            (find(moved, at, middle) + n * periods[0] - find(levels[0], at, middle)) / n
            for at in (merged[:-1], merged[1:])
        )
        return float((np.diff(merged) * (a * a + a * b + b * b)).sum() / 3)

    low, high, ratio = -1.0, 1.0, (5**0.5 - 1) / 2
    for _ in range(60):
        inner = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, inner[1]) if cost(inner[0]) < cost(inner[1]) else (inner[0], high)
    return cost((low + high) / 2)


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
    error, allowed = (
        abs(report.distance - exact),
        MAX_ERROR * exact + 1e-3 * min(source.grid.spacing),
    )
    if lower < 0.5 * exact and error > allowed and report.info.get("converged"):
        violations.append(f"converged with W2 {report.distance:.6g} in [{lower:.6g}, {upper:.6g}]")
    if not np.isfinite(path.density([0.001, 0.5, 0.999]).numpy()).all():
        violations.append("frames with NaN")
    if error > allowed and not is_marked:
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


# ---- Pairs that were hard


def islands_of(n: int, masses: tuple[float, float], width: float = 0.125) -> np.ndarray:
    """Return two blocks at 0 and at ¾."""
    k = round(width * n)
    values = np.zeros(n)
    values[:k], values[3 * n // 4 : 3 * n // 4 + k] = masses
    return values


def change_slightly(values: np.ndarray, rng) -> np.ndarray:
    """Return a density that differs by a smooth factor, by little noise or by a small mass."""
    n, size = len(values), 10.0 ** rng.uniform(-4, -1)
    kind = rng.integers(4)
    if kind == 0:
        return values * (1 + size * np.cos(rng.integers(1, 5) * np.pi * (np.arange(n) + 0.5) / n))
    if kind == 1:
        return values * (1 + size * rng.random(n))
    if kind == 2:
        return (1 - size) * values / values.sum() + size * rng.permutation(values) / values.sum()
    return np.roll(values, rng.integers(1, 3))


def draw_hard(seed: int, count: int, shapes: list) -> Iterator[tuple[Density, Density, float]]:
    """Yield nearly equal, rolled and thin pairs with their exact distances."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        shape = shapes[rng.integers(len(shapes))]
        sides = rng.choice([0.02, 1.0, 1.0, 50.0], len(shape))
        source = [draw_marginal(n, rng) for n in shape]
        changed = [change_slightly(v, rng) if rng.random() < 0.7 else v for v in source]
        yield make_products([source, changed], sides)


@pytest.mark.parametrize(("solver", "count"), [("auto", 12), ("midpoint", 12)])
def test_nearly_equal_pairs(solver, count):
    check(draw_hard(7, count, SMALL), solver)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS // 5))
@pytest.mark.parametrize("solver", ["auto", "midpoint", "back-and-forth"])
def test_many_nearly_equal_pairs(solver, chunk):
    check(draw_hard(900 + chunk, CHUNK_SIZE, SMALL if chunk % 2 else LARGE), solver)


@pytest.mark.parametrize("excess", [0.03, 0.0003])
@pytest.mark.parametrize("solver", ["midpoint", "back-and-forth"])
def test_a_small_mass_that_moves_far_is_marked(solver, excess):
    n, block = 64, islands_of(64, (1.0, 0.0), 0.25)
    first, second = islands_of(n, (1 + excess, 1 - excess)), islands_of(n, (1.0, 1.0))
    pair = make_products([[first, block], [second, block]], (1.0, 1.0))
    check([pair], solver)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        report = geonet.geodesic(*pair[:2], solver).report
    if report.distance != pytest.approx(pair[2], rel=0.1):
        assert caught and report.info["converged"] is False


@pytest.mark.parametrize("change", [0.2, 0.02, 0.002, 2e-4])
@pytest.mark.parametrize("waves", [1, 3])
@pytest.mark.parametrize("solver", ["midpoint", "auto"])
def test_small_waves_on_a_uniform_density(solver, waves, change):
    n, x = 48, (np.arange(48) + 0.5) / 48
    wave = 1 + change * np.cos(waves * np.pi * x)
    source, target, exact = make_products([[np.ones(n)] * 2, [wave, np.ones(n)]], (1.0, 1.0))
    report = geonet.geodesic(source, target, solver).report
    assert report.info["converged"]
    assert report.distance == pytest.approx(exact, rel=2e-3)
    assert report.distance_lower_bound == pytest.approx(exact, rel=8e-3)
    assert report.distance_upper_bound == pytest.approx(exact, rel=8e-3)


@pytest.mark.parametrize("shape", [(70, 70), (100, 60)])
def test_blocks_that_move_by_part_of_a_cell(shape):
    n = shape[0]
    edges, blocks = np.arange(n + 1) / n, []
    for shift in (0.0, 0.7 / n):
        blocks.append(sum(np.diff(np.clip(edges, a + shift, a + 0.1 + shift)) for a in (0.1, 0.8)))
    across = islands_of(shape[1], (1.0, 0.0), 0.4)
    check([make_products([[blocks[0], across], [blocks[1], across]], (1.0, 1.0))])


def test_boxes_of_one_by_fifty():
    """Mass that moves along the short axis only is less than a cell of the long one."""
    rng = np.random.default_rng(5)
    pairs = []
    for shape, sides in (((32, 32), (1.0, 50.0)), ((64, 16), (50.0, 1.0)), ((48, 20), (1.0, 10.0))):
        source = [smooth(n, rng) + 0.1 for n in shape]
        short = int(np.argmin(sides))
        target = [smooth(n, rng) + 0.1 if k == short else source[k] for k, n in enumerate(shape)]
        pairs.append(make_products([source, target], sides))
    check(pairs, "back-and-forth")


@pytest.mark.parametrize("solver", ["auto", "midpoint", "back-and-forth"])
@pytest.mark.parametrize("sides", [(1.0, 50.0), (0.02, 50.0)], ids=str)
def test_equal_ends_in_a_narrow_box_do_not_move(solver, sides):
    values, grid = np.random.default_rng(0).random((40, 40)), Grid((40, 40), 0.0, sides)
    report = geonet.geodesic(Density(values, grid), Density(values, grid), solver).report
    assert report.distance == report.distance_upper_bound == 0 and report.info["converged"]


def test_few_cells_in_a_narrow_box_have_no_false_lower_bound():
    """Rounding of the moments exceeds the difference of the ends, which is zero."""
    rng = np.random.default_rng(50)
    for _ in range(20):
        values = rng.random((2, 3, 4)) * (rng.random((2, 3, 4)) < 0.6) + 1e-12
        ends = [Density(values, Grid(values.shape, 0.0, (50.0, 1.0, 50.0)))] * 2
        assert geonet.geodesic(*ends, "midpoint").report.distance_lower_bound == 0


def test_distance_warns_if_it_is_not_known():
    """Blocks that move by one of 186 cells: the bounds differ by a factor of two."""
    rng = np.random.default_rng(20)
    n = int(rng.integers(70, 201))
    factors = [draw_marginal(n, rng) for _ in range(2)]
    moved = np.roll(factors[0], int(rng.integers(1, 3)))
    source, target, _ = make_products([factors, [moved, factors[1]]], (1.0, 1.0))
    with pytest.warns(ConvergenceWarning, match="known only to lie between|did not reach|has not"):
        geonet.distance(source, target)


@pytest.mark.parametrize("name", ["midpoint", "back-and-forth"])
def test_products_with_periodic_axes(name):
    rng, found = np.random.default_rng(11), []
    for _ in range(8):
        shape, wraps = [(8, 8), (12, 7), (16, 10)][rng.integers(3)], (True, bool(rng.integers(2)))
        marginals = [[draw_marginal(n, rng) for n in shape] for _ in range(2)]
        grid = Grid(shape, 0.0, 1.0, periodic=wraps)
        ends = [Density(reduce(np.multiply.outer, values), grid) for values in marginals]
        measures = [squared_circle_distance if wrap else squared_distance for wrap in wraps]
        axes = zip(measures, *marginals, strict=True)
        exact = sum(measure(first, second) for measure, first, second in axes) ** 0.5
        found += find_violations(*ends, exact, name)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("atoms", [(1, 1), (1, 2), (2, 1)])
def test_frames_of_a_few_atoms_on_many_cells(atoms):
    """Potentials that did not converge may fold so much that no mass arrives at t."""
    rng, n = np.random.default_rng(4), 100_001
    ends = [np.zeros(n) for _ in atoms]
    for values, count in zip(ends, atoms, strict=True):
        values[rng.integers(0, n, count)] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        path = geonet.geodesic(*(Density(values, Grid(n)) for values in ends), "midpoint")
    frames = path.density([0.0, 1e-6, 0.001, 0.5, 0.999, 1.0]).numpy()
    assert np.isfinite(frames).all()
    np.testing.assert_allclose(frames.mean(1), 1.0, rtol=1e-9)


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


@pytest.mark.parametrize("is_opposite", [False, True])
@pytest.mark.parametrize("n", [16, 44])
def test_checkerboard(n, is_opposite):
    """It is not a product, but the bounds of all solvers must overlap."""
    grid = Grid((n, n))
    board = np.indices((n, n)).sum(0) % 2.0
    ends = Density(1 - board if is_opposite else np.ones((n, n)), grid), Density(board, grid)
    names = "auto", "midpoint", "linear-program"
    first, second, third = (geonet.geodesic(*ends, name).report for name in names)
    for one in (first, second, third):
        for other in (first, second, third):
            assert one.distance_lower_bound <= other.distance_upper_bound
        assert one.distance_lower_bound <= one.distance <= one.distance_upper_bound
    narrowest = min(one.distance_upper_bound - one.distance_lower_bound for one in (second, third))
    assert first.distance_upper_bound - first.distance_lower_bound <= 1.1 * narrowest
