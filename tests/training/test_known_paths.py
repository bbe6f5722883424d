"""Exact paths for supervised training: against closed forms and against the quantile solver."""

from __future__ import annotations

import math

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.training.problems import (
    FAMILIES,
    MOMENTS,
    cartesian_batch,
    exact_densities_1d,
    sensor_points,
    add_exact_densities,
)

FINE = Grid(2001)
TIMES = [0.0, 0.2, 0.5, 1.0]


def bumps(*parts: tuple[float, float, float]):
    """Σ weight·N(mean, deviation²), one density, as a function of points."""

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
    """24 pairs of the paper's."""
    return make_problem("mixtures-1d").draw(24, generator)


def frame(ends, t, grid=FINE):
    points = grid.points().float()
    return exact_densities_1d(ends, points, torch.full((len(points),), t))


def quantile_frame(ends, t):
    source, target = (Density(end(FINE.points().float()).double(), FINE) for end in ends)
    return geonet.solver("quantile")(source, target).density(t).tensor


@pytest.mark.parametrize("t", TIMES)
def test_mixtures_go_where_the_quantile_solver_has_them(mixtures, t):
    found, expected = frame(mixtures, t), quantile_frame(mixtures, t)
    assert found.shape == (24, 2001) and found.dtype == torch.float32
    off = (found - expected).abs()
    assert float(off.mean(1).max()) < 5e-4  # where the density is one on average
    assert float(off.max()) < 0.05


@pytest.mark.parametrize("t", TIMES)
def test_one_gaussian_to_another_is_a_gaussian(t):
    ends = bumps((1, 0.3, 0.04)), bumps((1, 0.6, 0.08))
    expected = bumps((1, 0.3 + 0.3 * t, 0.04 + 0.04 * t))(FINE.points())
    assert torch.allclose(frame(ends, t).double(), expected, atol=0.02)  # of heights 5 to 10


@pytest.mark.parametrize("swapped", [False, True])
def test_mass_that_splits_or_joins(swapped):
    """Where one density nearly vanishes, lines are far apart at that end only."""
    ends = bumps((0.5, 0.5, 0.05), (0.5, 0.55, 0.05)), bumps((0.3, 0.2, 0.03), (0.7, 0.8, 0.03))
    ends = ends[::-1] if swapped else ends
    for t in TIMES:
        off = (frame(ends, t) - quantile_frame(ends, t)).abs()
        assert float(off.mean()) < 2e-3
    middle = frame(ends, 0.5)[0]
    assert float(middle[650:750].max()) > 3 and float(middle[1250:1400].max()) > 3
    assert float(middle[895:905].max()) < 0.05  # nothing goes into the gap


def test_nothing_is_lost(mixtures):
    for t in TIMES:
        assert torch.allclose(frame(mixtures, t).mean(1), torch.ones(24), atol=3e-4)


def test_backwards(mixtures, generator):
    points, times = torch.rand(30, 1, generator=generator), torch.rand(30, generator=generator)
    forth = exact_densities_1d(mixtures, points, times)
    back = exact_densities_1d(mixtures[::-1], points, 1 - times)
    assert torch.allclose(forth, back, atol=1e-4)
    assert not torch.allclose(forth, exact_densities_1d(mixtures, points, 1 - times), atol=0.1)


def test_points_may_have_any_times(mixtures, generator):
    """In any order, and some twice; the answer is that of each alone."""
    points = torch.rand(5, 1, generator=generator)
    times = torch.tensor([0.7, 0.1, 0.7, 0.0, 1.0])
    together = exact_densities_1d(mixtures, points, times)
    for q in range(5):
        alone = exact_densities_1d(mixtures, points[q : q + 1], times[q : q + 1])
        assert torch.allclose(together[:, q : q + 1], alone, rtol=1e-4)


def test_far_from_all_mass_and_at_the_faces():
    """Densities that are zero in single precision, from face to face."""
    ends = bumps((1, 0.2, 0.01)), bumps((1, 0.3, 0.01))
    points = torch.tensor([[0.0], [0.25], [0.9], [1.0]])
    for t in TIMES:
        found = exact_densities_1d(ends, points, torch.full((4,), t))
        assert torch.equal(found[0, [0, 2, 3]], torch.zeros(3))
    peak = float(exact_densities_1d(ends, points, torch.full((4,), 0.5))[0, 1])
    assert peak == pytest.approx(100 / math.sqrt(math.tau), rel=0.01)
    faces = exact_densities_1d((bumps((1, 0.0, 5.0)),) * 2, points, torch.full((4,), 0.3))
    assert torch.allclose(faces, bumps((1, 0.0, 5.0))(points), rtol=1e-4)


def test_densities_that_overshoot_below_zero():
    """As splines do: what is negative counts as nothing."""
    low = [lambda x, m=m: bumps((1, m, 0.04))(x) - 0.2 for m in (0.3, 0.6)]
    cut = [lambda x, end=end: end(x).clamp(min=0) for end in low]
    found = frame(low, 0.5)
    assert torch.equal(found, frame(cut, 0.5))
    assert float(found.min()) == 0 and float(found.max()) > 5


def test_a_batch_gets_its_paths_at_few_of_its_times(generator):
    problem, sensors = make_problem("mixtures-1d"), sensor_points(6, 1)
    batch = cartesian_batch(problem, sensors, 3, 40, 0, generator)
    shown = add_exact_densities(batch)
    assert batch.exact_density is None
    for name in ("source", "target", "points"):
        assert getattr(shown, name) is getattr(batch, name)
    times, counts = shown.times.unique(return_counts=True)
    assert torch.equal(times, batch.times[:MOMENTS].sort().values)
    assert counts.tolist() == [40 // MOMENTS] * MOMENTS
    assert torch.equal(shown.exact_density, exact_densities_1d(batch.ends, batch.points, shown.times))


def test_a_batch_of_few_points(generator):
    problem, sensors = make_problem("mixtures-1d"), sensor_points(6, 1)
    batch = cartesian_batch(problem, sensors, 3, 5, 0, generator)
    assert torch.equal(add_exact_densities(batch).times, batch.times)
