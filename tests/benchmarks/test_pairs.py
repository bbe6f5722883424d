"""Benchmark pairs: one pair on all grids, properties of kinds, exact paths against formulas."""

import math

import numpy as np
import pytest
import torch

from benchmarks.pairs import EXACT_PAIRS, KINDS, NOISE_CELLS, draw, exact_pair
from geonet import Density, Grid
from geonet.errors import InputError
from geonet.metrics import block_l1, l1
from geonet.solvers.registry import make_solver


def test_unknown_names_and_times_are_rejected():
    with pytest.raises(InputError, match="no kind 'cats'"):
        draw("cats", 32)
    with pytest.raises(InputError, match="pair_index is -1"):
        draw("smooth", 32, -1)
    with pytest.raises(InputError, match="no exact pair 'torn'"):
        exact_pair("torn", 16)
    with pytest.raises(InputError, match="t is 1.5"):
        exact_pair("torn-disc", 16).truth(1.5)


# ---- random kinds


@pytest.mark.parametrize("kind", KINDS)
def test_all_grids_show_the_same_pair(kind):
    fine = draw(kind, 256)
    for cells in (64, 48):  # one that divides the fine grid and one that does not
        for end, finer in zip(draw(kind, cells), fine, strict=True):
            assert isinstance(end, Density) and end.grid == Grid((cells, cells))
            assert end.tensor.dtype == torch.float64 and bool((end.tensor >= 0).all())
            blocks = Grid((16, 16))
            assert float(l1(end.resample(blocks), finer.resample(blocks))) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_different_and_reproducible(kind):
    source, target = draw(kind, 32)
    assert float(l1(source, target)) > 0.05
    for end, again in zip((source, target), draw(kind, 32), strict=True):
        assert torch.equal(end.tensor, again.tensor)
    for other in (draw(kind, 32, 1), draw(kind, 32, 0, seed=5)):
        assert float(l1(source, other[0])) > 0.05


def test_roughness_rises_from_smooth_to_noise():
    """Measured by the L1 distance to means over blocks of 4 × 4 cells."""
    errors = []
    for kind in ("smooth", "moderate", "rough", "white-noise"):
        source = draw(kind, 64)[0]
        blocks = source.resample(Grid((16, 16))).resample(source.grid)
        errors.append(float(l1(blocks, source)))
    assert errors == sorted(errors) and errors[0] < 0.05 and errors[-1] > 0.3


def test_shapes_spots_and_digits_are_mostly_zero():
    for kind in ("shapes", "spots", "digits"):
        for end in draw(kind, 64):
            assert float((end.tensor == 0).double().mean()) > 0.5
    shape = draw("shapes", 256)[0].tensor
    inside = shape[(shape > 0)]
    assert float((inside > 0.999 * shape.max()).double().mean()) > 0.8  # all but the edge


def test_noise_is_constant_in_its_cells():
    source = draw("white-noise", 2 * NOISE_CELLS)[0].tensor
    blocks = source.reshape(NOISE_CELLS, 2, NOISE_CELLS, 2)
    assert torch.allclose(blocks, blocks[:, :1, :, :1].expand_as(blocks), rtol=1e-9)


def test_high_contrast_and_log_normal_are_positive():
    for kind, least in (("high-contrast", 1e3), ("log-normal", 50)):
        values = draw(kind, 64)[0].tensor
        assert float(values.min()) > 0 and float(values.max() / values.min()) > least


# ---- exact pairs


def sample(function, cells, fine=32):
    """Return cell means of a function of x and y from many points per cell."""
    g = (np.arange(cells * fine) + 0.5) / (cells * fine)
    values = function(g[:, None], g[None]) + np.zeros((cells * fine,) * 2)
    return Density(values.reshape(cells, fine, cells, fine).mean((1, 3)), Grid((cells, cells)))


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_exact_paths_start_and_end_at_their_pair(name):
    pair = exact_pair(name, 32)
    assert pair.name == name and pair.source.grid == pair.target.grid == Grid((32, 32))
    assert torch.equal(pair.truth(0).tensor, pair.source.tensor)
    assert torch.equal(pair.truth(1.0).tensor, pair.target.tensor)
    masses = [float(pair.truth(t).mass) for t in (0, 0.3, 0.5, 1)]
    assert masses == pytest.approx([masses[0]] * 4, rel=1e-4)
    assert float(l1(pair.source, pair.target)) > 0.2


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_moments_along_exact_paths(name):
    """E|x_t|² = (1 − t)·E|x_0|² + t·E|x_1|² − t(1 − t)·W2² holds only along geodesics."""
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
    """The texture is compared only at times at which it moves by whole cells."""
    coarse, fine = (exact_pair(name, n) for n in (32, 64))
    assert coarse.distance == pytest.approx(fine.distance, rel=1e-12)
    for t in (0.0, 0.5, 0.8)[: 2 if name == "texture-shift" else 3]:
        averaged = fine.truth(t).resample(Grid((32, 32)))
        assert float(l1(averaged, coarse.truth(t))) < 1e-3


@pytest.mark.parametrize("name", EXACT_PAIRS)
def test_the_distance_agrees_with_a_linear_program(name):
    """Atoms at the cells have a W2² that is larger by up to 0.4 h²."""
    pair = exact_pair(name, 24)
    path = make_solver("linear-program")(pair.source, pair.target)
    off = 24**2 * (float(path.distance) ** 2 - pair.distance**2)
    assert -0.1 < off < 0.4
    assert float(block_l1(path.density(0.5), pair.truth(0.5), 4)) < 0.15


def test_torn_disc():
    pair = exact_pair("torn-disc", 16)
    assert pair.distance == 0.17
    for t in (0.0, 0.4, 1.0):
        a = 0.17 * t
        expected = sample(
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


def test_ring_to_disc():
    """The ends are uniform; halfway, the radius that encloses a mass is the mean of both."""
    pair = exact_pair("ring-to-disc", 32)
    distance = lambda x, y: np.hypot(x - 0.5, y - 0.5)  # noqa: E731
    ring = sample(lambda x, y: (distance(x, y) > 0.18) & (distance(x, y) < 0.4), 32)
    disc = sample(lambda x, y: distance(x, y) < 0.27, 32)
    assert float(l1(pair.source, ring)) < 3e-3 and float(l1(pair.target, disc)) < 3e-3
    mass = (np.arange(200_000) + 0.5) / 200_000
    first, last = np.sqrt(0.18**2 + mass * (0.4**2 - 0.18**2)), 0.27 * np.sqrt(mass)
    assert pair.distance == pytest.approx(np.sqrt(np.mean((first - last) ** 2)), rel=1e-6)
    halfway, radius = pair.truth(0.5), (first + last) / 2
    found = halfway.covariance().trace()
    assert float(found) == pytest.approx(np.mean(radius**2) + 1 / 6 / 32**2, rel=1e-3)
    inside = halfway.grid.points().sub(0.5).norm(dim=-1) < 0.07
    assert float(halfway.tensor[inside].max()) == 0  # the hole is not filled yet


def test_the_texture_moves_by_whole_cells_at_quarters():
    pair = exact_pair("texture-shift", 64)
    assert pair.distance == pytest.approx(math.hypot(1 / 8, 1 / 16))
    for k in range(5):
        moved = pair.source.tensor.roll((2 * k, k), (0, 1))
        assert torch.allclose(pair.truth(k / 4).tensor, moved, rtol=1e-12)
    assert float((pair.source.tensor == 0).double().mean()) > 0.7
    assert float(pair.truth(1 / 8).tensor.max()) < float(pair.source.tensor.max())


def test_torn_mixtures_have_a_gap_and_known_distances():
    rigid, squeezed = (exact_pair(name, 40) for name in ("torn-mixture", "torn-and-squeezed"))
    assert rigid.distance == pytest.approx(0.1, rel=1e-9)
    assert 0.05 < squeezed.distance < 0.1
    for pair in (rigid, squeezed):
        assert float(pair.target.tensor[16:24].max()) == 0
        assert float(pair.truth(0.5).tensor[18:22].max()) == 0
    assert float(squeezed.source.tensor.min()) > 0
    assert torch.allclose(rigid.target.tensor[:16], rigid.source.tensor[4:20], rtol=1e-9)
    assert torch.allclose(rigid.target.tensor[24:], rigid.source.tensor[20:36], rtol=1e-9)
