"""Pairs of any kind: they can be used as they are, every sort occurs, and no direction is special.

Shares are compared with their probabilities within five deviations √(p(1 − p)/n); seeds are fixed.
"""

import math

import pytest
import torch

from geonet import Grid
from geonet.measures.interpolation import CubicSpline
from geonet.training import anything
from geonet.training.anything import (
    ALIKE,
    CELLS,
    CUT,
    ELSEWHERE,
    EMPTY,
    KINDS,
    Anything,
    coarse,
    random_densities,
    random_kinds,
    random_pairs,
    rectangles,
    turned_about,
    two_densities,
    two_windows,
)
from geonet.training.cells import Cells

COUNT = 400


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def about(share, n=COUNT):
    """A share among n, to be met within five deviations."""
    return pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


@pytest.fixture(scope="module")
def pairs():
    return random_pairs(seeded(), COUNT)


@pytest.fixture(scope="module")
def ends():
    return Anything().draw(6, seeded())


# ---- pairs


def test_pairs_are_densities(pairs):
    assert pairs.shape == (2, COUNT, 64, 64) and pairs.dtype == torch.float32
    assert bool(torch.isfinite(pairs).all()) and float(pairs.min()) >= 0
    means = pairs.double().mean((2, 3))
    assert float((means - 1).abs().max()) < 1e-6  # some roundings of single precision


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pairs(count):
    assert random_pairs(seeded(), count).shape == (2, count, CELLS, CELLS)


def test_the_seed_decides(pairs):
    again, other = (random_pairs(seeded(seed), 20) for seed in (5, 6))
    assert torch.equal(random_pairs(seeded(5), 20), again)
    assert not any(torch.equal(a, b) for a, b in zip(again[0], other[0], strict=True))


def test_no_pair_comes_twice(pairs):
    flat = pairs.flatten(2).flatten(0, 1)
    distance = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    # Two ends can be uniform, where a mask or the square left nothing; a few in a thousand are.
    assert int((distance.amin(1) < 1e-3).sum()) < 0.02 * len(flat)


def test_some_have_empty_cells_and_some_do_not(pairs):
    """Of 17 densities 7 are shapes, strokes or spots, with zeros if no uniform share is added: ½.

    So a fifth of all densities, a third of all pairs, and with the rectangles 0.4 of them; blurs
    and windows fill some with little, and masks empty others.
    """
    zeros = float((pairs == 0).flatten(2).any(2).any(0).float().mean())
    assert 0.3 < zeros < 0.55


def test_some_are_sharp_and_some_are_nearly_flat(pairs):
    highest = pairs.amax((2, 3)).flatten()
    assert float(highest.max()) > 100 and float(highest.min()) < 2


# ---- kinds


def test_every_kind_occurs_as_often_as_it_should():
    n = 5000
    found = torch.bincount(random_kinds(seeded(), n), minlength=len(KINDS)) / n
    total = sum(weight for _, weight in KINDS.values())
    for share, (_, weight) in zip(found.tolist(), KINDS.values(), strict=True):
        assert share == about(weight / total, n)


def test_densities_are_of_their_kinds(monkeypatch):
    """In the order that is asked for, also where there are more than are drawn at once."""
    heights = {name: k / 10 for k, name in enumerate(KINDS)}

    def corner(height):
        def kind(generator, count, cells):
            values = torch.ones(count, cells, cells)
            values[:, 0, 0] = height
            return values

        return kind

    kinds = {name: (corner(height), 1.0) for name, height in heights.items()}
    monkeypatch.setattr(anything, "KINDS", kinds)
    monkeypatch.setattr(anything, "EMPTY", 0.0)
    monkeypatch.setattr(anything, "LIFTED", 0.0)
    monkeypatch.setattr(anything, "PIECE", 3 * 8**2)
    asked = random_kinds(seeded(), 100)
    values = random_densities(seeded(), asked, 8)
    relative = values[:, 0, 0] / values[:, 1, 1]
    assert torch.allclose(relative, asked / 10, atol=1e-6)


@pytest.mark.parametrize("lifted", [0.0, 1.0])
def test_empty_regions_and_uniform_shares(monkeypatch, lifted):
    """Of noise on 32² cells, which has no zeros by itself: U⁴ = 0 has odds of 2⁻²⁴ in a cell."""
    monkeypatch.setattr(anything, "LIFTED", lifted)
    noise = torch.full((300,), list(KINDS).index("noise"))
    values = random_densities(seeded(), noise, 32)
    empty = float((values == 0).flatten(1).any(1).float().mean())
    if lifted:
        assert empty == 0
    else:  # some masks are nowhere zero
        assert 0.5 * EMPTY < empty < EMPTY + 5 * math.sqrt(EMPTY / 300)


def test_ends_are_often_of_one_kind(monkeypatch):
    """ALIKE of them by intent, and the rest by chance: Σ p² of them."""
    monkeypatch.setattr(anything, "random_densities", lambda _, kinds, cells: kinds[:, None, None])
    first, second = two_densities(seeded(), 4000, 8)
    weights = torch.tensor([weight for _, weight in KINDS.values()])
    chance = float((weights / weights.sum()).square().sum())
    alike = float((first == second).float().mean())
    assert alike == about(ALIKE + (1 - ALIKE) * chance, 4000)


# ---- two windows of one canvas


def test_windows_are_parts_of_one_canvas(monkeypatch):
    """On a canvas that says where each of its cells is."""
    count, side = 300, 96
    ramp = 1000.0 * torch.arange(side)[:, None] + torch.arange(side)
    monkeypatch.setattr(
        anything, "random_densities", lambda *_: ramp.expand(count, side, side).clone()
    )
    monkeypatch.setattr(anything, "normalised", lambda values: values)
    windows = two_windows(seeded(), count, CELLS).round()
    corner = windows[..., 0, 0]
    relative = windows - corner[..., None, None]
    assert torch.equal(relative, ramp[:64, :64].expand_as(relative))
    rows, columns = corner // 1000, corner % 1000
    for place in (rows, columns):
        assert float(place.min()) >= 0 and float(place.max()) == 32  # the last one is reached
        apart = (place[0] - place[1]).abs()
        assert float(apart.max()) == 64 // 6 and float(apart.min()) == 0
    assert bool((rows != columns).any())


def test_so_many_pairs_are_windows(monkeypatch):
    seen = []

    def none(generator, count, cells):
        seen.append(count)
        return torch.ones(2, count, cells, cells)

    monkeypatch.setattr(anything, "two_windows", none)
    monkeypatch.setattr(anything, "two_densities", none)
    random_pairs(seeded(), 2000, 8)
    windows, others = seen
    assert windows + others == 2000
    assert windows / 2000 == about(ELSEWHERE, 2000)


# ---- rectangles


def sides_of(full):
    """How many rows and columns of (count, n, n) have anything, and whether these are filled."""
    rows, columns = full.any(2), full.any(1)
    filled = torch.equal(full, rows[:, :, None] & columns[:, None, :])
    for line in (rows, columns):  # in one stretch: no more than one rise from empty to full
        padded = torch.nn.functional.pad(line.int(), (1, 1))
        filled = filled and bool((padded.diff(dim=1).abs().sum(1) == 2).all())
    return rows.sum(1), columns.sum(1), filled


def test_rectangles_are_of_all_ratios_up_to_three():
    n = 1000
    short, long, filled = sides_of(rectangles(seeded(), n, 64) > 0)
    assert filled
    assert 22 <= int(short.min()) <= 24 and int(short.max()) >= 63
    assert int(long.min()) in (52, 53) and float((long == 64).float().mean()) == about(0.5, n)


def test_rectangles_are_anywhere():
    mean = rectangles(seeded(), 2000, 64).mean((0, 2))
    assert torch.allclose(mean, mean.flip(0), atol=0.08)  # five deviations of √(2·¼/2000)
    # E[1/(65 − n)] ≈ ln(43)/43 = 0.09 of them touch the side, with lengths n = 22, …, 64
    assert float(mean[0]) > 0.05


def test_a_pair_is_empty_outside_its_rectangle(monkeypatch):
    monkeypatch.setattr(anything, "CUT", 1.0)
    pairs = random_pairs(seeded(), 60)
    source, target = pairs > 0
    assert torch.equal(source, target)
    rows, columns, filled = sides_of(source)
    assert filled
    assert bool((torch.maximum(rows, columns) >= 52).all())
    assert int(torch.minimum(rows, columns).min()) < 40  # of 60 between 22 and 64
    assert float((pairs.double().mean((2, 3)) - 1).abs().max()) < 1e-6


def test_so_many_pairs_are_cut(monkeypatch):
    for name in ("two_windows", "two_densities"):
        monkeypatch.setattr(anything, name, lambda _, count, cells: torch.ones(2, count, 16, 16))
    cut = (random_pairs(seeded(), 2000, 16) == 0).flatten(2).any(2)[0].float().mean()
    whole = 1 / 32 * 0.5  # a rectangle can be all of the square
    assert float(cut) == about(CUT * (1 - whole), 2000)


# ---- no direction is special


def test_every_turn_is_equally_likely():
    """Eight symmetries of the square and the swap of the ends."""
    n = 3200
    square = torch.arange(18.0).reshape(2, 1, 3, 3)
    turned = turned_about(seeded(), square.expand(2, n, 3, 3)).transpose(0, 1).flatten(1)
    found, times = turned.unique(dim=0, return_counts=True)
    assert len(found) == 16
    for share in (times / n).tolist():
        assert share == about(1 / 16, n)


@pytest.mark.parametrize("axis", [2, 3])
def test_means_are_in_the_middle(pairs, axis):
    """Over many pairs, within five deviations of their own mean."""
    line = (torch.arange(64) + 0.5) / 64
    centre = (pairs.mean(5 - axis) * line).mean(2)  # (2, COUNT)
    for values in (centre[0], centre[1], centre[0] - centre[1] + 0.5):
        assert abs(float(values.mean()) - 0.5) < 5 * float(values.std()) / math.sqrt(COUNT)


def test_both_axes_and_both_ends_are_alike(pairs):
    """The variances along the axes, and the heights of the ends; within five deviations."""
    line = (torch.arange(64) + 0.5) / 64
    down, across = (
        (pairs.mean(axis) * line**2).mean(2) - (pairs.mean(axis) * line).mean(2) ** 2
        for axis in (3, 2)
    )
    heights = pairs.amax((2, 3)).log()
    for difference in (*(down - across), heights[0] - heights[1]):
        deviation = float(difference.std()) / math.sqrt(COUNT)
        assert abs(float(difference.mean())) < 5 * deviation


# ---- the problem


def test_ends_hold_the_pairs(ends):
    values = torch.stack([end.values for end in ends])
    assert torch.equal(values, random_pairs(seeded(), 6))
    assert all(isinstance(end, Cells) for end in ends)


@pytest.mark.parametrize("size", [2, 4])
def test_coarse_densities_are_constant_in_blocks(size):
    ends = random_pairs(seeded(), 3)
    blocks = coarse(ends, size).unflatten(3, (-1, size)).unflatten(2, (-1, size))
    assert torch.equal(blocks, blocks[:, :, :, :1, :, :1].expand_as(blocks))
    expected = ends.unflatten(3, (-1, size)).unflatten(2, (-1, size)).mean((3, 5))
    assert torch.allclose(blocks[:, :, :, 0, :, 0], expected, rtol=1e-5)


def test_some_pairs_are_constant_in_blocks():
    """16 % of all are drawn so; in a hundred there are 6 to 30 but for one in 10,000 times."""
    ends = random_pairs(seeded(), 100)
    even, odd = ends[:, :, ::2], ends[:, :, 1::2]
    alike = ((even == odd).all(3).all(2) & (ends[..., ::2] == ends[..., 1::2]).all(3).all(2)).all(0)
    assert 6 <= int(alike.sum()) <= 30


def test_an_end_is_the_spline_through_its_cells(ends):
    points = torch.rand(20, 2, generator=seeded())
    own = torch.rand(6, 5, 2, generator=seeded())
    for end in ends:
        spline = CubicSpline(end.values, Grid((64, 64)))
        assert torch.equal(end(points), spline(points))
        assert torch.equal(end(own), spline(own))


@pytest.mark.parametrize("sensors", [64, 32, 16, 2])
def test_sensors_read_means_over_cells(ends, sensors):
    side = 64 // sensors
    for end in ends:
        read = Anything().means(end, sensors)
        blocks = end.values.reshape(6, sensors, side, sensors, side).double().mean((2, 4))
        assert read.shape == (6, sensors**2) and read.dtype == torch.float32
        assert torch.allclose(read.double(), blocks.flatten(1), rtol=1e-5, atol=1e-7)
        if sensors == 64:
            assert torch.equal(read, end.values.flatten(1))


@pytest.mark.parametrize("sensors", [24, 100])
def test_sensors_that_do_not_divide_the_cells_read_means_too(ends, sensors):
    for end in ends:
        read = Anything().means(end, sensors)
        assert read.shape == (6, sensors**2)
        assert float(read.min()) >= -1e-9  # of double precision
        assert torch.allclose(read.mean(1), torch.ones(6), atol=1e-5)


@pytest.mark.parametrize("count", [1, 6, 16])
def test_sensors_elsewhere_read_the_spline(ends, count):
    """A square number of points need not be a grid."""
    points = torch.rand(count, 2, generator=seeded())
    assert torch.equal(Anything().sensed(ends[0], points), ends[0](points))


def test_validation_and_training_draw_alike(ends):
    for end, density in zip(ends, Anything().densities(6, seeded()), strict=True):
        assert density.grid == Grid((64, 64)) and density.values.dtype == torch.float64
        assert torch.allclose(density.values, end.values.double(), rtol=1e-6, atol=0)
