import ot
import pytest
import torch

import geonet
from geonet import Density, Grid, metrics
from geonet.errors import GridError, InputError

GRID = Grid(10, 0.0, 5.0)


def block(first, last, grid=GRID):
    values = torch.zeros(grid.shape, dtype=torch.float64)
    values[first:last] = 1
    return Density(values, grid)


def test_l1_runs_from_equal_to_disjoint():
    assert float(metrics.l1(block(0, 2), block(0, 2))) == 0
    assert float(metrics.l1(block(0, 2), block(5, 7))) == pytest.approx(2)
    assert float(metrics.l1(block(0, 2), block(1, 3))) == pytest.approx(1)


def test_blocks_compare_grids_of_different_sizes():
    fine = Density(
        torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)), Grid((64, 64))
    )
    coarse = fine.resample(Grid((32, 32)))
    assert metrics.block_l1(fine, coarse).shape == (3,)
    assert float(metrics.block_l1(fine, coarse).max()) < 1e-6
    moved = Density(fine.tensor.roll(16, -1), fine.grid)
    on_blocks = [d.tensor.reshape(3, 16, 4, 16, 4).mean((2, 4)) for d in (moved, fine)]
    expected = (on_blocks[0] - on_blocks[1]).abs().mean((1, 2))
    assert torch.allclose(metrics.block_l1(moved, coarse), expected, rtol=1e-4)


def test_l2_is_relative():
    truth = block(2, 6)
    scaled = Density.from_unnormalized(1.1 * truth.tensor, GRID)
    assert float(metrics.l2(scaled, truth)) == pytest.approx(0.1)
    assert float(metrics.l2(block(0, 2), block(5, 7))) == pytest.approx(2**0.5)


def test_distances_of_a_shift_are_the_shift():
    assert float(metrics.w1(block(0, 2), block(4, 6))) == pytest.approx(2.0)
    assert float(metrics.w2(block(0, 2), block(4, 6))) == pytest.approx(2.0)
    with pytest.raises(GridError, match="w1 is for 1D"):
        metrics.w1(*[Density(torch.ones(3, 3), Grid((3, 3)))] * 2)


def test_sliced_w1_equals_pot(pair_2d):
    first, second = (end.resample(end.grid.with_shape(8)) for end in pair_2d)
    points = first.grid.points().reshape(-1, 2).numpy()
    angles = torch.arange(64).double() * (torch.pi / 64)
    masses = [(d.tensor.reshape(-1) * d.grid.cell_volume).numpy() for d in (first, second)]
    expected = ot.sliced_wasserstein_distance(
        points, points, *masses, projections=torch.stack([angles.cos(), angles.sin()]).numpy(), p=1
    )
    assert float(metrics.sliced_w1(first, second)) == pytest.approx(float(expected), rel=1e-9)
    with pytest.raises(GridError, match="sliced_w1 is for 2D"):
        metrics.sliced_w1(block(0, 2), block(1, 3))


def test_mass_error_and_negativity():
    values = torch.full((10,), 0.3, dtype=torch.float64)
    values[0] = -0.2
    density = Density.from_unnormalized(values, GRID)
    assert float(metrics.mass_error(density)) == pytest.approx(0.25)
    assert float(metrics.negativity(density)) == pytest.approx(0.1)


def test_invalid_arguments_raise():
    with pytest.raises(GridError, match="the reference's grid"):
        metrics.l1(block(0, 2), block(0, 2, Grid(20, 0.0, 5.0)))
    with pytest.raises(InputError, match=r"batch axes \(2,\) and \(3,\)"):
        metrics.l1(*[Density(torch.ones(n, 10), GRID) for n in (2, 3)])
    with pytest.raises(InputError, match="at least 2"):
        metrics.block_l1(block(0, 2), block(0, 2), 0)
    with pytest.raises(InputError, match="Density"):
        metrics.l1(torch.ones(10), block(0, 2))


def test_constant_speed_of_geodesics_and_mixtures():
    """The linear blend moves half of the mass the whole way, not all of it half the way."""
    ends = block(0, 2), block(8, 10)
    assert float(metrics.constant_speed_defect(geonet.geodesic(*ends), 0.0, 0.5)) < 1e-9
    mixed = metrics.constant_speed_defect(geonet.geodesic(*ends, "linear"), 0.0, 0.5)
    assert float(mixed) > 0.6
    with pytest.raises(InputError, match="one number"):
        metrics.constant_speed_defect(geonet.geodesic(*ends), 0.0, [0.1, 0.2])
    assert max(metrics.end_point_errors(geonet.geodesic(*ends))) < 1e-9


def test_w1_on_the_circle_equals_a_linear_program(generator):
    grid = Grid(12, 0.0, 6.0, periodic=True)
    first, second = (
        Density(torch.rand(12, dtype=torch.float64, generator=generator), grid) for _ in range(2)
    )
    x = grid.axes()[0]
    apart = (x[:, None] - x).abs()
    cost = torch.minimum(apart, 6 - apart).numpy()
    masses = (end.tensor.numpy() * grid.cell_volume for end in (first, second))
    assert float(metrics.w1(first, second)) == pytest.approx(ot.emd2(*masses, cost), rel=1e-9)


def test_sliced_w1_takes_no_periodic_axes():
    density = Density(torch.ones(4, 4), Grid((4, 4), periodic=(True, False)))
    with pytest.raises(GridError, match="use w2 for periodic axes"):
        metrics.sliced_w1(density, density)
