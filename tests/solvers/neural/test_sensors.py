"""What the networks see of a density."""

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.solvers.neural.layers import sensed

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}


@pytest.mark.parametrize(("d", "sensors"), [(1, 60), (2, 24), (3, 10)])
def test_sensors_see_the_density_relative_to_uniform(d, sensors, generator):
    family, box = FAMILIES[d]
    density = family(2, generator).on(box)
    seen = sensed(density, sensors)
    assert (seen.shape, seen.dtype) == ((2, sensors**d), torch.float32)
    places = box.with_shape(sensors).points().reshape(-1, d)
    expected = density.at(places) * box.volume
    assert torch.allclose(seen.double(), expected, atol=5e-3)
    assert torch.allclose(seen.mean(1), torch.ones(2), atol=0.02)


def test_one_density_is_a_batch_of_one(generator):
    density = mixtures_1d(3, generator).on(BOX_1D)
    assert torch.allclose(sensed(density[1], 12), sensed(density, 12)[1:2], atol=1e-6)


def test_as_many_sensors_as_cells_see_the_cells():
    values = torch.rand(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    density = Density(values[:, :5], Grid((5, 5), 0.0, 2.0))
    assert torch.allclose(sensed(density, 5)[0].double(), density.tensor.flatten() * 4, atol=1e-5)


@pytest.mark.parametrize("corner", [0.0, -3.0])
def test_a_box_that_is_no_cube_lies_in_one_with_nothing_around(corner):
    grid = Grid((20, 10), corner, (corner + 2.0, corner + 1.0))
    seen = sensed(Density(torch.ones(20, 10), grid), 8).reshape(8, 8)
    assert torch.allclose(seen[:, :4], torch.tensor(2.0), atol=1e-5)
    assert bool((seen[:, 4:] == 0).all())


def test_size_and_place_of_the_box_do_not_matter(generator):
    density = mixtures_2d(1, generator).on(BOX_2D)
    moved = Density(density.tensor, Grid(BOX_2D.shape, 1e3, 1e3 + 1e-2))
    assert torch.allclose(sensed(density, 9), sensed(moved, 9), atol=1e-4)
