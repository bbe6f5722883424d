"""Densities read between their cells, in torch."""

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.numerics.cosine import unit_centres
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.transport.splines import BLOCK, Splines

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def at_rest(splines, points):
    """Values (B, P) at points (d, P)."""
    still = [torch.zeros(len(splines), 1, points.shape[1])] * len(points)
    return splines.at(points, still, 0.0)[:, 0]


@pytest.mark.parametrize(
    "grid",
    [
        Grid(300, 2.0, 5.0),
        Grid((30, 45), (1.0, -2.0), (3.0, 1.0)),
        Grid((24, 16), 0.0, (3.0, 2.0)),
        Grid((9, 12, 10), 0.0, (1.0, 1.0, 0.8)),
    ],
    ids=str,
)
def test_values_are_those_of_the_spline_through_the_cells(grid, generator):
    d, box = grid.dimension, unit_box(grid)
    values = torch.rand(2, *grid.shape, dtype=torch.float64, generator=generator)
    points = torch.rand(d, 300, generator=generator)
    velocity = [torch.rand(2, 3, 300, generator=generator) - 0.5 for _ in range(d)]
    s = torch.tensor([[0.2], [0.0], [-0.3]])
    found = Splines.through(values, grid).at(points, velocity, s)
    places = points.T.double() - s[..., None].double() * torch.stack(velocity, -1)
    outside = (places.clamp(0, 1) > 1.000001 * torch.tensor(box.sides)).any(-1)
    assert bool(outside.any()) == (min(box.sides) < 1)
    spline = CubicSpline(box.to_density(values), box.cells)
    expected = spline(places.flatten(1, 2)).reshape(found.shape).clamp(min=0)
    expected = expected.masked_fill(outside, 0.0)
    # A place is rounded by 1e-7, some 1e-5 of a cell, and neighbours differ by as much as values.
    assert float((found - expected).abs().max() / expected.max()) < 1e-7 * 4 * max(grid.shape)


@DIMENSIONS
def test_a_density_at_its_own_cells_is_itself(d, generator):
    family, box = FAMILIES[d]
    density = family(2, generator).on(box)
    found = at_rest(Splines.through(density.tensor, box), unit_centres(d, box.shape[0]))
    expected = unit_box(box).to_density(density.tensor).flatten(1)
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5)


@DIMENSIONS
def test_a_density_between_its_cells_is_near_its_formula(d, generator):
    family, box = FAMILIES[d]
    density = family(1, generator).on(box)
    points = torch.rand(d, 500, generator=generator)
    (found,) = at_rest(Splines.through(density.tensor, box), points)
    expected = unit_box(box).to_density(density.at(unit_box(box).from_points(points.T))[0])
    assert float((found - expected).abs().mean() / expected.mean()) < 5e-4


def test_it_is_never_negative(generator):
    """Though a cubic spline overshoots where the values jump."""
    values = torch.zeros(1, 12, 12)
    values[0, 4:7, 5:9] = 1.0
    splines = Splines.through(values, Grid((12, 12)))
    assert float(splines.coefficients.min()) < -0.1
    found = at_rest(splines, torch.rand(2, 500, generator=generator))
    assert float(found.min()) == 0
    assert float(found.max()) > 1


def test_points_outside_the_cube_move_to_its_faces():
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    splines = Splines.through(values, Grid(4))
    found = at_rest(splines, torch.tensor([[-3.0, 0.0, 1.0, 7.0]]))
    assert torch.allclose(found, torch.tensor([[0.5, 0.5, 4.5, 4.5]]), atol=1e-5)


def test_what_is_no_number_stays_none_and_in_bounds():
    splines = Splines.through(torch.ones(2, 5, 6), Grid((5, 6)))
    wild = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]).expand(2, 4)
    found = at_rest(splines, wild)
    assert found.isnan().tolist() == [[True, False, False, False]] * 2


def test_more_points_than_are_read_together(generator):
    splines = Splines.through(torch.rand(3, 40, generator=generator), Grid(40))
    points = torch.rand(1, BLOCK // 2, generator=generator)
    together = at_rest(splines, points)
    for k in range(3):
        assert torch.equal(at_rest(splines[k : k + 1], points), together[k : k + 1])


def test_one_number_serves_all_times(generator):
    splines = Splines.through(torch.rand(2, 8, 8, generator=generator), Grid((8, 8)))
    points = torch.rand(2, 7, generator=generator)
    velocity = [torch.randn(2, 1, 7, generator=generator) for _ in range(2)]
    found = splines.at(points, velocity, torch.tensor([[0.5]]))
    assert torch.equal(splines.at(points, velocity, 0.5), found)


def test_densities_in_single_precision(generator):
    values = torch.rand(1, 20, generator=generator, dtype=torch.float64)
    single, double = (
        Splines.through(Density(v, Grid(20)).tensor, Grid(20)) for v in (values.float(), values)
    )
    assert single.coefficients.dtype == double.coefficients.dtype == torch.float32
    assert torch.allclose(single.coefficients, double.coefficients, atol=1e-5)
