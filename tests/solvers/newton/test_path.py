"""Tests of paths from a potential in quadratic splines: frames, fields, gradients, files."""

import copy
import math

import pytest
import torch
from torch.autograd import gradcheck

import geonet
from benchmarks.pairs import exact_pair
from geonet import Density, Grid
from geonet.metrics import l1, mass_error
from geonet.solvers.newton import compiled
from geonet.solvers.newton.path import (
    MidpointGeodesic,
    push_frames,
)

TIMES = [0.0, 0.1, 0.25, 0.5, 0.75, 0.93, 1.0]
INNER_TIMES = torch.tensor([0.02, 0.3, 0.5, 0.77, 1.0]).double()
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
    lower, lengths = grid.lower_tensor, torch.tensor(grid.lengths, dtype=torch.float64)
    waves = torch.cos(torch.pi * (grid.points() - lower) / lengths)
    return Density((0.5 * waves.sum(-1)).exp(), grid), Density((-0.4 * waves[..., 0]).exp(), grid)


def smooth_path(d):
    return geonet.geodesic(*smooth_ends(GRIDS[d]), "midpoint")


def inner_points(grid, count=40):
    lengths = torch.tensor(grid.lengths, dtype=torch.float64)
    return grid.lower_tensor + (0.1 + 0.8 * noise(count, grid.dimension)) * lengths


# ---- densities


@DIMENSIONS
@pytest.mark.parametrize("scale", [0.5, 2.3])
def test_frames_have_mass_one_on_any_grid(d, scale):
    path = smooth_path(d)
    grid = path.grid.with_shape([max(2, round(scale * n)) for n in path.grid.shape])
    frames = path.density(TIMES, grid)
    assert float(mass_error(frames).max()) < 1e-6
    assert float(frames.tensor.min()) >= 0
    assert frames.tensor.dtype == torch.float64


@DIMENSIONS
def test_ends_are_exact_and_frames_continuous(d):
    path = smooth_path(d)
    frames = path.density([0.0, 1.0])
    assert torch.equal(frames.tensor[0], path.source.tensor)
    assert torch.equal(frames.tensor[1], path.target.tensor)
    finer = path.grid.with_shape([3 * n for n in path.grid.shape])
    expected = path.source.resample(finer).tensor
    assert torch.allclose(path.density(0.0, finer).tensor, expected)
    assert float(l1(path.density(1e-3), path.source)) < 0.02
    assert float(l1(path.density(1 - 1e-3), path.target)) < 0.02


def test_shift_by_whole_cells_stays_sharp():
    grid, values = Grid((32, 32)), torch.zeros(32, 32).double()
    values[4:14, 6:16] = noise(10, 10) + 0.05
    shifted = [Density(values.roll((2 * k, k), (0, 1)), grid) for k in range(5)]
    path = geonet.geodesic(shifted[0], shifted[4], "midpoint", tolerance=1e-5)
    for k in range(5):
        assert float(l1(path.density(k / 4), shifted[k])) < 2e-4
    assert float(path.distance) == pytest.approx((8**2 + 4**2) ** 0.5 / 32, rel=1e-5)


# ---- fields


@DIMENSIONS
def test_velocity_is_the_gradient_of_the_potential(d):
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
def test_potential_solves_the_hamilton_jacobi_equation(d):
    """∂u/∂t + ½|∇u|² = 0."""
    path = smooth_path(d)
    points, h = inner_points(path.grid, 15), 1e-5
    for t in (0.2, 0.5, 0.8):
        ahead, behind = (path.potential(t + s * h, points) for s in (1, -1))
        energy = 0.5 * (path.velocity(t, points) ** 2).sum(-1)
        assert torch.allclose((behind - ahead) / (2 * h), energy, atol=1e-5 * float(energy.max()))


@DIMENSIONS
def test_particles_move_straight_with_constant_velocity(d):
    path = smooth_path(d)
    start = inner_points(path.grid)
    positions = path.trajectories([0.0, 0.5, 1.0], start)
    velocity = path.velocity(0.0, start)
    scale = float(velocity.abs().max())
    assert torch.allclose(positions[0], start)
    for t, position in zip((0.5, 1.0), positions[1:], strict=True):
        assert torch.allclose(position, start + t * velocity, atol=1e-8 * max(1.0, scale))
        assert torch.allclose(path.velocity(t, position), velocity, atol=1e-6 * scale)


def test_particles_of_a_torn_map():
    """Halves of a disc separate; particles without mass stay in the box."""
    pair = exact_pair("torn-disc", 32)
    path = geonet.geodesic(pair.source, pair.target, "midpoint")
    start = torch.cartesian_prod(*[torch.linspace(0, 1, 21).double()] * 2)
    positions = torch.as_tensor(path.trajectories([1.0], start)).reshape(-1, 2)
    assert bool(((positions >= 0) & (positions <= 1)).all())
    offset = start - 0.5
    inside = (offset.norm(dim=-1) < 0.17) & (offset[:, 0].abs() > 0.04)  # a cell from the edges
    moved = (positions - start)[inside]
    expected = torch.stack([0.17 * offset[inside, 0].sign(), torch.zeros(len(moved))], -1)
    assert float((moved - expected).abs().max()) < 1 / 32


# ---- batches, files, report


def batch():
    grid = GRIDS[2]
    pairs = [smooth_ends(grid), smooth_ends(grid)[::-1]]
    pairs.append((Density(noise(20, 16) + 0.3, grid), Density(noise(20, 16, seed=2) + 0.3, grid)))
    return [Density(torch.stack([pair[k].tensor for pair in pairs]), grid) for k in (0, 1)]


@pytest.mark.parametrize("threads", [1, 2])
def test_batch_equals_single_pairs(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        source, target = batch()
        together, points = geonet.geodesic(source, target, "midpoint"), inner_points(GRIDS[2], 5)
        for k in range(3):
            alone = geonet.geodesic(source[k], target[k], "midpoint")
            assert torch.equal(together.density(TIMES).tensor[k], alone.density(TIMES).tensor)
            assert float(together.distance[k]) == float(alone.distance)
            assert torch.equal(together.velocity(0.3, points)[k], alone.velocity(0.3, points))
            assert together.report.distance_lower_bound[k] == alone.report.distance_lower_bound
    finally:
        torch.set_num_threads(before)


@DIMENSIONS
def test_saved_and_copied_paths_are_equal(d, tmp_path):
    path = smooth_path(d)
    path.in_distribution = True
    points = inner_points(path.grid, 5)
    for other in (geonet.load(path.save(tmp_path / "path.npz")), copy.deepcopy(path)):
        assert isinstance(other, MidpointGeodesic) and other.in_distribution is True
        assert torch.equal(other.density(TIMES).tensor, path.density(TIMES).tensor)
        for quantity in ("velocity", "potential"):
            fields = [torch.as_tensor(getattr(p, quantity)(0.3, points)) for p in (other, path)]
            assert torch.equal(*fields)
        assert float(other.distance) == float(path.distance)
        if d < 3:  # bounds in 3D take seconds
            assert other.report.to_dict() == path.report.to_dict()


def test_report():
    path = smooth_path(2)
    report, distance = path.report, float(path.distance)
    assert report.distance_lower_bound <= distance * 1.001
    assert report.distance_upper_bound >= distance * 0.999
    assert report.mass_error < 1e-6 and report.negativity == 0
    assert report.source_error == report.target_error == 0
    assert report.mismatch == pytest.approx(path.integrals.mismatch)
    assert report.error_estimate == pytest.approx(path.expected_error())
    assert report.info["converged"] is True


# ---- push_frames


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"])
def either_way(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    if request.param == "1" and not compiled.is_available():
        pytest.skip("needs compiled kernels")


def sides_of(shape):
    return [1.0 - 0.25 * axis for axis in range(len(shape))]


def ends_on(shape):
    both = noise(2, *shape, seed=7) ** 4
    return tuple(values / values.mean() / math.prod(sides_of(shape)) for values in both)


def random_potential(shape, curvature):
    smallest = min(side / n for side, n in zip(sides_of(shape), shape, strict=True))
    return 0.25 * curvature * smallest**2 * (noise(*shape, seed=9) - 0.5)


@pytest.mark.parametrize("curvature", [0.0, 0.5, 8.0])
@pytest.mark.parametrize(
    ("shape", "out"),
    [((9,), (9,)), ((9,), (4,)), ((6, 7), (13, 20)), ((6, 7), (1, 2)), ((4, 3, 5), (3, 7, 2))],
    ids=str,
)
def test_pushed_frames_have_mass_one_even_with_folds(either_way, shape, out, curvature):
    sides, c = sides_of(shape), random_potential(shape, curvature)
    frames = push_frames(c, ends_on(shape), sides, INNER_TIMES, out, 1)
    assert frames.shape == (5, *out) and frames.dtype == torch.float64
    assert float(frames.min()) >= 0
    masses = frames.flatten(1).sum(1) * math.prod(sides) / math.prod(out)
    assert torch.allclose(masses, torch.ones(5).double(), atol=1e-12)


def test_zero_potential_keeps_a_density(either_way):
    values, zero = ends_on((6, 5))[0], torch.zeros(6, 5).double()
    for k in (1, 3):
        fine = values.repeat_interleave(k, 0).repeat_interleave(k, 1)
        frames = push_frames(zero, (values, values), sides_of((6, 5)), INNER_TIMES, fine.shape, 1)
        assert torch.allclose(frames, fine.expand(5, *fine.shape), rtol=1e-5)


def test_frames_are_differentiable():
    """Gradients need torch; without them the kernels give the same frames."""
    first, second = (values.requires_grad_() for values in ends_on((4, 3)))
    c = random_potential((4, 3), 0.5).requires_grad_()

    def frames(c, first, second):
        return push_frames(c, (first, second), (1.0, 0.75), INNER_TIMES[1:4], (5, 4), 1)

    assert gradcheck(frames, (c, first, second), eps=1e-7, atol=1e-4)
    expected = frames(c, first, second)
    with torch.no_grad():
        values = frames(c, first, second)
    assert expected.requires_grad and not values.requires_grad
    assert torch.allclose(values, expected.detach(), atol=1e-4 * float(values.max()))


# ---- gradients of a path


def gradient_ends(grid):
    waves = torch.cos(torch.pi * grid.points() / torch.tensor(grid.lengths, dtype=torch.float64))
    return (0.4 * waves[..., 0]).exp(), (0.3 * waves[..., -1] - 0.3 * waves[..., 0]).exp()


def quantities(path):
    """One number for each quantity of a path; constants of the potential cancel."""
    grid = path.grid
    lengths = torch.tensor(grid.lengths, dtype=torch.float64)
    points = (0.1 + 0.8 * noise(5, grid.dimension, seed=2)) * lengths
    frames = path.density([0.3, 0.6]).tensor
    finer = path.density(0.4, grid.with_shape([n + 3 for n in grid.shape])).tensor
    velocity, potential = path.velocity([0.2, 0.8], points), path.potential([0.2, 0.8], points)
    positions = path.trajectories([0.0, 0.7], points)
    weights = noise(*potential.shape, seed=5)
    return {
        "frames": (frames * noise(*frames.shape, seed=3)).sum(),
        "finer frames": (finer * noise(*finer.shape, seed=3)).sum(),
        "velocity": (velocity * noise(*velocity.shape, seed=4)).sum(),
        "potential": (potential * (weights - weights.mean(-1, keepdim=True))).sum(),
        "trajectories": (positions * noise(*positions.shape, seed=6)).sum(),
        "squared distance": path.distance**2,
    }


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "grid",
    [Grid(16, 0.0, 2.0), pytest.param(Grid((8, 7), 0.0, (2.0, 1.5)), marks=pytest.mark.slow)],
    ids=str,
)
def test_gradients_against_finite_differences(grid, monkeypatch):
    """In double precision; frames have kinks at positions at which a box touches a face."""
    monkeypatch.setenv("GEONET_COMPILED", "0")

    def solve(ends):
        pair = (Density(values, grid) for values in ends)
        return quantities(geonet.geodesic(*pair, "midpoint", tolerance=1e-6, refine=False))

    waves = torch.cos(torch.pi * grid.points() / torch.tensor(grid.lengths, dtype=torch.float64))
    changes = 2 * waves[..., 0] ** 2 - 1 + 0.3 * waves[..., -1], waves.prod(-1)
    ends, h = gradient_ends(grid), 1e-4
    leaves = [values.clone().requires_grad_() for values in ends]
    results = solve(leaves)
    for k in (0, 1):
        ahead, behind = (
            solve([values + s * h * changes[k] * (i == k) for i, values in enumerate(ends)])
            for s in (1, -1)
        )
        for name, value in results.items():
            (gradient,) = torch.autograd.grad(value, leaves[k], retain_graph=True)
            expected = float(ahead[name] - behind[name]) / (2 * h)
            # The gradient of the distance is exact in the continuum, up to h² on these cells.
            allowed = 0.03 if name == "squared distance" else 2e-3
            slope = float((gradient * changes[k]).sum())
            assert slope == pytest.approx(expected, rel=allowed, abs=allowed * 0.01), name


def test_compiled_and_torch_gradients_agree(monkeypatch):
    grid, slopes = Grid((16, 12), 0.0, (1.0, 0.75)), []
    for choice in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", choice)
        leaves = [values.clone().requires_grad_() for values in gradient_ends(grid)]
        path = geonet.geodesic(*(Density(v, grid) for v in leaves), "midpoint", tolerance=1e-4)
        value = (path.density(0.5).tensor * noise(*grid.shape, seed=3)).sum()
        slopes.append(torch.cat([s.flatten() for s in torch.autograd.grad(value, leaves)]))
    # Potentials within 1e-4 of the mass, and steps in single precision.
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 0.01
