"""Cubic splines, conservative resampling and blurring."""

import math
from itertools import pairwise

import pytest
import torch

from geonet import Grid
from geonet.numerics.interpolation import CubicSpline, gaussian_blur, resample


def smooth(points):
    """Return a smooth function whose normal derivative does not vanish at the faces."""
    phase = points @ torch.arange(1.0, points.shape[-1] + 1, dtype=torch.float64)
    return torch.exp(torch.sin(2 * phase) + 0.3 * points[..., 0])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_spline_is_of_fourth_order_everywhere_in_the_box(d, generator):
    points = torch.rand(2000, d, dtype=torch.float64, generator=generator)
    points[:d] = torch.eye(d, dtype=torch.float64)  # corners, where the values are extrapolated
    grids = [Grid((n,) * d) for n in ((16, 32) if d == 3 else (20, 40, 80))]
    splines = [CubicSpline(smooth(grid.points()), grid) for grid in grids]
    errors = [float((spline(points) - smooth(points)).abs().max()) for spline in splines]
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert min(orders) > 3.5, (errors, orders)


def test_spline_reproduces_cubics_exactly(generator):
    grid = Grid((8, 9), 0.0, 1.0)

    def cubic(p):
        return 1 + p[..., 0] ** 3 - 2 * p[..., 0] * p[..., 1] ** 2 + p[..., 1] ** 3

    points = torch.rand(100, 2, dtype=torch.float64, generator=generator)
    spline = CubicSpline(cubic(grid.points()), grid)
    assert torch.allclose(spline(points), cubic(points), atol=1e-12)
    value, gradient = spline.value_and_gradient(points)
    x, y = points.T
    expected = torch.stack([3 * x**2 - 2 * y**2, -4 * x * y + 3 * y**2], -1)
    assert torch.allclose(value, cubic(points), atol=1e-12)
    assert torch.allclose(gradient, expected, atol=1e-10)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_spline_is_differentiable_in_points_and_values(d, generator):
    grid = Grid((4,) * d, 0.0, 1.0)
    values = torch.rand(2, *grid.shape, dtype=torch.float64, generator=generator)
    points = 0.1 + 0.8 * torch.rand(3, d, dtype=torch.float64, generator=generator)
    separate = 0.1 + 0.8 * torch.rand(2, 3, d, dtype=torch.float64, generator=generator)
    for x in (points, separate):
        inputs = (values.requires_grad_(), x.requires_grad_())
        assert torch.autograd.gradcheck(lambda v, p: CubicSpline(v, grid)(p), inputs)


def test_points_outside_are_moved_to_the_nearest_face():
    grid = Grid(10, 0.0, 1.0)
    spline = CubicSpline(smooth(grid.points()), grid)
    outside, faces = torch.tensor([[-3.0], [1.5]]).double(), torch.tensor([[0.0], [1.0]]).double()
    assert torch.equal(spline(outside), spline(faces))


@pytest.mark.parametrize("n", [2, 3])
def test_spline_on_tiny_grids(n):
    grid = Grid(n, 0.0, 1.0)
    spline = CubicSpline(2 + 3 * grid.points()[:, 0], grid)
    points = torch.linspace(0, 1, 7, dtype=torch.float64)[:, None]
    assert torch.allclose(spline(points), 2 + 3 * points[:, 0])


@pytest.mark.parametrize(("n", "m"), [(10, 10), (10, 5), (10, 20), (10, 7), (7, 10)])
def test_resampling_conserves_mass_exactly(n, m, generator):
    values = torch.rand(2, n, n + 1, dtype=torch.float64, generator=generator)
    source, target = Grid((n, n + 1), 0, 5), Grid((m, m), 0, 5)
    moved = resample(values, source, target)
    assert moved.shape == (2, m, m)
    before = values.sum((1, 2)) * source.cell_volume
    assert torch.allclose(moved.sum((1, 2)) * target.cell_volume, before, rtol=1e-14)
    assert float(moved.min()) >= 0


def test_resampling_to_halves_and_back_is_the_identity(generator):
    values = torch.rand(6, 6, dtype=torch.float64, generator=generator)
    fine = resample(values, Grid((6, 6)), Grid((12, 12)))
    assert torch.allclose(fine[::2, ::2], fine[1::2, 1::2])
    assert torch.allclose(resample(fine, Grid((12, 12)), Grid((6, 6))), values)


def test_blur_has_the_variance_of_the_kernel_and_reflects_at_the_walls():
    spike = torch.zeros(41, dtype=torch.float64)
    spike[20] = 1
    blurred, x = gaussian_blur(spike, 3.0), torch.arange(41) - 20.0
    assert float(blurred.sum()) == pytest.approx(1)
    assert float((blurred * x**2).sum()) == pytest.approx(9, rel=2e-3)
    assert float(gaussian_blur(spike.roll(20), 3.0).sum()) == pytest.approx(1)


def test_periodic_spline_is_smooth_across_the_seam():
    errors = []
    for n in (16, 32):
        grid = Grid((n, n), 0, (2, 1), periodic=(True, False))
        spline = CubicSpline(wave(grid.points()), grid)
        points = Grid((41, 30), 0, (2, 1)).points().reshape(-1, 2)
        points = points + torch.tensor([7.9, 0.0], dtype=torch.float64)
        value, slope = spline.value_and_gradient(points)
        assert torch.allclose(value, spline(points), atol=1e-14)
        expected = math.pi * torch.cos(math.pi * points[:, 0]) * torch.exp(points[:, 1])
        assert (slope[:, 0] - expected).abs().max() < 40 / n**3
        errors.append(float((value - wave(points)).abs().max()))
    assert errors[0] / errors[1] > 11


def wave(points):
    return torch.sin(math.pi * points[..., 0]) * torch.exp(points[..., 1])
