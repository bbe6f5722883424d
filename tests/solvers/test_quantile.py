"""Displacement interpolation in 1D against analytic paths."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import geonet
from geonet import Density, Grid
from geonet.metrics import l1, mass_error
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.numerics.interpolation import resample

QUARTERS = [0.25, 0.5, 0.75]


def analytic_path(source, target, t, edges):
    """Return the masses of μ_t between `edges` from the distribution functions of the mixtures."""

    def distribution(mixture):
        means, stds = mixture.means[:, 0].numpy(), mixture.covariances[:, 0, 0].sqrt().numpy()
        lower, upper = (norm.cdf(x, means, stds).mean() for x in (0.0, 10.0))
        return lambda x: (norm.cdf(x, means, stds).mean() - lower) / (upper - lower)

    first, second = distribution(source), distribution(target)

    def transport(x):
        level = first(x)
        return brentq(lambda y: second(y) - level, 0.0, 10.0, xtol=1e-13)

    def level_at(position):
        if position in (0.0, 10.0):
            return position / 10.0
        return first(
            brentq(lambda x: (1 - t) * x + t * transport(x) - position, 0.0, 10.0, xtol=1e-12)
        )

    return np.diff([level_at(float(e)) for e in edges])


def test_a_fine_grid_agrees_with_the_analytic_path(generator):
    """20,000 cells are the reference of the next test."""
    source, target = mixtures_1d(2, generator)
    fine = BOX_1D.with_shape(20_000)
    path = geonet.geodesic(source.to_density(fine), target.to_density(fine), "quantile")
    averages = resample(path.density(0.5).tensor, fine, BOX_1D)
    exact = analytic_path(source, target, 0.5, BOX_1D.edges()[0]) / BOX_1D.cell_volume
    assert float((averages - torch.as_tensor(exact)).abs().sum() * BOX_1D.cell_volume) < 1e-5


def test_paper_mixtures_at_100_cells(generator):
    source, target = mixtures_1d(50, generator), mixtures_1d(50, generator)
    fine = BOX_1D.with_shape(20_000)
    truth = geonet.geodesic(source, target, "quantile", grid=fine).density(QUARTERS).tensor
    truth = Density.from_unnormalized(resample(truth, fine, BOX_1D), BOX_1D)
    path = geonet.geodesic(source, target, "quantile", grid=BOX_1D)
    assert float(l1(path.density(QUARTERS), truth).mean(0).max()) < 3e-3


def test_large_batch(generator):
    source, target = (mixtures_1d(10_000, generator).to_density(BOX_1D) for _ in range(2))
    frames = geonet.geodesic(source, target, "quantile").density(torch.linspace(0, 1, 11))
    assert frames.tensor.shape == (10_000, 11, 100)
    assert float(mass_error(frames).max()) < 1e-12


def test_piecewise_constant_by_hand():
    """[0, 1] moves to [3, 4]: at t = ½ the mass fills [1.5, 2.5]."""
    grid = Grid(8, 0.0, 4.0)
    values = torch.tensor([[1.0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]).double()
    path = geonet.geodesic(*(Density(end, grid) for end in values), "quantile")
    assert float(path.distance) == pytest.approx(3)
    assert torch.allclose(
        path.density(0.5).tensor, torch.tensor([0, 0, 0, 1, 1, 0, 0, 0], dtype=torch.float64)
    )
    quarter_cell = path.density(0.25).tensor  # [0.75, 1.75]
    expected = torch.tensor([0, 0.5, 1, 0.5, 0, 0, 0, 0], dtype=torch.float64)
    assert torch.allclose(quarter_cell, expected)
    assert torch.allclose(
        path.velocity(0.5, [1.6, 2.4]).flatten(), torch.tensor([3.0, 3.0]).double()
    )
    assert torch.allclose(
        path.trajectories([0.0, 0.5, 1.0], [0.2]).flatten(), torch.tensor([0.2, 1.7, 3.2]).double()
    )


def test_mass_splits_at_a_gap():
    """Half of the mass moves left and half right."""
    grid = Grid(8, 0.0, 8.0)
    path = geonet.geodesic(
        Density([0, 0, 0, 1, 1, 0, 0, 0], grid), Density([1, 0, 0, 0, 0, 0, 0, 1], grid), "quantile"
    )
    assert float(path.distance) == pytest.approx(3)
    half = path.density(0.5).tensor
    assert torch.allclose(half, torch.tensor([0, 0.25, 0.25, 0, 0, 0.25, 0.25, 0]).double())
    assert torch.allclose(path.density(1.0).tensor, path.target.tensor)


def test_single_precision(pair_1d):
    source, target = pair_1d
    single = [Density(end.tensor.float(), end.grid) for end in pair_1d]
    path = geonet.geodesic(source, target, "quantile")
    assert float(l1(geonet.geodesic(*single, "quantile").density(0.5), path.density(0.5))) < 1e-5


def test_continuity_equation(pair_1d):
    """d/dt ∫φ dμ_t = ∫φ' v dμ_t for a test function φ."""
    path = geonet.geodesic(*pair_1d, "quantile")
    x, h, step = BOX_1D.axes()[0], BOX_1D.cell_volume, 1e-3
    later, earlier = (path.density(0.5 + s * step).tensor for s in (1, -1))
    change = (torch.sin(x) * (later - earlier)).sum() * h / (2 * step)
    flux = (torch.cos(x) * path.velocity(0.5, x)[..., 0] * path.density(0.5).tensor).sum() * h
    assert float(change) == pytest.approx(float(flux), abs=2e-3)


# ---- the circle


def random_circle(rng, n, empty=0.0, length=3.0):
    """Return two densities on a circle, some of whose cells are empty."""
    grid = Grid(n, 2.0, 2.0 + length, periodic=True)
    values = rng.random((2, n)) + 0.05
    values[rng.random((2, n)) < empty] = 0
    values[0, 0] = values[1, n // 2] = 1
    return [Density(row, grid) for row in values]


CIRCLES = pytest.mark.parametrize(("n", "empty"), [(5, 0.0), (17, 0.0), (24, 0.5), (40, 0.85)])


@CIRCLES
def test_circle_equals_the_best_of_all_shifts(n, empty):
    """Compare with atoms of equal mass at quantiles, for all cyclic shifts."""
    source, target = random_circle(np.random.default_rng(n), n, empty)
    count = 4000
    levels = (np.arange(count) + 0.5) / count
    atoms = []
    for density in (source, target):
        distribution = np.concatenate([[0], np.cumsum(density.values)]) * density.grid.cell_volume
        edges = density.grid.edges()[0].numpy()
        keep = np.concatenate([[True], np.diff(distribution) > 0])
        before = np.concatenate([keep[1:], [True]]) | keep  # both ends of gaps
        atoms.append(np.interp(levels, distribution[before], edges[before]))
    first, second = atoms
    unrolled = np.concatenate([second - 3, second, second + 3])
    costs = [np.mean((unrolled[k : k + count] - first) ** 2) for k in range(2 * count)]
    # the atoms are midpoints of levels: an error of either sign, a share 1/count of each jump
    distance = geonet.geodesic(source, target).distance
    assert distance == pytest.approx(np.sqrt(min(costs)), rel=1e-3)


@CIRCLES
def test_circle_is_optimal(n, empty):
    """Primal and dual values agree, and the potentials are admissible: so both are exact."""
    source, target = random_circle(np.random.default_rng(n), n, empty)
    path = geonet.geodesic(source, target)
    phi, psi = (values.numpy() for values in path._kantorovich())
    dual = (phi * source.values + psi * target.values).sum() * source.grid.cell_volume
    assert np.sqrt(2 * dual) == pytest.approx(path.distance, rel=1e-11)
    x = np.linspace(2, 5, 241)[:-1]
    u0, u1 = path.potential([0, 1], x)
    apart = np.abs(x[:, None] - x)
    apart = np.minimum(apart, 3 - apart)
    assert (apart**2 / 2 + u0[:, None] - u1).min() > -1e-12


@CIRCLES
def test_circle_has_exact_ends_and_follows_rotations(n, empty):
    source, target = random_circle(np.random.default_rng(n), n, empty)
    path = geonet.geodesic(source, target)
    frames = path.density([0, 0.3, 1]).values
    assert np.allclose(frames[0], source.values, atol=1e-12)
    assert np.allclose(frames[2], target.values, atol=1e-12)
    assert np.allclose(frames.sum(-1) * source.grid.cell_volume, 1) and frames.min() > -1e-12
    shift = n // 3
    rolled = [Density(np.roll(end.values, shift), end.grid) for end in (source, target)]
    moved, x = geonet.geodesic(*rolled), np.linspace(2, 4.9, 37)
    offset = shift * source.grid.cell_volume
    assert moved.distance == pytest.approx(path.distance, rel=1e-12)
    assert np.allclose(moved.density(0.3).values, np.roll(frames[1], shift), atol=1e-9)
    assert np.allclose(moved.velocity(0.3, x + offset), path.velocity(0.3, x), atol=1e-9)


@CIRCLES
def test_velocity_on_the_circle_is_the_gradient_of_a_periodic_potential(n, empty):
    path = geonet.geodesic(*random_circle(np.random.default_rng(n), n, empty))
    x, h = np.linspace(1.5, 8.5, 501), 1e-6
    for t in (0.2, 0.5, 0.9):
        u, velocity = path.potential(t, [x - h, x, x + h]), path.velocity(t, x)[:, 0]
        assert np.allclose((u[2] - u[0]) / (2 * h), velocity, atol=1e-4)
        later, earlier = (path.potential(t + s, x) for s in (1e-5, -1e-5))
        assert np.allclose((later - earlier) / 2e-5, -(velocity**2) / 2, atol=1e-4)


def test_a_block_moves_across_the_seam():
    grid = Grid(20, 0, 2, periodic=True)
    values = np.zeros((3, 20))
    for k, start in enumerate((17, 21, 19)):
        values[k, np.arange(start, start + 4) % 20] = 1
    source, target, halfway = (Density(row, grid) for row in values)
    path = geonet.geodesic(source, target)
    assert path.distance == pytest.approx(0.4)
    assert np.allclose(path.density(0.5).values, halfway.values)
    assert np.allclose(path.velocity([0, 1], [[1.8], [0.2]])[[0, 1], [0, 1]], 0.4)
    assert np.allclose(path.trajectories([0, 0.5, 1], [1.75])[:, 0, 0], [1.75, 1.95, 0.15])
    # beside the block the potential returns to its value, so that it is periodic
    assert path.potential(0, 1e-9) == pytest.approx(path.potential(0, 2 - 1e-9), abs=1e-8)
    assert path.report.distance_lower_bound == path.report.distance_upper_bound == path.distance
    assert path.report.discontinuous_mass == 0


def test_a_batch_on_the_circle_equals_its_pairs():
    pairs = [random_circle(np.random.default_rng(seed), 12, 0.3) for seed in range(3)]
    ends = (Density(np.stack([p[k].values for p in pairs]), pairs[0][0].grid) for k in (0, 1))
    batch = geonet.geodesic(*ends)
    single = [geonet.geodesic(*pair) for pair in pairs]
    assert np.allclose(batch.distance, [path.distance for path in single], rtol=1e-12)
    frames = [path.density([0.4]).values for path in single]
    assert np.allclose(batch.density([0.4]).values, frames, atol=1e-12)


def test_equal_ends_on_the_circle_stand_still():
    source, _ = random_circle(np.random.default_rng(0), 15, 0.4)
    path = geonet.geodesic(source, source)
    assert path.distance == 0 and np.allclose(path.velocity(0.5, [2.2, 3.0]), 0, atol=1e-12)


GAPS = {
    "none": ((), ()),
    "apart": (((3, 6), (8, 11)), ((0, 4), (7, 9))),
    "shared": (((3, 12),), ((0, 6), (9, 12))),
}


@pytest.mark.parametrize("gaps", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("quantity", ["distance", "density", "velocity", "potential"])
def test_gradients_on_the_circle(gaps, quantity, generator):
    grid, points = Grid(12, 0, 2, periodic=True), torch.linspace(0.05, 1.9, 7).double()
    values = torch.rand(2, 12, dtype=torch.float64, generator=generator) + 0.2
    weights = torch.rand(12, dtype=torch.float64, generator=generator)
    for row, empty in zip(values, gaps, strict=True):
        for low, high in empty:
            row[low:high] = 0

    def evaluate(first):
        first = torch.where(values[0] > 0, first, 0.0)
        path = geonet.geodesic(Density(first, grid), Density(values[1], grid))
        results = {
            "distance": lambda: path.distance,
            "density": lambda: (path.density(0.4).tensor * weights).sum(),
            "velocity": lambda: (path.velocity(0.4, points)[:, 0] * weights[:7]).sum(),
            "potential": lambda: (path.potential(0.4, points) * weights[:7]).sum(),
        }
        return results[quantity]()

    first = values[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(evaluate(first), first)
    step = 1e-6 * torch.eye(12, dtype=torch.float64)
    with torch.no_grad():
        rates = [(evaluate(values[0] + e) - evaluate(values[0] - e)) / 2e-6 for e in step]
    expected = torch.where(values[0] > 0, torch.stack(rates), 0.0)
    assert torch.allclose(gradient, expected, atol=1e-5)
