"""Pairs of any kind in space: they can be used as they are, and no direction is special.

Shares are compared with their probabilities within five deviations √(p(1 − p)/n); seeds are fixed.
"""

import math

import pytest
import torch

from geonet import Grid
from geonet.training import anything_3d
from geonet.training.anything import ALIKE, CUT, ELSEWHERE, EMPTY
from geonet.training.anything_3d import (
    KINDS,
    Anything3D,
    boxes,
    coarse,
    random_densities,
    random_pairs,
    turned_about,
    two_densities,
    two_windows,
)
from geonet.training.catalogue import CATALOGUE
from geonet.training.random_fields import LEAST, normalised, smooth_fields

COUNT, CELLS = 200, 16  # coarser than in training, for the time it takes
SPACE = (-3, -2, -1)


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def about(share, n=COUNT):
    """A share among n, to be met within five deviations."""
    return pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


@pytest.fixture(scope="module")
def pairs():
    return random_pairs(seeded(), COUNT, CELLS)


@pytest.fixture(scope="module")
def samples():
    """Densities of every kind by name, as they are drawn."""
    return {name: kind(seeded(), 40, 32) for name, (kind, _) in KINDS.items()}


# ---- pairs


def test_pairs_are_densities(pairs):
    assert pairs.shape == (2, COUNT, 16, 16, 16) and pairs.dtype == torch.float32
    assert bool(torch.isfinite(pairs).all()) and float(pairs.min()) >= 0
    assert float((pairs.double().mean(SPACE) - 1).abs().max()) < 1e-6  # single precision


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pairs(count):
    assert random_pairs(seeded(), count).shape == (2, count, 32, 32, 32)


def test_the_seed_decides():
    again, other = (random_pairs(seeded(seed), 10, CELLS) for seed in (5, 6))
    assert torch.equal(random_pairs(seeded(5), 10, CELLS), again)
    assert not any(torch.equal(a, b) for a, b in zip(again[0], other[0], strict=True))


def test_no_pair_comes_twice(pairs):
    flat = pairs.flatten(2).flatten(0, 1)
    distance = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    # Two ends can be uniform, where a mask or the cube left nothing; a few in a thousand are.
    assert int((distance.amin(1) < 1e-3).sum()) < 0.02 * len(flat)


def test_some_are_sharp_and_some_are_nearly_flat(pairs):
    highest = pairs.amax(SPACE).flatten()
    assert float(highest.max()) > 300 and float(highest.min()) < 2


# ---- kinds


@pytest.mark.parametrize("name", KINDS)
def test_values_are_finite_and_not_negative(samples, name):
    values = samples[name]
    assert values.shape == (40, 32, 32, 32) and values.dtype == torch.float32
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0


@pytest.mark.parametrize("name", KINDS)
def test_next_to_all_have_mass_and_are_different(samples, name):
    """The rest is outside the cube, and is made uniform."""
    values = samples[name]
    there = values.mean(SPACE) > LEAST
    assert float(there.float().mean()) > 0.9
    flat = normalised(values[there], 3).flatten(1)
    assert float(torch.cdist(flat, flat).fill_diagonal_(torch.inf).min()) > 1e-2


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cells", [8, 40])
def test_any_number_of_cells(name, cells):
    values = KINDS[name][0](seeded(), 2, cells)
    assert values.shape == (2, cells, cells, cells)
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0


@pytest.mark.parametrize("name", ["shapes", "tubes"])
def test_shapes_have_empty_space(samples, name):
    """All but a few leave most cells below a thousandth of the brightest."""
    values = samples[name] / samples[name].amax(SPACE, keepdim=True)
    dark = (values < 1e-3).float().mean(SPACE)
    assert float((dark > 0.5).float().mean()) > 0.8


def test_fields_have_mean_zero_and_deviation_one_and_are_smooth_or_not():
    fields = smooth_fields(seeded(), 10, 24, dimension=3)
    assert fields.shape == (10, 24, 24, 24)
    assert float(fields.mean(SPACE).abs().max()) < 1e-4
    assert torch.allclose(fields.std(SPACE, correction=0), torch.ones(10), atol=1e-4)
    rough = smooth_fields(seeded(), 10, 24, decay=(0, 0), dimension=3)
    smooth = smooth_fields(seeded(), 10, 24, (0.3, 0.6), (4, 6), dimension=3)
    for axis in (1, 2, 3):
        beside = [(f * f.roll(1, axis)).narrow(axis, 1, 23).mean(SPACE) for f in (rough, smooth)]
        assert float(beside[0].abs().max()) < 5 / math.sqrt(24**3)
        assert float(beside[1].min()) > 0.9


def test_densities_are_of_their_kinds(monkeypatch):
    """In the order that is asked for, also where there are more than are drawn at once."""

    def of(height):
        def kind(generator, count, cells):
            values = torch.ones(count, cells, cells, cells)
            values[:, 0, 0, 0] = height
            return values

        return kind

    table = {name: (of(k / 10), weight) for k, (name, (_, weight)) in enumerate(KINDS.items())}
    monkeypatch.setattr(anything_3d, "KINDS", table)
    monkeypatch.setattr(anything_3d, "EMPTY", 0.0)
    monkeypatch.setattr("geonet.training.anything.LIFTED", 0.0)
    asked = torch.arange(100) % len(KINDS)
    values = random_densities(seeded(), asked, 8)
    relative = values[:, 0, 0, 0] / values[:, 1, 1, 1]
    assert torch.allclose(relative, asked / 10, atol=1e-6)


@pytest.mark.parametrize("lifted", [0.0, 1.0])
def test_empty_regions_and_uniform_shares(monkeypatch, lifted):
    """Of noise, which has no zeros by itself."""
    monkeypatch.setattr("geonet.training.anything.LIFTED", lifted)
    noise = torch.full((300,), list(KINDS).index("noise"))
    values = random_densities(seeded(), noise, 8)
    empty = float((values == 0).flatten(1).any(1).float().mean())
    if lifted:
        assert empty == 0
    else:  # some masks are nowhere zero
        assert 0.4 * EMPTY < empty < EMPTY + 5 * math.sqrt(EMPTY / 300)


def test_ends_are_often_of_one_kind(monkeypatch):
    """ALIKE of them by intent, and the rest by chance: Σ p² of them."""
    monkeypatch.setattr(anything_3d, "random_densities", lambda _, kinds, cells: kinds[:, None])
    first, second = two_densities(seeded(), 4000, 8)
    weights = torch.tensor([weight for _, weight in KINDS.values()])
    chance = float((weights / weights.sum()).square().sum())
    alike = float((first == second).float().mean())
    assert alike == about(ALIKE + (1 - ALIKE) * chance, 4000)


# ---- windows, boxes, blocks


def test_windows_are_parts_of_one_canvas(monkeypatch):
    """On a canvas that says where each of its cells is."""
    count, side = 300, 15
    line = torch.arange(float(side))
    ramp = 10_000 * line[:, None, None] + 100 * line[:, None] + line
    monkeypatch.setattr(
        anything_3d, "random_densities", lambda *_: ramp.expand(count, side, side, side)
    )
    monkeypatch.setattr(anything_3d, "normalised", lambda values, _: values)
    windows = two_windows(seeded(), count, 12).round()
    corner = windows[..., 0, 0, 0]
    relative = windows - corner[..., None, None, None]
    assert torch.equal(relative, ramp[:12, :12, :12].expand_as(relative))
    for place in (corner // 10_000, corner // 100 % 100, corner % 100):
        assert float(place.min()) == 0 and float(place.max()) == 3
        apart = (place[0] - place[1]).abs()
        assert float(apart.max()) == 12 // 6 and float(apart.min()) == 0


def test_so_many_pairs_are_windows_and_so_many_are_cut(monkeypatch):
    seen = []

    def ones(generator, count, cells):
        seen.append(count)
        return torch.ones(2, count, cells, cells, cells)

    monkeypatch.setattr(anything_3d, "two_windows", ones)
    monkeypatch.setattr(anything_3d, "two_densities", ones)
    cut = (random_pairs(seeded(), 2000, 8) == 0).flatten(2).any(2)[0].float().mean()
    windows, others = seen
    assert windows + others == 2000 and windows / 2000 == about(ELSEWHERE, 2000)
    # A side is whole with odds of 1/8 (⌈8·share⌉ for shares above 1/3), 5/8 and their mean; these
    # are few: at most 1/8·5/8·5/8 of the boxes are the cube.
    assert 0.9 * CUT - 0.04 < float(cut) < CUT + 0.04


def test_boxes_are_filled_and_of_all_ratios():
    inside = boxes(seeded(), 500, 32) > 0
    lines = [inside.any(2).any(2), inside.any(1).any(2), inside.any(1).any(1)]
    first, second, third = lines
    full = first[:, :, None, None] & second[:, None, :, None] & third[:, None, None, :]
    assert torch.equal(inside, full)
    for line in lines:  # in one stretch
        padded = torch.nn.functional.pad(line.int(), (1, 1))
        assert bool((padded.diff(dim=1).abs().sum(1) == 2).all())
    short, middle, long = (line.sum(1) for line in lines)
    assert 11 <= int(short.min()) <= 12 and int(short.max()) == 32
    assert 11 <= int(middle.min()) <= 13 and int(long.min()) >= 26
    assert float((middle < 26).float().mean()) == about(0.5 * (25 / 32 - 1 / 3) / (2 / 3), 500)


@pytest.mark.parametrize("size", [2, 4])
def test_coarse_densities_are_constant_in_blocks(size):
    ends = random_pairs(seeded(), 3, CELLS)
    found = coarse(ends, size)
    blocks = found.reshape(2, 3, *(CELLS // size, size) * 3)
    means = ends.reshape(blocks.shape).mean((3, 5, 7), keepdim=True)
    assert torch.allclose(blocks, means.expand_as(blocks), rtol=1e-5)


# ---- no direction is special


def test_every_turn_is_equally_likely():
    """48 symmetries of the cube and the swap of the ends."""
    n = 9600
    cube = torch.arange(16.0).reshape(2, 1, 2, 2, 2)
    turned = turned_about(seeded(), cube.expand(2, n, 2, 2, 2)).transpose(0, 1).flatten(1)
    found, times = turned.unique(dim=0, return_counts=True)
    assert len(found) == 96
    for share in (times / n).tolist():
        assert share == about(1 / 96, n)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_means_are_in_the_middle(pairs, axis):
    """Over many pairs, within five deviations of their own mean."""
    line = (torch.arange(CELLS) + 0.5) / CELLS
    along = pairs.movedim(2 + axis, -1).mean((2, 3))
    centre = (along * line).mean(2)  # (2, COUNT)
    for values in (centre[0], centre[1], centre[0] - centre[1] + 0.5):
        assert abs(float(values.mean()) - 0.5) < 5 * float(values.std()) / math.sqrt(COUNT)


# ---- the problem


def test_training_and_validation_draw_the_same():
    problem = CATALOGUE["anything-3d"]()
    assert isinstance(problem, Anything3D) and problem.box == Grid((32, 32, 32))
    drawn = random_pairs(seeded(), 2)
    for end, values, density in zip(
        problem.draw(2, seeded()), drawn, problem.densities(2, seeded()), strict=True
    ):
        assert torch.equal(end.values, values)
        assert torch.allclose(density.values, values.double(), rtol=1e-6, atol=0)
        read = problem.means(end, 16)
        blocks = values.reshape(2, *(16, 2) * 3).double().mean((2, 4, 6))
        assert torch.allclose(read.double(), blocks.flatten(1), rtol=1e-5, atol=1e-7)
