"""Particles are counted in their cells, and drawn from densities or rounded to them."""

import pytest
import torch

from geonet import Density, Grid
from geonet.errors import DensityError, GridError, InputError
from geonet.samples import deposit, histogram, rounded, sampled

GRIDS = {
    1: Grid(6, -1.0, 2.0),
    2: Grid((3, 5), (0.0, -2.0), (1.5, 3.0)),
    3: Grid((2, 3, 4), (0.0, -1.0, 5.0), (1.0, 2.0, 7.0)),
}


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def particles_in(grid, leading=(50,)):
    share = torch.rand(*leading, grid.dimension, dtype=torch.float64, generator=seeded())
    return grid.corner("lower") + share * torch.tensor(grid.lengths, dtype=torch.float64)


def shares(density):
    """The mass in every cell."""
    return density.tensor * density.grid.cell_volume


def random_density(grid):
    return Density(torch.rand(grid.shape, dtype=torch.float64, generator=seeded(5)), grid)


# ---- counting


@pytest.mark.parametrize("d", GRIDS)
def test_a_histogram_has_the_share_of_particles_between_the_edges_of_each_cell(d):
    grid = GRIDS[d]
    particles = particles_in(grid)
    computed = histogram(particles, grid)
    assert computed.grid == grid and computed.tensor.dtype == torch.float64
    expected = torch.zeros(grid.shape, dtype=torch.float64)
    edges = grid.edges()
    for cell in torch.cartesian_prod(*map(torch.arange, grid.shape)).reshape(-1, d).tolist():
        inside = torch.ones(len(particles), dtype=torch.bool)
        for x, edge, k in zip(particles.T, edges, cell, strict=True):
            inside &= (edge[k] <= x) & (x < edge[k + 1])
        expected[tuple(cell)] = inside.double().mean()
    assert float(expected.sum()) == pytest.approx(1)  # the test's own counting misses none
    assert torch.allclose(shares(computed), expected, atol=1e-12)


@pytest.mark.parametrize("d", GRIDS)
@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_each_cloud_of_a_batch_is_counted_alone(d, leading):
    grid = GRIDS[d]
    clouds = particles_in(grid, (*leading, 20))
    together = histogram(clouds, grid).tensor
    assert together.shape == (*leading, *grid.shape)
    alone = [histogram(cloud, grid).tensor for cloud in clouds.reshape(-1, 20, d)]
    assert torch.equal(together, torch.stack(alone).reshape(together.shape))


@pytest.mark.parametrize(
    ("particle", "cell"),
    [
        ((0.0, -2.0), (0, 0)),  # on the lower faces
        ((1.5, 3.0), (2, 4)),  # on the upper faces
        ((-0.1, 0.5), (0, 2)),
        ((1e9, 0.5), (2, 2)),
        ((0.7, -50.0), (1, 0)),
        ((0.7, 3.1), (1, 4)),
        ((-9.0, 9.0), (0, 4)),
        ((0.5, -1.0), (1, 1)),  # on an edge: in the cell above it
    ],
)
def test_particles_outside_count_at_the_faces(particle, cell):
    computed = shares(histogram(torch.tensor([particle], dtype=torch.float64), GRIDS[2]))
    assert float(computed[cell]) == pytest.approx(1)
    assert int((computed > 0).sum()) == 1


def test_particles_in_single_precision_are_counted_too():
    particles = particles_in(GRIDS[2])
    assert torch.equal(
        histogram(particles.float(), GRIDS[2]).tensor, histogram(particles, GRIDS[2]).tensor
    )


@pytest.mark.parametrize(("particles", "grid"), [(1, 2), (3, 2), (2, 1), (2, 3)])
def test_particles_of_another_dimension_are_refused(particles, grid):
    with pytest.raises(GridError) as error:
        histogram(torch.zeros(7, particles), GRIDS[grid])
    assert str(error.value) == (
        f"Particles have shape (7, {particles}) and the grid is {grid}D; "
        f"give an array (..., n, {grid})."
    )


def test_counts_have_no_gradient_in_the_particles():
    particles = particles_in(GRIDS[2]).requires_grad_()
    with pytest.raises(InputError, match="no gradient in the points; .*kernel='linear'"):
        histogram(particles, GRIDS[2])
    with torch.no_grad():
        assert not histogram(particles, GRIDS[2]).tensor.requires_grad


# ---- boxes


@pytest.mark.parametrize("n", [5, 16, 30])
def test_boxes_are_deposited_exactly_on_any_grid(n, generator):
    grid = Grid((n, n), 0.0, 1.0)
    centres = 0.1 + 0.8 * torch.rand(40, 2, dtype=torch.float64, generator=generator)
    mass = torch.rand(40, dtype=torch.float64, generator=generator)
    density = deposit(centres, mass, (0.2, 0.1), grid)
    assert float(density.sum() * grid.cell_volume) == pytest.approx(float(mass.sum()))
    mean = (density[..., None] * grid.points()).sum((0, 1)) * grid.cell_volume / mass.sum()
    assert torch.allclose(
        mean, (mass[:, None] * centres).sum(0) / mass.sum(), atol=0.3 / n**2 + 1e-9
    )


# ---- rounding


@pytest.mark.parametrize("d", GRIDS)
@pytest.mark.parametrize("count", [7, 100])
def test_rounding_puts_the_rounded_share_at_every_centre(d, count):
    density = random_density(GRIDS[d])
    expected = []
    for share, centre in zip(
        shares(density).flatten().tolist(), density.grid.points().reshape(-1, d), strict=True
    ):
        expected += [centre] * round(count * share)
    computed = rounded(density, count)
    assert computed.shape == (len(expected), d) and computed.dtype == torch.float64
    assert torch.equal(computed, torch.stack(expected))


def test_what_rounding_takes_is_not_made_up_for():
    even = Density(torch.ones(5), Grid(5))
    assert len(rounded(even, 12)) == 10  # 2.4 in each cell
    assert len(rounded(even, 13)) == 15  # 2.6
    assert len(rounded(even, 2)) == 0


def test_a_cell_that_came_out_negative_has_no_particles():
    wrong = Density.as_computed(torch.tensor([-1.0, 2.0, 3.0]), Grid(3, 0.0, 3.0))
    assert rounded(wrong, 10).flatten().tolist() == [1.5] * 20 + [2.5] * 30
    drawn = sampled(wrong, 200, seeded())
    assert float(drawn.min()) >= 1


# ---- drawing


@pytest.mark.parametrize("d", GRIDS)
def test_drawn_particles_are_spread_as_the_density_is(d):
    """Each count is binomial: five standard deviations are passed by one in a million."""
    density, count = random_density(GRIDS[d]), 20_000
    drawn = sampled(density, count, seeded())
    assert drawn.shape == (count, d) and drawn.dtype == torch.float64
    expected = shares(density)
    noise = (expected * (1 - expected) / count).sqrt()
    assert bool(((shares(histogram(drawn, density.grid)) - expected).abs() < 5 * noise).all())


@pytest.mark.parametrize("d", GRIDS)
def test_drawn_particles_fill_the_cell_with_the_mass_and_no_other(d):
    grid = GRIDS[d]
    values = torch.zeros(grid.shape, dtype=torch.float64)
    values[(1,) * d] = 3.0
    drawn = sampled(Density(values, grid), 4_000, seeded())
    spacing = torch.tensor(grid.spacing, dtype=torch.float64)
    inside = (drawn - grid.corner("lower")) / spacing - 1  # from 0 to 1 in each direction
    assert float(inside.min()) >= 0 and float(inside.max()) <= 1
    deciles = (10 * inside).long().clamp(max=9)
    for along in deciles.T:
        assert bool((along.bincount(minlength=10) / 4_000 - 0.1).abs().max() < 0.025)
    if d > 1:  # directions are independent
        assert float(torch.corrcoef(inside.T)[0, 1].abs()) < 0.08


def test_the_seed_decides():
    density, generator = random_density(GRIDS[2]), seeded()
    first, second = (sampled(density, 30, generator) for _ in range(2))
    assert torch.equal(first, sampled(density, 30, seeded()))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("nowhere", [float("nan"), float("inf")])
def test_particles_that_are_nowhere_are_refused(nowhere):
    with pytest.raises(DensityError, match="Some particles are nowhere"):
        histogram(torch.tensor([[0.5], [nowhere]]), Grid(4))
