import dataclasses

import ot
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet import evaluation as metrics
from geonet.errors import GridError, InputError
from geonet.metrics import DIRECTIONS

GRID = Grid(10, 0.0, 5.0)


def block(first, last, grid=GRID):
    values = torch.zeros(grid.shape, dtype=torch.float64)
    values[first:last] = 1
    return Density(values, grid)


def test_l1_runs_from_equal_to_disjoint():
    assert float(metrics.l1(block(0, 2), block(0, 2))) == 0
    assert float(metrics.l1(block(0, 2), block(5, 7))) == pytest.approx(2)
    assert float(metrics.l1(block(0, 2), block(1, 3))) == pytest.approx(1)


def test_blocks_hide_what_is_finer_than_they_are():
    grid = Grid((8, 8))
    board = torch.arange(8)[:, None] + torch.arange(8)
    checks, others = (Density((board + k) % 2, grid) for k in (0, 1))
    assert float(metrics.l1(checks, others)) == pytest.approx(2)
    assert float(metrics.block_l1(checks, others, 4)) == pytest.approx(0)
    assert float(metrics.block_l1(checks, others, 8)) == pytest.approx(2)


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
    scaled = Density.as_computed(1.1 * truth.tensor, GRID)
    assert float(metrics.l2(scaled, truth)) == pytest.approx(0.1)
    assert float(metrics.l2(block(0, 2), block(5, 7))) == pytest.approx(2**0.5)


def test_w1_of_a_shift_is_the_shift():
    assert float(metrics.w1(block(0, 2), block(4, 6))) == pytest.approx(2.0)
    with pytest.raises(GridError, match="w1 is for 1D"):
        metrics.w1(*[Density(torch.ones(3, 3), Grid((3, 3)))] * 2)


def test_sliced_w1_is_pots(pair_2d):
    first, second = (end.resample(end.grid.with_shape(8)) for end in pair_2d)
    points = first.grid.points().reshape(-1, 2).numpy()
    angles = torch.arange(DIRECTIONS).double() * (torch.pi / DIRECTIONS)
    masses = [(d.tensor.reshape(-1) * d.grid.cell_volume).numpy() for d in (first, second)]
    expected = ot.sliced_wasserstein_distance(
        points, points, *masses, projections=torch.stack([angles.cos(), angles.sin()]).numpy(), p=1
    )
    assert float(metrics.sliced_w1(first, second)) == pytest.approx(float(expected), rel=1e-9)
    with pytest.raises(GridError, match="sliced_w1 is for 2D"):
        metrics.sliced_w1(block(0, 2), block(1, 3))


def test_w2_of_a_shift_is_the_shift():
    assert float(metrics.w2(block(0, 2), block(4, 6))) == pytest.approx(2.0)


def test_mass_and_sign():
    values = torch.full((10,), 0.3, dtype=torch.float64)
    values[0] = -0.2
    density = Density.as_computed(values, GRID)
    assert float(metrics.mass_error(density)) == pytest.approx(0.25)
    assert float(metrics.negativity(density)) == pytest.approx(0.1)


def test_different_grids_are_refused():
    with pytest.raises(GridError, match="ask the path for the reference's grid"):
        metrics.l1(block(0, 2), block(0, 2, Grid(20, 0.0, 5.0)))


def test_different_batches_are_refused():
    batches = [Density(torch.ones(n, 10), GRID) for n in (2, 3)]
    with pytest.raises(InputError, match=r"leading axes \(2,\) and \(3,\)"):
        metrics.l1(*batches)


def test_constant_speed_holds_for_geodesics_and_not_for_the_mixture():
    """The mixture moves half of the mass all the way instead of all of it half the way."""
    ends = block(0, 2), block(8, 10)
    assert float(metrics.constant_speed_defect(geonet.geodesic(*ends), 0.0, 0.5)) < 1e-9
    mixed = metrics.constant_speed_defect(geonet.geodesic(*ends, "linear"), 0.0, 0.5)
    assert float(mixed) > 0.6


def test_every_metric_takes_batches_and_times(pair_1d, pair_2d):
    for pair in (pair_1d, pair_2d):
        ends = [Density(torch.stack([end.tensor] * 3), end.grid) for end in pair]
        frames = geonet.geodesic(*ends, "linear").density([0.0, 0.5])
        flat = metrics.w1 if pair is pair_1d else metrics.sliced_w1
        for metric in (metrics.l1, metrics.l2, flat):
            assert metric(frames, frames).shape == (3, 2)
        assert metrics.mass_error(frames).shape == metrics.negativity(frames).shape == (3, 2)


def test_end_points(pair_2d):
    first, last = metrics.end_point_errors(geonet.geodesic(*pair_2d, "monge-ampere"))
    assert float(first) < 1e-9 and float(last) < 1e-9


def test_report_reads_well_and_bounds_the_distance(pair_2d):
    path = geonet.geodesic(*pair_2d, "monge-ampere")
    report = path.report
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
    text = str(report)
    assert "monge-ampere" in text and "W2 distance" in text and "residual" in text
    assert report.to_dict()["mass_error"] == report.mass_error < 1e-3


def test_report_of_a_path_without_a_distance(pair_1d):
    report = geonet.geodesic(*pair_1d, "linear").report
    assert report.distance is None and "W2 distance" not in str(report)


def test_moment_bound_is_sharp_for_gaussians_and_safe_for_points():
    grid = Grid((60, 60), 0, 5)
    ends = [GaussianMixture.isotropic([[c, 2.5]], s).on(grid) for c, s in ((2.0, 0.4), (3.0, 0.5))]
    report = geonet.geodesic(*ends, "bures").report
    assert report.distance_lower_bound == pytest.approx(report.distance, rel=1e-3)
    atom = Density(torch.eye(10)[3], GRID)
    assert geonet.geodesic(atom, atom).report.distance_lower_bound == 0


def test_report_of_a_batch_lists_pairs(pair_1d):
    ends = [Density(torch.stack([end.tensor] * 6), end.grid) for end in pair_1d]
    report = geonet.geodesic(*ends).report
    assert len(report.distance) == 6 and "quantile (6 pairs)" in str(report)


def test_report_marks_a_distance_that_cannot_be_right(pair_1d):
    report = geonet.geodesic(*pair_1d).report
    assert "between" not in str(report)
    wrong = dataclasses.replace(report, distance=0.99 * report.distance_lower_bound)
    assert "W2 distance" in str(wrong) and " between " in str(wrong)
