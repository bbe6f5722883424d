"""The compiled loops give what torch gives, to rounding."""

import copy
import pickle

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.errors import InputError
from geonet.grid import Grid
from geonet.mixture import BOX_2D, mixtures_2d
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.certificate import both_sides, density_at, ends_of
from geonet.solvers.neural.transport.path import MidpointGeodesic
from geonet.solvers.neural.transport.potential import velocity_on_cube

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


@pytest.fixture(params=compiled.loadable())
def each_way(request, monkeypatch):
    """The answers of a function with each build of the compiled loops, and without."""

    def answers(function):
        monkeypatch.setenv("GEONET_COMPILED", request.param)
        assert compiled.build() == request.param
        first = function()
        monkeypatch.setenv("GEONET_COMPILED", "0")
        assert not compiled.available()
        return first, function()

    return answers


def apart(found, expected):
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
    return MidpointGeodesic(*ends, "by hand", {}, potentials(2, count=count, radius=0.8))


def test_they_were_compiled_here():
    """The machines that run the tests have a compiler."""
    assert compiled.available()


@GRIDS
def test_densities_between_their_cells(grid, each_way, generator):
    density = smooth(grid, 2)
    end, _ = ends_of(density.tensor, density.tensor.flip(0), grid)
    points = torch.rand(2, 300, generator=generator)
    velocity = [torch.rand(2, 3, 300, generator=generator) - 0.5 for _ in range(2)]
    for s in (torch.tensor([[0.2], [0.0], [-0.3]]), 0.5):
        ours, theirs = each_way(lambda s=s: density_at(end, points, velocity, s))
        assert bool((theirs == 0).any()) == (grid is not SQUARE)  # outside the box
        assert apart(ours, theirs) < DENSITY


@GRIDS
def test_both_sides_halfway(grid, potentials, each_way):
    coefficients = potentials(2, count=3, radius=0.8)
    source, target = smooth(grid, 3).tensor, smooth(grid, 3, 1).tensor

    def sides():
        return both_sides(coefficients, ends_of(source, target, grid), 24)

    ours, theirs = each_way(sides)
    for name in ("value", "source", "target", "determinant", "steepness"):
        assert apart(getattr(ours, name), getattr(theirs, name)) < DENSITY, name
    assert torch.allclose(ours.missing, theirs.missing, atol=DENSITY)
    for field in ("gradient", "hessian"):
        for found, expected in zip(getattr(ours, field), getattr(theirs, field), strict=True):
            assert apart(found, expected) < VELOCITY


@pytest.mark.parametrize("radius", [0.3, 1.0, 1.8])
def test_velocities(potentials, each_way, radius):
    coefficients = potentials(2, count=2, radius=radius)
    times = torch.tensor([0.0, 0.4, 0.5, 0.95])
    ours, theirs = each_way(lambda: velocity_on_cube(coefficients, times))
    for found, expected in zip(ours, theirs, strict=True):
        spread = 1 / (1 - radius / 2)  # of rounding, where particles come from nearly one place
        assert apart(found, expected) < spread * VELOCITY


@GRIDS
@pytest.mark.parametrize("shape", [None, (64, 64), (70, 129), (3, 2)], ids=str)
def test_frames_on_any_grid_of_the_box(potentials, each_way, grid, shape):
    out = grid if shape is None else grid.with_shape(shape)
    ours, theirs = each_way(lambda: path(grid, potentials).density(TIMES, out).tensor)
    assert ours.shape == theirs.shape == (3, 5, *out.shape)
    assert apart(ours, theirs) < DENSITY


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"])
def both_ways(request, monkeypatch):
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


def test_a_time_does_not_depend_on_the_others(potentials, both_ways):
    own = path(SQUARE, potentials)
    assert torch.equal(own.density(TIMES).tensor[:, 3], own.density(0.9).tensor)


def test_the_trained_solver_agrees_with_itself(each_way):
    ends = mixtures_2d(8, torch.Generator().manual_seed(5)).on(BOX_2D)
    pair = Density(ends.tensor[:4], BOX_2D), Density(ends.tensor[4:], BOX_2D)

    def answer():
        found = geonet.geodesic(*pair, "transport-2d")
        return found.density(TIMES).tensor, found.distance

    (ours, our_distance), (theirs, their_distance) = each_way(answer)
    assert apart(ours, theirs) < DENSITY
    assert apart(our_distance, their_distance) < DENSITY


def test_what_is_no_number_stays_in_bounds(potentials, both_ways):
    """C trusts its indices: a velocity of NaN must still read inside the table."""
    coefficients = potentials(2, count=2)
    coefficients[1] = torch.nan
    density = smooth(SQUARE, 2)
    ends = ends_of(density.tensor, density.tensor, SQUARE)
    sides = both_sides(coefficients, ends, 16)
    assert bool(torch.isfinite(sides.source[0]).all())
    for seen in (sides.steepness, sides.determinant):
        assert seen.isfinite().tolist() == [True, False]
    frames = MidpointGeodesic(density, density, "by hand", {}, coefficients).density(0.3).tensor
    assert frames.isfinite().flatten(1).all(1).tolist() == [True, False]
    wild = [torch.full((2, 1, 16), value) for value in (torch.inf, -torch.inf)]
    points = torch.zeros(2, 16)
    assert density_at(ends[0], points, wild, 0.5).shape == (2, 1, 16)
    assert density_at(ends[0], points, [w * torch.nan for w in wild], 0.5).shape == (2, 1, 16)


def test_a_path_can_be_copied_and_sent(potentials, both_ways):
    own = path(SQUARE, potentials)
    frames = own.density(TIMES).tensor
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert torch.equal(other.density(TIMES).tensor, frames)


@pytest.mark.parametrize("length", [1e-15, 1e18])
def test_the_size_of_the_box_does_not_matter(potentials, both_ways, length):
    values, coefficients = smooth(SQUARE, 2).tensor, potentials(2)
    frames = []
    for side in (1.0, length):
        grid = Grid(SQUARE.shape, 0.0, side)
        ends = Density(values[0] / side**2, grid), Density(values[1] / side**2, grid)
        own = MidpointGeodesic(*ends, "by hand", {}, coefficients)
        frames.append(own.density(TIMES).tensor * side**2)
    assert torch.allclose(frames[0], frames[1], rtol=1e-4)


@pytest.fixture
def afresh(by_default):
    """Libraries are looked for again, with what is changed here, and once more afterwards."""
    kept = compiled._library, compiled._own_build
    for found in kept:
        found.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    for found in kept:
        found.cache_clear()
    assert compiled.available()


def test_without_a_library_torch_does_it(potentials, afresh):
    afresh.setattr(compiled, "find_spec", lambda name: None)
    assert (compiled.build(), compiled.library_name(), compiled.loadable()) == (None, None, [])
    assert path(SQUARE, potentials).density(0.3).tensor.shape == (3, 40, 40)


def test_a_library_of_another_version_is_not_called(afresh):
    afresh.setattr(compiled, "VERSION", compiled.VERSION + 1)
    assert compiled.build() is None


def test_a_library_that_does_not_load_is_none(tmp_path, afresh):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")

    class Spec:
        origin = str(broken)

    afresh.setattr(compiled, "find_spec", lambda name: Spec)
    assert compiled.build() is None


def test_a_build_can_be_asked_for(monkeypatch):
    for name in compiled.loadable():
        monkeypatch.setenv("GEONET_COMPILED", name)
        assert compiled.build() == name
        assert compiled.library_name().startswith(f"_kernels_{name}.")
    for usual in ("1", ""):
        monkeypatch.setenv("GEONET_COMPILED", usual)
        assert compiled.build() == compiled.loadable()[-1]


def test_a_build_that_does_not_run_here_is_refused(afresh):
    afresh.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert compiled.loadable() == ["default"]
    afresh.setenv("GEONET_COMPILED", "avx2")
    with pytest.raises(InputError, match="does not run on this machine; what there is: default, 0"):
        compiled.available()
    afresh.setenv("GEONET_COMPILED", "fast")
    with pytest.raises(InputError, match="GEONET_COMPILED is 'fast'; give 0, 1, default, avx2"):
        compiled.available()
