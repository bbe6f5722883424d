"""Paths from a potential in quadratic splines: frames, fields, files, and what they say."""

import copy

import pytest
import torch

import geonet
from benchmarks.pairs import exact_pair
from geonet import Density, Grid
from geonet.metrics import l1, mass_error
from geonet.numerics.splines import at_points
from geonet.solvers.newton.path import SplineGeodesic, expected_error
from geonet.solvers.newton.system import Totals

TIMES = [0.0, 0.1, 0.25, 0.5, 0.75, 0.93, 1.0]
GRIDS = {
    1: Grid(48, -1.0, 2.0),
    2: Grid((20, 16), (1.0, -2.0), (3.0, -0.5)),
    3: Grid((8, 7, 6), 0.0, (1.0, 0.8, 0.6)),
}
DIMENSIONS = pytest.mark.parametrize("d", GRIDS)


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def smooth_ends(grid):
    """Two waves, flat at the faces."""
    lower, lengths = grid.corner("lower"), torch.tensor(grid.lengths, dtype=torch.float64)
    waves = torch.cos(torch.pi * (grid.points() - lower) / lengths)
    return Density((0.5 * waves.sum(-1)).exp(), grid), Density((-0.4 * waves[..., 0]).exp(), grid)


def smooth_path(d, **options):
    return geonet.geodesic(*smooth_ends(GRIDS[d]), "midpoint", **options)


def inner_points(grid, count=40):
    lengths = torch.tensor(grid.lengths, dtype=torch.float64)
    return grid.corner("lower") + (0.1 + 0.8 * noise(count, grid.dimension)) * lengths


# ---- frames


@DIMENSIONS
@pytest.mark.parametrize("finer", [0.5, 1, 2.3])
def test_frames_have_mass_one_on_any_cells(d, finer):
    path = smooth_path(d)
    grid = path.grid.with_shape([max(2, round(finer * n)) for n in path.grid.shape])
    frames = path.density(TIMES, grid)
    assert float(mass_error(frames).max()) < 1e-6
    assert float(frames.tensor.min()) >= 0
    assert frames.tensor.dtype == torch.float64


@DIMENSIONS
def test_ends_are_what_was_given(d):
    path = smooth_path(d)
    frames = path.density([0.0, 1.0])
    assert torch.equal(frames.tensor[0], path.source.tensor)
    assert torch.equal(frames.tensor[1], path.target.tensor)
    finer = path.grid.with_shape([3 * n for n in path.grid.shape])
    expected = path.source.resample(finer).tensor
    assert torch.allclose(path.density(0.0, finer).tensor, expected)


@DIMENSIONS
def test_near_the_ends_frames_are_near_them(d):
    path = smooth_path(d)
    assert float(l1(path.density(1e-3), path.source)) < 0.02
    assert float(l1(path.density(1 - 1e-3), path.target)) < 0.02


def test_noise_and_holes_keep_mass_and_sign():
    grid = Grid((24, 24))
    ends = [
        Density(torch.where(noise(24, 24, seed=k) > 0.6, 1.0, 0.0).double(), grid) for k in (1, 2)
    ]
    path = geonet.geodesic(*ends, "midpoint", tolerance=0.02)
    for shape in ((24, 24), (50, 31), (5, 5)):
        frames = path.density(TIMES, grid.with_shape(shape))
        assert float(mass_error(frames).max()) < 1e-6 and float(frames.tensor.min()) >= 0


def test_a_shift_by_whole_cells_is_as_sharp():
    """Noise on zero that moves by (8, 4) cells, by whole ones at the quarters."""
    grid, values = Grid((32, 32)), torch.zeros(32, 32).double()
    values[4:14, 6:16] = noise(10, 10) + 0.05
    path = geonet.geodesic(
        Density(values, grid),
        Density(values.roll((8, 4), (0, 1)), grid),
        "midpoint",
        tolerance=1e-5,
    )
    for k in range(5):
        moved = Density(values.roll((2 * k, k), (0, 1)), grid)
        assert float(l1(path.density(k / 4), moved)) < 2e-4
    assert float(path.distance) == pytest.approx((8**2 + 4**2) ** 0.5 / 32, rel=1e-5)


def test_the_mean_goes_straight():
    path = smooth_path(2)
    means = path.density([0.0, 0.3, 1.0]).mean()
    assert torch.allclose(means[1], 0.7 * means[0] + 0.3 * means[2], atol=2e-3)


# ---- fields


@DIMENSIONS
def test_the_velocity_is_the_gradient_of_the_potential(d):
    path = smooth_path(d)
    points, h = inner_points(path.grid, 15), 1e-6
    for t in (0.0, 0.3, 0.5, 1.0):
        velocity = path.velocity(t, points)
        for axis in range(d):
            offset = torch.zeros(d).double()
            offset[axis] = h
            ahead, behind = (path.potential(t, points + s * offset) for s in (1, -1))
            slope = (ahead - behind) / (2 * h)
            assert torch.allclose(slope, velocity[:, axis], atol=1e-5 * float(velocity.abs().max()))


@DIMENSIONS
def test_hamilton_and_jacobi(d):
    """∂u/∂t + ½|∇u|² = 0."""
    path = smooth_path(d)
    points, h = inner_points(path.grid, 15), 1e-5
    for t in (0.2, 0.5, 0.8):
        ahead, behind = (path.potential(t + s * h, points) for s in (1, -1))
        energy = 0.5 * (path.velocity(t, points) ** 2).sum(-1)
        assert torch.allclose((behind - ahead) / (2 * h), energy, atol=1e-5 * float(energy.max()))


@DIMENSIONS
def test_particles_go_straight_with_the_velocity_they_start_with(d):
    path = smooth_path(d)
    start = inner_points(path.grid)
    places = path.trajectories([0.0, 0.5, 1.0], start)
    velocity = path.velocity(0.0, start)
    scale = float(velocity.abs().max())
    assert torch.allclose(places[0], start)
    for t, place in zip((0.5, 1.0), places[1:], strict=True):
        assert torch.allclose(place, start + t * velocity, atol=1e-8 * max(1.0, scale))
        assert torch.allclose(path.velocity(t, place), velocity, atol=1e-6 * scale)


def test_particles_halfway_have_the_splines_gradient():
    path = smooth_path(2)
    points = inner_points(path.grid)
    u, v = path.potential(0.5, points), path.velocity(0.5, points)
    jet_value, jet_gradient, _ = at_points(path.coefficients, path.step, path.box.to_points(points))
    assert torch.allclose(u, path.box.from_potential(jet_value))
    assert torch.allclose(v, path.box.from_velocity(jet_gradient))


def test_particles_where_the_map_is_torn():
    """Halves of a disc go apart; where there is no mass they may go anywhere in the box."""
    pair = exact_pair("torn-disc", 32)
    path = geonet.geodesic(pair.source, pair.target, "midpoint")
    start = torch.cartesian_prod(*[torch.linspace(0, 1, 21).double()] * 2)
    places = path.trajectories([1.0], start).reshape(-1, 2)
    assert bool(((places >= 0) & (places <= 1)).all())
    away = start - 0.5
    inside = (away.norm(dim=-1) < 0.17) & (away[:, 0].abs() > 0.04)  # a cell from rim and tear
    moved = (places - start)[inside]
    expected = torch.stack([0.17 * away[inside, 0].sign(), torch.zeros(len(moved))], -1)
    assert float((moved - expected).abs().max()) < 1 / 32


# ---- batches, copies, files


def batch():
    grid = GRIDS[2]
    pairs = [smooth_ends(grid), smooth_ends(grid)[::-1]]
    pairs.append((Density(noise(20, 16) + 0.3, grid), Density(noise(20, 16, seed=2) + 0.3, grid)))
    return [Density(torch.stack([pair[k].tensor for pair in pairs]), grid) for k in (0, 1)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_is_its_pairs(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        source, target = batch()
        together = geonet.geodesic(source, target, "midpoint")
        points = inner_points(GRIDS[2], 5)
        for k in range(3):
            alone = geonet.geodesic(source[k], target[k], "midpoint")
            frames = together.density(TIMES).tensor[k]
            assert torch.equal(frames, alone.density(TIMES).tensor)
            assert float(together.distance[k]) == float(alone.distance)
            assert torch.equal(together.velocity(0.3, points)[k], alone.velocity(0.3, points))
            assert together.report.distance_lower_bound[k] == alone.report.distance_lower_bound
    finally:
        torch.set_num_threads(before)


@DIMENSIONS
def test_saved_paths_give_the_same_answers(d, tmp_path):
    path = smooth_path(d)
    points = inner_points(path.grid, 5)
    for other in (geonet.load(path.save(tmp_path / "path.npz")), copy.deepcopy(path)):
        assert isinstance(other, SplineGeodesic)
        assert torch.equal(other.density(TIMES).tensor, path.density(TIMES).tensor)
        assert torch.equal(other.velocity(0.3, points), path.velocity(0.3, points))
        assert torch.equal(other.potential(0.3, points), path.potential(0.3, points))
        assert float(other.distance) == float(path.distance)
        if d < 3:  # where bounds take seconds
            assert other.report.to_dict() == path.report.to_dict()


def test_saved_batches_too(tmp_path):
    path = geonet.geodesic(*batch(), "midpoint")
    other = geonet.load(path.save(tmp_path / "paths.npz"))
    assert torch.equal(other.density(TIMES).tensor, path.density(TIMES).tensor)
    assert torch.equal(other.distance, path.distance)


# ---- trust


def test_what_the_report_says():
    path = smooth_path(2)
    report = path.report
    assert report.distance_lower_bound <= float(path.distance) * 1.001
    assert report.distance_upper_bound >= float(path.distance) * 0.999
    assert report.mass_error < 1e-6 and report.negativity == 0
    assert report.source_error == report.target_error == 0
    assert report.mismatch == pytest.approx(path.totals.mismatch)
    assert report.notes["converged"] is True
    assert report.error_estimate == pytest.approx(path.expected_error())


def test_units_are_those_of_the_box():
    """A box ten times as large, far from zero: everything scales."""
    one, other = Grid((20, 16), 0.0, (1.0, 0.8)), Grid((20, 16), (30.0, -7.0), (40.0, 1.0))
    values = [end.tensor for end in smooth_ends(one)]
    first = geonet.geodesic(*(Density(v, one) for v in values), "midpoint")
    second = geonet.geodesic(*(Density(v, other) for v in values), "midpoint")
    points = inner_points(one, 6)
    there = 10 * points + torch.tensor([30.0, -7.0])
    assert float(second.distance) == pytest.approx(10 * float(first.distance), rel=1e-9)
    assert torch.allclose(second.velocity(0.2, there), 10 * first.velocity(0.2, points), rtol=1e-6)
    assert torch.allclose(second.potential(0.2, there), 100 * first.potential(0.2, points))
    frames = second.density(0.4).tensor * 100
    assert torch.allclose(frames, first.density(0.4).tensor, rtol=1e-5)


def test_the_estimate_grows_with_what_is_unbalanced():
    good, bad = Totals(0.01, 1, 1, 1, 0, 0), Totals(0.3, 1, 1, 1, 0, 0)
    assert 0 < expected_error(1e-3, good) < expected_error(1e-2, good) < expected_error(1e-2, bad)
    assert expected_error(10.0, bad) == 2  # L1 is never more
