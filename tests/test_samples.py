"""Densities from functions and point clouds, and particles from densities."""

import numpy as np
import pytest
import torch

import geonet
from experiments.point_clouds import histogram, quantize
from geonet import Density, Grid
from geonet.errors import DensityError, GridError, InputError
from geonet.samples import deposit, sample_particles

GRIDS = {
    1: Grid(6, -1.0, 2.0),
    2: Grid((3, 5), (0.0, -2.0), (1.5, 3.0)),
    3: Grid((2, 3, 4), (0.0, -1.0, 5.0), (1.0, 2.0, 7.0)),
}
RNG = np.random.default_rng(0)


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def shares(density):
    """Return the mass in every cell."""
    return density.tensor * density.grid.cell_volume


def random_density(grid):
    return Density(torch.rand(grid.shape, dtype=torch.float64, generator=seeded(5)), grid)


# ---- Functions


def test_a_function_is_evaluated_at_cell_centres():
    grid = Grid((4, 3), 0, (2, 1))
    density = geonet.from_function(lambda x: 1 + x[..., 0] + 10 * x[..., 1], grid)
    expected = 1 + grid.points()[..., 0] + 10 * grid.points()[..., 1]
    assert torch.allclose(density.values * density.mass, expected)
    with pytest.raises(DensityError, match=r"shape \(4, 3, 2\).*one value per point, \(4, 3\)"):
        geonet.from_function(lambda points: points, grid)


# ---- from_samples


def test_samples_are_counted_like_numpy():
    grid = Grid((5, 7), (-1, 0), (1, 3))
    points = RNG.uniform((-1, 0), (1, 3), (500, 2))
    weights = RNG.uniform(0, 2, 500)
    density = geonet.from_samples(points, grid, weights)
    edges = [e.numpy() for e in grid.edges()]
    counts = np.histogramdd(points, bins=edges, weights=weights)[0]
    assert np.allclose(density.values * weights.sum() * grid.cell_volume, counts)
    assert density.mass == pytest.approx(weights.sum() * grid.cell_volume)
    faces = geonet.from_samples([0.0, 0.3, 1.0], Grid(4))
    assert faces.numpy(mass="given").tolist() == pytest.approx([1, 1, 0, 1])


def test_samples_outside_the_box():
    points, grid = [[0.5, 0.5], [2.0, 0.5], [0.5, -0.1]], Grid((4, 4))
    with pytest.raises(DensityError, match=r"2 of 3 points lie outside.*outside='drop'"):
        geonet.from_samples(points, grid)
    assert geonet.from_samples(points, grid, outside="drop").mass == pytest.approx(1 / 16)
    with pytest.raises(DensityError, match="No point of 1 lies in the box"):
        geonet.from_samples(points[1:2], grid, outside="drop")
    with pytest.raises(InputError, match="outside is 'clip'; give 'raise' or 'drop'"):
        geonet.from_samples(points, grid, outside="clip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"shape \(1,\) do not fit 2 points"),
        ([np.nan, -1.0], "2 of 2 weights are negative, infinite or NaN"),
        ([0.0, 0.0], "zero everywhere"),
        (np.ma.masked_greater([0.2, 0.9], 0.5), "masked"),
    ],
)
def test_invalid_weights_raise(weights, message):
    with pytest.raises(DensityError, match=message):
        geonet.from_samples([0.2, 0.4], Grid(4), weights)


@pytest.mark.parametrize("d", GRIDS)
def test_the_linear_kernel_keeps_weights_and_mean(d):
    """Between the outermost centres the mean is exact, in contrast to counting."""
    grid = GRIDS[d]
    margin = np.array(grid.spacing) / 2
    lower, upper = np.array(grid.lower) + margin, np.array(grid.upper) - margin
    points = RNG.uniform(lower, upper, (50, d))
    weights = RNG.uniform(0, 2, 50)
    density = geonet.from_samples(points, grid, weights, kernel="linear")
    assert density.mass == pytest.approx(weights.sum() * grid.cell_volume, rel=1e-12)
    mean = weights @ points / weights.sum()
    assert density.mean() == pytest.approx(mean, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("d", GRIDS)
def test_the_linear_kernel_is_differentiable(d):
    """The points are at least a tenth of a cell away from the kinks at the centres."""
    grid = GRIDS[d]
    cells = RNG.integers(0, np.array(grid.shape) - 1, (6, d))
    positions = cells + 0.5 + RNG.uniform(0.1, 0.9, cells.shape)
    points = torch.from_numpy(np.array(grid.lower) + positions * np.array(grid.spacing))
    weights = torch.from_numpy(RNG.uniform(1, 2, 6)).requires_grad_()

    def values(points, weights):
        return geonet.from_samples(points, grid, weights, kernel="linear").tensor

    assert torch.autograd.gradcheck(values, (points.requires_grad_(), weights))


def test_counts_are_differentiable_in_the_weights_alone():
    points, grid = torch.rand(7, 2, dtype=torch.float64), Grid((3, 3))
    weights = torch.from_numpy(RNG.uniform(1, 2, 7)).requires_grad_()

    def values(weights):
        return geonet.from_samples(points, grid, weights).tensor

    assert torch.autograd.gradcheck(values, (weights,))
    points.requires_grad_()
    for count in (geonet.from_samples, histogram):
        with pytest.raises(InputError, match="no gradient in the points; .*kernel='linear'"):
            count(points, grid)
        with torch.no_grad():
            assert not count(points, grid).tensor.requires_grad
    with pytest.raises(InputError, match="kernel is 'cubic'"):
        geonet.from_samples(points, grid, kernel="cubic")  # type: ignore[arg-type]


# ---- Histograms


@pytest.mark.parametrize("d", GRIDS)
def test_clouds_of_a_batch_are_counted_separately(d):
    """The outermost cells count particles outside the box."""
    grid = GRIDS[d]
    share = 1.6 * torch.rand(2, 3, 20, d, dtype=torch.float64, generator=seeded()) - 0.3
    clouds = grid.lower_tensor + share * torch.tensor(grid.lengths, dtype=torch.float64)
    counts = shares(histogram(clouds, grid)).reshape(-1, *grid.shape)
    for cloud, computed in zip(clouds.reshape(-1, 20, d), counts, strict=True):
        inside = [x.clip(e[0], e[-1]).numpy() for x, e in zip(cloud.T, grid.edges(), strict=True)]
        edges = [e.numpy() for e in grid.edges()]
        expected = np.histogramdd(np.stack(inside, -1), bins=edges)[0] / 20
        assert np.allclose(computed, expected, atol=1e-12)


def test_invalid_particles_raise():
    with pytest.raises(GridError, match="the grid is 2D"):
        histogram(torch.zeros(7, 3), GRIDS[2])
    with pytest.raises(DensityError, match="NaN or infinite"):
        histogram(torch.tensor([[0.5], [torch.nan]]), Grid(4))
    with pytest.raises(InputError, match="at least"):
        sample_particles(random_density(GRIDS[1]), 0, seeded())


# ---- Boxes


@pytest.mark.parametrize("n", [5, 16, 30])
def test_deposit_keeps_mass_and_mean(n, generator):
    grid = Grid((n, n), 0.0, 1.0)
    centres = 0.1 + 0.8 * torch.rand(40, 2, dtype=torch.float64, generator=generator)
    mass = torch.rand(40, dtype=torch.float64, generator=generator)
    density = deposit(centres, mass, (0.2, 0.1), grid)
    assert float(density.sum() * grid.cell_volume) == pytest.approx(float(mass.sum()))
    mean = (density[..., None] * grid.points()).sum((0, 1)) * grid.cell_volume / mass.sum()
    assert torch.allclose(
        mean, (mass[:, None] * centres).sum(0) / mass.sum(), atol=0.3 / n**2 + 1e-9
    )


# ---- Rounding


@pytest.mark.parametrize("d", GRIDS)
def test_quantize_rounds_the_share_of_each_cell(d, count=100):
    density = random_density(GRIDS[d])
    expected = []
    for share, centre in zip(
        shares(density).flatten().tolist(), density.grid.points().reshape(-1, d), strict=True
    ):
        expected += [centre] * round(count * share)
    computed = quantize(density, count)
    assert computed.shape == (len(expected), d) and computed.dtype == torch.float64
    assert torch.equal(computed, torch.stack(expected))


# ---- Sampling


@pytest.mark.parametrize("d", GRIDS)
def test_samples_follow_the_density(d):
    """Each count is binomial; five standard deviations are exceeded once in a million."""
    density, count = random_density(GRIDS[d]), 20_000
    samples = sample_particles(density, count, seeded())
    assert torch.equal(samples, sample_particles(density, count, seeded()))
    assert samples.shape == (count, d) and samples.dtype == torch.float64
    expected = shares(density)
    noise = (expected * (1 - expected) / count).sqrt()
    assert bool(((shares(histogram(samples, density.grid)) - expected).abs() < 5 * noise).all())


@pytest.mark.parametrize("kernel", ["cell", "linear"])
def test_positions_wrap_around_periodic_axes(kernel):
    grid = Grid((4, 5), 0, (2, 5), periodic=(True, False))
    points = RNG.random((50, 2)) * [2, 5]
    turns = RNG.integers(-3, 4, 50)[:, None] * [2, 0]
    half, above, away = (np.array(step) for step in ([0.5, 0], [0, 3], [9, 3]))
    here = geonet.from_samples(points, grid, kernel=kernel)
    assert np.allclose(geonet.from_samples(points + turns, grid, kernel=kernel), here)
    shifted = geonet.from_samples(points + half, grid, kernel=kernel)
    assert np.allclose(shifted.values, np.roll(here.values, 1, 0))
    with pytest.raises(DensityError, match="outside the box"):
        geonet.from_samples(points + above, grid, kernel=kernel)
    dropped = geonet.from_samples(points + away, grid, outside="drop", kernel=kernel)
    assert dropped.mass < here.mass
