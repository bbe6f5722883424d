"""The compiled loops give what torch gives."""

import copy
import pickle

import pytest
import torch

import geonet
from geonet.fields.compiled import loops as compiled
from geonet.fields.velocity import velocity_on_cube
from geonet.geodesics.midpoint.ends import Splined, Tabled, ends_of
from geonet.geodesics.midpoint.halfway import both_sides
from geonet.geodesics.midpoint.path import MidpointGeodesic
from geonet.measures.density import Density
from geonet.measures.families import BOX_2D, mixtures_2d
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline

TIMES = [0.0, 0.13, 0.5, 0.9, 1.0]
SQUARE, WIDE = BOX_2D.with_shape(40), Grid((30, 45), (1.0, -2.0), (3.0, 1.0))
TALL = Grid((45, 31), 0.0, (3.0, 2.0))
GRIDS = pytest.mark.parametrize("grid", [SQUARE, WIDE, TALL], ids=str)


@pytest.fixture
def each_way(monkeypatch):
    """The answers of a function with the compiled loops, and without."""

    def answers(function):
        monkeypatch.setenv("GEONET_COMPILED", "1")
        assert compiled.available()
        first = function()
        monkeypatch.setenv("GEONET_COMPILED", "0")
        assert not compiled.available()
        return first, function()

    return answers


def smooth(grid, count, seed=0):
    """Densities (count, *grid.shape) that do not vanish at the faces."""
    generator = torch.Generator().manual_seed(seed)
    phase = 4 * torch.rand(count, 1, 1, 2, generator=generator)
    waves = torch.cos(2 * grid.points() / max(grid.lengths) + phase).sum(-1)
    return Density(waves.exp(), grid)


def path(grid, potentials, count=3):
    ends = smooth(grid, count), smooth(grid, count, 1)
    return MidpointGeodesic(*ends, "by hand", {}, potentials(2, count=count, radius=0.8))


def test_they_were_compiled_here():
    """The machines that run the tests have a compiler."""
    assert compiled.available()


@GRIDS
def test_a_spline_is_that_of_the_cells(grid, generator):
    density = smooth(grid, 2)
    ends = ends_of(density.values, density.values.flip(0), grid)
    assert isinstance(ends[0], Splined)
    unit = torch.rand(2, 300, generator=generator) * torch.tensor(grid.lengths)[:, None]
    points = unit / max(grid.lengths)
    velocity = [torch.rand(2, 3, 300, generator=generator) - 0.5 for _ in range(2)]
    s = torch.tensor([[0.2], [0.0], [-0.3]])
    found = ends[0].at(2 * points - 1, velocity, s)
    spline = CubicSpline(density.values, grid)
    share = torch.tensor(grid.lengths) / max(grid.lengths)
    for k in range(3):
        for b in range(2):
            place = torch.stack([points[i] - s[k] * velocity[i][b, k] for i in range(2)], -1)
            inside = (place.clamp(max=1) <= share * (1 + 1e-6)).all(-1)
            where = grid.corner("lower") + place.double() * max(grid.lengths)
            expected = spline(where)[b].clamp(min=0) * inside * max(grid.lengths) ** 2
            assert torch.allclose(found[b, k].double(), expected, rtol=2e-4, atol=2e-4)


@GRIDS
def test_both_sides_halfway(grid, potentials, each_way):
    coefficients = potentials(2, count=3, radius=0.8)
    source, target = smooth(grid, 3).values, smooth(grid, 3, 1).values

    def sides():
        return both_sides(coefficients, ends_of(source, target, grid), 24)

    ours, theirs = each_way(sides)
    for name in ("value", "source", "target", "determinant", "steepness", "missing"):
        tolerance = 2e-2 if grid is not SQUARE else 2e-3  # a table is not sharp at a face inside
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert float((found - expected).abs().mean()) < tolerance, name
    assert torch.allclose(ours.value, theirs.value, atol=1e-6)
    for field in ("gradient", "hessian"):
        for found, expected in zip(getattr(ours, field), getattr(theirs, field), strict=True):
            assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("radius", [0.3, 1.0, 1.8])
def test_velocities(potentials, each_way, radius):
    coefficients = potentials(2, count=2, radius=radius)
    times = torch.tensor([0.0, 0.4, 0.5, 0.95])
    ours, theirs = each_way(lambda: velocity_on_cube(coefficients, times))
    for found, expected in zip(ours, theirs, strict=True):
        assert found.shape == expected.shape
        assert float((found - expected).abs().max()) < 1e-3
        assert float((found - expected).abs().mean()) < 1e-5


@GRIDS
@pytest.mark.parametrize("shape", [None, (64, 64), (70, 129), (3, 2)], ids=str)
def test_frames_on_any_grid_of_the_box(potentials, each_way, grid, shape):
    out = grid if shape is None else grid.with_shape(shape)
    ours, theirs = each_way(lambda: path(grid, potentials).density(TIMES, out).values)
    assert ours.shape == theirs.shape == (3, 5, *out.shape)
    assert float((ours - theirs).abs().mean() / theirs.mean()) < (2e-3 if grid is SQUARE else 2e-2)


@pytest.mark.parametrize("count", [1, 30])
def test_threads_and_batches_change_nothing(potentials, count):
    threads = torch.get_num_threads()
    together = path(SQUARE, potentials, count)
    frames = together.density(TIMES).values
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        again = path(SQUARE, potentials, count).density(TIMES).values
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(frames, again)
    assert torch.equal(together.pair(count - 1).density(TIMES).values, frames[-1])


def test_a_time_does_not_depend_on_the_others(potentials):
    own = path(SQUARE, potentials)
    assert torch.equal(own.density(TIMES).values[:, 3], own.density(0.9).values)


def test_the_trained_solver_agrees_with_itself(each_way):
    ends = mixtures_2d(8, torch.Generator().manual_seed(5)).on(BOX_2D)
    pair = Density(ends.values[:4], BOX_2D), Density(ends.values[4:], BOX_2D)

    def answer():
        found = geonet.geodesic(*pair, "transport-2d")
        return found.density(TIMES).values, found.distance

    (ours, our_distance), (theirs, their_distance) = each_way(answer)
    assert float((ours - theirs).abs().mean() / theirs.mean()) < 5e-4
    assert torch.allclose(our_distance, their_distance, rtol=1e-4)


def test_what_is_no_number_stays_in_bounds(potentials):
    """C trusts its indices: a velocity of NaN must still read inside the table."""
    coefficients = potentials(2, count=2)
    coefficients[1] = torch.nan
    density = smooth(SQUARE, 2)
    ends = ends_of(density.values, density.values, SQUARE)
    sides = both_sides(coefficients, ends, 16)
    assert bool(torch.isfinite(sides.source[0]).all())
    for seen in (sides.steepness, sides.determinant):
        assert seen.isfinite().tolist() == [True, False]
    frames = MidpointGeodesic(density, density, "by hand", {}, coefficients).density(0.3).values
    assert frames.isfinite().flatten(1).all(1).tolist() == [True, False]
    wild = [torch.full((2, 1, 16), value) for value in (torch.inf, -torch.inf)]
    points = torch.zeros(2, 16)
    assert ends[0].at(points, wild, 0.5).shape == (2, 1, 16)
    assert ends[0].at(points, [w * torch.nan for w in wild], 0.5).shape == (2, 1, 16)


def test_a_path_can_be_copied_and_sent(potentials):
    own = path(SQUARE, potentials)
    frames = own.density(TIMES).values
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert torch.equal(other.density(TIMES).values, frames)


@pytest.mark.parametrize("length", [1e-15, 1e18])
def test_the_size_of_the_box_does_not_matter(potentials, length):
    values, coefficients = smooth(SQUARE, 2).values, potentials(2)
    frames = []
    for side in (1.0, length):
        grid = Grid(SQUARE.shape, 0.0, side)
        ends = Density(values[0] / side**2, grid), Density(values[1] / side**2, grid)
        own = MidpointGeodesic(*ends, "by hand", {}, coefficients)
        frames.append(own.density(TIMES).values * side**2)
    assert torch.allclose(frames[0], frames[1], rtol=1e-4)


def test_other_dimensions_have_tables():
    for d in (1, 3):
        grid = Grid((8,) * d)
        ends = ends_of(torch.ones(1, *grid.shape), torch.ones(1, *grid.shape), grid)
        assert isinstance(ends[0], Tabled)


def test_without_a_library_torch_does_it(monkeypatch, potentials):
    monkeypatch.setattr(compiled, "_library", lambda: None)
    assert not compiled.available()
    assert path(SQUARE, potentials).density(0.3).values.shape == (3, 40, 40)


def test_a_library_of_another_version_is_not_called(monkeypatch):
    monkeypatch.setattr(compiled, "VERSION", compiled.VERSION + 1)
    compiled._library.cache_clear()
    try:
        assert compiled._library() is None
    finally:
        monkeypatch.undo()
        compiled._library.cache_clear()
        assert compiled.available()


def test_a_library_that_does_not_load_is_none(monkeypatch, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")

    class Spec:
        origin = str(broken)

    monkeypatch.setattr(compiled, "find_spec", lambda name: Spec)
    compiled._library.cache_clear()
    try:
        assert compiled._library() is None
    finally:
        compiled._library.cache_clear()
