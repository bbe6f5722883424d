"""Tests of the bounds of W2: valid for any potential, tight for good ones."""

import math

import numpy as np
import ot
import pytest
import torch

import geonet
from benchmarks.pairs import EXACT_PAIRS, exact_pair
from benchmarks.problems import draw_digits
from geonet.density import Density
from geonet.grid import Grid
from geonet.solvers.newton.bounds import bound_distance


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def wrong_potentials(c):
    """Potentials far from c: zero, random, folded, reversed, halved."""
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
@pytest.mark.parametrize("n", [2, 8, 48])
def test_bounds_on_lines(kind, n):
    source, target = lines(kind, n)
    truth = float(geonet.geodesic(source, target, "quantile").distance)
    path = geonet.geodesic(source, target, "midpoint")
    for c in (path.coefficients, *wrong_potentials(path.coefficients)):
        lower, upper = bound_distance(c, source.tensor, target.tensor, (1.0,), truth)
        assert lower <= truth <= upper
    lower, upper = path._bounds
    if n == 48 and kind == "positive":
        assert lower > 0.98 * truth and upper < 1.05 * truth  # W2 is a fraction of a cell


def is_between(lower, distance, upper, cells):
    """Return whether W2 is within its bounds; averages over cells change W2² by some of h²."""
    change = 0.3 / cells**2
    return lower**2 - change <= distance**2 <= upper**2 + change


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_bounds_on_exact_pairs(name):
    pair = exact_pair(name, 32)
    path = geonet.geodesic(pair.source, pair.target, "midpoint")
    lower, upper = path._bounds
    assert is_between(lower, pair.distance, upper, 32)
    assert lower > 0.98 * pair.distance and upper < 1.04 * pair.distance
    ends = pair.source.tensor, pair.target.tensor
    for c in wrong_potentials(path.coefficients):
        lower, upper = bound_distance(c, *ends, (1.0, 1.0), pair.distance)
        assert is_between(lower, pair.distance, upper, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT_PAIRS)
@pytest.mark.parametrize("cells", [64, 128])
def test_bounds_are_tighter_on_finer_grids(name, cells):
    pair = exact_pair(name, cells)
    lower, upper = geonet.geodesic(pair.source, pair.target, "midpoint")._bounds
    assert is_between(lower, pair.distance, upper, cells)
    assert lower > 0.99 * pair.distance and upper < 1.02 * pair.distance


@pytest.mark.parametrize("shape", [(6,), (5, 8), (3, 4, 5)], ids=str)
def test_bounds_in_any_dimension(shape):
    """W2 of a shift by whole cells is known."""
    grid = Grid(shape, 0.0, [0.1 * n for n in shape])
    values = torch.zeros(shape).double()
    values[tuple(slice(0, n - 2) for n in shape)] = noise(*[n - 2 for n in shape]) + 0.1
    truth, rounding = 0.2 * math.sqrt(len(shape)), 1e-12
    shifted = values.roll((2,) * len(shape), tuple(range(len(shape))))
    path = geonet.geodesic(Density(values, grid), Density(shifted, grid), "midpoint")
    assert path.report.distance_lower_bound <= truth + rounding
    assert path.report.distance_upper_bound >= truth - rounding
    box = path.box
    ends = [box.to_density(end.tensor) for end in (path.source, path.target)]
    for c in wrong_potentials(path.coefficients):
        lower, upper = bound_distance(c, *ends, box.sides, truth / box.length)
        assert lower * box.length <= truth + rounding and truth <= upper * box.length + rounding


def test_bounds_without_kernels(monkeypatch):
    source, target = lines("steep", 20)
    c, results = 0.05 * noise(20, seed=3), []
    for choice in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", choice)
        results.append(bound_distance(c, source.tensor, target.tensor, (1.0,), 0.1))
    assert results[0] == pytest.approx(results[1], rel=1e-6)


def test_bounds_of_equal_densities():
    density = noise(7, 5)
    lower, upper = bound_distance(torch.zeros(7, 5), density, density, (1.0, 0.7), 0.0)
    assert lower == 0.0 and upper < 1e-6


@pytest.mark.parametrize("width", [1, 2])
def test_bounds_hold_for_stripes(width):
    """Mass moves by a cell or less, so that W2 is a fraction of a cell."""
    rows = torch.arange(64) // width % 2
    for first, second in ((1.0, 0.3), (1.0, 0.0)):
        source = torch.where(rows == 0, first, second).double()
        target = torch.ones(64).double() if second == 0 else source.flip(0)
        truth = float(
            geonet.geodesic(Density(source, Grid(64)), Density(target, Grid(64))).distance
        )
        ends = [values[:, None].expand(64, 64) / 64 for values in (source, target)]
        path = geonet.geodesic(*(Density(values, Grid((64, 64))) for values in ends), "midpoint")
        assert path._bounds[0] <= truth <= path._bounds[1]
        assert path._bounds[0] <= float(path.distance) <= path._bounds[1]


def test_bounds_hold_for_tiny_densities():
    """Factors of proportional fitting may overflow for densities that go down to 1e-170."""
    digits = draw_digits()
    values = np.stack([digit.numpy() for digit in digits])
    values /= values.sum((1, 2), keepdims=True)
    mean = ot.bregman.convolutional_barycenter2d_debiased(values, 1e-3, stopThr=1e-3)
    assert 0 < mean[mean > 0].min() < 1e-100
    tiny, cut = (
        geonet.Density(np.where(mean > limit, mean, 0.0), digits[0].grid) for limit in (0.0, 1e-25)
    )
    for digit in (digits[2], digits[6]):
        first, second = (geonet.geodesic(end, digit, "midpoint") for end in (tiny, cut))
        assert second._bounds[0] <= first._bounds[1] <= 1.05 * second._bounds[1]
