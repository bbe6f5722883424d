"""The form "deeponet": the supervised loss and its solver."""

from __future__ import annotations

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import FileError, UnavailableError
from geonet.metrics import l1
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural.deeponet import DeepONetPath, DeepONetSettings, SupervisedLoss
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model, save_model
from geonet.training.problems import (
    add_exact_densities,
    cartesian_batch,
    make_problem,
    sensor_points,
)


def test_supervised_loss_is_the_mean_square_error(model):
    batch = cartesian_batch(
        make_problem("mixtures-1d"), sensor_points(12, 1), 3, 8, 0, torch.Generator().manual_seed(3)
    )
    batch = add_exact_densities(batch)
    loss = model.build_loss(None, BOX_1D)
    assert type(loss) is SupervisedLoss and loss.weights == {"error": 1.0}
    rows = torch.cat([batch.points, batch.times[:, None]], dim=1)
    density = model.coefficients(batch.source, batch.target)[0] @ model.density.basis(rows).T
    terms = loss(batch)
    assert torch.allclose(terms["error"], ((density - batch.exact_density) ** 2).mean())
    loss.total(terms).backward()
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert p.grad is not None and p.grad.abs().max() > 1e-12, name


TIMES = [0.0, 0.3, 1.0]
SIZES = {
    "sensors": 12,
    "rank": 6,
    "swap_symmetry": "density",
    "branch": Branch(width=8, depth=3),
    "trunk": Trunk(width=8, depth=3),
}


@pytest.fixture(scope="module")
def model():
    return build_model(DeepONetSettings(**SIZES), 5)  # a loaded path starts from other weights


@pytest.fixture(scope="module")
def file(model, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("deeponet")
    test = {"mean": [50.0] * 5, "sd": [10.0] * 5}
    header = {"name": "tiny", "measured": {"test": test}}
    return str(save_model(folder / "deeponet.safetensors", model, header))


@pytest.fixture
def pairs(generator) -> tuple[Density, Density]:
    """Three pairs of the paper's 1D mixtures."""
    source, target = (mixtures_1d(3, generator).to_density(BOX_1D) for _ in range(2))
    return source, target


def test_density_equals_geonet_with_the_same_weights(model, file, pairs, tmp_path):
    """On any grid, in any box."""
    whole = build_model(GeONetSettings(**SIZES), 1)
    whole.density.load_state_dict(model.density.state_dict())
    other = str(save_model(tmp_path / "geonet.safetensors", whole, {}))
    moved = tuple(Density(end.tensor, Grid(100, -3.0, 17.0)) for end in pairs)
    for ends in (pairs, moved, (pairs[0][1], pairs[1][1])):
        ours, theirs = (geonet.geodesic(*ends, solver=name) for name in (file, other))
        for shape in (100, 37):
            grid = ours.grid.with_shape(shape)
            frames = ours.density(TIMES, grid).tensor
            assert frames.shape == (*ours.batch, 3, shape) and frames.dtype == torch.float64
            assert torch.equal(frames, theirs.density(TIMES, grid).tensor)
    assert float((frames[0] - frames[1]).abs().max()) > 1e-4
    near, far = (geonet.geodesic(*ends, solver=file).density(0.3).tensor for ends in (pairs, moved))
    assert torch.allclose(near, 2 * far, atol=1e-6)  # the box is twice as long


def test_only_the_density_is_provided(file, pairs):
    path = geonet.geodesic(*pairs, solver=file)
    assert geonet.solver(file).info.provides == ("density",)
    for what, ask in (
        ("distance", lambda: path.distance),
        ("velocity", lambda: path.velocity(0.5, [[3.0]])),
        ("potential", lambda: path.potential(0.5, [[3.0]])),
        ("velocity", lambda: path.trajectories(0.5, [[3.0]])),
    ):
        with pytest.raises(UnavailableError, match=f"no {what}"):
            ask()
    assert path.report.distance is None


@pytest.mark.parametrize("single", [True, False])
def test_save_and_load(file, pairs, tmp_path, single):
    ends = (pairs[0][0], pairs[1][0]) if single else pairs
    path = geonet.geodesic(*ends, solver=file)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0, 0.5]))
    assert type(loaded) is type(path)
    assert (loaded.solver, loaded.info, loaded.batch) == (
        "deeponet",
        {"model": "tiny"},
        path.batch,
    )
    assert loaded.tested == path.tested == {"mean": [50.0] * 5, "sd": [10.0] * 5}
    finer = BOX_1D.with_shape(37)
    assert torch.equal(loaded.density(TIMES, finer).tensor, path.density(TIMES, finer).tensor)


def test_inaccurate_ends_are_out_of_distribution(model, pairs, tmp_path):
    """The limit is the mean and four standard deviations, in percent, of either end's error."""
    path = geonet.geodesic(
        *pairs, solver=str(save_model(tmp_path / "untested.safetensors", model, {}))
    )
    assert path.report.in_distribution is None
    errors = [100 * l1(path.density(t), end) for t, end in zip((0.0, 1.0), pairs, strict=True)]
    for k, middle in enumerate(e.median() for e in errors):  # one pair is worse at this end
        mean, limits = [1.0] * 5, [1e6] * 5
        limits[-k] = float(middle) * 1.0001
        test = {
            "mean": mean,
            "sd": [(limit - 1.0) / DeepONetPath.max_deviation for limit in limits],
        }
        header = {"measured": {"test": test}}
        name = str(save_model(tmp_path / f"tested-{k}.safetensors", model, header))
        found = geonet.geodesic(*pairs, solver=name).report.in_distribution
        assert found == (errors[k] <= limits[-k]).tolist()
        assert found.count(False) == 1


@pytest.mark.parametrize("settings", [DeepONetSettings, GeONetSettings])
@pytest.mark.parametrize(
    "measured", [[1], {"test": 3}, {"test": {"mean": [1.0]}}, {"test": {"mean": [], "sd": []}}]
)
def test_invalid_test_errors(settings, measured, tmp_path):
    small = {"width": 4, "depth": 3}
    model = build_model(
        settings(sensors=8, rank=4, branch=Branch(**small), trunk=Trunk(**small)), 0
    )
    file = save_model(tmp_path / "odd.safetensors", model, {"measured": measured})
    density = Density(torch.ones(8), Grid(8))
    with pytest.raises(FileError, match="invalid test errors"):
        geonet.geodesic(density, density, str(file))


def test_boxes_of_any_size():
    """Single precision, in which the network computes, has no room for 1e40."""
    wave = torch.cos(torch.pi * Grid(20).axes()[0])
    frames = []
    for length in (1.0, 1e-40, 1e40):
        ends = [Density(1 + k * wave, Grid(20, 0, length)) for k in (0.2, -0.2)]
        path = geonet.geodesic(ends[0], ends[1], "geonet-1d")
        frames.append(path.density(0.5).tensor * length)
        assert bool(torch.isfinite(path.potential(0.5, [length / 2])).all())
    assert torch.allclose(frames[1], frames[0]) and torch.allclose(frames[2], frames[0])
