import numpy as np
import pytest
import torch

from geonet import Density, Grid
from geonet.errors import GridError
from geonet.grid import unit_box


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


# ---- periodic axes


def test_periodic_axes_are_part_of_the_grid():
    grid = Grid((4, 6), 0, (1, 2), periodic=(False, True))
    assert grid.periodic == (False, True) and grid.is_periodic
    assert Grid((4, 6), periodic=True).periodic == (True, True)
    assert Grid(3, periodic=np.bool_(True)).periodic == (True,) and not Grid(3).is_periodic
    assert grid != Grid((4, 6), 0, (1, 2)) and not grid.same_box(Grid((4, 6), 0, (1, 2)))
    assert grid.with_shape(8).periodic == unit_box(grid).cells.periodic == (False, True)
    assert grid.same_box(grid.with_shape(8))
    assert str(grid) == "4×6 cells on [0, 1]×[0, 2], periodic along axis 1"
    assert str(Grid(4, periodic=True)) == "4 cells on [0, 1], periodic"


@pytest.mark.parametrize(
    ("periodic", "message"),
    [
        ((True,), "periodic has 1 entries but the grid has 2 axes"),
        ((True, False, True), "periodic has 3 entries"),
        ((1, 0), r"periodic is \(1, 0\); give True, False or one of them per axis"),
        ("yes", "periodic is 'yes'"),
        (1, "periodic is 1"),
        (None, "periodic is None"),
    ],
)
def test_wrong_periodic_arguments_raise(periodic, message):
    with pytest.raises(GridError, match=message):
        Grid((4, 6), periodic=periodic)


def test_wrap_and_shorten_use_whole_periods():
    grid = Grid((4, 4), (1, 0), (3, 1), periodic=(True, False))
    points = torch.tensor([[0.5, 0.2], [7.25, 1.5], [1.0, 0.0], [2.9, 0.3]], dtype=torch.float64)
    assert grid.wrap(points).tolist() == [[2.5, 0.2], [1.25, 1.5], [1.0, 0.0], [2.9, 0.3]]
    moves = torch.tensor([[1.5, 0.9], [-0.75, 0.0]], dtype=torch.float64)
    assert grid.shorten(moves).tolist() == [[-0.5, 0.9], [-0.75, 0.0]]
