"""Fields looked up between the nodes of a table."""

import itertools

import pytest
import torch

from geonet.fields import lookup
from geonet.fields.lookup import FINER, density_table, look_up, places
from geonet.fields.matrices import unit_centres
from geonet.measures.density import Density
from geonet.measures.families import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}


def multilinear(table, points):
    """One field (*nodes) at points (N, d) of the unit cube, corner by corner."""
    last = torch.tensor(table.shape, dtype=torch.float64) - 1
    scaled = points.clamp(0, 1) * last
    first = torch.minimum(scaled.floor(), last - 1)
    value = torch.zeros(len(points), dtype=torch.float64)
    for corner in itertools.product((0, 1), repeat=table.ndim):
        offset = torch.tensor(corner, dtype=torch.float64)
        weight = torch.where(offset == 1, scaled - first, 1 - scaled + first).prod(-1)
        value += weight * table[tuple((first + offset).long().T)]
    return value


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_look_up_is_multilinear_at_where_particles_were(d, batch, generator):
    nodes, times, count = (5, 4, 6)[:d], 2, 30
    table = torch.rand(batch, 2, *nodes, generator=generator)
    points = torch.rand(d, count, generator=generator)
    velocity = [torch.randn(batch, times, count, generator=generator) / 2 for _ in range(d)]
    s = torch.tensor([[0.3], [-0.5]])
    found = look_up(table, places(2 * points - 1, velocity, s))
    assert found.shape == (2, batch, times, count)
    moved = [points[i] - s * velocity[i] for i in range(d)]
    outside = torch.stack([(m < 0) | (m > 1) for m in moved]).any(0)
    assert 0 < int(outside.sum()) < outside.numel()  # these move to the faces
    for b, t, c in itertools.product(range(batch), range(times), range(2)):
        where = torch.stack([m[b, t] for m in moved], -1).double()
        expected = multilinear(table[b, c].double(), where)
        assert torch.allclose(found[c, b, t].double(), expected, atol=1e-5)


def test_places_take_one_number_for_all_times(generator):
    points = 2 * torch.rand(2, 7, generator=generator) - 1
    velocity = [torch.randn(3, 1, 7, generator=generator) for _ in range(2)]
    assert torch.equal(
        places(points, velocity, 0.5), places(points, velocity, torch.tensor([[0.5]]))
    )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_density_at_its_own_cells_is_itself(d, generator):
    family, box = FAMILIES[d]
    density = family(2, generator).on(box)
    table = density_table(density.values, box)
    assert table.shape == (2, 1, *(FINER * n + 1 for n in box.shape))
    still = [torch.zeros(2, 1, box.size)] * d
    found = look_up(table, places(2 * unit_centres(d, box.shape[0]) - 1, still, 0.0))[0, :, 0]
    expected = density.values.flatten(1) * max(box.lengths) ** d
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_density_between_its_cells_is_near_its_formula(d, generator):
    family, box = FAMILIES[d]
    density = family(1, generator).on(box)
    points = torch.rand(d, 500, generator=generator)
    still = [torch.zeros(1, 1, 500)] * d
    found = look_up(density_table(density.values, box), places(2 * points - 1, still, 0.0))[0, 0, 0]
    expected = density.at(max(box.lengths) * points.T)[0] * max(box.lengths) ** d
    apart = (found - expected).abs().mean() / expected.mean()
    assert float(apart) < 2e-3


def test_a_table_is_never_negative():
    """Though a cubic spline overshoots where the values jump."""
    values = torch.zeros(1, 12, 12)
    values[0, 4:7, 5:9] = 1.0
    grid = Grid((12, 12))
    table = density_table(values, grid)
    assert float(table.min()) == 0
    assert float(table.max()) > 1
    lengthwise = values[0, :, 6]
    assert float(CubicSpline(lengthwise, Grid(12))(torch.linspace(0, 1, 49)[:, None]).min()) < -0.01


def test_a_box_that_is_no_cube_has_nothing_around_it():
    grid = Grid((10, 5), 0.0, (2.0, 1.0))
    table = density_table(torch.ones(1, 10, 5), grid)
    assert table.shape == (1, 1, 41, 41)
    assert torch.allclose(table[0, 0, :, :21], torch.tensor(4.0), atol=1e-4)  # of the cube
    assert bool((table[0, 0, :, 21:] == 0).all())


@pytest.mark.parametrize(("largest", "nodes"), [(2**24, 41), (20**2, 21), (39**2, 21), (40**2, 41)])
def test_large_tables_have_fewer_nodes(monkeypatch, largest, nodes):
    monkeypatch.setattr(lookup, "LARGEST", largest)
    table = density_table(torch.ones(1, 10, 10), Grid((10, 10)))
    assert table.shape == (1, 1, nodes, nodes)


def test_tables_of_densities_in_single_precision(generator):
    values = torch.rand(1, 20, generator=generator, dtype=torch.float64)
    single, double = (
        density_table(Density(v, Grid(20)).values, Grid(20)) for v in (values.float(), values)
    )
    assert single.dtype == double.dtype == torch.float32
    assert torch.allclose(single, double, atol=1e-5)
