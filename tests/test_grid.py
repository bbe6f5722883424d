import numpy as np
import pytest
import torch

from geonet import Density, Grid
from geonet.errors import GridError


def test_cell_centres_and_volumes():
    grid = Grid((4, 2), lower=(0, -1), upper=(8, 1))
    assert grid.spacing == (2.0, 1.0)
    assert grid.cell_volume == 2.0 and grid.volume == 16.0 and grid.size == 8
    assert grid.axes()[0].tolist() == [1, 3, 5, 7] and grid.axes()[1].tolist() == [-0.5, 0.5]
    assert grid.points().shape == (4, 2, 2)
    assert grid.points()[3, 0].tolist() == [7.0, -0.5]
    assert grid.edges()[1].tolist() == [-1, 0, 1]
    assert str(grid) == "4×2 cells on [0, 8]×[-1, 1]"
    assert Grid(np.int64(3), np.float32(0), 5).with_shape(7) == Grid((7,), (0.0,), (5.0,))


def test_same_box_ignores_cells_and_rounding():
    grid = Grid((3, 4), 0, 5)
    assert grid.same_box(Grid((9, 9), 0, 5 + 1e-12))
    assert not grid.same_box(Grid((3, 4), 0, 5.1))
    assert not Grid((2, 2), 0, (1, 1e-10)).same_box(Grid((2, 2), 0, (1, 9e-10)))
    assert not grid.same_box(Grid(3, 0, 5))


def test_orientation_does_not_affect_equality():
    image, plane = Grid((3, 4)), Grid((3, 4), orientation="plane")
    assert (image.orientation, plane.orientation) == ("image", "plane")
    assert image == plane and hash(image) == hash(plane)
    assert plane.with_shape(7).orientation == "plane"
    density = Density(torch.rand(3, 4), plane)
    assert density.resample(plane.with_shape(6)).grid.orientation == "plane"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((),), "at least one axis"),
        (((1, 8),), "Axis 0 has 1 cells"),
        (((float("nan"),),), "Axis 0 has nan cells"),
        ((8, float("nan"), 1), "give finite bounds"),
        (((8, 8), (0, 0, 0), 1), "lower has 3 entries but the grid has 2 axes"),
        ((8, 0, [[1]]), r"upper is \[\[1\]\]; give one number"),
        ((800, 1e6, 1e6 + 1e-6), "narrower than rounding errors: 800"),
        (((8, 8), 0, 1, "lying"), "orientation is 'lying'"),
    ],
)
def test_invalid_grids_raise(arguments, message):
    with pytest.raises(GridError, match=message):
        Grid(*arguments)
