"""The compiled kernels equal torch up to rounding."""

from __future__ import annotations

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_2D
from geonet.numerics import kernels
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.certificate import pull_to_midpoint
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import solve_velocity
from geonet.solvers.neural.transport.splines import Splines

TIMES = [0.0, 0.13, 0.5, 0.9, 1.0]
SQUARE, WIDE = BOX_2D.with_shape(40), Grid((30, 45), (1.0, -2.0), (3.0, 1.0))

# Single precision is off by 6e-8 after each operation. Velocities take some ten. Densities are read
# where these lead, and may change by their own size from one of up to a hundred cells to the next.
VELOCITY, DENSITY = 1e-6, 1e-5
GRIDS = pytest.mark.parametrize("grid", [SQUARE, WIDE], ids=str)


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
@pytest.mark.parametrize("radius", [0.8, 1.8])
def test_midpoint_densities_and_velocities(grid, radius, potentials, with_and_without):
    coefficients = potentials(2, count=3, radius=radius)
    source, target = smooth(grid, 3).tensor, smooth(grid, 3, 1).tensor
    times = torch.tensor([0.0, 0.4, 0.5, 0.95])

    def evaluate():
        ends = Splines.through(source, grid), Splines.through(target, grid)
        return pull_to_midpoint(coefficients, ends, 24), solve_velocity(coefficients, times)

    (ours, our_velocity), (theirs, their_velocity) = with_and_without(evaluate)
    spread = 1 / (1 - radius / 2)  # of rounding, where particles come from nearly one place
    for name in ("value", "source", "target", "determinant", "radius"):
        first, second = getattr(ours, name), getattr(theirs, name)
        assert relative_difference(first, second) < spread * DENSITY, name
    assert torch.allclose(ours.missing, theirs.missing, atol=DENSITY)
    first = (*ours.gradient, *ours.hessian, *our_velocity)
    second = (*theirs.gradient, *theirs.hessian, *their_velocity)
    for both in zip(first, second, strict=True):
        assert relative_difference(*both) < spread * VELOCITY


@GRIDS
@pytest.mark.parametrize("shape", [None, (70, 129), (3, 2)], ids=str)
def test_frames_on_any_grid(potentials, with_and_without, grid, shape):
    out = grid if shape is None else grid.with_shape(shape)
    ours, theirs = with_and_without(lambda: path(grid, potentials).density(TIMES, out).tensor)
    assert ours.shape == theirs.shape == (3, 5, *out.shape)
    assert relative_difference(ours, theirs) < DENSITY


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"])
def kernels_on_and_off(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)


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


def test_libraries_of_other_versions_are_not_used(monkeypatch):
    compiled._declare.cache_clear()
    monkeypatch.setattr(compiled, "VERSION", compiled.VERSION + 1)
    assert not compiled.is_available()
    monkeypatch.undo()
    compiled._declare.cache_clear()
    assert compiled.is_available()
