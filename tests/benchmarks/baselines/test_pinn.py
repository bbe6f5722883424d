"""A physics-informed network per pair, with budgets of a second or two."""

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

BRIEF = Pinn(steps=1000, points=256, width=32, depth=4, modes=6)
BRIEFEST = Pinn(steps=6, points=16, width=6, depth=2, modes=3)
LINE = Grid(40, -1.0, 3.0)
OBLONG = Grid((24, 12), (0.0, 1.0), (4.0, 3.0))
SHIFT = 1.0
TIMES = [0.0, 0.3, 1.0]


def bump(grid: Grid, along: float, std: float = 0.4) -> Density:
    """A round Gaussian in the middle of the box, moved along the first axis."""
    centre = (grid.lower_tensor + grid.upper_tensor) / 2
    centre[0] += along
    return GaussianMixture.isotropic(centre[None], [std]).to_density(grid)


def shifted(grid: Grid, std: float = 0.4) -> tuple[Density, Density]:
    return bump(grid, -SHIFT / 2, std), bump(grid, SHIFT / 2, std)


@pytest.fixture(scope="module")
def on_the_line():
    return BRIEF(*shifted(LINE))


@pytest.fixture(scope="module")
def on_the_plane():
    """On a box twice as long as it is high: units along both axes must agree."""
    return BRIEF(*shifted(OBLONG, 0.35))


paths = pytest.mark.parametrize("name", ["on_the_line", "on_the_plane"])


# ---- what it learns


@paths
def test_a_shift_is_learned_five_times_better_than_linear(name, request):
    path = request.getfixturevalue(name)
    half = bump(path.grid, 0.0, 0.4 if path.grid is LINE else 0.35)
    faded = Linear()(path.source, path.target)
    assert float(l1(path.density(0.5), half)) < float(l1(faded.density(0.5), half)) / 5


@paths
def test_both_ends_are_met(name, request):
    path = request.getfixturevalue(name)
    for error in end_point_errors(path):
        assert float(error) < 0.06


@paths
def test_velocity_distance_and_particles_are_those_of_the_shift(name, request):
    path = request.getfixturevalue(name)
    d = path.grid.dimension
    along = SHIFT * torch.eye(d, dtype=torch.float64)[0]
    middle = path.source.mean() + torch.linspace(-0.2, 0.2, 5, dtype=torch.float64)[:, None] * along
    for t in TIMES:
        assert torch.allclose(path.velocity(t, middle + t * along), along, atol=0.1)
    assert float(path.distance) == pytest.approx(SHIFT, rel=0.05)
    carried = path.trajectories([1.0, 0.0, 0.5], middle)  # in any order
    assert torch.allclose(carried[0], middle + along, atol=0.05)
    assert torch.equal(carried[1], middle)
    assert torch.allclose(carried[2], middle + 0.5 * along, atol=0.05)


@paths
def test_the_velocity_is_the_gradient_of_the_potential(name, request):
    path = request.getfixturevalue(name)
    points, step = path.grid.points().reshape(-1, path.grid.dimension)[5::17], 2e-2
    points = points.clamp(path.grid.lower_tensor + step, path.grid.upper_tensor - step)
    velocity = path.velocity(0.4, points)
    for i, along in enumerate(step * torch.eye(path.grid.dimension, dtype=torch.float64)):
        above, below = (path.potential(0.4, points + s * along) for s in (1, -1))
        assert torch.allclose((above - below) / (2 * step), velocity[:, i], atol=1e-2)


@paths
def test_faces_are_not_crossed(name, request):
    """Cosines of the box's own sides: no velocity through any face."""
    path = request.getfixturevalue(name)
    for i in range(path.grid.dimension):
        for corner in ("lower", "upper"):
            face = path.grid.points().reshape(-1, path.grid.dimension)
            face[:, i] = getattr(path.grid, corner)[i]
            assert float(path.velocity(0.3, face)[:, i].abs().max()) < 1e-4


def test_equal_ends_stay():
    source = bump(LINE, 0.0)
    path = BRIEF(source, source)
    assert float(l1(path.density(0.5), source)) < 0.05
    assert float(path.distance) < 0.05


# ---- how it answers


def test_any_grid_of_the_box(on_the_plane):
    coarse = on_the_plane.density(0.5)
    finer = on_the_plane.density(0.5, OBLONG.with_shape((72, 36)))
    centres = finer.tensor[1::3, 1::3]  # every third cell has the centre of a coarse one
    assert torch.allclose(centres, coarse.tensor, atol=1e-5)


def test_the_notes(on_the_line):
    info = on_the_line.info
    assert info["steps"] == BRIEF.steps and info["seconds"] > 0
    assert 0 < info["loss"] < 0.1
    assert "loss" in str(on_the_line.report)
    json.dumps(info)


def test_more_steps_have_a_lower_loss(on_the_line):
    fewer = Pinn(steps=40, points=128, width=24, depth=3, modes=6)(*shifted(LINE))
    assert on_the_line.info["loss"] < fewer.info["loss"] / 5


def test_the_same_seed_gives_the_same_answer_and_leaves_torchs_stream():
    pair = shifted(LINE)
    state = torch.get_rng_state()
    first, again = (BRIEFEST(*pair).density(TIMES).tensor for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    torch.manual_seed(5)
    assert torch.equal(BRIEFEST(*pair).density(TIMES).tensor, first)
    other = Pinn(steps=6, points=16, width=6, depth=2, modes=3, seed=1)(*pair)
    assert float((other.density(TIMES).tensor - first).abs().max()) > 1e-3


def test_a_batch_is_its_pairs():
    first, second = shifted(LINE), (bump(LINE, 0.3), bump(LINE, -0.2, 0.5))
    source, target = (
        Density(torch.stack([a.tensor, b.tensor]), LINE) for a, b in zip(first, second, strict=True)
    )
    together = BRIEFEST(source, target)
    assert together.density(TIMES).tensor.shape == (2, 3, 40)
    assert len(together.info["loss"]) == 2
    alone = BRIEFEST(source[1], target[1])
    assert torch.equal(together.density(0.3).tensor[1], alone.density(0.3).tensor)
    assert torch.equal(together.distance[1], alone.distance)


def test_boxes_and_units_do_not_matter():
    """x → 7 + 100·x scales W2 and v once, u twice; the density, per axis, once down."""
    path = BRIEFEST(*shifted(OBLONG))
    corners = (7 + 100 * c for c in (OBLONG.lower_tensor, OBLONG.upper_tensor))
    large = Grid(OBLONG.shape, *(c.tolist() for c in corners))
    moved = BRIEFEST(*(Density(end.tensor, large) for end in shifted(OBLONG)))
    point = torch.tensor([[1.5, 2.25]], dtype=torch.float64)
    there = 7 + 100 * point
    assert torch.allclose(moved.density(0.4).tensor * 1e4, path.density(0.4).tensor, rtol=1e-3)
    assert torch.allclose(moved.distance, 100 * path.distance, rtol=1e-3)
    assert torch.allclose(moved.velocity(0.4, there), 100 * path.velocity(0.4, point), rtol=1e-3)
    assert torch.allclose(moved.potential(0.4, there), 1e4 * path.potential(0.4, point), rtol=1e-3)


def test_gradients_that_are_switched_off_do_not_matter():
    pair = shifted(LINE)
    with torch.no_grad():
        answer = BRIEFEST(*pair).density(0.5).tensor
    assert torch.equal(answer, BRIEFEST(*pair).density(0.5).tensor)
    assert not answer.requires_grad


@paths
def test_save_and_load(name, request, tmp_path):
    path = request.getfixturevalue(name)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.5]))
    assert (loaded.solver, loaded.kind, loaded.info) == ("pinn", "pinn", path.info)
    point = path.source.mean()[None]
    assert torch.equal(loaded.density(TIMES).tensor, path.density(TIMES).tensor)
    assert np.array_equal(loaded.velocity(0.3, point), path.velocity(0.3, point))
    assert np.array_equal(loaded.potential(0.3, point), path.potential(0.3, point))
    assert np.array_equal(loaded.distance, path.distance)


# ---- what it refuses


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 0),
        ("points", 3),
        ("width", 0),
        ("depth", 1),
        ("depth", 101),
        ("modes", 0),
        ("seed", -1),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
    ],
)
def test_options_are_checked(option, value):
    with pytest.raises(SolverError, match=f"{option} of pinn is {value}; give"):
        Pinn(**{option: value})


def test_the_least_of_everything_runs():
    least = Pinn(steps=1, points=4, width=1, depth=2, modes=1)
    assert bool(torch.isfinite(least(*shifted(LINE)).density(0.5).tensor).all())


def test_a_training_that_diverges_says_so():
    wild = Pinn(steps=30, points=16, width=6, depth=2, modes=3, learning_rate=1e30)
    with pytest.raises(ConvergenceError, match="no longer finite at step .*; lower its learning_"):
        wild(*shifted(LINE))


def test_three_dimensions_are_refused():
    ends = [Density(np.ones((4, 4, 4)), Grid((4, 4, 4)))] * 2
    with pytest.raises(SolverError, match="'pinn' takes 1D and 2D densities, these are 3D"):
        Pinn()(*ends)
