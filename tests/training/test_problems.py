"""Problems: Gaussian mixtures, the registry, batches, and exact 1D densities."""

import math

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import ConfigError
from geonet.training import list_problems, register_problem
from geonet.training import problems as module
from geonet.training.problems import (
    add_exact_densities,
    cartesian_batch,
    exact_densities_1d,
    kronecker_points,
    make_problem,
    sensor_points,
    triples_batch,
)
from geonet.training.user_data import read_dataset

MIXTURES = ["mixtures-1d", "mixtures-2d", "mixtures-3d"]
SENSORS, PAIRS, POINTS, PLACES = 4, 6, 7, 5
FINE = Grid(2001)
TIMES = [0.0, 0.2, 0.5, 1.0]


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


# ---- registry


@pytest.mark.parametrize(
    "name", [name for name in list_problems() if name not in ("clouds", "digits", "digit-codes")]
)
def test_every_registered_problem_draws_pairs_on_a_cube(name):
    problem = make_problem(name)
    d = int(name[-2])
    assert problem.box.dimension == d and len(set(problem.box.lengths)) == 1
    points = torch.rand(6, d, generator=seeded())
    for end in problem.draw(4, seeded()):
        for values in (end(points), problem.read_sensors(end, points)):
            assert values.shape == (4, 6) and values.dtype == torch.float32
            assert bool(torch.isfinite(values).all())
    for density in problem.draw_densities(2, seeded()):
        assert density.grid == problem.box and density.batch_shape == (2,)


def test_problems_are_registered_by_name_or_named_by_location(monkeypatch):
    monkeypatch.setattr(module, "_REGISTRY", dict(module._REGISTRY))
    problem = make_problem("mixtures-1d")
    register_problem("mine", lambda: problem)
    assert make_problem("mine") is problem and "mine" in list_problems()
    assert type(make_problem("experiments.problems:Clouds")).__name__ == "Clouds"


@pytest.mark.parametrize(
    "family", ["mixtures-4d", "geonet.training.problems:nothing", "no.such.module:x", "a:b:c"]
)
def test_an_unknown_problem_is_rejected(family):
    with pytest.raises(ConfigError, match="problem.family"):
        make_problem(family)


# ---- mixtures


def in_box(unit, box):
    return box.lower_tensor + unit.double() * torch.tensor(box.lengths).double()


def integrate(box, function):
    """Return ∫ over a box by Richardson extrapolation from two grids."""
    coarse, fine = (
        function(box.with_shape(n).points().reshape(-1, box.dimension)).double().mean(-1)
        for n in {1: (1000, 2000), 2: (60, 120), 3: (20, 40)}[box.dimension]
    )
    return (4 * fine - coarse) / 3 * box.volume


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_normalised_on_the_box(name, generator):
    problem = make_problem(name)
    d, count = problem.box.dimension, 3
    mixture = problem.family(2 * count, seeded())
    mass = integrate(problem.box, mixture.pdf)
    unit = torch.rand(40, d, generator=generator)
    expected = mixture.pdf(in_box(unit, problem.box)) * problem.box.volume / mass[:, None]
    for end, density in zip(problem.draw(count, seeded()), expected.chunk(2), strict=True):
        assert torch.allclose(end(unit).double(), density, rtol=1e-3, atol=1e-5)
        means = integrate(Grid((2,) * d), lambda points, end=end: end(points.float()))
        assert torch.allclose(means, torch.ones_like(means), rtol=0, atol=1e-4)
        cells = problem.cell_means(end, 16)
        assert cells.shape == (count, 16**d)
        assert torch.allclose(cells.mean(1), torch.ones(count), atol=0.05)


@pytest.mark.parametrize("name", MIXTURES)
def test_validation_draws_the_pairs_of_training(name):
    problem = make_problem(name)
    unit = Grid(problem.box.shape).points().reshape(-1, problem.box.dimension).float()
    for end, density in zip(
        problem.draw(3, seeded()), problem.draw_densities(3, seeded()), strict=True
    ):
        relative = density.tensor.flatten(1) * problem.box.volume
        assert torch.allclose(end(unit).double(), relative, rtol=1e-2, atol=1e-3)


# ---- batches


@pytest.fixture(params=["mixtures-1d", "mixtures-3d", "file-2d"])
def problem(request, tmp_path, generator):
    if request.param in MIXTURES:
        return make_problem(request.param)
    d = int(request.param[-2])
    source, target = torch.rand(2, 9, *(5,) * d, generator=generator).numpy()
    np.savez(tmp_path / "pairs.npz", source=source, target=target)
    return read_dataset(tmp_path / "pairs.npz")


def cartesian(problem, generator, places=PLACES):
    sensors = sensor_points(SENSORS, problem.box.dimension)
    return cartesian_batch(problem, sensors, PAIRS, POINTS, places, generator)


def triples(problem, generator):
    sensors = sensor_points(SENSORS, problem.box.dimension)
    return triples_batch(problem, sensors, PAIRS, generator)


SCHEMES = pytest.mark.parametrize("scheme", [cartesian, triples])


@SCHEMES
def test_a_batch_holds_the_densities_at_sensors_and_places(scheme, problem):
    batch = scheme(problem, seeded())
    sensors = sensor_points(SENSORS, problem.box.dimension)
    drawn = problem.draw(PAIRS, seeded())  # drawn first, so these are the same pairs
    for end, own, at_sensors, at_places in zip(
        drawn,
        batch.ends,
        (batch.source, batch.target),
        (batch.source_values, batch.target_values),
        strict=True,
    ):
        places = end(batch.endpoint_points)
        expected = places.diagonal() if batch.is_paired else places
        assert torch.allclose(at_sensors, end(sensors), rtol=1e-4, atol=1e-5)
        assert torch.allclose(at_sensors, own(sensors), rtol=1e-4, atol=1e-5)
        assert torch.allclose(at_places, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dimension", "cells"), [(1, 64), (2, 8), (3, 4)])
def test_kronecker_points_are_evenly_distributed(dimension, cells):
    """No cell is empty and none has twice its share of four points, unlike for random ones."""
    points = kronecker_points(4 * cells**dimension, dimension, seeded())
    index = ((points * cells).long().clamp(max=cells - 1) * cells ** torch.arange(dimension)).sum(1)
    counts = torch.bincount(index, minlength=cells**dimension)
    assert len(counts) == cells**dimension
    assert int(counts.min()) >= 1 and int(counts.max()) <= 8


# ---- exact 1D densities


def bumps(*parts: tuple[float, float, float]):
    """Return Σ weight·N(mean, deviation²) as a function of points."""

    def density(points):
        x = points[..., 0]
        heights = [
            w * torch.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(math.tau))
            for w, m, s in parts
        ]
        total = torch.stack(heights).sum(0)
        return total if total.ndim == 2 else total[None]

    return density


@pytest.fixture
def mixtures(generator):
    """24 pairs of the paper's mixtures."""
    return make_problem("mixtures-1d").draw(24, generator)


def frame(ends, t):
    points = FINE.points().float()
    return exact_densities_1d(ends, points, torch.full((len(points),), t))


def quantile_frame(ends, t):
    source, target = (Density(end(FINE.points().float()).double(), FINE) for end in ends)
    return geonet.solver("quantile")(source, target).density(t).tensor


@pytest.mark.parametrize("t", TIMES)
def test_exact_densities_agree_with_the_quantile_solver_and_keep_the_mass(mixtures, t):
    density = frame(mixtures, t)
    assert density.shape == (24, 2001) and density.dtype == torch.float32
    error = (density - quantile_frame(mixtures, t)).abs()
    assert float(error.mean(1).max()) < 5e-4 and float(error.max()) < 0.05
    assert torch.allclose(density.mean(1), torch.ones(24), atol=3e-4)


@pytest.mark.parametrize("t", TIMES)
def test_the_path_between_gaussians_is_gaussian(t):
    ends = bumps((1, 0.3, 0.04)), bumps((1, 0.6, 0.08))
    expected = bumps((1, 0.3 + 0.3 * t, 0.04 + 0.04 * t))(FINE.points())
    assert torch.allclose(frame(ends, t).double(), expected, atol=0.02)  # heights are 5 to 10


@pytest.mark.parametrize("swapped", [False, True])
def test_mass_that_splits_or_joins(swapped):
    """Lines are far apart at the end at which the density nearly vanishes."""
    ends = bumps((0.5, 0.5, 0.05), (0.5, 0.55, 0.05)), bumps((0.3, 0.2, 0.03), (0.7, 0.8, 0.03))
    ends = ends[::-1] if swapped else ends
    for t in TIMES:
        assert float((frame(ends, t) - quantile_frame(ends, t)).abs().mean()) < 2e-3
    middle = frame(ends, 0.5)[0]
    assert float(middle[650:750].max()) > 3 and float(middle[1250:1400].max()) > 3
    assert float(middle[895:905].max()) < 0.05  # the gap stays empty


def test_exact_densities_far_from_the_mass_and_at_the_faces():
    """Densities that underflow to zero in single precision."""
    ends = bumps((1, 0.2, 0.01)), bumps((1, 0.3, 0.01))
    points = torch.tensor([[0.0], [0.25], [0.9], [1.0]])
    for t in TIMES:
        density = exact_densities_1d(ends, points, torch.full((4,), t))
        assert torch.equal(density[0, [0, 2, 3]], torch.zeros(3))
    peak = float(exact_densities_1d(ends, points, torch.full((4,), 0.5))[0, 1])
    assert peak == pytest.approx(100 / math.sqrt(math.tau), rel=0.01)
    faces = exact_densities_1d((bumps((1, 0.0, 5.0)),) * 2, points, torch.full((4,), 0.3))
    assert torch.allclose(faces, bumps((1, 0.0, 5.0))(points), rtol=1e-4)


@pytest.mark.parametrize("points", [5, 40])
def test_a_supervised_batch_has_exact_densities_at_eight_times(generator, points):
    problem, sensors = make_problem("mixtures-1d"), sensor_points(6, 1)
    batch = cartesian_batch(problem, sensors, 3, points, 0, generator)
    exact, n = add_exact_densities(batch), min(8, points)
    assert exact.points is batch.points and exact.source is batch.source
    assert torch.equal(exact.times.unique(), batch.times[:n].sort().values)
    expected = exact_densities_1d(batch.ends, batch.points, exact.times)
    assert torch.equal(exact.exact_density, expected)
