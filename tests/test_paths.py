"""Geodesics: arguments, masses, batches and results that a solver does not provide."""

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import FileError, GridError, InputError, UnavailableError


@pytest.fixture
def path(pair_1d):
    return geonet.geodesic(*pair_1d)


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (1.5, r"t = 1.5 is outside \[0, 1\]"),
        ([0.2, float("nan")], "t = nan is outside"),
        ([], "non-empty list"),
        ([[0.1]], r"t has shape \(1, 1\)"),
        ("half", "t is 'half'"),
    ],
)
def test_invalid_times_raise(path, t, message):
    evaluations = (
        path.density,
        lambda t: path.velocity(t, [1.0]),
        lambda t: path.trajectories(t, [1.0]),
    )
    for evaluate in evaluations:
        with pytest.raises(InputError, match=message):
            evaluate(t)


def test_invalid_grids_and_points_raise(pair_2d):
    path = geonet.geodesic(*pair_2d)
    with pytest.raises(GridError, match="another box; give a grid on the same box"):
        path.density(0.5, Grid((100, 100), 0, 1))
    with pytest.raises(GridError, match="grid is 96"):
        path.density(0.5, 96)
    with pytest.raises(GridError, match=r"shape \(5,\) do not lie in 2D; give an array \(..., 2\)"):
        path.velocity(0.5, torch.zeros(5))
    with pytest.raises(GridError, match="outside the box"):
        path.velocity(0.5, [-1.0, 2.0])
    with pytest.raises(InputError, match="'one' or 'given'"):
        path.save("a.npz", mass="two")
    with pytest.raises(InputError, match="at least"):
        path.explore("a.html", 0)
    with pytest.raises(FileError, match="the name of a file"):
        path.save(3)


@pytest.mark.parametrize("quantity", ["distance", "velocity", "potential", "trajectories"])
def test_results_that_a_solver_does_not_provide_raise(pair_1d, quantity):
    path = geonet.geodesic(*pair_1d, "linear")
    with pytest.raises(UnavailableError, match="'linear' provides no .*; choose another") as error:
        path.distance if quantity == "distance" else getattr(path, quantity)(0.5, [1.0])
    assert isinstance(error.value, NotImplementedError)


def test_the_mass_changes_linearly(pair_1d):
    source, target = (Density(m * d.tensor, d.grid) for d, m in zip(pair_1d, (5, 1), strict=True))
    path = geonet.geodesic(source, target)
    assert float(path.density(0.25).mass) == pytest.approx(4)
    frames = path.density([0, 0.5, 1], path.grid.with_shape(37))
    assert frames.mass.tolist() == pytest.approx([5, 3, 1])
    cell = frames.grid.cell_volume
    assert (frames.numpy().sum(-1) * cell).tolist() == pytest.approx([1, 1, 1])
    assert (frames.numpy(mass="given").sum(-1) * cell).tolist() == pytest.approx([5, 3, 1])


@pytest.mark.parametrize(
    ("solver", "cells"), [("quantile", 8), ("linear-program", 8), ("transport-1d", 64)]
)
def test_pairs_of_a_batch(solver, cells, generator):
    grid = Grid(cells)
    first, last = torch.rand(2, 3, cells, generator=generator).double() + 0.1
    path = geonet.geodesic(Density(first, grid), Density(last, grid), solver)
    assert len(path) == 3 and bool(path) and path.batch == (3,)
    frames = path.density([0.2, 0.7]).tensor
    for k, pair in enumerate(path):
        assert pair.batch == () and torch.allclose(pair.density([0.2, 0.7]).tensor, frames[k])
    assert torch.equal(path[-1].source.tensor, path.source.tensor[2])
    with pytest.raises(InputError, match="batch of 3"):
        path[3]
    with pytest.raises(InputError, match="single pair"):
        len(path[0])


def test_points_wrap_on_periodic_axes():
    grid = Grid((16, 12), 0, (2, 1), periodic=(True, False))
    mixtures = (geonet.GaussianMixture.isotropic([[x, 0.5]], 0.15) for x in (1.7, 0.2))
    path = geonet.geodesic(*(m.to_density(grid) for m in mixtures), "schrodinger")
    points = torch.tensor([[1.9, 0.4], [0.1, 0.6]], dtype=torch.float64)
    far = points + torch.tensor([[4.0, 0.0], [-6.0, 0.0]], dtype=torch.float64)
    for evaluate in (path.velocity, path.potential, path.trajectories):
        here, there = (torch.as_tensor(evaluate([0.0, 0.6], x)) for x in (points, far))
        assert torch.allclose(here, there, atol=1e-9)
    tracks = torch.as_tensor(path.trajectories([0.0, 0.5, 1.0], points))
    assert bool(((tracks >= 0) & (tracks <= torch.tensor([2.0, 1.0]))).all())
    assert tracks[2, 0, 0] < 1 < tracks[0, 0, 0]  # it crossed the seam
    with pytest.raises(GridError, match="outside the box"):
        path.velocity(0.5, points + torch.tensor([0.0, 1.0]))
    with pytest.raises(GridError, match="same periodic axes"):
        path.density(0.5, Grid((8, 8), 0, (2, 1)))
