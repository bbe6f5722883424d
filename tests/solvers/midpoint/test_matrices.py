"""Each matrix against the function it stands for, in double precision."""

import math

import pytest
import torch

from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline
from geonet.solvers.midpoint.matrices import (
    along,
    refinement,
    series_matrix,
    spline_matrices,
    spline_matrix,
    unit_centres,
)


def centres(count, share=1.0):
    return share * (torch.arange(count, dtype=torch.float64) + 0.5) / count


def test_along_is_one_product_per_axis(generator):
    values = torch.randn(2, 3, 4, 5, 6, generator=generator)
    matrices = [torch.randn(m, n, generator=generator) for m, n in ((7, 4), (2, 5), (3, 6))]
    expected = torch.einsum("abijk,xi,yj,zk->abxyz", values, *matrices)
    assert torch.allclose(along(matrices, values), expected, atol=1e-4)
    last = torch.einsum("abijk,zk->abijz", values, matrices[2])
    assert torch.allclose(along(matrices[2:], values), last, atol=1e-5)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("centred", [True, False])
def test_series_matrix_has_the_cosines_and_their_derivatives(order, centred):
    where = centres(9) if centred else torch.linspace(0, 1, 10, dtype=torch.float64)
    x = where.clone().requires_grad_()
    for k in range(7):
        value = torch.cos(k * math.pi * x) + 0 * x
        for _ in range(order):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        matrix = series_matrix(9, 7, order, centred)
        assert matrix.shape == (len(where), 7)
        assert torch.allclose(matrix[:, k].double(), value.detach(), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("odd", [True, False])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("fine", "share"), [(5, 1.0), (40, 1.0), (17, 0.6), (12, 1.0)])
def test_refinement_is_exact_for_fewer_modes_than_cells(odd, order, fine, share):
    matrix = refinement(12, fine, share, odd=odd, order=order).double()
    assert matrix.shape == (fine, 12)
    there = centres(fine, share)
    for k in range(1, 12):
        kappa = k * math.pi
        if odd:
            values = torch.sin(kappa * centres(12))
            expected = (torch.sin(kappa * there), kappa * torch.cos(kappa * there))[order]
        else:
            values = torch.cos(kappa * centres(12))
            expected = (torch.cos(kappa * there), -kappa * torch.sin(kappa * there))[order]
        assert torch.allclose(matrix @ values, expected, atol=2e-6 * (1, kappa)[order] * 12)


def test_refinement_keeps_constants_where_the_function_is_even():
    ones = torch.ones(12)
    assert torch.allclose(
        refinement(12, 7, 1.0, odd=False, order=0) @ ones, torch.ones(7), atol=1e-5
    )
    assert torch.allclose(
        refinement(12, 7, 1.0, odd=False, order=1) @ ones, torch.zeros(7), atol=1e-4
    )


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("cells", [3, 10])
def test_spline_matrix_is_the_cubic_spline(centred, cells, generator):
    values = torch.rand(cells, generator=generator, dtype=torch.float64)
    where = centres(23) if centred else torch.linspace(0, 1, 24, dtype=torch.float64)
    expected = CubicSpline(values, Grid(cells))(where[:, None])
    matrix = spline_matrix(cells, 1.0, 23, centred)
    assert torch.allclose(matrix.double() @ values, expected, atol=1e-6)


def test_spline_matrix_is_zero_outside_its_share():
    values = torch.arange(1.0, 7.0)
    found = spline_matrix(6, 0.6, 10, centred=False) @ values
    assert found.shape == (11,)
    assert bool((found[7:] == 0).all())
    inside = torch.linspace(0, 0.6, 7, dtype=torch.float64)
    expected = CubicSpline(values.double(), Grid(6, 0.0, 0.6))(inside[:, None])
    assert torch.allclose(found[:7].double(), expected, atol=1e-5)
    assert float(found[6]) > 6  # the face itself belongs to the box


def test_spline_matrices_put_a_box_into_the_cube_around_it(generator):
    grid = Grid((6, 8, 4), (0.0, 1.0, -1.0), (1.0, 3.0, 0.5))
    values = torch.rand(*grid.shape, generator=generator, dtype=torch.float64)
    found = along(spline_matrices(grid, [8, 6, 10], centred=True), values.float())
    cube = Grid((8, 6, 10), grid.lower, [a + 2.0 for a in grid.lower])
    points = cube.points()
    inside = (points <= grid.corner("upper")).all(-1)
    expected = CubicSpline(values, grid)(points.reshape(-1, 3)).reshape(cube.shape) * inside
    assert 0 < int(inside.sum()) < inside.numel()
    assert torch.allclose(found.double(), expected, atol=1e-5)


def test_unit_centres():
    points = unit_centres(2, 3)
    assert points.shape == (2, 9)
    assert torch.allclose(points[0].reshape(3, 3)[:, 0], torch.tensor([1 / 6, 0.5, 5 / 6]))
    assert torch.equal(points[1].reshape(3, 3)[0], points[0].reshape(3, 3)[:, 0])


def test_matrices_are_single_precision():
    made = (
        series_matrix(4, 3, 1),
        refinement(4, 3, 1.0, odd=True, order=1),
        spline_matrix(4, 1.0, 3, True),
        unit_centres(3, 2),
    )
    assert {matrix.dtype for matrix in made} == {torch.float32}
