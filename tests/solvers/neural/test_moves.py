"""Ends that are moved towards each other: as far as there is room, and nothing else changes."""

import pytest
import torch

import geonet
from benchmarks.pairs import draw
from geonet import Density, Grid
from geonet.solvers.neural.cascade import BORDER, moves_between

N = 24


def block(*corners, side=4, n=N):
    """A block of ones at a corner, (1, n, …, n)."""
    values = torch.zeros((n,) * len(corners))
    values[tuple(slice(c, c + side) for c in corners)] = 1
    return values[None]


def cells(moves):
    return (moves.steps * N).round().int().tolist()


@pytest.mark.parametrize(
    ("first", "second"), [((2, 4), (12, 8)), ((12, 8), (2, 4)), ((2, 4, 9), (8, 16, 9))]
)
def test_translated_ends_become_equal(first, second):
    source, target = block(*first), block(*second)
    moves = moves_between(source, target)
    assert cells(moves) == [[(b - a) // 2 for a, b in zip(first, second, strict=True)]]
    assert torch.equal(*moves.apply(source, target))
    centre = [(a + b + 4) / 2 / N for a, b in zip(first, second, strict=True)]
    assert moves.centre[0].tolist() == pytest.approx(centre, abs=1e-12)


@pytest.mark.parametrize(("distance", "step"), [(1, 0), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_half_a_cell_is_not_moved_either_way(distance, step):
    """Odd distances leave a cell between the ends, whether one looks from left or from right."""
    source, target = block(5, 10), block(5 + distance, 10)
    assert cells(moves_between(source, target)) == [[step, 0]]
    assert cells(moves_between(target, source)) == [[-step, 0]]
    mirrored = moves_between(source.flip(1), target.flip(1))
    assert cells(mirrored) == [[-step, 0]]


def test_there_is_no_move_beyond_the_border():
    """The second end fills most of the box, so that it can go back by four cells less the border.

    Where both can meet, four cells from the upper face at least, there is room for it.
    """
    source, target = block(3, 10), torch.zeros(1, N, N)
    target[:, 4:22, 10:14] = 1
    assert cells(moves_between(source, target)) == [[4 - BORDER, 0]]
    assert cells(moves_between(target, source)) == [[BORDER - 4, 0]]


def test_nothing_folds():
    """Second derivatives of the potential stay within [−2, 2], also where it bends at the faces."""
    for first, second, size in ((1, 15, 8), (0, 12, 12), (2, 3, 20), (0, 20, 4)):
        moves = moves_between(block(first, 4, side=size), block(second, 4, side=size))
        for n in (N, 2 * N, 37):
            c = moves.potential(0, n, 1.0)[0] * n**2  # in squared cells
            padded = torch.cat([c[:1], c, c[-1:]])  # flat at the faces
            assert float(padded.diff(n=2).abs().max()) <= 2 + 1e-9
            middle = moves.centre[0, 0] * n - 0.5
            k = int(middle)
            between = c[k] + (middle - k) * (c[min(k + 1, n - 1)] - c[k])
            assert abs(float(between)) < 1e-6 * n**2


@pytest.mark.parametrize("faint", [0.0, 1e-9])
def test_what_fills_the_box_stays(faint):
    source = block(2, 4) + 1e-9
    moves = moves_between(source, block(12, 8) + faint)
    assert cells(moves) == [[0, 0]]
    assert torch.equal(moves.apply(source, source)[0], source)


def test_no_pairs():
    assert moves_between(*torch.zeros(2, 0, N, N)).steps.shape == (0, 2)


def test_every_pair_has_its_own():
    source = torch.cat([block(2, 4), block(12, 8), block(6, 6) + 1])
    target = torch.cat([block(12, 8), block(2, 4), block(2, 4)])
    moves = moves_between(source, target)
    assert cells(moves) == [[5, 2], [-5, -2], [0, 0]]
    assert cells(moves.of(1)) == [[-5, -2]]
    first, second = moves.apply(source, target)
    assert torch.equal(first[:2], second[:2]) and torch.equal(first[2], source[2])


@pytest.mark.parametrize("shape", [(32, 32), (32, 24), (20, 48)])
def test_a_translation_is_exact_without_a_step(shape):
    """On any grid: the network has nothing to do, and the linear part does all."""
    grid, values = Grid(shape), torch.zeros(2, *shape, dtype=torch.float64)
    values[0, 2:7, 3:8], values[1, 12:17, 9:14] = 1, 1
    path = geonet.geodesic(*(Density(v, grid) for v in values), "universal-2d", corrections=0)
    h0, h1 = grid.spacing
    assert path.notes["residual"] < 1e-3
    assert float(path.distance) == pytest.approx(((10 * h0) ** 2 + (6 * h1) ** 2) ** 0.5, rel=1e-3)
    middle = torch.zeros(shape, dtype=torch.float64)
    middle[7:12, 6:11] = 1
    found = path.density(0.5).tensor
    assert float((found / found.sum() - middle / 25).abs().sum()) < 1e-3


def test_small_discs_far_apart_are_balanced():
    """Which went astray while the network had to move them itself."""
    grid = Grid((64, 64))
    x, y = grid.points().unbind(-1)
    ends = [
        Density((0.5 - (torch.hypot(x - a, y - b) - r) * 64).clamp(0, 1), grid)
        for a, b, r in ((0.3, 0.25, 0.05), (0.7, 0.8, 0.065))
    ]
    path = geonet.geodesic(*ends, "universal-2d")
    assert path.notes["residual"] < 0.1
    exact = geonet.geodesic(*ends, "midpoint")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=2e-3)


def test_the_swap_changes_the_sign_and_no_more():
    source, target = draw("shapes", 64, 2)
    there, back = (
        geonet.geodesic(*ends, "universal-2d", corrections=0)
        for ends in ((source, target), (target, source))
    )
    assert float(there.distance) == pytest.approx(float(back.distance), rel=1e-6)
    gap = there.density(0.25).tensor - back.density(0.75).tensor
    assert float(gap.abs().mean()) < 1e-4 * float(source.tensor.mean())
