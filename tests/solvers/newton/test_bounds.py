"""Bounds on W2 hold for any potential, and are tight for good ones."""

import math

import pytest
import torch

import geonet
from benchmarks.pairs import EXACT_PAIRS, exact_pair
from geonet.density import Density
from geonet.grid import Grid
from geonet.solvers.newton import bounds
from geonet.solvers.newton.bounds import lower_bound, upper_bound


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bounds_of(c, source, target, sides, distance):
    """Both, with ends on the cells of the potential where it has more."""
    lower = lower_bound(c, source, target, sides)
    for axis, n in enumerate(c.shape):
        source, target = (
            end.repeat_interleave(n // end.shape[axis], axis) for end in (source, target)
        )
    return lower, upper_bound(c, source, target, sides, distance)


def wrong_ones(c):
    """Potentials that are far from the right one: still, random, folded, backwards, half-way."""
    n = max(c.shape)
    yield torch.zeros_like(c)
    yield 0.05 * noise(*c.shape, seed=1)
    yield c + (noise(*c.shape, seed=2) - 0.5) / n**2
    yield from (factor * c for factor in (-1.0, 0.5, 4.0))


def lines(kind, n):
    """Two densities on a line: positive, steep, with gaps at one side, with islands."""
    values = noise(2, n, seed=n)
    if kind == "steep":
        values = values**8
    if kind == "gaps":
        values[0, : n // 3], values[1, n // 2 :] = 0, 0
    if kind == "islands":
        values = torch.where(values > 0.7, values, 0.0 * values)
        values[:, n // 2] += 0.1
    return (Density(own, Grid(n)) for own in values)


@pytest.mark.parametrize("kind", ["positive", "steep", "gaps", "islands"])
@pytest.mark.parametrize("n", [2, 3, 8, 48])
def test_on_lines_the_truth_lies_between(kind, n):
    source, target = lines(kind, n)
    truth = float(geonet.geodesic(source, target, "quantile").distance)
    path = geonet.geodesic(source, target, "midpoint")
    for c in (path.coefficients, *wrong_ones(path.coefficients)):
        lower, upper = bounds_of(c, source.tensor, target.tensor, (1.0,), truth)
        assert lower <= truth <= upper
    lower, upper = path.bounds
    if n == 48 and kind == "positive":
        assert lower > 0.98 * truth and upper < 1.05 * truth  # W2 is a fraction of a cell


def between(lower, distance, upper, cells):
    """Whether W2 lies between; means over cells change W2² by some of h², see test_exact_pairs."""
    changed = 0.3 / cells**2
    return lower**2 - changed <= distance**2 <= upper**2 + changed


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_on_exact_pairs_the_truth_lies_between_closely(name):
    """Tears cost some: potentials have kinks, and cells have mass from both sides."""
    pair = exact_pair(name, 32)
    path = geonet.geodesic(pair.source, pair.target, "midpoint")
    lower, upper = path.bounds
    assert between(lower, pair.distance, upper, 32)
    assert lower > 0.98 * pair.distance and upper < 1.04 * pair.distance
    ends = pair.source.tensor, pair.target.tensor
    for c in wrong_ones(path.coefficients):
        lower, upper = bounds_of(c, *ends, (1.0, 1.0), pair.distance)
        assert between(lower, pair.distance, upper, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT_PAIRS)
@pytest.mark.parametrize("cells", [64, 128])
def test_bounds_close_in_on_finer_grids(name, cells):
    pair = exact_pair(name, cells)
    lower, upper = geonet.geodesic(pair.source, pair.target, "midpoint").bounds
    assert between(lower, pair.distance, upper, cells)
    assert lower > 0.99 * pair.distance and upper < 1.02 * pair.distance


def test_smooth_pairs_have_tight_bounds():
    grid = Grid((64, 64))
    x, y = grid.points().unbind(-1)
    source = Density(1 + 0.5 * torch.cos(torch.pi * x) * torch.cos(torch.pi * y), grid)
    target = Density(1.5 - torch.cos(torch.pi * y), grid)
    path = geonet.geodesic(source, target, "midpoint")
    lower, upper = path.bounds
    distance = float(path.distance)
    assert 0.99 * distance < lower <= distance * (1 + 1e-4) and distance <= upper < 1.02 * distance


@pytest.mark.parametrize("shape", [(6,), (5, 8), (3, 4, 5)], ids=str)
def test_half_solved_potentials_in_any_dimension(shape):
    """Blocks that move by whole cells: W2 is known."""
    grid = Grid(shape, 0.0, [0.1 * n for n in shape])
    values = torch.zeros(shape).double()
    values[tuple(slice(0, n - 2) for n in shape)] = noise(*[n - 2 for n in shape]) + 0.1
    truth = 0.2 * math.sqrt(len(shape))
    moved = values.roll((2,) * len(shape), tuple(range(len(shape))))
    path = geonet.geodesic(Density(values, grid), Density(moved, grid), "midpoint")
    report = path.report
    rounding = 1e-12
    assert report.distance_lower_bound <= truth + rounding
    assert report.distance_upper_bound >= truth - rounding
    box = path.box
    ends = [box.to_density(end.tensor) for end in (path.source, path.target)]
    for c in wrong_ones(path.coefficients):
        lower, upper = bounds_of(c, *ends, box.sides, truth / box.length)
        assert lower * box.length <= truth + rounding and truth <= upper * box.length + rounding


def test_compiled_or_not(monkeypatch):
    source, target = lines("steep", 20)
    c, answers = 0.05 * noise(20, seed=3), []
    for compiled in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", compiled)
        answers.append(bounds_of(c, source.tensor, target.tensor, (1.0,), 0.1))
    assert answers[0] == pytest.approx(answers[1], rel=1e-6)


@pytest.mark.parametrize("blocks", [1, 2], ids=["cells", "blocks of cells"])
@pytest.mark.parametrize(
    ("shape", "sides"),
    [((9,), (1.0,)), ((6, 7), (1.0, 0.8)), ((3, 4, 5), (0.6, 0.8, 1.0))],
    ids=str,
)
def test_cells_hold_what_they_should_in_the_end(shape, sides, blocks):
    """E[f] over all that is mended is that of the end, for f = x and f = |x|²."""
    held, end = noise(*shape, seed=1) ** 4, noise(*[blocks * n for n in shape], seed=2) ** 4
    held[held < 0.2], end[end < 0.1] = 0, 0
    held = held / held.sum()
    mean, square = bounds._mended(held, bounds._on_blocks(end, shape, sides), sides)
    places, within = centres_and_spread(end.shape, sides)
    share = end.flatten() / end.sum()
    # The flow between neighbours is solved with cosines, to rounding; the rest is exact.
    assert torch.allclose(held.flatten() @ mean, share @ places, atol=1e-6)
    squares = float(share @ (places**2).sum(-1)) + within
    assert float(held.flatten() @ square) == pytest.approx(squares, abs=1e-6)
    assert bool((square >= (mean**2).sum(-1) - 1e-9).all())  # nowhere is a variance negative


def centres_and_spread(shape, sides):
    """Centres (cells, d), and E|x|² of a cell around its centre."""
    step = torch.tensor([s / n for s, n in zip(sides, shape, strict=True)], dtype=torch.float64)
    axes = [torch.arange(n).double() + 0.5 for n in shape]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
    return places * step, float((step**2).sum()) / 12


def test_what_is_right_stays_where_it_is():
    end, sides = noise(6, 5), (1.0, 0.7)
    mean, square = bounds._mended(end / end.sum(), bounds._on_blocks(end, (6, 5), sides), sides)
    places, within = centres_and_spread((6, 5), sides)
    assert torch.allclose(mean, places, atol=1e-6)
    assert torch.allclose(square, (places**2).sum(-1) + within, atol=1e-6)


def test_equal_ends_are_no_distance_apart():
    density = Density(noise(12, 9) + 0.1, Grid((12, 9)))
    lower, upper = geonet.geodesic(density, density, "midpoint").bounds
    assert lower == 0 and 0 <= upper < 0.02
