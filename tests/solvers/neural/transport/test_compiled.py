"""The compiled kernels equal torch up to rounding."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_2D, mixtures_2d
from geonet.numerics import kernels
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.certificate import pull_to_midpoint
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import solve_velocity
from geonet.solvers.neural.transport.splines import Splines

TIMES = [0.0, 0.13, 0.5, 0.9, 1.0]


SQUARE, WIDE = BOX_2D.with_shape(40), Grid((30, 45), (1.0, -2.0), (3.0, 1.0))


TALL = Grid((45, 31), 0.0, (3.0, 2.0))


# Single precision is off by 6e-8 after each operation. Velocities take some ten. Densities are read
# where these lead, and may change by their own size from one of up to a hundred cells to the next.
VELOCITY, DENSITY = 1e-6, 1e-5


GRIDS = pytest.mark.parametrize("grid", [SQUARE, WIDE, TALL], ids=str)


@pytest.fixture(autouse=True)
def by_default(monkeypatch):
    """Whatever the environment asks for."""
    monkeypatch.delenv("GEONET_COMPILED", raising=False)


@pytest.fixture(
    params=[
        name if name == "default" else pytest.param(name, marks=pytest.mark.slow)
        for name in kernels.available_builds()
    ]
)
def with_and_without(request, monkeypatch):
    """The answers of a function with each build of the compiled loops, and without."""

    def answers(function):
        monkeypatch.setenv("GEONET_COMPILED", request.param)
        assert kernels.active_build() == request.param
        first = function()
        monkeypatch.setenv("GEONET_COMPILED", "0")
        assert not compiled.is_available()
        return first, function()

    return answers


def relative_difference(found, expected):
    """The largest difference, relative to the largest number."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def smooth(grid, count, seed=0):
    """Densities (count, *grid.shape) that do not vanish at the faces."""
    generator = torch.Generator().manual_seed(seed)
    phase = 4 * torch.rand(count, 1, 1, 2, generator=generator)
    waves = torch.cos(2 * grid.points() / max(grid.lengths) + phase).sum(-1)
    return Density(waves.exp(), grid)


def path(grid, potentials, count=3):
    ends = smooth(grid, count), smooth(grid, count, 1)
    return CosineGeodesic(*ends, "by hand", {}, potentials(2, count=count, radius=0.8))


@GRIDS
def test_spline_evaluation(grid, with_and_without, generator):
    density = smooth(grid, 2)
    end = Splines.through(density.tensor, grid)
    points = torch.rand(2, 300, generator=generator)
    velocity = [torch.rand(2, 3, 300, generator=generator) - 0.5 for _ in range(2)]
    for s in (torch.tensor([[0.2], [0.0], [-0.3]]), 0.5):
        ours, theirs = with_and_without(lambda s=s: end.at(points, velocity, s))
        assert bool((theirs == 0).any()) == (grid is not SQUARE)  # outside the box
        assert relative_difference(ours, theirs) < DENSITY


@GRIDS
def test_midpoint_densities(grid, potentials, with_and_without):
    coefficients = potentials(2, count=3, radius=0.8)
    source, target = smooth(grid, 3).tensor, smooth(grid, 3, 1).tensor

    def sides():
        return pull_to_midpoint(
            coefficients, (Splines.through(source, grid), Splines.through(target, grid)), 24
        )

    ours, theirs = with_and_without(sides)
    for name in ("value", "source", "target", "determinant", "radius"):
        assert relative_difference(getattr(ours, name), getattr(theirs, name)) < DENSITY, name
    assert torch.allclose(ours.missing, theirs.missing, atol=DENSITY)
    for field in ("gradient", "hessian"):
        for found, expected in zip(getattr(ours, field), getattr(theirs, field), strict=True):
            assert relative_difference(found, expected) < VELOCITY


@pytest.mark.parametrize("radius", [0.3, 1.0, 1.8])
def test_velocities(potentials, with_and_without, radius):
    coefficients = potentials(2, count=2, radius=radius)
    times = torch.tensor([0.0, 0.4, 0.5, 0.95])
    ours, theirs = with_and_without(lambda: solve_velocity(coefficients, times))
    for found, expected in zip(ours, theirs, strict=True):
        spread = 1 / (1 - radius / 2)  # of rounding, where particles come from nearly one place
        assert relative_difference(found, expected) < spread * VELOCITY


@GRIDS
@pytest.mark.parametrize("shape", [None, (64, 64), (70, 129), (3, 2)], ids=str)
def test_frames_on_any_grid(potentials, with_and_without, grid, shape):
    out = grid if shape is None else grid.with_shape(shape)
    ours, theirs = with_and_without(lambda: path(grid, potentials).density(TIMES, out).tensor)
    assert ours.shape == theirs.shape == (3, 5, *out.shape)
    assert relative_difference(ours, theirs) < DENSITY


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"])
def kernels_on_and_off(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)


@pytest.mark.parametrize("count", [1, 30])
def test_threads_and_batches_change_nothing(potentials, count):
    threads = torch.get_num_threads()
    together = path(SQUARE, potentials, count)
    frames = together.density(TIMES).tensor
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        again = path(SQUARE, potentials, count).density(TIMES).tensor
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(frames, again)
    assert torch.equal(together[count - 1].density(TIMES).tensor, frames[-1])


def test_times_are_independent(potentials, kernels_on_and_off):
    own = path(SQUARE, potentials)
    assert torch.equal(own.density(TIMES).tensor[:, 3], own.density(0.9).tensor)


def test_pretrained_solver(with_and_without):
    ends = mixtures_2d(8, torch.Generator().manual_seed(5)).to_density(BOX_2D)
    pair = Density(ends.tensor[:4], BOX_2D), Density(ends.tensor[4:], BOX_2D)

    def answer():
        found = geonet.geodesic(*pair, "transport-2d")
        return found.density(TIMES).tensor, found.distance

    (ours, our_distance), (theirs, their_distance) = with_and_without(answer)
    assert relative_difference(ours, theirs) < DENSITY
    assert relative_difference(our_distance, their_distance) < DENSITY


def test_nan_stays_in_bounds(potentials, kernels_on_and_off):
    """C trusts its indices: a velocity of NaN must still read inside the table."""
    coefficients = potentials(2, count=2)
    coefficients[1] = torch.nan
    density = smooth(SQUARE, 2)
    ends = (Splines.through(density.tensor, SQUARE),) * 2
    sides = pull_to_midpoint(coefficients, ends, 16)
    assert bool(torch.isfinite(sides.source[0]).all())
    for seen in (sides.radius, sides.determinant):
        assert seen.isfinite().tolist() == [True, False]
    frames = CosineGeodesic(density, density, "by hand", {}, coefficients).density(0.3).tensor
    assert frames.isfinite().flatten(1).all(1).tolist() == [True, False]
    wild = [torch.full((2, 1, 16), value) for value in (torch.inf, -torch.inf)]
    points = torch.zeros(2, 16)
    assert ends[0].at(points, wild, 0.5).shape == (2, 1, 16)
    assert ends[0].at(points, [w * torch.nan for w in wild], 0.5).shape == (2, 1, 16)


def test_copies_and_pickles(potentials, kernels_on_and_off):
    own = path(SQUARE, potentials)
    frames = own.density(TIMES).tensor
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert torch.equal(other.density(TIMES).tensor, frames)


@pytest.mark.parametrize("length", [1e-15, 1e18])
def test_boxes_of_any_size(potentials, kernels_on_and_off, length):
    values, coefficients = smooth(SQUARE, 2).tensor, potentials(2)
    frames = []
    for side in (1.0, length):
        grid = Grid(SQUARE.shape, 0.0, side)
        ends = Density(values[0] / side**2, grid), Density(values[1] / side**2, grid)
        own = CosineGeodesic(*ends, "by hand", {}, coefficients)
        frames.append(own.density(TIMES).tensor * side**2)
    assert torch.allclose(frames[0], frames[1], rtol=1e-4)


def test_libraries_of_other_versions_are_not_used(monkeypatch):
    compiled._declare.cache_clear()
    monkeypatch.setattr(compiled, "VERSION", compiled.VERSION + 1)
    assert not compiled.is_available()
    monkeypatch.undo()
    compiled._declare.cache_clear()
    assert compiled.is_available()
