import numpy as np
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.plotting.explore import (
    LINES,
    MOMENTS,
    PARTICLES,
    QUARTERS,
    known,
    particle_tracks,
    potential_values,
    spread_over,
)


def square(rows, columns, shape=(16, 24)):
    values = torch.zeros(shape)
    values[rows, columns] = 1.0
    return Density(values, Grid(shape, (0, 0), (2, 3)))


@pytest.fixture(scope="module")
def moved():
    """A box of cells that moves by 8 cells to the right."""
    ends = square(slice(4, 12), slice(2, 10)), square(slice(4, 12), slice(10, 18))
    return geonet.geodesic(*ends, "midpoint")


def test_points_share_the_mass_evenly():
    values = torch.zeros(8, 8)
    values[1, 2], values[6, 5] = 1.0, 3.0
    points = spread_over(Density(values, Grid((8, 8))), 400)
    cells = (points * 8).floor().long()
    counts = {tuple(cell): int((cells == cell).all(-1).sum()) for cell in cells.unique(dim=0)}
    assert {tuple(map(int, cell)): count for cell, count in counts.items()} == {
        (1, 2): 100,
        (6, 5): 300,
    }


@pytest.mark.parametrize("d", [1, 2, 3])
def test_points_fill_a_uniform_box(d):
    points = spread_over(Density(torch.ones((8,) * d), Grid((8,) * d, -1, 3)), 4096)
    assert points.shape == (4096, d)
    assert bool(((points >= -1) & (points <= 3)).all())
    assert torch.allclose(points.mean(0), torch.full((d,), 1.0, dtype=torch.float64), atol=0.05)
    assert torch.equal(
        points, spread_over(Density(torch.ones((8,) * d), Grid((8,) * d, -1, 3)), 4096)
    )


def test_tracks_are_shares_of_the_box(moved):
    tracks = particle_tracks(moved)
    assert tracks.shape == (MOMENTS, PARTICLES, 2) and tracks.dtype == np.float32
    assert np.allclose(tracks[-1] - tracks[0], [0, 8 / 24], atol=0.01)
    assert np.allclose(tracks[4], (tracks[0] + tracks[-1]) / 2, atol=1e-6)


def test_the_potential_is_coarse(moved):
    values = potential_values(moved)
    assert values.shape == (QUARTERS, LINES * 16 // 24, LINES) and np.isfinite(values).all()


def test_what_a_solver_does_not_give(moved):
    why = {}
    assert known(particle_tracks, moved, why, "particles") is not None
    faded = geonet.geodesic(moved.source, moved.target, "linear")
    assert known(potential_values, faded, why, "potential") is None
    assert list(why) == ["potential"] and "gives no potential" in why["potential"]
