"""Synthetic pairs: valid densities, all kinds in their proportions, invariant distribution.

Shares are compared with their probabilities within five deviations √(p(1 − p)/n); seeds are fixed.
"""

import math
from dataclasses import replace

import pytest
import torch

from geonet import Grid
from geonet.synthetic import CUBE, KINDS, SQUARE
from geonet.training.problems import CellMeans, make_problem
from geonet.training.synthetic_pairs import (
    PairConfig,
    average_blocks,
    random_kinds,
    random_pairs,
    random_symmetry,
)

NAMES = ["2d", "3d"]
COUNT = {2: 400, 3: 200}


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def about(share, n):
    """Return a share of n, to be met within five deviations."""
    return pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


def space(config):
    """Return the axes of space of tensors (…, *shape)."""
    return tuple(range(-config.dimension, 0))


@pytest.fixture(scope="module", params=[SQUARE, replace(CUBE, cells=16)], ids=NAMES)
def config(request):
    """The distribution, coarser in 3D than in training to save time."""
    return request.param


@pytest.fixture(scope="module")
def pairs(config):
    return random_pairs(seeded(), COUNT[config.dimension], config)


@pytest.fixture(scope="module", params=["anything-2d", "anything-3d"], ids=NAMES)
def problem(request):
    return make_problem(request.param)


@pytest.fixture(scope="module")
def ends(problem):
    return problem.draw(6, seeded())


# ---- pairs


def test_pairs_are_densities(config, pairs):
    assert pairs.shape == (2, COUNT[config.dimension], *config.shape)
    assert pairs.dtype == torch.float32
    assert bool(torch.isfinite(pairs).all()) and float(pairs.min()) >= 0
    assert float((pairs.double().mean(space(config)) - 1).abs().max()) < 1e-6


def test_pairs_depend_on_the_seed_and_do_not_repeat(config, pairs):
    again, other = (random_pairs(seeded(seed), 20, config) for seed in (5, 6))
    assert torch.equal(random_pairs(seeded(5), 20, config), again)
    assert not any(torch.equal(a, b) for a, b in zip(again[0], other[0], strict=True))
    flat = pairs.flatten(2).flatten(0, 1)
    distance = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    # A few in a thousand are uniform, because a mask or a box left nothing.
    assert int((distance.amin(1) < 1e-3).sum()) < 0.02 * len(flat)


# ---- kinds


def test_kinds_have_their_frequencies():
    n = 5000
    counts = torch.bincount(random_kinds(seeded(), n), minlength=len(KINDS)) / n
    total = sum(weight for _, weight in KINDS.values())
    for share, (_, weight) in zip(counts.tolist(), KINDS.values(), strict=True):
        assert share == about(weight / total, n)


# ---- crops, boxes, blocks


def box_sides(inside):
    """Return the sides of boxes (count, n, …, n), (count,) per axis; check that they are boxes."""
    (count, n), d = inside.shape[:2], inside.ndim - 1
    sides, box = [], torch.ones_like(inside)
    for axis in range(d):
        line = inside.movedim(1 + axis, 1).flatten(2).any(2)  # (count, n)
        padded = torch.nn.functional.pad(line.int(), (1, 1))
        assert bool((padded.diff(dim=1).abs().sum(1) == 2).all())  # contiguous
        box &= line.view(count, *(1,) * axis, n, *(1,) * (d - 1 - axis))
        sides.append(line.sum(1))
    assert torch.equal(inside, box)
    return sides


def test_a_boxed_pair_is_empty_outside_its_box(config):
    pairs = random_pairs(seeded(), 60, config, PairConfig(boxed=1.0))
    source, target = pairs > 0
    assert torch.equal(source, target)
    sides = torch.stack(box_sides(source))
    assert bool((sides.amax(0) >= 0.8 * config.cells).all())
    assert int(sides.amin()) < 0.625 * config.cells
    assert float((pairs.double().mean(space(config)) - 1).abs().max()) < 1e-6


def test_blocks(config):
    """Averaged densities are constant in blocks; 16 % of all pairs are."""
    ends, d = random_pairs(seeded(), 100, config), config.dimension
    for size in (2, 4):
        blocks = average_blocks(ends[:, :3], size).view(2, 3, *(config.cells // size, size) * d)
        within = tuple(range(3, blocks.ndim, 2))
        assert torch.equal(blocks.amin(within), blocks.amax(within))
        expected = ends[:, :3].reshape(blocks.shape).mean(within)
        assert torch.allclose(blocks.amax(within), expected, rtol=1e-5)
    blocks = ends.reshape(2, 100, *(config.cells // 2, 2) * d)
    within = tuple(range(3, blocks.ndim, 2))
    constant = (blocks.amin(within) == blocks.amax(within)).flatten(2).all(2).all(0)
    assert 6 <= int(constant.sum()) <= 30


# ---- symmetry


@pytest.mark.parametrize(
    ("n", "shape", "symmetries"), [(3200, (3, 3), 8), (9600, (2, 2, 2), 48)], ids=NAMES
)
def test_all_symmetries_are_equally_likely(n, shape, symmetries):
    """The symmetries of the square or cube, and the exchange of source and target."""
    one = torch.arange(2.0 * math.prod(shape)).reshape(2, 1, *shape)
    images = random_symmetry(seeded(), one.expand(2, n, *shape)).transpose(0, 1).flatten(1)
    _, counts = images.unique(dim=0, return_counts=True)
    assert len(counts) == 2 * symmetries
    for share in (counts / n).tolist():
        assert share == about(1 / (2 * symmetries), n)


# ---- the problem


def test_training_and_validation_draw_the_same_pairs(problem, ends):
    values = torch.stack([end.tensor for end in ends])
    # FFTs may round differently if memory is aligned differently.
    again = random_pairs(seeded(), 6, problem.config)
    assert torch.allclose(values, again, rtol=1e-4, atol=1e-5)
    assert problem.box == Grid(problem.config.shape)
    for end, density in zip(ends, problem.draw_densities(6, seeded()), strict=True):
        assert isinstance(end, CellMeans) and density.tensor.dtype == torch.float64
        assert torch.allclose(density.tensor, end.tensor.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("cells", [64, 32, 16, 2])
def test_cell_means_of_a_divisor_are_block_means(problem, ends, cells):
    d, cells = problem.box.dimension, min(cells, problem.config.cells)
    means = problem.cell_means(ends[0], cells)
    blocks = ends[0].tensor.reshape(6, *(cells, problem.config.cells // cells) * d).double()
    expected = blocks.mean(tuple(range(2, blocks.ndim, 2))).flatten(1)
    assert means.shape == (6, cells**d) and means.dtype == torch.float32
    assert torch.allclose(means.double(), expected, rtol=1e-5, atol=1e-7)


def test_cell_means_on_other_grids_keep_the_mass(problem, ends):
    for cells in (24, 100):
        means = problem.cell_means(ends[0], cells)
        assert means.shape == (6, cells**problem.box.dimension) and float(means.min()) >= -1e-9
        assert torch.allclose(means.mean(1), torch.ones(6), atol=1e-5)
