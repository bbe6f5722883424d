"""Synthetic pairs: valid densities, all kinds in their proportions, invariant distribution.

Shares are compared with their probabilities within five deviations √(p(1 − p)/n); seeds are fixed.
"""

import math
from dataclasses import replace

import pytest
import torch

from geonet import Grid
from geonet.numerics.interpolation import CubicSpline
from geonet.synthetic import CUBE, KINDS, SQUARE
from geonet.training import synthetic_pairs as module
from geonet.training.problems import CellMeans, make_problem
from geonet.training.synthetic_pairs import (
    PAIR_CONFIG,
    PairConfig,
    average_blocks,
    random_boxes,
    random_densities,
    random_kinds,
    random_pairs,
    random_symmetry,
    shifted_crops,
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


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pairs(count):
    assert random_pairs(seeded(), count, SQUARE).shape == (2, count, 64, 64)
    assert random_pairs(seeded(), count, CUBE).shape == (2, count, 32, 32, 32)


def test_pairs_depend_on_the_seed_and_do_not_repeat(config, pairs):
    again, other = (random_pairs(seeded(seed), 20, config) for seed in (5, 6))
    assert torch.equal(random_pairs(seeded(5), 20, config), again)
    assert not any(torch.equal(a, b) for a, b in zip(again[0], other[0], strict=True))
    flat = pairs.flatten(2).flatten(0, 1)
    distance = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    # A few in a thousand are uniform, because a mask or a box left nothing.
    assert int((distance.amin(1) < 1e-3).sum()) < 0.02 * len(flat)


def test_pairs_range_from_flat_to_sharp_and_some_have_empty_cells(config, pairs):
    """Shapes, strokes and spots are 7 of 17, half without a uniform part; boxes are 15 %."""
    zeros = float((pairs == 0).flatten(2).any(2).any(0).float().mean())
    assert 0.3 < zeros < 0.55
    peaks = pairs.amax(space(config)).flatten()
    assert float(peaks.max()) > {2: 100, 3: 300}[config.dimension] and float(peaks.min()) < 2


# ---- kinds


def test_kinds_have_their_frequencies():
    n = 5000
    counts = torch.bincount(random_kinds(seeded(), n), minlength=len(KINDS)) / n
    total = sum(weight for _, weight in KINDS.values())
    for share, (_, weight) in zip(counts.tolist(), KINDS.values(), strict=True):
        assert share == about(weight / total, n)


def test_densities_have_the_requested_kinds(monkeypatch, config):
    """In the order of the request, also if there are more than are drawn together."""

    def corner(height):
        def kind(generator, count, config):
            values = torch.ones(count, *config.shape)
            values.flatten(1)[:, 0] = height
            return values

        return kind

    kinds = {name: (corner(k / 10), 1.0) for k, name in enumerate(KINDS)}
    monkeypatch.setattr(module, "KINDS", kinds)
    small = replace(config, cells=8, cells_per_call=3 * 8**config.dimension)
    request = torch.randperm(100, generator=seeded()) % len(kinds)
    plain = PairConfig(masked=0.0, lifted=0.0)
    values = random_densities(seeded(), request, small, plain).flatten(1)
    assert torch.allclose(values[:, 0] / values[:, -1], request / 10, atol=1e-6)


@pytest.mark.parametrize("lifted", [0.0, 1.0])
@pytest.mark.parametrize(
    ("config", "least"),
    [(replace(SQUARE, cells=32), 0.5), (replace(CUBE, cells=8), 0.4)],
    ids=NAMES,
)
def test_empty_regions_and_uniform_parts(config, least, lifted):
    """Noise has no zeros by itself; some masks have none either."""
    noise = torch.full((300,), list(KINDS).index("noise"))
    values = random_densities(seeded(), noise, config, PairConfig(lifted=lifted))
    empty = float((values == 0).flatten(1).any(1).float().mean())
    share = PAIR_CONFIG.masked
    if lifted:
        assert empty == 0
    else:
        assert least * share < empty < share + 5 * math.sqrt(share / 300)


def test_ends_are_often_of_one_kind(monkeypatch, config):
    requests = []

    def record(generator, kinds, config, pair):
        requests.append(kinds)
        return torch.ones(len(kinds), *config.shape)

    monkeypatch.setattr(module, "random_densities", record)
    random_pairs(seeded(), 4000, replace(config, cells=4), PairConfig(cropped=0.0))
    first, second = requests[-1].chunk(2)
    weights = torch.tensor([weight for _, weight in KINDS.values()])
    by_chance = float((weights / weights.sum()).square().sum())
    expected = PAIR_CONFIG.same_kind + (1 - PAIR_CONFIG.same_kind) * by_chance
    assert float((first == second).float().mean()) == about(expected, 4000)


# ---- crops, boxes, blocks


@pytest.mark.parametrize(
    ("config", "room"), [(SQUARE, 32), (replace(CUBE, cells=12), 3)], ids=NAMES
)
def test_crops_are_parts_of_one_density(monkeypatch, config, room):
    """The density encodes the position of each cell, two decimals per axis."""
    n, d = config.cells, config.dimension
    factors = [100**k for k in reversed(range(d))]
    grid = torch.meshgrid(*[torch.arange(float(n + room))] * d, indexing="ij")
    canvas = sum(factor * axis for factor, axis in zip(factors, grid, strict=True))
    monkeypatch.setattr(
        module,
        "random_densities",
        lambda _, kinds, config, pair: canvas.expand(len(kinds), *config.shape),
    )
    monkeypatch.setattr(module, "normalize_mean", lambda values, _: values)
    crops = shifted_crops(seeded(), 300, config).round()
    corner = crops.flatten(2)[..., 0]
    relative = crops - corner.view(2, 300, *(1,) * d)
    assert torch.equal(relative, canvas[(slice(n),) * d].expand_as(relative))
    for start in (corner // factor % 100 for factor in factors):
        assert float(start.min()) == 0 and float(start.max()) == room
        apart = (start[0] - start[1]).abs()
        assert float(apart.max()) == n // 6 and float(apart.min()) == 0


def test_shares_of_crops_and_boxes(monkeypatch, config):
    small, n, counts = replace(config, cells=8), 2000, []

    def ones(generator, count, config, pair):
        counts.append(count)
        return torch.ones(2, count, *config.shape)

    monkeypatch.setattr(module, "shifted_crops", ones)
    monkeypatch.setattr(
        module,
        "random_densities",
        lambda _, kinds, config, pair: torch.ones(len(kinds), *config.shape),
    )
    boxed = (random_pairs(seeded(), n, small) == 0).flatten(2).any(2)[0].float().mean()
    assert counts[0] / n == about(PAIR_CONFIG.cropped, n)
    # A side of a box is whole if its share is above 1 − 1/n.
    short, long = (1 / small.cells) / (2 / 3), (0.2 + 1 / small.cells) / 0.4
    whole = short * long * (1 if small.dimension == 2 else (short + long) / 2)
    assert float(boxed) == about(PAIR_CONFIG.boxed * (1 - whole), n)


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


def test_boxes_have_all_ratios_up_to_three_and_any_position():
    n = 1000
    boxes = random_boxes(seeded(), n, SQUARE)
    short, long = box_sides(boxes > 0)
    assert 22 <= int(short.min()) <= 24 and int(short.max()) >= 63
    assert int(long.min()) in (52, 53) and float((long == 64).float().mean()) == about(0.5, n)
    mean = boxes.mean((0, 2))
    assert torch.allclose(mean, mean.flip(0), atol=0.12)  # five deviations
    assert float(mean[0]) > 0.05
    short, middle, long = box_sides(random_boxes(seeded(), 500, CUBE) > 0)
    assert 11 <= int(short.min()) <= 12 and int(short.max()) == 32
    assert 11 <= int(middle.min()) <= 13 and int(long.min()) >= 26
    assert float((middle < 26).float().mean()) == about(0.5 * (25 / 32 - 1 / 3) / (2 / 3), 500)


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


def test_moments_do_not_depend_on_axis_and_end(config, pairs):
    """Means are in the middle; variances along all axes and heights of both ends agree."""

    def assert_zero(values):
        assert abs(float(values.mean())) < 5 * float(values.std()) / math.sqrt(len(values))

    line, variances = (torch.arange(config.cells) + 0.5) / config.cells - 0.5, []
    for axis in range(config.dimension):
        marginal = pairs.movedim(2 + axis, 2).flatten(3).mean(3)
        mean = (marginal * line).mean(2)
        variances.append((marginal * line**2).mean(2) - mean**2)
        for values in (mean[0], mean[1], mean[0] - mean[1]):
            assert_zero(values)
    for other in variances[1:]:
        for difference in variances[0] - other:
            assert_zero(difference)
    heights = pairs.amax(space(config)).log()
    assert_zero(heights[0] - heights[1])


# ---- the problem


def test_training_and_validation_draw_the_same_pairs(problem, ends):
    values = torch.stack([end.tensor for end in ends])
    assert torch.equal(values, random_pairs(seeded(), 6, problem.config))
    assert problem.box == Grid(problem.config.shape)
    for end, density in zip(ends, problem.draw_densities(6, seeded()), strict=True):
        assert isinstance(end, CellMeans) and density.tensor.dtype == torch.float64
        assert torch.allclose(density.tensor, end.tensor.double(), rtol=1e-6, atol=0)


def test_functions_are_splines_through_the_cells(problem, ends):
    d = problem.box.dimension
    spline = CubicSpline(ends[0].tensor, problem.box)
    for points in (torch.rand(20, d, generator=seeded()), torch.rand(6, 5, d, generator=seeded())):
        assert torch.equal(ends[0](points), spline(points))
    points = torch.rand(16, d, generator=seeded())
    assert torch.equal(problem.read_sensors(ends[0], points), ends[0](points))


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
