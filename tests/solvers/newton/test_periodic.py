"""Periodic axes of `midpoint` and `auto`: known maps, the seam, shifts, files and pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import geonet
from benchmarks.problems import CIRCLE_MAPS, CircleMap, draw_circle_maps, draw_shape
from geonet import Density, Grid
from geonet.errors import SolverError
from geonet.metrics import l1

STRIP = Grid((48, 32), 0, (1.5, 1.0), periodic=(True, False))


def shape(grid, shift, name="disc"):
    """Return a shape in the middle that is moved by whole cells, across the seam if necessary."""
    square = draw_shape(name, Grid((grid.shape[1],) * 2), scale=0.7).numpy()
    values = np.zeros(grid.shape)
    values[: grid.shape[1]] = square
    return Density(np.roll(values, shift, tuple(range(len(shift)))), grid)


@pytest.fixture(scope="module")
def seam():
    """The disc moves by a sixth of the period, from the last cells to the first ones."""
    return geonet.geodesic(shape(STRIP, (28,)), shape(STRIP, (36,)))


# ---- Known maps


@pytest.mark.parametrize(
    ("cells", "maps", "allowed"),
    [
        # errors are of the order of the squared size of cells
        ((96,), CIRCLE_MAPS[:1], 1e-3),
        ((64, 64), CIRCLE_MAPS, 4e-3),
        ((14, 14, 14), (*CIRCLE_MAPS, CircleMap(0.4, 0.3, (0.3,))), 0.03),
    ],
    ids=["1D", "2D", "3D"],
)
def test_products_of_circle_maps(cells, maps, allowed):
    grid = Grid(cells, periodic=True)
    source, middle, target = (draw_circle_maps(maps, t, grid) for t in (0.0, 0.5, 1.0))
    path = geonet.geodesic(source, target, "midpoint")
    exact = sum(each.squared_distance for each in maps) ** 0.5
    assert path.distance == pytest.approx(exact, rel=allowed)
    assert l1(path.density(0.5), middle) < max(allowed, 4e-3)
    lower, upper = (float(getattr(path.report, f"distance_{k}_bound")) for k in ("lower", "upper"))
    slack = allowed * exact  # the bounds hold for densities that are constant in cells
    assert lower <= exact + slack and exact - slack <= upper and upper - lower < 0.2 * exact


def test_one_periodic_axis_of_two():
    """The product of a circle map and a shift of a bump between two walls."""
    grid, circle = Grid((64, 48), periodic=(True, False)), CIRCLE_MAPS[1]
    x = (np.arange(48) + 0.5) / 48
    ends = []
    for t in (0.0, 0.5, 1.0):
        bump = np.exp(-((x - 0.4 - 0.2 * t) ** 2) / 0.01)
        ends.append(Density(np.outer(circle.cell_means(64, t), bump), grid))
    path = geonet.geodesic(ends[0], ends[2])
    exact = (circle.squared_distance + 0.2**2) ** 0.5
    assert path.distance == pytest.approx(exact, rel=3e-3)
    assert l1(path.density(0.5), ends[1]) < 0.01
    points = np.array([[0.3, 0.4], [0.9, 0.45]])
    assert np.allclose(path.velocity(0.0, points)[:, 1], 0.2, atol=2e-3)


# ---- The seam


def test_mass_crosses_the_seam_but_no_wall(seam):
    walls = replace(STRIP, periodic=(False, False))
    assert seam.distance == pytest.approx(8 / 32, rel=1e-3)
    assert l1(seam.density(0.5), shape(STRIP, (32,))) < 0.01
    ends = (Density(end.numpy(), walls) for end in (seam.source, seam.target))
    assert geonet.geodesic(*ends, "midpoint").distance > 1.5 * seam.distance


def test_velocities_and_trajectories_cross_the_seam(seam):
    source = seam.source.numpy()
    points = STRIP.points().numpy()[source > 0.9 * source.max()][::20]
    assert np.allclose(seam.velocity(0.0, points), [0.25, 0.0], atol=5e-3)
    outside = points + np.array([3.0, 0.0])  # two periods further
    assert np.allclose(seam.velocity(0.0, outside), seam.velocity(0.0, points))
    assert np.allclose(seam.potential(0.4, outside), seam.potential(0.4, points))
    places = seam.trajectories([0.0, 0.5, 1.0], points)
    assert np.allclose(places[1], (points + np.array([0.125, 0.0])) % [1.5, 2], atol=5e-3)
    assert (places >= 0).all() and (places[..., 0] < 1.5).all()
    assert (np.abs(np.diff(places[..., 0], axis=0)) > 1).any()  # some particles cross


@pytest.mark.parametrize("reach", [None, 0.3])
@pytest.mark.parametrize("periodic", [(True, False), (True, True)], ids=str)
def test_shifts_of_both_ends_change_nothing(periodic, reach):
    grid = replace(Grid((32, 32)), periodic=periodic)
    ends = [shape(grid, (0, 0), name).numpy() for name in ("disc", "cross")]
    results = []
    for k in (0, 16, 11):
        shift = (k, k if periodic[1] else 0)
        pair = (Density(np.roll(end, shift, (0, 1)), grid) for end in ends)
        path = geonet.geodesic(*pair, "midpoint", reach=reach)
        frame = np.roll(path.density(0.5).numpy(), (-shift[0], -shift[1]), (0, 1))
        results.append((path.distance, *path._bounds, frame))
    for *distances, frame in results[1:]:
        assert distances == pytest.approx(results[0][:3], rel=1e-9)
        assert np.abs(frame - results[0][3]).mean() < 1e-5  # deposited in single precision


def test_distances_along_periodic_axes_are_shorter():
    grid = Grid((24, 24))
    ends = [shape(grid, (shift, 0)).numpy() for shift in (-3, 3)]
    distances = [
        geonet.geodesic(*(Density(end, Grid((24, 24), periodic=own)) for end in ends)).distance
        for own in ((False, False), (True, False), (True, True))
    ]
    assert distances[0] >= distances[1] * (1 - 2e-3) and distances[1] >= distances[2] * (1 - 2e-3)


# ---- Batches, files and pictures


def test_batches_save_and_load(seam, tmp_path):
    source = Density(np.stack([seam.source.numpy(), seam.target.numpy()]), STRIP)
    target = Density(source.numpy()[::-1].copy(), STRIP)
    batch = geonet.geodesic(source, target)
    assert batch.grid.periodic == (True, False) and batch.distance.shape == (2,)
    assert np.allclose(batch.distance, seam.distance, rtol=1e-3)
    point = np.array([[1.4, 0.5]])
    for path in (batch, seam):
        loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0, 1.0]))
        assert loaded.grid == STRIP
        assert np.allclose(loaded.distance, path.distance)
        assert np.allclose(loaded.velocity(0.7, point), path.velocity(0.7, point))
        assert np.allclose(loaded.trajectories(1.0, point), path.trajectories(1.0, point))
        assert np.allclose(loaded.density(0.3).numpy(), path.density(0.3).numpy())
    fine = seam.density(0.5, STRIP.with_shape((96, 64)))
    assert fine.grid.periodic == (True, False)
    assert l1(fine.resample(STRIP), seam.density(0.5)) < 1e-3


def test_pictures(seam, tmp_path):
    for kind in ("frames", "velocity", "tracks"):
        assert seam.plot(kind=kind).axes
    assert seam.animate(tmp_path / "seam.gif", frames=3).stat().st_size
    assert seam.explore(tmp_path / "seam.html", frames=3).stat().st_size
    unbalanced = geonet.geodesic(seam.source, seam.target, reach=0.2, growth="wfr")
    assert unbalanced.animate(tmp_path / "reach.gif", frames=3).stat().st_size
    assert unbalanced.plot().axes and unbalanced.explore(tmp_path / "reach.html", frames=3).exists()


def test_barycenters_lie_between_their_densities():
    shifts = (28, 32, 36)
    result = geonet.barycenter([shape(STRIP, (shift,)) for shift in shifts], [0.3, 0.4, 0.3])
    assert l1(result.density, shape(STRIP, (32,))) < 0.03  # cells of the edge are averaged
    assert result.objective == pytest.approx(0.6 * (4 / 32) ** 2, rel=5e-3)
    assert result.lower_bound <= result.objective <= result.upper_bound


@pytest.mark.parametrize("name", ["monge-ampere", "linear-program", "universal-2d"])
def test_solvers_without_periodic_axes_name_the_others(seam, name):
    with pytest.raises(SolverError, match="takes no periodic axes.*midpoint"):
        geonet.geodesic(seam.source, seam.target, name)
