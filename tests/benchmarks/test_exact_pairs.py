"""Pairs with exact paths: against formulas, brute force, and the laws of a geodesic."""

import math

import numpy as np
import pytest
import torch

from benchmarks.pairs import EXACT_PAIRS, exact_pair
from geonet import Density, Grid
from geonet.errors import InputError
from geonet.metrics import block_l1, l1
from geonet.solvers.registry import make_solver


def sampled(function, cells, fine=32):
    """Cell means of a function of x and y by many points a cell."""
    g = (np.arange(cells * fine) + 0.5) / (cells * fine)
    values = function(g[:, None], g[None]) + np.zeros((cells * fine,) * 2)
    return Density(values.reshape(cells, fine, cells, fine).mean((1, 3)), Grid((cells, cells)))


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_a_path_begins_and_ends_with_its_pair(name):
    pair = exact_pair(name, 32)
    assert pair.name == name and pair.source.grid == pair.target.grid == Grid((32, 32))
    assert torch.equal(pair.truth(0).tensor, pair.source.tensor)
    assert torch.equal(pair.truth(1.0).tensor, pair.target.tensor)
    masses = [float(pair.truth(t).mass) for t in (0, 0.3, 0.5, 1)]
    assert masses == pytest.approx([masses[0]] * 4, rel=1e-4)  # nothing leaves the square
    assert float(l1(pair.source, pair.target)) > 0.2


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_the_mean_goes_straight_and_the_spread_follows_the_distance(name):
    """E|x_t|² = (1 − t)·E|x_0|² + t·E|x_1|² − t(1 − t)·W2² holds along geodesics alone."""
    pair, cells = exact_pair(name, 64), 64
    square, means = {}, {}
    for t in (0.0, 0.25, 1.0):
        frame = pair.truth(t)
        means[t] = frame.mean()
        square[t] = float(frame.covariance().trace() + means[t].square().sum())
    assert torch.allclose(means[0.25], 0.75 * means[0.0] + 0.25 * means[1.0], atol=1e-5)
    found = (0.75 * square[0.0] + 0.25 * square[1.0] - square[0.25]) / 0.1875
    assert found == pytest.approx(pair.distance**2, abs=0.3 / cells**2)


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_coarse_cells_are_means_of_fine_ones(name):
    """A texture moves with its cells, so only where it moves by whole ones."""
    coarse, fine = (exact_pair(name, n) for n in (32, 64))
    assert coarse.distance == pytest.approx(fine.distance, rel=1e-12)
    for t in (0.0, 0.5, 0.8)[: 2 if name == "texture-shift" else 3]:
        averaged = fine.truth(t).resample(Grid((32, 32)))
        assert float(l1(averaged, coarse.truth(t))) < 1e-3


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_the_distance_is_that_of_a_plan(name):
    """The cells as atoms have nearly the same W2: its square is too large by up to 0.4 h²."""
    pair = exact_pair(name, 24)
    path = make_solver("linear-program")(pair.source, pair.target)
    off = 24**2 * (float(path.distance) ** 2 - pair.distance**2)
    assert -0.1 < off < 0.4
    assert float(block_l1(path.density(0.5), pair.truth(0.5), 4)) < 0.15


def test_halves_of_a_disc():
    pair = exact_pair("torn-disc", 16)
    assert pair.distance == 0.17
    for t in (0.0, 0.4, 1.0):
        a = 0.17 * t
        expected = sampled(
            lambda x, y, a=a: (
                (np.hypot(x + a - 0.5, y - 0.5) < 0.21) & (x + a < 0.5)
                | (np.hypot(x - a - 0.5, y - 0.5) < 0.21) & (x - a >= 0.5)
            ),
            16,
            100,
        )
        assert float(l1(pair.truth(t), expected)) < 3e-3
    assert float(pair.truth(0.4).tensor.max()) == pytest.approx(1 / (math.pi * 0.21**2), rel=1e-6)
    assert float(pair.target.tensor[7:9].max()) == 0  # the gap


def test_a_ring_fills_up():
    """Its ends are uniform; halfway, the radius of a mass is the mean of both."""
    pair = exact_pair("ring-to-disc", 32)
    distance = lambda x, y: np.hypot(x - 0.5, y - 0.5)  # noqa: E731
    ring = sampled(lambda x, y: (distance(x, y) > 0.18) & (distance(x, y) < 0.4), 32)
    disc = sampled(lambda x, y: distance(x, y) < 0.27, 32)
    assert float(l1(pair.source, ring)) < 3e-3 and float(l1(pair.target, disc)) < 3e-3
    mass = (np.arange(200_000) + 0.5) / 200_000
    first, last = np.sqrt(0.18**2 + mass * (0.4**2 - 0.18**2)), 0.27 * np.sqrt(mass)
    assert pair.distance == pytest.approx(np.sqrt(np.mean((first - last) ** 2)), rel=1e-6)
    halfway, radius = pair.truth(0.5), (first + last) / 2
    found = halfway.covariance().trace()
    assert float(found) == pytest.approx(np.mean(radius**2) + 1 / 6 / 32**2, rel=1e-3)
    inside = halfway.grid.points().sub(0.5).norm(dim=-1) < 0.07
    assert float(halfway.tensor[inside].max()) == 0  # the hole is not filled yet


def test_a_texture_moves_by_whole_cells_at_the_quarters():
    pair = exact_pair("texture-shift", 64)
    assert pair.distance == pytest.approx(math.hypot(1 / 8, 1 / 16))
    for k in range(5):
        moved = pair.source.tensor.roll((2 * k, k), (0, 1))
        assert torch.allclose(pair.truth(k / 4).tensor, moved, rtol=1e-12)
    assert float((pair.source.tensor == 0).double().mean()) > 0.7
    assert float(pair.truth(1 / 8).tensor.max()) < float(pair.source.tensor.max())


def test_torn_mixtures_have_a_gap_and_move_by_known_lengths():
    rigid, squeezed = (exact_pair(name, 40) for name in ("torn-mixture", "torn-and-squeezed"))
    assert rigid.distance == pytest.approx(0.1, rel=1e-9)
    assert 0.05 < squeezed.distance < 0.1
    for pair in (rigid, squeezed):
        assert float(pair.target.tensor[16:24].max()) == 0
        assert float(pair.truth(0.5).tensor[18:22].max()) == 0
    assert float(squeezed.source.tensor.min()) > 0
    assert torch.allclose(rigid.target.tensor[:16], rigid.source.tensor[4:20], rtol=1e-9)
    assert torch.allclose(rigid.target.tensor[24:], rigid.source.tensor[20:36], rtol=1e-9)


def test_what_is_not_there_is_refused():
    with pytest.raises(InputError, match="no exact pair 'torn'; choose from torn-disc, ring"):
        exact_pair("torn", 16)
    with pytest.raises(InputError, match=r"t is 1.5; give a time in \[0, 1\]"):
        exact_pair("torn-disc", 16).truth(1.5)
