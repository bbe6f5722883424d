"""Tests of quadratic splines, averages over boxes, and transfer between grids."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck

from geonet.numerics.splines import (
    average_over_boxes,
    averaging_matrix,
    evaluate_along_axis,
    evaluate_along_axis_transpose,
    evaluate_at_half_cells,
    evaluate_at_points,
    half_cell_centres,
    interpolate_centres,
    level_shapes,
    overlap_fractions,
    prolong_spline,
    prolongation_matrix,
    restriction_matrix,
)

SINGLE = 1e-6  # matrices are in single precision
SHAPES = pytest.mark.parametrize("shape", [(1,), (9,), (5, 8), (2, 1, 3)], ids=str)


def noise(*shape, seed=7):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def steps(shape):
    return [0.3 / (1 + axis) for axis in range(len(shape))]


# ---- evaluation


@SHAPES
def test_half_cells_agree_with_points(shape):
    c, step, d = noise(*shape), steps(shape), len(shape)
    centres = half_cell_centres(shape)
    assert centres.shape == (*(2,) * d, *shape, d)
    points = (centres * torch.tensor(step, dtype=torch.float64)).reshape(-1, d)
    jets = evaluate_at_half_cells(c, step), evaluate_at_points(c, step, points)
    for here, there in zip(*jets, strict=True):
        assert torch.allclose(here.reshape(there.shape), there, rtol=1e-10, atol=1e-10)


@SHAPES
def test_jets_are_derivatives_of_the_values(shape):
    c, step = noise(*shape), steps(shape)
    sides = torch.tensor([h * n for h, n in zip(step, shape, strict=True)], dtype=torch.float64)
    points = (noise(6, len(shape)) * sides).requires_grad_()
    jet = evaluate_at_points(c, step, points)
    (gradient,) = torch.autograd.grad(jet.value.sum(), points, retain_graph=True)
    assert torch.allclose(gradient, jet.gradient, atol=1e-10)
    rows = [
        torch.autograd.grad(jet.gradient[:, k].sum(), points, retain_graph=True)[0]
        for k in range(len(shape))
    ]
    assert torch.allclose(torch.stack(rows, -2), jet.hessian, atol=1e-8)


def test_jets_are_differentiable_in_the_coefficients():
    c, points = noise(4, 5).requires_grad_(), noise(3, 2)
    assert gradcheck(lambda c: tuple(evaluate_at_points(c, [0.25, 0.2], points)), (c,))
    assert gradcheck(lambda c: tuple(evaluate_at_half_cells(c, [0.25, 0.2])), (c,))


@SHAPES
@pytest.mark.parametrize("order", [0, 1, 2])
def test_transpose_of_evaluation(shape, order):
    for axis in range(len(shape)):
        x, y = noise(*shape), noise(2, *shape, seed=8)
        there = float((evaluate_along_axis(x, axis, order) * y).sum())
        back = float((x * evaluate_along_axis_transpose(y, axis, order)).sum())
        assert there == pytest.approx(back, abs=1e-12 * (1 + y.numel()))


def test_splines_sum_to_one_and_are_flat_at_the_faces():
    jet = evaluate_at_half_cells(torch.ones(4, 5).double(), [0.1, 0.2])
    assert torch.allclose(jet.value, torch.ones_like(jet.value))
    assert float(jet.gradient.abs().max()) < 1e-12
    faces = torch.tensor([[0.0, 0.3], [0.4, 0.3], [0.17, 0.0], [0.17, 1.0]]).double()
    slopes = evaluate_at_points(noise(4, 5), [0.1, 0.2], faces).gradient
    normal = torch.cat([slopes[:2, 0], slopes[2:, 1]])
    assert torch.allclose(normal, torch.zeros(4).double(), atol=1e-12)


def test_interpolation_at_the_centres():
    """Exact for quadratics, of fourth order in h for cosines."""
    x = (torch.arange(30).double() + 0.5) / 30
    points = x[3:-3, None]
    quadratic = evaluate_at_points(interpolate_centres((x - 0.4) ** 2), [1 / 30], points)
    assert torch.allclose(quadratic.value, (points[:, 0] - 0.4) ** 2, atol=1e-12)
    wave = torch.cos(2 * torch.pi * x)
    values = evaluate_at_points(interpolate_centres(wave), [1 / 30], x[:, None]).value
    assert float((values - wave).abs().max()) < 0.1 * (2 * torch.pi / 30) ** 4


# ---- boxes


@pytest.mark.parametrize("shape", [(1,), (6,), (5, 4), (3, 4, 2)], ids=str)
def test_overlap_fractions(shape):
    d = len(shape)
    centre = noise(200, d) * (torch.tensor(shape) + 2) - 1  # some boxes are outside
    width = noise(200, d, seed=9).clamp(min=1e-6)
    total = torch.zeros(200).double()
    for cell, fraction in overlap_fractions(centre, width, shape):
        assert int(cell.min()) >= 0 and int(cell.max()) < torch.Size(shape).numel()
        assert float(fraction.min()) >= 0
        total = total + fraction
    assert torch.allclose(total, torch.ones(200).double(), atol=1e-9)


def test_average_over_boxes_is_an_integral():
    values, width = noise(6), torch.tensor([[0.7], [1.0], [1e-6]]).double()
    centre = torch.tensor([[2.1], [3.4], [4.5]]).double()
    within = (torch.arange(100_000).double() + 0.5) / 100_000 - 0.5
    sampled = values[(centre + width * within).long()].mean(1)
    assert torch.allclose(average_over_boxes(values, centre, width), sampled, atol=1e-4)
    cells, centres = noise(4, 5), torch.cartesian_prod(torch.arange(4), torch.arange(5)).double()
    averages = average_over_boxes(cells, centres + 0.5, torch.ones(20, 2).double())
    assert torch.equal(averages.reshape(4, 5), cells)


# ---- transfer between grids


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((1,), (1.0,)),
        ((40, 25), (1.0, 0.5)),
        ((200, 3), (1.0, 1.0)),
        ((33, 2, 65), (1.0, 1.0, 1.0)),
    ],
    ids=str,
)
def test_level_shapes(shape, sides):
    shapes = level_shapes(shape, sides)
    assert shapes[0] == shape and max(shapes[-1]) <= 4
    for finer, coarser in itertools.pairwise(shapes):
        assert coarser != finer
        for n, m in zip(finer, coarser, strict=True):
            assert m == n or (n > 4 and m == (n + 1) // 2)


@pytest.mark.parametrize(
    ("shape", "fine"),
    [((1,), (2,)), ((6, 5), (12, 10)), ((4, 6), (4, 12)), ((3, 4, 5), (6, 8, 10))],
    ids=str,
)
def test_prolongation_to_halved_cells_is_exact(shape, fine):
    sides = [1.0 - 0.2 * k for k in range(len(shape))]
    points = noise(300, len(shape)) * torch.tensor(sides, dtype=torch.float64)
    c = noise(*shape)
    jets = [
        evaluate_at_points(own, [s / n for s, n in zip(sides, own.shape, strict=True)], points)
        for own in (c, prolong_spline(c, fine))
    ]
    for one, other in zip(*jets, strict=True):
        assert torch.allclose(one, other, atol=SINGLE * (1 + float(one.abs().max())))


@pytest.mark.parametrize(("coarse", "fine"), [(13, 25), (12, 40), (20, 13), (5, 5)])
def test_prolongation_to_other_cells_is_of_third_order(coarse, fine):
    ones = prolong_spline(torch.ones(coarse).double(), (fine,))
    assert torch.allclose(ones, torch.ones(fine).double(), atol=SINGLE)
    wave = torch.cos(torch.pi * (torch.arange(coarse).double() + 0.5) / coarse)
    points, h = noise(300, 1), 1 / min(coarse, fine)
    before = evaluate_at_points(wave, [1 / coarse], points)
    after = evaluate_at_points(prolong_spline(wave, (fine,)), [1 / fine], points)
    assert float((before.value - after.value).abs().max()) < 0.5 * (torch.pi * h) ** 3
    assert float((before.gradient - after.gradient).abs().max()) < torch.pi * (torch.pi * h) ** 2


@pytest.mark.parametrize("make", [prolongation_matrix, lambda m, n: averaging_matrix(n, m)])
@pytest.mark.parametrize(("coarse", "fine"), [(1, 2), (5, 9), (8, 16)])
@pytest.mark.parametrize("axis", [0, 1])
def test_transposed_matrices(make, coarse, fine, axis):
    matrix, shape = make(coarse, fine), [3, 3]
    shape[axis] = matrix.columns
    x = noise(*shape)
    image = matrix.apply(x, axis)
    y = noise(*image.shape).flip(0)
    back = float((x * matrix.apply_transpose(y, axis)).sum())
    assert image.shape[axis] == len(matrix.first)
    assert float((image * y).sum()) == pytest.approx(back, rel=1e-12)


@pytest.mark.parametrize(("coarse", "fine"), [(1, 2), (5, 9), (8, 16), (6, 6)])
def test_restriction_matrix(coarse, fine):
    values = noise(3, fine)
    expected = prolongation_matrix(coarse, fine).apply_transpose(values, 1)
    assert torch.allclose(restriction_matrix(fine, coarse).apply(values, 1), expected)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("fine", "coarse"), [(8, 4), (9, 5), (7, 7), (16, 5)])
def test_averaging_matrix(fine, coarse, parts):
    values = noise(parts * fine)
    averages = averaging_matrix(fine, coarse, parts).apply(values, 0)
    assert averages.shape == (parts * coarse,)
    assert float(averages.mean()) == pytest.approx(float(values.mean()), rel=SINGLE)
    at = (torch.arange(2000).double() + 0.5) / 2000
    own, cells = (at * parts * coarse).long(), (at * parts * fine).long()
    sums = torch.zeros(parts * coarse).double().index_add(0, own, values[cells])
    assert torch.allclose(averages, sums / torch.bincount(own), atol=2e-2)
