"""A network's potential as quadratic splines."""

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.grid import unit_box
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.numerics.cosine import CosineSeries
from geonet.numerics.splines import at_points
from geonet.solvers.neural.transport.solver import CELLS, network_potentials, splined, start_shape

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
SHAPES = {1: (64,), 2: (32, 32), 3: (12, 12, 12)}


def pairs(d, count=2):
    family, box = FAMILIES[d]
    grid = box.with_shape(SHAPES[d])
    values = family(2 * count, torch.Generator().manual_seed(4)).on(grid).tensor
    return Density(values[:count], grid), Density(values[count:], grid)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_splines_are_the_cosine_series(d):
    """To the third order in h; a wave of four half-periods turns by ⅜ in a cell of 32."""
    generator = torch.Generator().manual_seed(d)
    modes = 0.1 * torch.rand((4,) * d, dtype=torch.float64, generator=generator)
    sides = (1.0, 0.7, 0.5)[:d]
    shape = tuple(round(32 * side) for side in sides)
    c = splined(modes, shape, sides)
    assert c.shape == shape and c.dtype == torch.float64
    step = [side / n for side, n in zip(sides, shape, strict=True)]
    points = torch.rand(200, d, dtype=torch.float64, generator=generator)
    points = (0.1 + 0.8 * points) * torch.tensor(sides, dtype=torch.float64)
    jet = at_points(c, step, points)
    value, gradient = CosineSeries(modes, Grid((4,) * d)).at(points)[:2]
    assert float((jet.value - value).abs().max()) < 1e-3 * float(modes.sum())
    assert float((jet.gradient - gradient).abs().max()) < 0.02 * float(gradient.abs().max())


def test_potentials_go_on_cells_as_fine_as_a_network_sees():
    assert start_shape(Grid((16, 16))) == (16, 16)
    assert start_shape(Grid((256, 256))) == (CELLS, CELLS)
    assert start_shape(Grid(1000)) == (32,)
    assert max(start_shape(Grid((100, 25), 0.0, (2.0, 0.5)))) <= CELLS
    assert start_shape(Grid((2, 2, 2))) == (2, 2, 2)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_batch_gets_one_for_each_pair(d):
    source, target = pairs(d)
    together = network_potentials(source, target)
    assert len(together) == 2
    for k, own in enumerate(start.coefficients for start in together):
        shape = source.grid.shape if d == 2 else start_shape(source.grid)
        assert own.shape == shape and not own.requires_grad
        (start,) = network_potentials(source[k], target[k])
        alone = start.coefficients
        assert torch.allclose(own, alone, atol=1e-3 * float(alone.std()))  # single precision


@pytest.mark.parametrize("d", [1, 2])
def test_they_are_near_the_potentials_of_pairs_like_the_training(d):
    """Velocities halfway: networks are some percent off."""
    source, target = (end[0] for end in pairs(d))
    guess = network_potentials(source, target)[0].coefficients
    path = geonet.geodesic(source, target, "midpoint")
    box = unit_box(source.grid)
    generator = torch.Generator().manual_seed(7)
    points = torch.rand(400, d, dtype=torch.float64, generator=generator)
    halfway = path.density(0.5)
    weight = halfway.at(box.from_points(points * torch.tensor(box.sides)))
    points = points * torch.tensor(box.sides, dtype=torch.float64)
    step = [side / n for side, n in zip(box.sides, guess.shape, strict=True)]
    found = at_points(guess, step, points).gradient
    truth = at_points(path.coefficients, path.step, points).gradient
    off = (weight * (found - truth).square().sum(-1)).sum() / (
        weight * truth.square().sum(-1)
    ).sum()
    assert float(off.sqrt()) < 0.1


def test_on_boxes_that_are_no_squares():
    grid = Grid((24, 16), (2.0, -1.0), (5.0, 1.0))
    x, y = grid.points().unbind(-1)
    ends = Density(1.5 + torch.cos(x), grid), Density(1.5 + torch.sin(y), grid)
    guess = network_potentials(*ends)[0].coefficients
    assert guess.shape == (24, 16) and bool(torch.isfinite(guess).all())
    path = geonet.geodesic(*ends, "midpoint", start="network")
    plain = geonet.geodesic(*ends, "midpoint")
    assert float(path.distance) == pytest.approx(float(plain.distance), rel=3e-3)
