"""Cosine tables, series and axis matrices against autograd, splines and direct formulas."""

import math
import resource
import sys

import pytest
import torch

from geonet.grid import Grid
from geonet.numerics import cosine
from geonet.numerics.cosine import (
    CosineSeries,
    apply_along_axes,
    cell_centres_1d,
    cell_faces_1d,
    cosine_table,
    cosine_transform,
    frequencies,
    laplacian_eigenvalues,
    resampling_matrices,
    sample_spline,
)
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.cascade import solve_poisson


@pytest.mark.parametrize("odd", [False, True])
def test_table_has_the_derivatives_of_cosines_and_sines(odd, generator):
    x = torch.rand(9, dtype=torch.float64, generator=generator).requires_grad_()
    kappa = frequencies(6, 1.5)
    table = cosine_table(x, kappa, 5, odd)
    assert table.shape == (5, 9, 6)
    for k in range(6):
        value = (torch.sin if odd else torch.cos)(kappa[k] * x) + 0 * x
        for derivative in table[..., k]:
            assert torch.allclose(derivative, value, atol=1e-9)
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("odd", [False, True])
def test_transform_inverts_the_table(n, odd):
    (table,) = cosine_table(cell_centres_1d(n), frequencies(n, first=int(odd)), 1, odd)
    identity = torch.eye(n, dtype=torch.float64)
    assert torch.allclose(cosine_transform(n, odd) @ table, identity, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_series_derivatives_equal_autograd(d, generator):
    grid = Grid((6, 5, 4)[:d], -1.0, 2.0)
    series = CosineSeries(torch.randn(grid.shape, dtype=torch.float64, generator=generator), grid)
    points = -1 + 3 * torch.rand(4, d, dtype=torch.float64, generator=generator)
    _, gradient, hessian = series.at(points)
    for n, x in enumerate(points):
        expected = torch.autograd.functional.jacobian(lambda p: series.at(p[None])[0][0], x)
        assert torch.allclose(expected, gradient[n])
        expected = torch.autograd.functional.hessian(lambda p: series.at(p[None])[0][0], x)
        assert torch.allclose(expected, hessian[n])
    centres = grid.points().reshape(-1, d)
    assert torch.allclose(series.values_on(grid).reshape(-1), series.at(centres)[0])
    on_grid = series.derivatives_on(grid)[1].reshape(d, d, -1).movedim(-1, 0)
    assert torch.allclose(on_grid, series.at(centres)[2])
    again = CosineSeries.from_values(series.values_on(grid), grid)
    assert torch.allclose(again.coefficients, series.coefficients)
    tabulated = series.tabulate(grid.with_shape(100 if d == 1 else 40))(points)
    for fast, exact in zip(tabulated, series.at(points), strict=True):
        assert torch.allclose(fast, exact, atol=2e-2 * float(exact.abs().max()))


def test_apply_along_axes_is_one_product_per_axis(generator):
    values = torch.randn(2, 3, 4, 5, 6, generator=generator)
    maps = [torch.randn(m, n, generator=generator) for m, n in ((7, 4), (2, 5), (3, 6))]
    expected = torch.einsum("abijk,xi,yj,zk->abxyz", values, *maps)
    assert torch.allclose(apply_along_axes(maps, values), expected, atol=1e-4)
    last = torch.einsum("abijk,zk->abijz", values, maps[2])
    assert torch.allclose(apply_along_axes(maps[2:], values), last, atol=1e-5)


@pytest.mark.parametrize("odd", [True, False])
@pytest.mark.parametrize(("fine", "share"), [(5, 1.0), (40, 1.0), (17, 0.6)])
def test_resampling_is_exact_for_fewer_modes_than_cells(odd, fine, share):
    matrices = resampling_matrices(12, fine, share, odd=odd)
    assert matrices.dtype == torch.float32 and matrices.shape == (2, fine, 12)
    coarse, points = cell_centres_1d(12), share * cell_centres_1d(fine)
    for k in range(1 if odd else 0, 12):
        (values,) = cosine_table(coarse, frequencies(1, first=k), 1, odd)[..., 0]
        expected = cosine_table(points, frequencies(1, first=k), 2, odd)[..., 0]
        for order in range(2):
            found = matrices[order].double() @ values
            scale = 12 * (1, max(k, 1) * math.pi)[order]
            assert torch.allclose(found, expected[order], atol=2e-6 * scale)


@pytest.fixture(params=["matrices", "direct"])
def spline_method(request, monkeypatch):
    """Run with spline matrices, as for few cells, and without."""
    if request.param == "direct":
        monkeypatch.setattr(cosine, "MAX_MATRIX_CELLS", 0)
        monkeypatch.setattr(cosine, "_spline_matrix", lambda *_: pytest.fail("made a matrix"))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("cells", [3, 10])
def test_sample_spline_is_the_cubic_spline(spline_method, centred, cells, generator):
    values = torch.rand(2, cells, generator=generator, dtype=torch.float64)
    points = cell_centres_1d(23) if centred else cell_faces_1d(23)
    found = sample_spline(values.float(), Grid(cells), [23], centred)
    assert found.dtype == torch.float32
    expected = CubicSpline(values, Grid(cells))(points[:, None])
    assert torch.allclose(found.double(), expected, atol=1e-6)


def test_sample_spline_is_zero_outside_the_box(spline_method):
    values = torch.stack([torch.arange(1.0, 7.0)] * 10)[None]
    grid = Grid((10, 6), 0.0, (1.0, 0.6))
    found = sample_spline(values, grid, [10, 10], centred=False)
    assert found.shape == (1, 11, 11)
    assert bool((found[..., 7:] == 0).all())
    inside = torch.linspace(0, 0.6, 7, dtype=torch.float64)
    expected = CubicSpline(values[0, 0].double(), Grid(6, 0.0, 0.6))(inside[:, None])
    assert torch.allclose(found[0, 4, :7].double(), expected, atol=1e-5)
    assert float(found[0, 4, 6]) > 6  # the face itself belongs to the box


def test_sample_spline_scales_a_box_into_the_cube_around_it(spline_method, generator):
    grid = Grid((6, 8, 4), (0.0, 1.0, -1.0), (1.0, 3.0, 0.5))
    values = torch.rand(2, *grid.shape, generator=generator, dtype=torch.float64)
    found = sample_spline(values.float(), grid, [8, 6, 10], centred=True)
    cube = Grid((8, 6, 10), grid.lower, [a + 2.0 for a in grid.lower])
    points = cube.points()
    inside = (points <= grid.upper_tensor).all(-1)
    assert 0 < int(inside.sum()) < inside.numel()
    expected = CubicSpline(values, grid)(points.reshape(-1, 3)).reshape(2, *cube.shape) * inside
    assert torch.allclose(found.double(), expected, atol=1e-5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in kilobytes")
def test_long_axes_need_little_memory():
    """A matrix for 7000 cells would need 25 GB."""
    cells = 7000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = sample_spline(torch.ones(1, cells), Grid(cells), [4 * cells], centred=False)
    assert torch.allclose(found, torch.ones(1, 4 * cells + 1), atol=1e-4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("shape", [(12,), (8, 12), (4, 6, 8)])
def test_poisson_inverts_the_laplacian_without_flux_through_the_faces(shape):
    generator = torch.Generator().manual_seed(len(shape))
    right = torch.randn(2, *shape, generator=generator)
    right = right - right.flatten(1).mean(1).reshape(-1, *(1,) * len(shape))
    solution = solve_poisson(right)
    total = torch.zeros_like(right)
    for axis, n in enumerate(shape, 1):
        first, last = solution.narrow(axis, 0, 1), solution.narrow(axis, n - 1, 1)
        wide = torch.cat([first, solution, last], axis)
        total += 2 * solution - wide.narrow(axis, 0, n) - wide.narrow(axis, 2, n)
    # Single precision, and an inverse that is some hundred times as large as its argument.
    torch.testing.assert_close(total, right, rtol=1e-3, atol=1e-4)


def test_laplacian_eigenvalues_are_those_of_the_stencil():
    n, h = 5, 0.3
    stencil = 2 * torch.eye(n) - torch.eye(n).roll(1, 0) - torch.eye(n).roll(-1, 0)
    stencil[0, 0] = stencil[-1, -1] = 1
    stencil[0, -1] = stencil[-1, 0] = 0
    expected = torch.linalg.eigvalsh(stencil.double() / h**2)
    values = laplacian_eigenvalues((n,), (h,))
    assert math.isinf(values[0]) and torch.allclose(values[1:], expected[1:])
