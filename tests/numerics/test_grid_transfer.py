"""Coarser and finer grids on one box, and splines that are led from one to the next."""

import itertools

import pytest
import torch

from geonet.numerics.splines import (
    COARSEST,
    at_points,
    half_cell_means,
    level_shapes,
    refined,
    refinement,
)

SINGLE = 1e-6  # taps are kept in single precision


def noise(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def places(d, sides, count=300):
    return noise(count, d) * torch.tensor(sides, dtype=torch.float64)


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((1,), (1.0,)),
        ((5,), (1.0,)),
        ((64, 64), (1.0, 1.0)),
        ((40, 25), (1.0, 0.5)),
        ((200, 3), (1.0, 1.0)),
        ((12, 10, 8), (1.0, 0.8, 0.3)),
        ((33, 2, 65), (1.0, 1.0, 1.0)),
    ],
    ids=str,
)
def test_levels_go_down_to_few_cells(shape, sides):
    shapes = level_shapes(shape, sides)
    assert shapes[0] == shape and max(shapes[-1]) <= COARSEST
    for finer, coarser in itertools.pairwise(shapes):
        assert coarser != finer
        for n, m in zip(finer, coarser, strict=True):
            assert m == n or (n > COARSEST and m == (n + 1) // 2)


def test_fine_spacings_are_coarsened_first():
    """So that cells become cubes."""
    assert level_shapes((64, 8), (1.0, 1.0))[:4] == [(64, 8), (32, 8), (16, 8), (8, 8)]
    assert level_shapes((64, 32), (1.0, 0.5))[1] == (32, 16)


@pytest.mark.parametrize(
    ("shape", "fine"),
    [((1,), (2,)), ((7,), (14,)), ((6, 5), (12, 10)), ((4, 6), (4, 12)), ((3, 4, 5), (6, 8, 10))],
    ids=str,
)
def test_halved_cells_hold_the_same_spline(shape, fine):
    sides = [1.0 - 0.2 * k for k in range(len(shape))]
    coefficients, points = noise(*shape), places(len(shape), sides)
    jets = [
        at_points(c, [s / n for s, n in zip(sides, c.shape, strict=True)], points)
        for c in (coefficients, refined(coefficients, fine))
    ]
    for one, other in zip(*jets, strict=True):
        assert torch.allclose(one, other, atol=SINGLE * (1 + float(one.abs().max())))


@pytest.mark.parametrize(("coarse", "fine"), [(13, 25), (12, 40), (20, 13), (1, 5), (5, 5)])
def test_other_cells_hold_nearly_the_same(coarse, fine):
    """A constant stays one, and smooth splines differ by a third derivative and h³."""
    ones = refined(torch.ones(coarse).double(), (fine,))
    assert torch.allclose(ones, torch.ones(fine).double(), atol=SINGLE)
    if coarse == 1:
        return
    points = places(1, (1.0,))

    def spline_through_a_wave(n):
        x = (torch.arange(n).double() + 0.5) / n
        return torch.cos(torch.pi * x)

    own = spline_through_a_wave(coarse)
    before = at_points(own, [1 / coarse], points)
    after = at_points(refined(own, (fine,)), [1 / fine], points)
    h = 1 / min(coarse, fine)
    assert float((before.value - after.value).abs().max()) < 0.5 * (torch.pi * h) ** 3
    assert float((before.gradient - after.gradient).abs().max()) < torch.pi * (torch.pi * h) ** 2


def test_the_same_quadratic_on_odd_cells():
    """Away from the faces, where the reflection bends it."""
    quadratic = lambda n: ((torch.arange(n).double() + 0.5) / n - 0.3) ** 2  # noqa: E731
    coarse = quadratic(20)
    found = refined(coarse, (27,))
    step, points = torch.tensor([1 / 20, 1 / 27]), 0.2 + 0.6 * noise(50, 1)
    jets = [at_points(c, [float(h)], points) for c, h in zip((coarse, found), step, strict=True)]
    assert torch.allclose(jets[0].value, jets[1].value, atol=SINGLE)
    assert torch.allclose(jets[1].hessian, torch.full((50, 1, 1), 2.0).double(), atol=1e-3)


@pytest.mark.parametrize("maker", [refinement, lambda m, n: half_cell_means(n, m)])
@pytest.mark.parametrize(("coarse", "fine"), [(1, 2), (2, 3), (5, 9), (8, 16), (7, 7)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_transpose_is_one(maker, coarse, fine, axis):
    band = maker(coarse, fine)
    shape = [3, 3]
    shape[axis] = band.columns
    x = noise(*shape)
    image = band.applied(x, axis)
    y = noise(*image.shape).flip(0)
    assert image.shape[axis] == len(band.first)
    assert float((image * y).sum()) == pytest.approx(
        float((x * band.applied_back(y, axis)).sum()), rel=1e-12
    )


@pytest.mark.parametrize(("fine", "coarse"), [(8, 4), (9, 5), (3, 2), (7, 7), (16, 5)])
def test_means_over_half_cells(fine, coarse):
    """The mean stays, and each lies between what it is a mean of."""
    band = half_cell_means(fine, coarse)
    values = noise(2 * fine)
    found = band.applied(values, 0)
    assert found.shape == (2 * coarse,)
    assert float(found.mean()) == pytest.approx(float(values.mean()), rel=SINGLE)
    at = (torch.arange(2000).double() + 0.5) / 2000
    exact = values[(at * 2 * fine).long()]
    own = (at * 2 * coarse).long()
    sums = torch.zeros(2 * coarse).double().index_add(0, own, exact)
    sampled = sums / torch.bincount(own)
    assert torch.allclose(found, sampled, atol=2e-2)


def test_bands_are_made_once():
    assert refinement(8, 16) is refinement(8, 16)
    with torch.inference_mode():
        band = refinement(1234, 2468)
    assert not band.taps.is_inference()
