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
    header = {"name": "tiny", "measured": {"test": {"mean": [50.0] * 5, "sd": [10.0] * 5}}}
    return str(save_model(tmp_path_factory.mktemp("deeponet") / "m.safetensors", model, header))


@pytest.fixture
def pairs(generator) -> tuple[Density, Density]:
    """Three pairs of the paper's 1D mixtures."""
    source, target = (mixtures_1d(3, generator).to_density(BOX_1D) for _ in range(2))
    return source, target


def test_density_equals_geonet_with_the_same_weights(model, file, pairs, tmp_path):
    """On any grid, in any box, and after the path was saved and loaded."""
    whole = build_model(GeONetSettings(**SIZES), 1)
    whole.density.load_state_dict(model.density.state_dict())
    other = str(save_model(tmp_path / "geonet.safetensors", whole, {}))
    moved = tuple(Density(end.tensor, Grid(100, -3.0, 17.0)) for end in pairs)
    for ends in (pairs, moved, (pairs[0][1], pairs[1][1])):
        ours, theirs = (geonet.geodesic(*ends, solver=name) for name in (file, other))
        loaded = geonet.load(ours.save(tmp_path / "path.npz", times=[0.5]))
        assert type(loaded) is type(ours) and loaded.info == {"model": "tiny"}
        assert loaded.tested == ours.tested == {"mean": [50.0] * 5, "sd": [10.0] * 5}
        for shape in (100, 37):
            grid = ours.grid.with_shape(shape)
            frames = ours.density(TIMES, grid).tensor
            assert frames.shape == (*ours.batch, 3, shape)
            for path in (theirs, loaded):
                assert torch.equal(frames, path.density(TIMES, grid).tensor)
    assert float((frames[0] - frames[1]).abs().max()) > 1e-4
    with pytest.raises(UnavailableError, match="no distance"):
        ours.distance  # noqa: B018
    assert ours.report.distance is None


def test_inaccurate_ends_are_out_of_distribution(model, pairs, tmp_path):
    """The limit is the mean and four standard deviations, in percent, of either end's error."""
    file = str(save_model(tmp_path / "untested.safetensors", model, {}))
    path = geonet.geodesic(*pairs, solver=file)
    assert path.report.in_distribution is None
    errors = [100 * l1(path.density(t), end) for t, end in zip((0.0, 1.0), pairs, strict=True)]
    for k, middle in enumerate(e.median() for e in errors):  # one pair is worse at this end
        limits = [1e6] * 5
        limits[-k] = float(middle) * 1.0001
        sd = [(limit - 1.0) / DeepONetPath.max_deviation for limit in limits]
        header = {"measured": {"test": {"mean": [1.0] * 5, "sd": sd}}}
        name = str(save_model(tmp_path / f"tested-{k}.safetensors", model, header))
        result = geonet.geodesic(*pairs, solver=name).report.in_distribution
        assert result == (errors[k] <= limits[-k]).tolist() and result.count(False) == 1


@pytest.mark.parametrize("settings", [DeepONetSettings, GeONetSettings])
@pytest.mark.parametrize(
    "measured", [[1], {"test": 3}, {"test": {"mean": [1.0]}}, {"test": {"mean": [], "sd": []}}]
)
def test_invalid_test_errors(settings, measured, tmp_path):
    model = build_model(settings(**SIZES), 0)
    file = save_model(tmp_path / "odd.safetensors", model, {"measured": measured})
    density = Density(torch.ones(8), Grid(8))
    with pytest.raises(FileError, match="invalid test errors"):
        geonet.geodesic(density, density, str(file))


def test_supervised_loss(model):
    """The mean square error, with a gradient in every weight."""
    generator = torch.Generator().manual_seed(3)
    problem = make_problem("mixtures-1d")
    batch = add_exact_densities(cartesian_batch(problem, sensor_points(12, 1), 3, 8, 0, generator))
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


def test_boxes_of_any_size():
    """Single precision, in which the network computes, cannot represent 1e40."""
    wave = torch.cos(torch.pi * Grid(20).axes()[0])
    frames = []
    for length in (1.0, 1e-40, 1e40):
        ends = [Density(1 + k * wave, Grid(20, 0, length)) for k in (0.2, -0.2)]
        path = geonet.geodesic(*ends, "geonet-1d")
        frames.append(path.density(0.5).tensor * length)
        assert bool(torch.isfinite(path.potential(0.5, [length / 2])).all())
        assert torch.allclose(frames[-1], frames[0])
