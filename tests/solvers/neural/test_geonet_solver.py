"""A trained model as a solver, straight after training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet._toml import from_table
from geonet.errors import SolverError, UnavailableError
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural import deeponet as learned
from geonet.solvers.neural import model as opening
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build, save_model
from geonet.training.config import TrainingConfig
from geonet.training.loop import train

TINY = {
    "name": "tiny",
    "problem": {"family": "mixtures-1d"},
    "steps": 5,
    "model": {
        "sensors": 12,
        "rank": 6,
        "branch": {"width": 8, "depth": 3},
        "trunk": {"width": 8, "depth": 3},
    },
    "sampling": {"pairs": 4, "points": 6, "places": 5},
    "optimizer": {"warmup": 0, "learning_rate": 0.02},
    "validation": {"pairs": 2},
}
TIMES = [0.0, 0.3, 1.0]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A 1D model, trained for a few steps."""
    outcome = train(from_table(TrainingConfig, TINY), tmp_path_factory.mktemp("tiny"))
    return str(outcome.model)


@pytest.fixture(scope="module")
def plane_model(tmp_path_factory) -> str:
    """A 2D model with random weights."""
    settings = GeONetSettings(
        dimension=2,
        sensors=10,
        rank=6,
        swap_symmetry="both",
        branch=Branch(width=8, depth=3),
        trunk=Trunk(width=8, depth=3),
    )
    file = tmp_path_factory.mktemp("plane") / "plane.safetensors"
    return str(save_model(file, build(settings, 0), {"name": "plane"}))


@pytest.fixture(scope="module")
def entropic_model(tmp_path_factory) -> str:
    """A 1D model of the Schrödinger bridge with ε = 0.2, trained for a few steps."""
    table = TINY | {
        "model": TINY["model"] | {"swap_symmetry": "density"},
        "loss": {"epsilon": 0.2},
        "validation": {"pairs": 0},
    }
    outcome = train(from_table(TrainingConfig, table), tmp_path_factory.mktemp("entropic"))
    return str(outcome.model)


@pytest.fixture
def pairs(generator) -> tuple[Density, Density]:
    """Three pairs of the paper's 1D mixtures."""
    source, target = (mixtures_1d(3, generator).on(BOX_1D) for _ in range(2))
    return source, target


def _blobs(grid: Grid, count: int = 2) -> tuple[Density, Density]:
    """Pairs of round bumps well inside [0, 1]² of a 2D grid."""
    places = torch.rand(2, count, 1, 2, generator=torch.Generator().manual_seed(0)).double()
    source, target = (GaussianMixture.isotropic(0.4 + 0.2 * ends, 0.09).on(grid) for ends in places)
    return source, target


# ---- one pair and many


def test_one_pair_and_a_batch(model, pairs, generator):
    many = geonet.geodesic(*pairs, solver=model)
    assert (many.solver, many.notes) == ("geonet", {"model": "tiny"})
    assert many.density(TIMES).tensor.shape == (3, 3, 100)
    assert many.distance.shape == (3,)
    points = 10 * torch.rand(4, 1, generator=generator)
    for k in range(3):
        one = geonet.geodesic(pairs[0][k], pairs[1][k], solver=model)
        assert one.density(TIMES).tensor.shape == (3, 100)
        for together, alone in (
            (many.density(TIMES).tensor[k], one.density(TIMES).tensor),
            (many.distance[k], one.distance),
            (many.velocity(TIMES, points)[k], one.velocity(TIMES, points)),
            (many.potential(TIMES, points)[k], one.potential(TIMES, points)),
            (many.trajectories(TIMES, points)[k], one.trajectories(TIMES, points)),
        ):
            assert together.shape == alone.shape
            assert together.dtype == torch.float64
            assert torch.allclose(together, alone, rtol=1e-4, atol=1e-6)
    apart = (many.density(0.5).tensor[0] - many.density(0.5).tensor[1]).abs().max()
    assert float(apart) > 1e-4  # the pairs are not all answered alike


def test_a_report(model, pairs):
    path = geonet.geodesic(*pairs, solver=model)
    report = path.report
    assert report.distance == path.distance.tolist()
    assert all(math.isfinite(e) for e in report.mass_error + report.source_error)
    assert "tiny" in str(report)


def test_gradients_and_single_precision_do_not_change_answers(model, pairs):
    source = Density(pairs[0].tensor.float().requires_grad_(), BOX_1D)
    path = geonet.geodesic(source, pairs[1], solver=model)
    frames = path.density(0.4).tensor
    assert frames.requires_grad
    expected = geonet.geodesic(*pairs, solver=model).density(0.4).tensor
    assert torch.allclose(frames, expected, atol=1e-6)


def test_swap_symmetry_is_built_in(plane_model, generator):
    ends = _blobs(Grid((12, 12)))
    forth, back = (geonet.geodesic(*pair, solver=plane_model) for pair in (ends, ends[::-1]))
    assert torch.allclose(forth.density(0.3).tensor, back.density(0.7).tensor, atol=1e-6)
    points = torch.rand(5, 2, generator=generator)
    assert torch.allclose(forth.velocity(0.3, points), -back.velocity(0.7, points), atol=1e-6)
    assert torch.allclose(forth.distance, back.distance, rtol=1e-4)


# ---- other grids and boxes


def test_density_on_other_grids(model, pairs):
    """One function of (x, t), read off at the centres of whatever cells."""
    path = geonet.geodesic(*pairs, solver=model)
    finer = path.density(TIMES, grid=BOX_1D.with_shape(300))
    assert finer.tensor.shape == (3, 3, 300)
    assert torch.allclose(finer.tensor[..., 1::3], path.density(TIMES).tensor, atol=1e-6)


@pytest.mark.parametrize(("corner", "scale"), [(0.0, 0.1), (-40.0, 7.0), (1e5, 1e4)])
def test_everything_scales_with_the_box(model, pairs, corner, scale):
    """x → corner + scale·x: W2 and v scale once, u twice, the density once down."""
    moved = [Density(end.tensor, Grid(100, corner, corner + 10 * scale)) for end in pairs]
    path, other = (geonet.geodesic(*ends, solver=model) for ends in (pairs, moved))
    points = torch.linspace(0.5, 9.5, 7, dtype=torch.float64)[:, None]
    there = corner + scale * points
    for ours, theirs, power in (
        (path.density(TIMES).tensor, other.density(TIMES).tensor, -1),
        (path.distance, other.distance, 1),
        (path.velocity(TIMES, points), other.velocity(TIMES, there), 1),
        (path.potential(TIMES, points), other.potential(TIMES, there), 2),
    ):
        unit = ours.abs().max()
        assert float(unit) > 0
        assert torch.allclose(ours / unit, theirs / scale**power / unit, atol=2e-5)


@pytest.mark.parametrize("upper", [(2.0, 1.0), (1.0, 2.0)])
def test_a_box_that_is_no_cube_lies_in_one(plane_model, upper, generator):
    """The answer is that of the same densities in the cube, with nothing in the rest of it."""
    shape = tuple(int(20 * length) for length in upper)
    box, cube = Grid(shape, 0.0, upper), Grid((40, 40), 0.0, 2.0)
    ends = _blobs(box)
    inside = tuple(slice(n) for n in shape)
    padded = []
    for end in ends:
        values = torch.zeros(2, 40, 40, dtype=torch.float64)
        values[:, inside[0], inside[1]] = end.tensor
        padded.append(Density(values, cube))
    path, other = (geonet.geodesic(*pair, solver=plane_model) for pair in (ends, padded))
    frames, expected = path.density(TIMES).tensor, other.density(TIMES).tensor
    assert frames.shape == (2, 3, *shape)
    scale = float(expected.abs().max())
    assert torch.allclose(frames, expected[:, :, inside[0], inside[1]], atol=1e-4 * scale)
    points = 0.9 * torch.rand(6, 2, generator=generator)
    assert torch.allclose(path.velocity(0.3, points), other.velocity(0.3, points), atol=1e-3)


# ---- velocity, potential, distance


@pytest.mark.parametrize("d", [1, 2])
def test_velocity_is_the_gradient_of_the_potential(model, plane_model, pairs, d, generator):
    ends, length = (pairs, 10.0) if d == 1 else (_blobs(Grid((12, 12), 0.0, 3.0)), 3.0)
    path = geonet.geodesic(*ends, solver=model if d == 1 else plane_model)
    points = length * (0.1 + 0.8 * torch.rand(20, d, generator=generator).double())
    velocity, step = path.velocity(TIMES, points), 5e-3 * length
    for i in range(d):
        shift = step * torch.eye(d, dtype=torch.float64)[i]
        above, below = (path.potential(TIMES, points + s * shift) for s in (1, -1))
        slope = (above - below) / (2 * step)
        assert torch.allclose(slope, velocity[..., i], atol=2e-3 * float(velocity.abs().max()))


# ---- saved paths


@pytest.mark.parametrize("single", [True, False])
def test_save_and_load(model, pairs, tmp_path, single):
    ends = (pairs[0][0], pairs[1][0]) if single else pairs
    path = geonet.geodesic(*ends, solver=model)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0, 0.5]))
    assert (loaded.solver, loaded.notes, loaded.batch) == (path.solver, path.notes, path.batch)
    finer = BOX_1D.with_shape(37)
    assert torch.equal(loaded.density(TIMES, finer).tensor, path.density(TIMES, finer).tensor)
    points = np.linspace(1, 9, 5)
    assert torch.equal(loaded.velocity(TIMES, points), path.velocity(TIMES, points))
    assert torch.equal(loaded.potential(TIMES, points), path.potential(TIMES, points))
    assert torch.equal(loaded.distance, path.distance)


def test_a_saved_path_of_a_plane_and_of_a_bridge(plane_model, entropic_model, pairs, tmp_path):
    for file, ends in ((plane_model, _blobs(Grid((12, 8)))), (entropic_model, pairs)):
        path = geonet.geodesic(*ends, solver=file)
        loaded = geonet.load(path.save(tmp_path / "path.npz"))
        assert torch.equal(loaded.density(0.3).tensor, path.density(0.3).tensor)
        points = torch.full((1, path.grid.dimension), 0.5)
        assert torch.equal(loaded.velocity(0.3, points), path.velocity(0.3, points))
        assert loaded.notes == path.notes


# ---- the cache


@pytest.fixture
def counted(model, pairs, monkeypatch):
    """A solver with an empty cache, and the list of what its density's trunk is asked."""
    opening._opened.cache_clear()
    solver = geonet.solver(model)
    trunk = solver(*pairs).bases.model.density.trunk
    whole, asked = trunk.features, []

    def features(z):
        asked.append(z)
        return whole(z)

    monkeypatch.setattr(trunk, "features", features)
    return solver, asked


def test_a_second_pair_does_not_ask_the_trunk_again(counted, model, pairs):
    solver, asked = counted
    first = solver(*pairs)
    frames = first.density(TIMES)
    assert len(asked) == len(TIMES)
    second = solver(*pairs[::-1])
    assert not torch.equal(second.density(TIMES).tensor, frames.tensor)
    assert torch.equal(first.density(TIMES).tensor, frames.tensor)
    third = geonet.geodesic(*pairs, solver=model)  # by the name of the file, too
    assert torch.equal(third.density(TIMES).tensor, frames.tensor)
    assert len(asked) == len(TIMES)


def test_another_grid_or_another_time_is_asked_for(counted, pairs):
    solver, asked = counted
    path = solver(*pairs)
    path.density(0.0)
    path.density(0.0, BOX_1D.with_shape(50))
    path.density([0.0, 0.4])
    moved = solver(*(Density(end.tensor, Grid(100, 1.0, 11.0)) for end in pairs))
    moved.density(0.0)
    assert len(asked) == 4
    path.density([0.4, 0.0])
    assert len(asked) == 4


def test_the_cache_is_bounded(counted, pairs, monkeypatch):
    solver, asked = counted
    path = solver(*pairs)
    path.density(0.0)
    one = path.bases.on_grid(BOX_1D, 0.0).nbytes
    monkeypatch.setattr(learned, "CACHED_BYTES", 3 * one)
    path.density([0.1, 0.2])
    path.density(0.0)  # the oldest is now 0.1
    path.density(0.3)
    assert len(asked) == 4
    path.density([0.0, 0.2, 0.3])
    assert len(asked) == 4
    path.density(0.1)
    assert len(asked) == 5
    monkeypatch.setattr(learned, "CACHED_BYTES", 0)
    path.density(TIMES)  # nothing can be kept, and it still answers


def test_answers_are_no_part_of_the_cache(counted, pairs):
    path = counted[0](*pairs)
    frames = path.density(TIMES)
    expected = frames.tensor.clone()
    frames.tensor.zero_()
    assert torch.equal(path.density(TIMES).tensor, expected)


# ---- entropy


def test_a_bridge_has_no_distance(entropic_model, pairs):
    path = geonet.geodesic(*pairs, solver=entropic_model)
    with pytest.raises(UnavailableError, match="'geonet' gives no distance"):
        path.distance  # noqa: B018
    assert path.report.distance is None
    assert path.notes["epsilon"] == pytest.approx(0.2)


def test_the_velocity_of_a_bridge(entropic_model, pairs):
    """v = ∇u + ε∇log μ, where there is mass; finite anywhere."""
    path, step = geonet.geodesic(*pairs, solver=entropic_model), 0.02
    everywhere = path.velocity([0.0, 0.5, 1.0], torch.linspace(0, 10, 101)[:, None])
    assert bool(torch.isfinite(everywhere).all())
    cells = Grid(200, 0.0, 10.0)
    x = cells.points()[1:-1]
    density = path.density(0.5, cells).tensor
    score = (density[:, 2:] - density[:, :-2]) / (2 * cells.spacing[0]) / density[:, 1:-1]
    slope = (path.potential(0.5, x + step) - path.potential(0.5, x - step)) / (2 * step)
    velocity = path.velocity(0.5, x)[..., 0]
    massive = density[:, 1:-1] > 0.02
    assert int(massive.sum()) > 20
    expected = (slope + 0.2 * score)[massive]
    scale = float(expected.abs().max())
    assert torch.allclose(velocity[massive], expected, atol=5e-3 * scale)
    assert float((0.2 * score)[massive].abs().max()) > 0.05 * scale  # the term counts


def test_epsilon_scales_with_the_box(entropic_model, pairs):
    """Trained with ε = 0.2 on [0, 10], the model has ε = 0.05 on a box of half the size."""
    half = [Density(end.tensor, Grid(100, 0.0, 5.0)) for end in pairs]
    path, other = (geonet.geodesic(*ends, solver=entropic_model) for ends in (pairs, half))
    assert other.notes["epsilon"] == pytest.approx(0.05)
    ours, theirs = path.velocity(0.5, [[4.0]]), other.velocity(0.5, [[2.0]])
    assert torch.allclose(ours, 2 * theirs, rtol=1e-4)


# ---- what is refused


def test_the_wrong_dimension(model, plane_model, pairs):
    plane = _blobs(Grid((8, 8)))
    with pytest.raises(SolverError, match=r"takes 1D densities, these are 2D; choose another"):
        geonet.geodesic(*plane, solver=model)
    with pytest.raises(SolverError, match=r"takes 2D densities, these are 1D; choose another"):
        geonet.geodesic(*pairs, solver=plane_model)


def test_options_are_refused(model):
    with pytest.raises(SolverError, match="has no option 'floor'; it takes"):
        geonet.solver(model, floor=0.1)


def test_the_file_is_read_once(model, pairs, monkeypatch):
    before = geonet.geodesic(*pairs, solver=model).density(0.5).tensor
    monkeypatch.setattr(opening, "load_model", lambda *_: pytest.fail("read again"))
    assert torch.equal(geonet.geodesic(*pairs, solver=model).density(0.5).tensor, before)


def test_another_model_under_the_same_name_is_read(pairs, tmp_path):
    """As after a training that went on: the old path keeps its model, a new one has the new."""
    settings = from_table(TrainingConfig, TINY).model
    file = tmp_path / "model.safetensors"
    paths, frames = [], []
    for seed in (0, 1):
        save_model(file, build(settings, seed), {})
        paths.append(geonet.geodesic(*pairs, solver=str(file)))
        frames.append(paths[-1].density(0.5).tensor)
    assert not torch.allclose(frames[0], frames[1])
    assert torch.equal(paths[0].density(0.5).tensor, frames[0])
    finer = BOX_1D.with_shape(300)
    assert torch.allclose(paths[0].density(0.5, finer).tensor[..., 1::3], frames[0], atol=1e-6)
