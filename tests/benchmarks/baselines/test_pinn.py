"""A physics-informed network for each pair, with small budgets."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import geonet
from benchmarks.baselines.pinn import Pinn
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, SolverError
from geonet.metrics import end_point_errors, l1
from geonet.solvers.linear import Linear

SHORT = Pinn(steps=400, points=128, width=24, depth=3, modes=6)
LONG = Pinn(steps=1000, points=256, width=32, depth=4, modes=6)
TINY = Pinn(steps=6, points=16, width=6, depth=2, modes=3)
LINE = Grid(40, -1.0, 3.0)
OBLONG = Grid((24, 12), (0.0, 1.0), (4.0, 3.0))
TIMES = [0.0, 0.3, 1.0]


def make_gaussian(grid: Grid, offset: float) -> Density:
    """Return a round Gaussian in the middle of the box, shifted along the first axis."""
    std = 0.4 if grid.dimension == 1 else 0.35
    centre = (grid.lower_tensor + grid.upper_tensor) / 2
    centre[0] += offset
    density = GaussianMixture.isotropic(centre[None], [std]).to_density(grid)
    return Density(density.tensor, grid)  # a torch density


def make_shift(grid: Grid) -> tuple[Density, Density]:
    """Return two Gaussians at distance one."""
    return make_gaussian(grid, -0.5), make_gaussian(grid, 0.5)


def errors_at_half(path) -> tuple[float, float]:
    """Return the L1 errors of the path and of the linear blend at t = ½."""
    middle, linear = make_gaussian(path.grid, 0.0), Linear()(path.source, path.target)
    return float(l1(path.density(0.5), middle)), float(l1(linear.density(0.5), middle))


def test_short_training_is_better_than_the_linear_blend():
    path = SHORT(*make_shift(LINE))
    ours, linear = errors_at_half(path)
    assert ours < linear / 2
    assert all(float(error) < 0.15 for error in end_point_errors(path))
    info = path.info
    assert info["steps"] == SHORT.steps and info["seconds"] > 0
    assert 0 < info["loss"] < TINY(*make_shift(LINE)).info["loss"] / 5
    assert "loss" in str(path.report)
    json.dumps(info)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [LINE, OBLONG], ids=["1D", "2D"])
def test_shift_is_learned(grid):
    path = LONG(*make_shift(grid))
    ours, linear = errors_at_half(path)
    assert ours < linear / 5
    assert all(float(error) < 0.06 for error in end_point_errors(path))
    assert float(path.distance) == pytest.approx(1, rel=0.05)
    along = torch.eye(path.grid.dimension, dtype=torch.float64)[0]
    start = path.source._mean() + torch.linspace(-0.2, 0.2, 5).double()[:, None] * along
    for t in TIMES:
        assert torch.allclose(path.velocity(t, start + t * along), along, atol=0.1)
    positions = path.trajectories([1.0, 0.0, 0.5], start)  # in any order
    assert torch.allclose(positions[0], start + along, atol=0.05)
    assert torch.equal(positions[1], start)
    assert torch.allclose(positions[2], start + 0.5 * along, atol=0.05)


@pytest.mark.parametrize("grid", [LINE, OBLONG], ids=["1D", "2D"])
def test_velocity_is_the_gradient_of_the_potential(grid):
    path = TINY(*make_shift(grid))
    points, step = path.grid.points().reshape(-1, path.grid.dimension)[5::17], 2e-2
    points = points.clamp(path.grid.lower_tensor + step, path.grid.upper_tensor - step)
    velocity = path.velocity(0.4, points)
    for i, along in enumerate(step * torch.eye(path.grid.dimension, dtype=torch.float64)):
        above, below = (path.potential(0.4, points + s * along) for s in (1, -1))
        assert torch.allclose((above - below) / (2 * step), velocity[:, i], atol=1e-2)
        for corner in (path.grid.lower, path.grid.upper):  # no velocity through the faces
            face = points.clone()
            face[:, i] = corner[i]
            assert float(path.velocity(0.3, face)[:, i].abs().max()) < 1e-4


def test_seed_determines_the_path():
    pair = make_shift(LINE)
    state = torch.get_rng_state()
    first = TINY(*pair).density(TIMES).tensor
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        assert torch.equal(TINY(*pair).density(TIMES).tensor, first)
    other = Pinn(steps=6, points=16, width=6, depth=2, modes=3, seed=1)(*pair)
    assert float((other.density(TIMES).tensor - first).abs().max()) > 1e-3


def test_units_of_the_box():
    """x → 7 + 100·x scales W2 and v by 100, u by 100² and a 2D density by 100⁻²."""
    path = TINY(*make_shift(OBLONG))
    corners = (7 + 100 * corner for corner in (OBLONG.lower_tensor, OBLONG.upper_tensor))
    large = Grid(OBLONG.shape, *(corner.tolist() for corner in corners))
    scaled = TINY(*(Density(end.tensor, large) for end in make_shift(OBLONG)))
    point = torch.tensor([[1.5, 2.25]], dtype=torch.float64)
    image = 7 + 100 * point
    assert torch.allclose(scaled.density(0.4).tensor * 1e4, path.density(0.4).tensor, rtol=1e-3)
    assert torch.allclose(scaled.distance, 100 * path.distance, rtol=1e-3)
    assert torch.allclose(scaled.velocity(0.4, image), 100 * path.velocity(0.4, point), rtol=1e-3)
    assert torch.allclose(scaled.potential(0.4, image), 1e4 * path.potential(0.4, point), rtol=1e-3)


def test_save_and_load(tmp_path):
    path = TINY(*make_shift(OBLONG))
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.5]))
    assert (loaded.solver, loaded.kind, loaded.info) == ("pinn", "pinn", path.info)
    point = path.source._mean()[None]
    assert torch.equal(loaded.density(TIMES).tensor, path.density(TIMES).tensor)
    assert np.array_equal(loaded.velocity(0.3, point), path.velocity(0.3, point))
    assert np.array_equal(loaded.distance, path.distance)


@pytest.mark.parametrize(
    ("option", "value"),
    [("steps", 0), ("points", 3), ("depth", 101), ("seed", -1), ("learning_rate", math.nan)],
)
def test_wrong_options_raise(option, value):
    with pytest.raises(SolverError, match=f"{option} of pinn is {value}; give"):
        Pinn(**{option: value})


def test_divergence_raises():
    solver = Pinn(steps=30, points=16, width=6, depth=2, modes=3, learning_rate=1e30)
    with pytest.raises(ConvergenceError, match="no longer finite at step .*learning_rate"):
        solver(*make_shift(LINE))
