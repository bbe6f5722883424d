"""Properties for all shapes, types, boxes and masses."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceWarning, GeonetError
from geonet.metrics import mass_error
from geonet.solvers.base import MixtureSolver
from geonet.solvers.registry import load_solver_class

REAL = ("f2", "f4", "f8", ">f4", "u1", "i4", "u8", "?")
LAYOUTS = ("plain", "fortran", "reversed", "every other", "torch", "list")
KINDS = ("noise", "one cell", "two cells", "flat", "bumps", "wide range")


def examples(few: int, many: int):
    """Parametrise the number of examples in `make test` and in `make test-all`."""
    slow = pytest.param(many, marks=pytest.mark.slow, id="many")
    return pytest.mark.parametrize("count", [pytest.param(few, id="few"), slow])


# ---- Strategies


def shapes(dimension: int | None = None, largest: int = 9):
    """Return shapes of grids of one to three axes, or of the given dimension."""
    sizes = st.integers(2, largest)
    least, most = (dimension or 1), (dimension or 3)
    return st.lists(sizes, min_size=least, max_size=most).map(tuple)


@st.composite
def boxes(draw, shape, scales=(-80, 80)):
    """Draw a grid on a box of any size and position, with similar sides."""
    scale = 10.0 ** draw(st.integers(*scales))
    sides = [scale * draw(st.sampled_from((1.0, 0.2, 3.0))) for _ in shape]
    corner = [side * draw(st.sampled_from((0.0, -1.0, -0.3, 1000.0))) for side in sides]
    return Grid(shape, corner, [a + side for a, side in zip(corner, sides, strict=True)])


@st.composite
def arrays(draw, shape):
    """Draw non-negative values, float64."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(KINDS))
    values = rng.uniform(0, 1, shape)
    if kind in ("one cell", "two cells"):
        kept = rng.choice(values.size, 1 + (kind == "two cells"), replace=False)
        values = np.where(np.isin(np.arange(values.size).reshape(shape), kept), 1 - values, 0.0)
    elif kind == "flat":
        values = np.ones(shape)
    elif kind == "bumps":
        values = np.exp(-8 * values)
    elif kind == "wide range":
        values = 10.0 ** (-300 * values)
    return values


def laid_out(values: np.ndarray, layout: str):
    """Return the values in another memory layout or container."""
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "reversed":
        return np.ascontiguousarray(values[::-1])[::-1]
    if layout == "every other":
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if layout == "torch":
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
    return values.tolist() if layout == "list" else values


# ---- Densities


@examples(150, 3000)
def test_densities_have_mass_one_and_keep_their_input(hold, count):
    def check(data):
        shape = data.draw(shapes())
        grid = data.draw(boxes(shape, scales=(-60, 60)))
        leading = data.draw(st.sampled_from(((), (1,), (3,), (2, 3))))
        kind, layout = (data.draw(st.sampled_from(some)) for some in (REAL, LAYOUTS))
        values = _typed(
            data.draw(arrays((*leading, *shape))), kind, data.draw(st.integers(-300, 300))
        )
        given = laid_out(values, layout)
        try:
            density = Density(given, grid)
        except GeonetError as error:
            assert "zero everywhere" in str(error) or "beyond the range" in str(error)
            return
        exact = torch.from_numpy(values.astype(np.float64))
        single = density.tensor.dtype == torch.float32
        assert density.batch_shape == leading and density.tensor.shape == exact.shape
        assert bool((density.tensor >= 0).all())
        mass = density.tensor.double().flatten(-len(shape)).sum(-1) * grid.cell_volume
        assert torch.allclose(mass, torch.ones(leading, dtype=torch.float64), rtol=1e-5)
        back = density.tensor.double() * density.mass_tensor[(..., *(None,) * len(shape))]
        least = float(exact.max()) * (1e-5 if single else 1e-12)
        assert torch.allclose(back, exact, rtol=1e-5 if single else 1e-12, atol=least)

    hold(check, count, data=st.data())


def _typed(values: np.ndarray, kind: str, exponent: int) -> np.ndarray:
    """Convert values to a type, scaled to 10^exponent within its range."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        size = np.clip(10.0**exponent, float(limits.tiny), float(limits.max) / 2)
        return (values * size).astype(dtype)
    most = 1 if dtype.kind == "b" else min(np.iinfo(dtype).max, 2**50)
    return np.round(values * most).astype(dtype)


@examples(60, 1000)
def test_invalid_densities_raise_a_typed_error(hold, count):
    lists = st.lists(st.one_of(st.floats(), st.text(max_size=2)), max_size=4)
    odd = st.one_of(st.none(), st.text(max_size=3), st.complex_numbers(), st.floats(), lists)

    def check(values, shape, lower, upper):
        try:
            density = Density(values, Grid(shape, lower, upper))
        except GeonetError as error:
            assert str(error)[-1] in ".?" and "\n" not in str(error)
        else:
            assert bool(torch.isfinite(density.tensor).all())

    hold(check, count, values=odd, shape=st.one_of(shapes(1, 3), odd), lower=odd, upper=odd)


@examples(100, 2000)
def test_grids_have_distinct_cells_or_raise(hold, count):
    def check(cells, lower, upper):
        try:
            grid = Grid(cells, lower, upper)
        except GeonetError:
            return
        edges, centres = grid.edges()[0], grid.axes()[0]
        assert len(edges) == cells + 1 and len(centres) == cells
        assert bool((edges.diff() > 0).all() and (centres.diff() > 0).all())
        assert edges[0] == lower and edges[-1] == upper
        assert bool((edges[:-1] <= centres).all() and (centres <= edges[1:]).all())
        assert 0 < grid.volume < math.inf and grid.cell_volume > 0

    hold(check, count, cells=st.integers(2, 300), lower=st.floats(), upper=st.floats())


@examples(80, 1500)
def test_resampling_keeps_the_mass_of_every_region(hold, count):
    def check(data):
        shape = data.draw(shapes())
        grid = data.draw(boxes(shape, scales=(-30, 30)))
        density = Density(data.draw(arrays(shape)), grid)
        factors = [data.draw(st.integers(1, 4)) for _ in shape]
        finer = density.resample(
            grid.with_shape([n * k for n, k in zip(shape, factors, strict=True)])
        )
        blocks = finer.tensor.reshape(
            [x for pair in zip(shape, factors, strict=True) for x in pair]
        )
        means = blocks.mean(dim=tuple(range(1, 2 * len(shape), 2)))
        assert torch.allclose(means, density.tensor, rtol=1e-9, atol=1e-12 * float(means.max()))
        other = density.resample(grid.with_shape([data.draw(st.integers(2, 12)) for _ in shape]))
        assert float(other.tensor.min()) >= -1e-12 * float(other.tensor.max())
        assert float(other.tensor.sum() * other.grid.cell_volume) == pytest.approx(1, abs=1e-9)
        length = math.hypot(*grid.lengths)
        # mass moves by less than the cells of both grids
        moved = np.linalg.norm(other.mean() - density.mean())
        assert float(moved) <= length * (1 / min(shape) + 1 / min(other.grid.shape))

    hold(check, count, data=st.data())


@examples(80, 1500)
def test_samples_are_counted_in_their_cells(hold, count):
    def check(data):
        shape = data.draw(shapes(largest=5))
        grid = data.draw(boxes(shape, scales=(-40, 40)))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        unit = rng.choice([0.0, 1.0, rng.uniform()], (data.draw(st.integers(1, 20)), len(shape)))
        lower, upper = np.array(grid.lower), np.array(grid.upper)
        points = np.clip(lower + unit * (upper - lower), lower, upper)
        weights = rng.uniform(0.5, 1, len(points)) * 10.0 ** data.draw(st.integers(-100, 100))
        density = geonet.from_samples(points, grid, weights)
        edges = [edge.numpy() for edge in grid.edges()]
        counted = np.histogramdd(points, edges, weights=weights)[0]
        shares = density.numpy() * grid.cell_volume
        assert shares == pytest.approx(counted / weights.sum(), abs=1e-9)

    hold(check, count, data=st.data())


# ---- Solvers

EXACT = ("quantile", "linear", "linear-program")
TRANSPORT = ("transport-1d", "transport-2d", "transport-3d")
LEARNED = ("geonet-1d", "geonet-2d", "er-geonet-1d", "deeponet-1d")
SOLVERS = (*EXACT, *TRANSPORT, *LEARNED, "schrodinger", "bures", "monge-ampere", "auto")
LARGEST = {1: 20, 2: 7, 3: 4}
TIMES = [0.0, 0.3, 1.0]
HEAVY = (("transport-3d", 3), ("auto", 2), ("auto", 3), ("monge-ampere", 2), ("monge-ampere", 3))
NOT_UNIQUE = ("linear-program", "auto", "monge-ampere")
OPTIONS = {"schrodinger": {"max_iterations": 200}}
CASES = [
    (name, d)
    for name in SOLVERS
    for d in (1, 2, 3)
    if d in (load_solver_class(name).info.dimensions or (1, 2, 3))
]


@st.composite
def pairs(draw, name, d):
    """Draw two batches of densities; Gaussians for solvers of mixtures."""
    shape = (32,) if name == "transport-1d" else draw(shapes(d, LARGEST[d]))
    grid = draw(boxes(shape, scales=(-40, 40)))
    batch = draw(st.sampled_from((1, 2, 3)))
    ends = []
    for _ in range(2):
        if issubclass(load_solver_class(name), MixtureSolver):
            unit = torch.rand(batch, 1, d, dtype=torch.float64, generator=_generator(draw))
            means = grid.lower_tensor + unit * torch.tensor(grid.lengths, dtype=torch.float64)
            ends.append(GaussianMixture.isotropic(means, 0.3 * max(grid.lengths)).to_density(grid))
            continue
        values = np.stack([draw(arrays(shape)) for _ in range(batch)])
        values = values.astype(draw(st.sampled_from(("f4", "f8"))))
        ends.append(Density(values, grid))
    return ends


def _generator(draw) -> torch.Generator:
    return torch.Generator().manual_seed(draw(st.integers(0, 2**32)))


@examples(3, 20)
@pytest.mark.parametrize(("name", "d"), CASES)
def test_results_are_sound_or_a_typed_error(hold, name, d, count):
    def check(data):
        try:
            source, target = data.draw(pairs(name, d))
            path = _solve(name, source, target)
            frames = path.density(TIMES)
        except (GeonetError, ConvergenceWarning):
            return
        _check_frames(name, path, frames)
        _check_points(name, path)
        if name in NOT_UNIQUE or path.solver in NOT_UNIQUE:  # several solutions are right
            return
        _check_symmetries(name, source, target, frames, 2.0 ** data.draw(st.integers(-300, 300)))

    hold(check, max(1, count // 5) if (name, d) in HEAVY else count, data=st.data())


def _solve(name, source, target):
    return geonet.geodesic(source, target, name, **OPTIONS.get(name, {}))


def _check_frames(name, path, frames) -> None:
    """Check shape, sign, mass and ends, as far as the method guarantees them."""
    assert frames.tensor.shape == (*path.batch, len(TIMES), *path.grid.shape)
    assert bool(torch.isfinite(frames.tensor).all())
    if name not in LEARNED:
        assert float(frames.tensor.min()) * path.grid.volume >= -1e-9
    if name in EXACT:
        assert mass_error(frames).max() < 1e-5
    if name in (*EXACT, *TRANSPORT):
        for k, end in ((0, path.source), (-1, path.target)):
            assert _apart(frames.tensor[:, k], end.tensor, path.grid) < 1e-5


def _check_points(name, path) -> None:
    """Check that all other results are finite, and that the report can be made."""
    lower, upper = path.grid.lower_tensor, path.grid.upper_tensor
    points = torch.stack([lower, (lower + upper) / 2])
    results = {
        "distance": lambda: path.distance,
        "velocity": lambda: path.velocity(TIMES, points),
        "potential": lambda: path.potential(TIMES, points),
        "trajectories": lambda: path.trajectories(0.2, points),
    }
    with suppress(GeonetError, ConvergenceWarning):
        for what in set(load_solver_class(name).info.provides) - {"density"}:
            assert np.isfinite(np.asarray(results[what]())).all(), what
        assert str(path.report)


def _check_symmetries(name, source, target, frames, factor) -> None:
    """Check pairs of a batch, reversed time and scaled masses."""
    grid = source.grid
    with suppress(GeonetError, ConvergenceWarning):  # one may converge more slowly
        alone = _solve(name, source[0], target[0]).density(TIMES)
        assert alone.tensor.shape == (len(TIMES), *grid.shape)
        assert _apart(alone.tensor, frames.tensor[0], grid) < 1e-4
        back = _solve(name, target, source).density([1 - t for t in TIMES])
        assert _apart(back.tensor, frames.tensor, grid) < 2e-3
        if not issubclass(load_solver_class(name), MixtureSolver):
            heavy = [Density(end.tensor.double() * factor, grid) for end in (source, target)]
            assert _apart(_solve(name, *heavy).density(TIMES).tensor, frames.tensor, grid) < 1e-4


def _apart(first: Tensor, second: Tensor, grid: Grid) -> float:
    """Return the largest L1 distance."""
    change = (first.double() - second.double()).abs().flatten(-grid.dimension)
    return float(change.sum(-1).max() * grid.cell_volume)
