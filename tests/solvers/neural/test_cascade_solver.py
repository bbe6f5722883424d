"""The solver of cascade models: a network, then a few steps of Newton's method."""

import pytest
import torch

import geonet
from benchmarks.pairs import KINDS, draw
from geonet import Density, Grid
from geonet.errors import SolverError
from geonet.metrics import l1
from geonet.solvers.newton import compiled

pytestmark = pytest.mark.skipif(not compiled.is_available(), reason="torch alone takes minutes")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pair_is_near_the_answer(kind):
    """W2 within a few per cent alone and a fraction of one with three steps.

    The documentation has medians ten times smaller; one pair of the hardest kinds may be worse.
    """
    source, target = draw(kind, 64)
    exact = geonet.geodesic(source, target, solver="midpoint")
    alone = geonet.geodesic(source, target, solver="universal-2d", corrections=0)
    few = geonet.geodesic(source, target, solver="universal-2d")
    assert float(alone.distance) == pytest.approx(float(exact.distance), rel=0.03)
    assert float(few.distance) == pytest.approx(float(exact.distance), rel=0.01)
    linear = geonet.geodesic(source, target, solver="linear").density(0.5)
    truth = exact.density(0.5)
    least = 0.5 if kind == "spots" else 0.25
    assert float(l1(alone.density(0.5), truth)) < least * float(l1(linear, truth))
    if kind != "spots":  # which potentials on 64² cells cannot balance, however many the steps
        assert float(l1(few.density(0.5), truth)) <= float(l1(alone.density(0.5), truth)) + 1e-3


def test_it_says_how_it_went():
    source, target = draw("shapes", 64)
    path = geonet.geodesic(source, target, solver="universal-2d", corrections=2)
    assert path.solver == "universal-2d" and path.info["model"] == "universal-2d"
    (steps,) = path.info["newton steps"]
    assert steps <= 2 and path.info["residual"] == path.residual
    assert path.info["converged"] == (path.residual <= 2 * 2e-3)
    report = path.report
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound


def test_a_batch_is_its_pairs():
    pairs = [draw(kind, 32) for kind in ("smooth", "shapes", "white-noise")]
    source, target = (
        Density(torch.stack([pair[end].tensor for pair in pairs]), Grid((32, 32))) for end in (0, 1)
    )
    path = geonet.geodesic(source, target, solver="universal-2d")
    for k, ends in enumerate(pairs):
        alone = geonet.geodesic(*ends, solver="universal-2d")
        # Sums are taken in another order, in single precision, and steps go on from there.
        assert float(l1(path[k].density(0.5), alone.density(0.5))) < 1e-3


@pytest.mark.parametrize("shape", [(16, 16), (28, 28), (40, 100), (12, 50), (130, 130)])
def test_grids_of_any_shape(shape):
    grid = Grid(shape, 0.0, [0.1 * n for n in shape])
    x, y = grid.points().unbind(-1)
    ends = [
        Density(torch.exp(-((x - a * shape[0] * 0.1) ** 2 + (y - 0.05 * shape[1]) ** 2)), grid)
        for a in (0.35, 0.6)
    ]
    path = geonet.geodesic(*ends, solver="universal-2d")
    exact = geonet.geodesic(*ends, solver="midpoint")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=5e-3)
    assert path.density(0.5).grid == grid


def test_equal_ends_stay():
    source, _ = draw("photographs", 64)
    path = geonet.geodesic(source, source, solver="universal-2d")
    assert path.info["newton steps"] == [0] and float(path.distance) < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corrections": -1}, "corrections is -1; give 0 or more"),
        ({"tolerance": 0.0}, "tolerance is 0; give a share"),
    ],
)
def test_odd_options_are_refused(options, message):
    with pytest.raises(SolverError, match=message):
        geonet.solver("universal-2d", **options)


def test_other_dimensions_are_refused(pair_1d):
    with pytest.raises(SolverError, match="takes 2D densities, these are 1D"):
        geonet.geodesic(*pair_1d, solver="universal-2d")


def test_it_says_where_it_went_astray():
    """Two small lumps far apart on fine cells, unlike its training; `auto` begins at zero there."""
    grid = Grid((64, 64), 0.0, (1.0, 3.0))
    x, y = grid.points().unbind(-1)
    ends = [
        Density(((x - a) ** 2 + (y - b) ** 2 < size).double(), grid)
        for a, b, size in ((0.3, 0.8, 0.05), (0.7, 2.2, 0.03))
    ]
    path, right = geonet.geodesic(*ends, solver="universal-2d"), geonet.geodesic(*ends)
    assert right.info["converged"] is True
    if path.info["converged"]:  # a better network may come
        assert float(path.distance) == pytest.approx(float(right.distance), rel=0.01)
    else:
        report = path.report
        assert report.distance_uncertainty is not None
        low, high = report.distance_lower_bound, report.distance_upper_bound
        assert low <= float(right.distance) * 1.001 and float(right.distance) <= high * 1.001
        assert "did not reach its tolerance" in str(report.summary())


@pytest.mark.parametrize("shape", [(16, 16, 16), (20, 14, 18)])
def test_in_three_dimensions(shape):
    """Smooth pairs, which are easy; docs/universal.md has the others."""
    grid = Grid(shape)
    x = grid.points()
    first, second = ([0.35, 0.4, 0.5], [0.6, 0.55, 0.5])
    source, target = (
        Density(torch.exp(-20 * (x - torch.tensor(middle)).square().sum(-1)) + 0.2, grid)
        for middle in (first, second)
    )
    exact = geonet.geodesic(source, target, solver="midpoint")
    alone = geonet.geodesic(source, target, solver="universal-3d", corrections=0)
    assert float(alone.distance) == pytest.approx(float(exact.distance), rel=0.02)
    linear = geonet.geodesic(source, target, solver="linear").density(0.5)
    truth = exact.density(0.5)
    assert float(l1(alone.density(0.5), truth)) < 0.25 * float(l1(linear, truth))
    started = geonet.geodesic(source, target, solver="midpoint", start="network")
    assert started.info["converged"] and started.info["start"] == "network"
    assert float(l1(started.density(0.5), truth)) < 0.005
    assert sum(started.info["newton steps"]) < sum(exact.info["newton steps"])
