"""Each matrix against the function it stands for, in double precision."""

import math
import resource
import sys

import pytest
import torch

from geonet.grid import Grid
from geonet.numerics import cosine as matrices
from geonet.numerics.cosine import along, refinement, series_matrices, splined, unit_centres
from geonet.numerics.interpolation import CubicSpline


def centres(count, share=1.0):
    return share * (torch.arange(count, dtype=torch.float64) + 0.5) / count


def test_along_is_one_product_per_axis(generator):
    values = torch.randn(2, 3, 4, 5, 6, generator=generator)
    maps = [torch.randn(m, n, generator=generator) for m, n in ((7, 4), (2, 5), (3, 6))]
    expected = torch.einsum("abijk,xi,yj,zk->abxyz", values, *maps)
    assert torch.allclose(along(maps, values), expected, atol=1e-4)
    last = torch.einsum("abijk,zk->abijz", values, maps[2])
    assert torch.allclose(along(maps[2:], values), last, atol=1e-5)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("centred", [True, False])
def test_series_matrix_has_the_cosines_and_their_derivatives(order, centred):
    where = centres(9) if centred else torch.linspace(0, 1, 10, dtype=torch.float64)
    x = where.clone().requires_grad_()
    for k in range(7):
        value = torch.cos(k * math.pi * x) + 0 * x
        for _ in range(order):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        matrix = series_matrices(9, 7, centred)[order]
        assert matrix.shape == (len(where), 7)
        assert torch.allclose(matrix[:, k].double(), value.detach(), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("odd", [True, False])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("fine", "share"), [(5, 1.0), (40, 1.0), (17, 0.6), (12, 1.0)])
def test_refinement_is_exact_for_fewer_modes_than_cells(odd, order, fine, share):
    matrix = refinement(12, fine, share, odd=odd)[order].double()
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
    assert torch.allclose(refinement(12, 7, 1.0, odd=False)[0] @ ones, torch.ones(7), atol=1e-5)
    assert torch.allclose(refinement(12, 7, 1.0, odd=False)[1] @ ones, torch.zeros(7), atol=1e-4)


@pytest.fixture(params=["by matrices", "directly"])
def either_way(request, monkeypatch):
    """Splines of few cells go by matrices, those of many do not."""
    if request.param == "directly":
        monkeypatch.setattr(matrices, "MOST_CELLS", 0)
        monkeypatch.setattr(matrices, "_spline_matrix", lambda *_: pytest.fail("made"))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("cells", [3, 10])
def test_splined_is_the_cubic_spline(either_way, centred, cells, generator):
    values = torch.rand(2, cells, generator=generator, dtype=torch.float64)
    where = centres(23) if centred else torch.linspace(0, 1, 24, dtype=torch.float64)
    found = splined(values.float(), Grid(cells), [23], centred)
    assert found.dtype == torch.float32
    expected = CubicSpline(values, Grid(cells))(where[:, None])
    assert torch.allclose(found.double(), expected, atol=1e-6)


def test_splined_is_zero_outside_the_box(either_way):
    values = torch.stack([torch.arange(1.0, 7.0)] * 10)[None]
    grid = Grid((10, 6), 0.0, (1.0, 0.6))
    found = splined(values, grid, [10, 10], centred=False)
    assert found.shape == (1, 11, 11)
    assert bool((found[..., 7:] == 0).all())
    inside = torch.linspace(0, 0.6, 7, dtype=torch.float64)
    expected = CubicSpline(values[0, 0].double(), Grid(6, 0.0, 0.6))(inside[:, None])
    assert torch.allclose(found[0, 4, :7].double(), expected, atol=1e-5)
    assert float(found[0, 4, 6]) > 6  # the face itself belongs to the box


def test_splined_puts_a_box_into_the_cube_around_it(either_way, generator):
    grid = Grid((6, 8, 4), (0.0, 1.0, -1.0), (1.0, 3.0, 0.5))
    values = torch.rand(2, *grid.shape, generator=generator, dtype=torch.float64)
    found = splined(values.float(), grid, [8, 6, 10], centred=True)
    cube = Grid((8, 6, 10), grid.lower, [a + 2.0 for a in grid.lower])
    points = cube.points()
    inside = (points <= grid.corner("upper")).all(-1)
    assert 0 < int(inside.sum()) < inside.numel()
    expected = CubicSpline(values, grid)(points.reshape(-1, 3)).reshape(2, *cube.shape) * inside
    assert torch.allclose(found.double(), expected, atol=1e-5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts memory as Linux does")
def test_many_cells_along_an_axis_need_little_memory():
    """A matrix for these would take 25 GB to make."""
    cells = 7000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = splined(torch.ones(1, cells), Grid(cells), [4 * cells], centred=False)
    assert torch.allclose(found, torch.ones(1, 4 * cells + 1), atol=1e-4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_unit_centres():
    points = unit_centres(2, 3)
    assert points.shape == (2, 9)
    assert torch.allclose(points[0].reshape(3, 3)[:, 0], torch.tensor([1 / 6, 0.5, 5 / 6]))
    assert torch.equal(points[1].reshape(3, 3)[0], points[0].reshape(3, 3)[:, 0])


def test_matrices_are_single_precision():
    made = (
        series_matrices(4, 3)[1],
        refinement(4, 3, 1.0, odd=True),
        splined(torch.ones(1, 4), Grid(4), [3], centred=True),
        unit_centres(3, 2),
    )
    assert {matrix.dtype for matrix in made} == {torch.float32}
