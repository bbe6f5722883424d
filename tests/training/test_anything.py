"""Pairs of any kind: they can be used as they are, every sort occurs, and no direction is special.

Shares are compared with their probabilities within five deviations √(p(1 − p)/n); seeds are fixed.
"""

import math
from dataclasses import replace

import pytest
import torch

from geonet import Grid
from geonet.numerics.interpolation import CubicSpline
from geonet.training import synthetic as anything
from geonet.training.loop import CATALOGUE
from geonet.training.problems import Cells
from geonet.training.random_fields import LEAST, normalised, smooth_fields
from geonet.training.synthetic import (
    ALIKE,
    CUBE,
    CUT,
    ELSEWHERE,
    EMPTY,
    SQUARE,
    Anything,
    boxes,
    coarse,
    random_densities,
    random_kinds,
    random_pairs,
    turned_about,
    two_densities,
    two_windows,
)

FAMILIES = [SQUARE, CUBE]
NAMES = ["2d", "3d"]
COUNT = {2: 400, 3: 200}  # of many pairs


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def about(share, n):
    """A share among n, to be met within five deviations."""
    return pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


def axes_of(family):
    """The axes of space, of tensors (..., *shape)."""
    return tuple(range(-family.dimension, 0))


both = pytest.mark.parametrize("family", FAMILIES, ids=NAMES)


@pytest.fixture(scope="module", params=[SQUARE, replace(CUBE, cells=16)], ids=NAMES)
def quick(request):
    """A family, coarser in 3D than in training, for the time it takes."""
    return request.param


@pytest.fixture(scope="module")
def pairs(quick):
    return random_pairs(seeded(), COUNT[quick.dimension], quick)


@pytest.fixture(scope="module", params=["anything-2d", "anything-3d"], ids=NAMES)
def problem(request):
    return CATALOGUE[request.param]()


@pytest.fixture(scope="module")
def ends(problem):
    return problem.draw(6, seeded())


# ---- pairs


def test_pairs_are_densities(quick, pairs):
    assert pairs.shape == (2, COUNT[quick.dimension], *quick.shape)
    assert pairs.dtype == torch.float32
    assert bool(torch.isfinite(pairs).all()) and float(pairs.min()) >= 0
    means = pairs.double().mean(axes_of(quick))
    assert float((means - 1).abs().max()) < 1e-6  # some roundings of single precision


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pairs(count):
    assert random_pairs(seeded(), count, SQUARE).shape == (2, count, 64, 64)
    assert random_pairs(seeded(), count, CUBE).shape == (2, count, 32, 32, 32)


def test_the_seed_decides(quick):
    again, other = (random_pairs(seeded(seed), 20, quick) for seed in (5, 6))
    assert torch.equal(random_pairs(seeded(5), 20, quick), again)
    assert not any(torch.equal(a, b) for a, b in zip(again[0], other[0], strict=True))


def test_no_pair_comes_twice(pairs):
    flat = pairs.flatten(2).flatten(0, 1)
    distance = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    # Two ends can be uniform, where a mask or the box left nothing; a few in a thousand are.
    assert int((distance.amin(1) < 1e-3).sum()) < 0.02 * len(flat)


def test_some_have_empty_cells_and_some_do_not(pairs):
    """Of 17 densities 7 are shapes, lines or spots, with zeros if no uniform share is added: ½.

    So a fifth of all densities, a third of all pairs, and with the boxes 0.4 of them; blurs and
    windows fill some with little, and masks empty others.
    """
    zeros = float((pairs == 0).flatten(2).any(2).any(0).float().mean())
    assert 0.3 < zeros < 0.55


def test_some_are_sharp_and_some_are_nearly_flat(quick, pairs):
    highest = pairs.amax(axes_of(quick)).flatten()
    assert float(highest.max()) > {2: 100, 3: 300}[quick.dimension]
    assert float(highest.min()) < 2


# ---- kinds


@both
def test_every_kind_occurs_as_often_as_it_should(family):
    n = 5000
    found = torch.bincount(random_kinds(seeded(), n, family), minlength=len(family.kinds)) / n
    total = sum(weight for _, weight in family.kinds.values())
    for share, (_, weight) in zip(found.tolist(), family.kinds.values(), strict=True):
        assert share == about(weight / total, n)


@both
def test_densities_are_of_their_kinds(monkeypatch, family):
    """In the order that is asked for, also where there are more than are drawn at once."""

    def corner(height):
        def kind(generator, count, cells):
            values = torch.ones(count, cells**family.dimension)
            values[:, 0] = height
            return values.view(count, *(cells,) * family.dimension)

        return kind

    kinds = {name: (corner(k / 10), 1.0) for k, name in enumerate(family.kinds)}
    monkeypatch.setattr(anything, "EMPTY", 0.0)
    monkeypatch.setattr(anything, "LIFTED", 0.0)
    family = replace(family, cells=8, kinds=kinds, piece=3 * 8**family.dimension)
    asked = torch.randperm(100, generator=seeded()) % len(kinds)
    values = random_densities(seeded(), asked, family).flatten(1)
    assert torch.allclose(values[:, 0] / values[:, -1], asked / 10, atol=1e-6)


@pytest.mark.parametrize("lifted", [0.0, 1.0])
@pytest.mark.parametrize(
    ("family", "least"),
    [(replace(SQUARE, cells=32), 0.5), (replace(CUBE, cells=8), 0.4)],
    ids=NAMES,
)
def test_empty_regions_and_uniform_shares(monkeypatch, family, least, lifted):
    """Of noise, which has no zeros by itself: U⁴ = 0 has odds of 2⁻²⁴ in a cell."""
    monkeypatch.setattr(anything, "LIFTED", lifted)
    noise = torch.full((300,), list(family.kinds).index("noise"))
    values = random_densities(seeded(), noise, family)
    empty = float((values == 0).flatten(1).any(1).float().mean())
    if lifted:
        assert empty == 0
    else:  # some masks are nowhere zero
        assert least * EMPTY < empty < EMPTY + 5 * math.sqrt(EMPTY / 300)


@both
def test_ends_are_often_of_one_kind(monkeypatch, family):
    """ALIKE of them by intent, and the rest by chance: Σ p² of them."""
    monkeypatch.setattr(anything, "random_densities", lambda _, kinds, family: kinds)
    first, second = two_densities(seeded(), 4000, family)
    weights = torch.tensor([weight for _, weight in family.kinds.values()])
    chance = float((weights / weights.sum()).square().sum())
    alike = float((first == second).float().mean())
    assert alike == about(ALIKE + (1 - ALIKE) * chance, 4000)


# ---- kinds in the cube; those on the square have tests of their own


@pytest.fixture(scope="module")
def samples():
    """Densities of every kind by name, as they are drawn."""
    return {name: kind(seeded(), 40, 32) for name, (kind, _) in CUBE.kinds.items()}


@pytest.mark.parametrize("name", CUBE.kinds)
def test_values_are_finite_and_not_negative(samples, name):
    values = samples[name]
    assert values.shape == (40, 32, 32, 32) and values.dtype == torch.float32
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0


@pytest.mark.parametrize("name", CUBE.kinds)
def test_next_to_all_have_mass_and_are_different(samples, name):
    """The rest is outside the cube, and is made uniform."""
    values = samples[name]
    there = values.mean((1, 2, 3)) > LEAST
    assert float(there.float().mean()) > 0.9
    flat = normalised(values[there], 3).flatten(1)
    assert float(torch.cdist(flat, flat).fill_diagonal_(torch.inf).min()) > 1e-2


@pytest.mark.parametrize("name", CUBE.kinds)
@pytest.mark.parametrize("cells", [8, 40])
def test_any_number_of_cells(name, cells):
    values = CUBE.kinds[name][0](seeded(), 2, cells)
    assert values.shape == (2, cells, cells, cells)
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0


@pytest.mark.parametrize("name", ["shapes", "tubes"])
def test_shapes_have_empty_space(samples, name):
    """All but a few leave most cells below a thousandth of the brightest."""
    values = samples[name] / samples[name].amax((1, 2, 3), keepdim=True)
    dark = (values < 1e-3).float().mean((1, 2, 3))
    assert float((dark > 0.5).float().mean()) > 0.8


def test_fields_have_mean_zero_and_deviation_one_and_are_smooth_or_not():
    space = (1, 2, 3)
    fields = smooth_fields(seeded(), 10, 24, dimension=3)
    assert fields.shape == (10, 24, 24, 24)
    assert float(fields.mean(space).abs().max()) < 1e-4
    assert torch.allclose(fields.std(space, correction=0), torch.ones(10), atol=1e-4)
    rough = smooth_fields(seeded(), 10, 24, decay=(0, 0), dimension=3)
    smooth = smooth_fields(seeded(), 10, 24, (0.3, 0.6), (4, 6), dimension=3)
    for axis in space:
        beside = [(f * f.roll(1, axis)).narrow(axis, 1, 23).mean(space) for f in (rough, smooth)]
        assert float(beside[0].abs().max()) < 5 / math.sqrt(24**3)
        assert float(beside[1].min()) > 0.9


# ---- two windows of one canvas


@pytest.mark.parametrize(
    ("family", "room"), [(SQUARE, 32), (replace(CUBE, cells=12), 3)], ids=NAMES
)
def test_windows_are_parts_of_one_canvas(monkeypatch, family, room):
    """On a canvas that says where each of its cells is, in two decimals for each axis."""
    n, d = family.cells, family.dimension
    factors = [100**k for k in reversed(range(d))]
    grid = torch.meshgrid(*[torch.arange(float(n + room))] * d, indexing="ij")
    canvas = sum(factor * places for factor, places in zip(factors, grid, strict=True))

    def copies(generator, kinds, family):
        return canvas.expand(len(kinds), *family.shape)

    monkeypatch.setattr(anything, "random_densities", copies)
    monkeypatch.setattr(anything, "normalised", lambda values, _: values)
    windows = two_windows(seeded(), 300, family).round()
    corner = windows.flatten(2)[..., 0]
    relative = windows - corner.view(2, 300, *(1,) * d)
    assert torch.equal(relative, canvas[(slice(n),) * d].expand_as(relative))
    places = [corner // factor % 100 for factor in factors]
    for place in places:
        assert float(place.min()) == 0 and float(place.max()) == room  # the last one is reached
        apart = (place[0] - place[1]).abs()
        assert float(apart.max()) == n // 6 and float(apart.min()) == 0
    assert bool((places[0] != places[1]).any())


@both
def test_so_many_pairs_are_windows(monkeypatch, family):
    seen = []

    def ones(generator, count, family):
        seen.append(count)
        return torch.ones(2, count, *family.shape)

    monkeypatch.setattr(anything, "two_windows", ones)
    monkeypatch.setattr(anything, "two_densities", ones)
    random_pairs(seeded(), 2000, replace(family, cells=8))
    windows, others = seen
    assert windows + others == 2000
    assert windows / 2000 == about(ELSEWHERE, 2000)


# ---- boxes


def sides_of(full):
    """The sides of boxes, (count,) for each axis; `full` (count, n, …, n) says what is inside."""
    (count, n), d = full.shape[:2], full.ndim - 1
    sides, box = [], torch.ones_like(full)
    for axis in range(d):
        line = full.movedim(1 + axis, 1).flatten(2).any(2)  # (count, n)
        padded = torch.nn.functional.pad(line.int(), (1, 1))
        assert bool((padded.diff(dim=1).abs().sum(1) == 2).all())  # in one stretch
        box &= line.view(count, *(1,) * axis, n, *(1,) * (d - 1 - axis))
        sides.append(line.sum(1))
    assert torch.equal(full, box)
    return sides


def test_rectangles_are_of_all_ratios_up_to_three():
    n = 1000
    short, long = sides_of(boxes(seeded(), n, SQUARE) > 0)
    assert 22 <= int(short.min()) <= 24 and int(short.max()) >= 63
    assert int(long.min()) in (52, 53) and float((long == 64).float().mean()) == about(0.5, n)


def test_boxes_are_of_all_ratios():
    short, middle, long = sides_of(boxes(seeded(), 500, CUBE) > 0)
    assert 11 <= int(short.min()) <= 12 and int(short.max()) == 32
    assert 11 <= int(middle.min()) <= 13 and int(long.min()) >= 26
    assert float((middle < 26).float().mean()) == about(0.5 * (25 / 32 - 1 / 3) / (2 / 3), 500)


def test_rectangles_are_anywhere():
    mean = boxes(seeded(), 2000, SQUARE).mean((0, 2))
    assert torch.allclose(mean, mean.flip(0), atol=0.08)  # five deviations of √(2·¼/2000)
    # E[1/(65 − n)] ≈ ln(43)/43 = 0.09 of them touch the side, with lengths n = 22, …, 64
    assert float(mean[0]) > 0.05


def test_a_pair_is_empty_outside_its_box(monkeypatch, quick):
    monkeypatch.setattr(anything, "CUT", 1.0)
    pairs = random_pairs(seeded(), 60, quick)
    source, target = pairs > 0
    assert torch.equal(source, target)
    sides = torch.stack(sides_of(source))
    assert bool((sides.amax(0) >= 0.8 * quick.cells).all())
    assert int(sides.amin()) < 0.625 * quick.cells  # of 60 between a third and all
    assert float((pairs.double().mean(axes_of(quick)) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("family", [replace(SQUARE, cells=16), replace(CUBE, cells=8)], ids=NAMES)
def test_so_many_pairs_are_cut(monkeypatch, family):
    for name in ("two_windows", "two_densities"):
        monkeypatch.setattr(
            anything, name, lambda _, count, family: torch.ones(2, count, *family.shape)
        )
    cut = (random_pairs(seeded(), 2000, family) == 0).flatten(2).any(2)[0].float().mean()
    # A box can be all of the square or cube: a side is whole where its share is above 1 − 1/n.
    short, long = (1 / family.cells) / (2 / 3), (0.2 + 1 / family.cells) / 0.4
    whole = short * long * (1 if family.dimension == 2 else (short + long) / 2)
    assert float(cut) == about(CUT * (1 - whole), 2000)


# ---- blocks


@pytest.mark.parametrize("size", [2, 4])
def test_coarse_densities_are_constant_in_blocks(quick, size):
    d, ends = quick.dimension, random_pairs(seeded(), 3, quick)
    blocks = coarse(ends, size).view(2, 3, *(quick.cells // size, size) * d)
    within = tuple(range(3, blocks.ndim, 2))
    assert torch.equal(blocks.amin(within), blocks.amax(within))
    expected = ends.reshape(blocks.shape).mean(within)
    assert torch.allclose(blocks.amax(within), expected, rtol=1e-5)


def test_some_pairs_are_constant_in_blocks(quick):
    """16 % of all are drawn so; in a hundred there are 6 to 30 but for one in 10,000 times."""
    ends = random_pairs(seeded(), 100, quick)
    blocks = ends.reshape(2, 100, *(quick.cells // 2, 2) * quick.dimension)
    within = tuple(range(3, blocks.ndim, 2))
    alike = (blocks.amin(within) == blocks.amax(within)).flatten(2).all(2).all(0)
    assert 6 <= int(alike.sum()) <= 30


# ---- no direction is special


@pytest.mark.parametrize(
    ("n", "shape", "turns"), [(3200, (3, 3), 8), (9600, (2, 2, 2), 48)], ids=NAMES
)
def test_every_turn_is_equally_likely(n, shape, turns):
    """All symmetries of the square or cube, and the swap of the ends."""
    one = torch.arange(2.0 * math.prod(shape)).reshape(2, 1, *shape)
    turned = turned_about(seeded(), one.expand(2, n, *shape)).transpose(0, 1).flatten(1)
    found, times = turned.unique(dim=0, return_counts=True)
    assert len(found) == 2 * turns
    for share in (times / n).tolist():
        assert share == about(1 / (2 * turns), n)


def along(pairs, axis):
    """The pairs' means across an axis of space, (2, count, n), and its cell centres, (n,)."""
    n = pairs.shape[2]
    return pairs.movedim(2 + axis, 2).flatten(3).mean(3), (torch.arange(n) + 0.5) / n


def test_means_are_in_the_middle(quick, pairs):
    """Over many pairs, within five deviations of their own mean."""
    for axis in range(quick.dimension):
        means, line = along(pairs, axis)
        centre = (means * line).mean(2)  # (2, count)
        for values in (centre[0], centre[1], centre[0] - centre[1] + 0.5):
            deviation = float(values.std()) / math.sqrt(len(values))
            assert abs(float(values.mean()) - 0.5) < 5 * deviation


def test_all_axes_and_both_ends_are_alike(quick, pairs):
    """The variances along the axes, and the heights of the ends; within five deviations."""
    first, *others = (
        (means * line**2).mean(2) - (means * line).mean(2) ** 2
        for means, line in (along(pairs, axis) for axis in range(quick.dimension))
    )
    heights = pairs.amax(axes_of(quick)).log()
    differences = [end for other in others for end in first - other]
    for difference in (*differences, heights[0] - heights[1]):
        deviation = float(difference.std()) / math.sqrt(len(difference))
        assert abs(float(difference.mean())) < 5 * deviation


# ---- the problem


def test_ends_hold_the_pairs(problem, ends):
    assert isinstance(problem, Anything)
    values = torch.stack([end.tensor for end in ends])
    assert torch.equal(values, random_pairs(seeded(), 6, problem.family))
    assert all(isinstance(end, Cells) for end in ends)


def test_validation_and_training_draw_alike(problem, ends):
    shape = {2: (64, 64), 3: (32, 32, 32)}[problem.box.dimension]
    assert problem.box == Grid(shape)
    for end, density in zip(ends, problem.densities(6, seeded()), strict=True):
        assert density.grid == Grid(shape) and density.tensor.dtype == torch.float64
        assert torch.allclose(density.tensor, end.tensor.double(), rtol=1e-6, atol=0)


def test_an_end_is_the_spline_through_its_cells(problem, ends):
    d = problem.box.dimension
    points = torch.rand(20, d, generator=seeded())
    own = torch.rand(6, 5, d, generator=seeded())
    for end in ends:
        spline = CubicSpline(end.tensor, problem.box)
        assert torch.equal(end(points), spline(points))
        assert torch.equal(end(own), spline(own))


@pytest.mark.parametrize("sensors", [64, 32, 16, 2])
def test_sensors_read_means_over_cells(problem, ends, sensors):
    """As many sensors as cells or fewer, along an axis."""
    d, sensors = problem.box.dimension, min(sensors, problem.family.cells)
    side = problem.family.cells // sensors
    for end in ends:
        read = problem.means(end, sensors)
        blocks = end.tensor.reshape(6, *(sensors, side) * d).double()
        means = blocks.mean(tuple(range(2, blocks.ndim, 2))).flatten(1)
        assert read.shape == (6, sensors**d) and read.dtype == torch.float32
        assert torch.allclose(read.double(), means, rtol=1e-5, atol=1e-7)
        if side == 1:
            assert torch.equal(read, end.tensor.flatten(1))


@pytest.mark.parametrize("sensors", [24, 100])
def test_sensors_that_do_not_divide_the_cells_read_means_too(problem, ends, sensors):
    for end in ends:
        read = problem.means(end, sensors)
        assert read.shape == (6, sensors**problem.box.dimension)
        assert float(read.min()) >= -1e-9  # of double precision
        assert torch.allclose(read.mean(1), torch.ones(6), atol=1e-5)


@pytest.mark.parametrize("count", [1, 6, 16])
def test_sensors_elsewhere_read_the_spline(problem, ends, count):
    """A square number of points need not be a grid."""
    points = torch.rand(count, problem.box.dimension, generator=seeded())
    assert torch.equal(problem.sensed(ends[0], points), ends[0](points))
