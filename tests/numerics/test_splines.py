"""Quadratic splines with one coefficient a cell, and means over boxes."""

import pytest
import torch
from torch.autograd import gradcheck

from geonet.numerics.splines import (
    along_axis,
    along_axis_back,
    at_half_cells,
    at_points,
    box_means,
    box_shares,
    half_cell_places,
    interpolated,
)

SHAPES = pytest.mark.parametrize(
    "shape", [(1,), (2,), (9,), (1, 1), (5, 8), (4, 3, 6), (2, 1, 3)], ids=str
)


def noise(*shape, seed=7):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def steps(shape):
    return [0.3 / (1 + axis) for axis in range(len(shape))]


@SHAPES
def test_half_cells_are_points_like_others(shape):
    c, step, d = noise(*shape), steps(shape), len(shape)
    places = half_cell_places(shape)
    assert places.shape == (*(2,) * d, *shape, d)
    points = (places * torch.tensor(step, dtype=torch.float64)).reshape(-1, d)
    for here, there in zip(at_half_cells(c, step), at_points(c, step, points), strict=True):
        assert torch.allclose(here.reshape(there.shape), there, rtol=1e-10, atol=1e-10)


@SHAPES
def test_derivatives_are_those_of_the_values(shape):
    c, step = noise(*shape), steps(shape)
    sides = torch.tensor([h * n for h, n in zip(step, shape, strict=True)], dtype=torch.float64)
    points = noise(6, len(shape)) * sides
    points.requires_grad_()
    jet = at_points(c, step, points)
    (gradient,) = torch.autograd.grad(jet.value.sum(), points, retain_graph=True)
    assert torch.allclose(gradient, jet.gradient, atol=1e-10)
    rows = [
        torch.autograd.grad(jet.gradient[:, k].sum(), points, retain_graph=True)[0]
        for k in range(len(shape))
    ]
    assert torch.allclose(torch.stack(rows, -2), jet.hessian, atol=1e-8)


def test_autograd_follows_the_coefficients():
    c, points = noise(4, 5).requires_grad_(), noise(3, 2)
    assert gradcheck(lambda c: tuple(at_points(c, [0.25, 0.2], points)), (c,))
    assert gradcheck(lambda c: tuple(at_half_cells(c, [0.25, 0.2])), (c,))


@SHAPES
@pytest.mark.parametrize("order", [0, 1, 2])
def test_transposes_are_transposes(shape, order):
    for axis in range(len(shape)):
        x, y = noise(*shape), noise(2, *shape, seed=8)
        there = float((along_axis(x, axis, order) * y).sum())
        back = float((x * along_axis_back(y, axis, order)).sum())
        assert there == pytest.approx(back, abs=1e-12 * (1 + y.numel()))


def test_splines_add_up_to_one_and_are_flat_at_the_faces():
    jet = at_half_cells(torch.ones(4, 5).double(), [0.1, 0.2])
    assert torch.allclose(jet.value, torch.ones_like(jet.value))
    assert float(jet.gradient.abs().max()) < 1e-12
    faces = torch.tensor([[0.0, 0.3], [0.4, 0.3], [0.17, 0.0], [0.17, 1.0]]).double()
    slopes = at_points(noise(4, 5), [0.1, 0.2], faces).gradient
    assert torch.allclose(slopes[[0, 1], 0], torch.zeros(2).double(), atol=1e-12)
    assert torch.allclose(slopes[[2, 3], 1], torch.zeros(2).double(), atol=1e-12)


def test_beyond_the_box_it_is_what_it_is_at_the_face():
    c = noise(5)
    inside, outside = (
        at_points(c, [0.2], torch.tensor(x).double()[:, None]) for x in ([0.0, 1.0], [-3.0, 7.0])
    )
    assert torch.equal(inside.value, outside.value)


def test_values_at_the_centres_are_kept():
    """Quadratics exactly, cosines to the fourth order in h."""
    x = (torch.arange(30).double() + 0.5) / 30
    points = x[3:-3, None]
    quadratic = at_points(interpolated((x - 0.4) ** 2), [1 / 30], points)
    assert torch.allclose(quadratic.value, (points[:, 0] - 0.4) ** 2, atol=1e-12)
    wave = torch.cos(2 * torch.pi * x)
    found = at_points(interpolated(wave), [1 / 30], x[:, None]).value
    assert float((found - wave).abs().max()) < 0.1 * (2 * torch.pi / 30) ** 4


# ---- boxes


@pytest.mark.parametrize("shape", [(1,), (6,), (5, 4), (3, 4, 2)], ids=str)
def test_shares_of_a_box(shape):
    d = len(shape)
    place = noise(200, d) * (torch.tensor(shape) + 2) - 1  # some stick out
    width = noise(200, d, seed=9).clamp(min=1e-6)
    total = 0.0
    for cell, share in box_shares(place, width, shape):
        assert int(cell.min()) >= 0 and int(cell.max()) < torch.Size(shape).numel()
        assert float(share.min()) >= 0
        total = total + share
    assert torch.allclose(torch.as_tensor(total), torch.ones(200).double(), atol=1e-9)
    constant = box_means(torch.full(shape, 3.0).double(), place, width)
    assert torch.allclose(constant, torch.full((200,), 3.0).double(), atol=1e-8)


def test_a_mean_over_a_box_is_an_integral():
    values, width = noise(6), torch.tensor([[0.7], [1.0], [1e-6]]).double()
    place = torch.tensor([[2.1], [3.4], [4.5]]).double()
    found = box_means(values, place, width)
    within = (torch.arange(100_000).double() + 0.5) / 100_000 - 0.5
    sampled = values[(place + width * within).long()].mean(1)
    assert torch.allclose(found, sampled, atol=1e-4)


def test_a_box_of_a_whole_cell_is_the_cell():
    values = noise(4, 5)
    centres = torch.cartesian_prod(torch.arange(4), torch.arange(5)).double() + 0.5
    found = box_means(values, centres, torch.ones(20, 2).double())
    assert torch.equal(found.reshape(4, 5), values)
