"""The solver of the transport form, with untrained and pretrained models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import FileError, SolverError
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.solvers.neural.model import build_model, load_model, save_model
from geonet.solvers.neural.transport.network import TransportSettings, predict_potential
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import MAX_SPECTRAL_RADIUS, max_spectral_radius
from geonet.solvers.neural.transport.solver import TransportSolver
from geonet.solvers.newton.path import MidpointGeodesic
from geonet.training.problems import make_problem

NEVER, ALWAYS = 0.0, 10.0  # limits to the mismatch


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """Files of untrained models, by dimension and by the limit up to which pairs are usual."""
    folder = tmp_path_factory.mktemp("random")

    def make(d: int, limit: float | None, factor: float = 1.0) -> str:
        settings = TransportSettings(dimension=d, sensors=12, seen=6, modes=6, width=4, depth=2)
        model = build_model(settings, 5)
        with torch.no_grad():
            for weight in model.network.output.weights:
                weight *= factor
        measured = {} if limit is None else {"calibration": {"slope": 0.2, "limit": limit}}
        file = folder / f"{d}-{limit}-{factor}.safetensors"
        return str(save_model(file, model, {"name": "random", "measured": measured}))

    return make


def mixtures(d: int, count: int = 2) -> tuple[Density, Density]:
    family, box = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D.with_shape(24))}[d]
    values = family(2 * count, torch.Generator().manual_seed(d)).to_density(box).tensor
    return Density(values[:count], box), Density(values[count:], box)


def family(d: int, count: int, seed: int = 21) -> tuple[Density, Density]:
    return make_problem(f"mixtures-{d}d").draw_densities(count, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [1, 2])
def test_newton_solves_unusual_pairs_only(random_model, d):
    source, target = mixtures(d)
    bare = geonet.geodesic(source, target, random_model(d, NEVER), max_iterations=0)
    network = load_model(Path(random_model(d, NEVER)))[0]
    assert torch.equal(bare.coefficients, predict_potential(network, source, target))
    path = geonet.geodesic(source, target, random_model(d, NEVER), max_iterations=3)
    assert all(isinstance(own, MidpointGeodesic) for own in path.paths)
    assert path.solver == bare.solver == "transport"
    assert path.info["corrected"] == path.info["converged"] == [True, True]
    assert path.info["model"] == ["random", "random"] and bare.info == {"model": "random"}
    assert path.report.in_distribution == bare.report.in_distribution == [False, False]
    assert bool((torch.tensor(path.report.mismatch) < 0.1 * bare.certificate.mismatch).all())
    usual = geonet.geodesic(source, target, random_model(d, ALWAYS), max_iterations=3)
    assert torch.equal(usual.coefficients, bare.coefficients)
    assert "corrected" not in usual.info
    assert usual.report.in_distribution == [True, True]
    with pytest.raises(SolverError, match="max_iterations is -1"):
        geonet.solver("transport-2d", max_iterations=-1)


def test_mixed_batches(random_model):
    source, target = mixtures(2, 3)
    source = Density(torch.stack([target.tensor[0], *source.tensor[1:]]), source.grid)
    file = random_model(2, 1e-3)
    path = geonet.geodesic(source, target, file, max_iterations=2)
    assert path.info["corrected"] == [False, True, True]
    assert path.report.in_distribution == [True, False, False]
    for k, own in enumerate(path.paths):
        alone = geonet.geodesic(source[k], target[k], file, max_iterations=2)
        assert type(own) is type(alone) is (MidpointGeodesic if k else CosineGeodesic)
        assert torch.allclose(own.coefficients, alone.coefficients, atol=1e-5)


@pytest.mark.parametrize(
    "measured",
    [
        *({"calibration": odd} for odd in ({"slope": 0.1}, [1, 2], 3)),
        *({"calibration": {"slope": 0.1, "limit": odd}} for odd in ("much", None, 10**400)),
    ],
)
def test_invalid_calibration(tmp_path, measured):
    model = build_model(TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1), 0)
    file = save_model(tmp_path / "odd.safetensors", model, {"measured": measured})
    with pytest.raises(FileError, match="invalid calibration"):
        geonet.geodesic(*mixtures(1), str(file))


@pytest.mark.parametrize("d", [1, 2])
def test_folding_potentials_are_scaled_down(d, random_model):
    """Newton's method converges to the geodesic from them, too."""
    file = random_model(d, None, 1e3)
    source, target = mixtures(d)
    raw = predict_potential(load_model(Path(file))[0], source, target)
    assert float(max_spectral_radius(raw).min()) > 2
    path = geonet.geodesic(source, target, file, max_iterations=0)
    radius = max_spectral_radius(path.coefficients)
    assert torch.allclose(radius, torch.tensor(MAX_SPECTRAL_RADIUS), atol=1e-3)
    corrected = geonet.geodesic(source, target, file).density(0.5)
    truth = geonet.geodesic(source, target, "midpoint", tolerance=1e-4).density(0.5)
    assert float(l1(corrected, truth).max()) < 0.01 < float(l1(path.density(0.5), truth).min())


@pytest.mark.parametrize("d", [1, 2])
def test_mixtures_are_in_distribution(d):
    source, target = family(d, 20)
    path = geonet.geodesic(source, target, f"transport-{d}d", max_iterations=0)
    report = path.report
    assert sum(report.in_distribution) >= 19
    assert int(path.is_certified.sum()) >= 19
    assert sum(report.error_estimate) / 20 < 0.01


@pytest.mark.parametrize(
    ("name", "shape", "fewest"),
    [
        ("transport-1d", (16,), 32),
        ("transport-1d", (31,), 32),
        ("transport-2d", (5, 7), 16),
        ("transport-2d", (40, 15), 16),
        ("transport-cloud", (5, 7), 16),
        ("transport-mnist", (5, 7), 16),
        ("transport-3d", (2, 2, 2), 16),
        ("transport-3d", (8, 8, 15), 16),
    ],
)
def test_few_cells_raise(name, shape, fewest, monkeypatch):
    """Frames between such cells are inaccurate; the automatic choice is another solver."""
    grid = Grid(shape)
    wave = torch.cos(torch.pi * grid.points()).sum(-1)
    source, target = (Density((height * wave).exp(), grid) for height in (0.3, -0.3))
    with pytest.raises(SolverError, match=f"{name}' is for at least {fewest} cells along each"):
        geonet.geodesic(source, target, name)
    monkeypatch.setattr(TransportSolver, "_load", lambda *_: pytest.fail("it is chosen"))
    path = geonet.geodesic(source, target)
    assert path.solver == ("quantile" if len(shape) == 1 else "midpoint")
    assert bool(torch.isfinite(path.density(0.5).tensor).all())


def test_the_fewest_cells_are_accepted():
    """A grid with the fewest cells along one axis, and more along the other."""
    grid = Grid((16, 20))
    wave = torch.cos(torch.pi * grid.points()).sum(-1)
    source, target = (Density((height * wave).exp(), grid) for height in (0.3, -0.3))
    assert geonet.geodesic(source, target, "transport-2d").solver == "transport-2d"


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", ["narrow", "checkerboard"])
def test_newton_solves_pairs_out_of_distribution(d, name):
    """Also if the network moves both ends to disjoint regions, as narrow pairs in 2D."""
    grid = (BOX_1D, BOX_2D)[d - 1]
    n, length = grid.shape[0], max(grid.lengths)
    shifts = [n // 5, n // 10]  # of the narrow pairs until t = ½, in cells
    if name == "checkerboard":
        squares = torch.stack([(m * grid.points() / length).long().sum(-1) % 2 for m in (6, 7)])
        source, target = Density(squares.double(), grid), Density(1 - squares.double(), grid)
    else:
        widths = length * torch.tensor([[0.03], [0.05]], dtype=torch.float64)
        means = torch.full((2, 2, 1, d), 0.5 * length, dtype=torch.float64)
        offsets = length / n * torch.tensor(shifts, dtype=torch.float64)
        means[..., 0, 0] += torch.stack([-offsets, offsets])
        source, target = (GaussianMixture.isotropic(m, widths).to_density(grid) for m in means)
    path = geonet.geodesic(source, target, f"transport-{d}d")
    report = path.report
    assert path.info["corrected"] == path.info["converged"] == [True] * 2
    bounds = zip(report.distance_lower_bound, report.distance_upper_bound, strict=True)
    for distance, (lower, upper) in zip(report.distance, bounds, strict=True):
        assert 0.999 * lower <= distance <= upper < 1.03 * lower
    if name == "narrow":
        rows = zip(source.tensor, shifts, strict=True)
        truth = torch.stack([row.roll(shift, 0) for row, shift in rows])
    elif d == 1:
        truth = geonet.geodesic(source, target, "quantile").density(0.5).tensor
    else:
        return  # no reference
    errors = l1(path.density(0.5), Density.from_unnormalized(truth, grid))
    assert float(errors.max()) < 0.02
    assert bool((errors <= torch.tensor(report.error_estimate)).all())


@pytest.mark.parametrize(
    ("d", "pairs", "truth", "limit", "wide"),
    [(1, 20, "quantile", 0.008, 2.5), (2, 2, "monge-ampere", 0.003, 1.25)],
)
def test_accuracy_of_the_pretrained_models(d, pairs, truth, limit, wide):
    """In 1D the truth has means over cells, and differs by some parts in a thousand for that."""
    source, target = family(d, pairs, seed=31 + d)
    exact = geonet.geodesic(source, target, truth)
    path = geonet.geodesic(source, target, f"transport-{d}d")
    errors = l1(path.density([0.25, 0.5, 0.75]), exact.density([0.25, 0.5, 0.75]))
    assert float(errors.mean()) < limit
    assert torch.allclose(path.distance, exact.distance, rtol=0.01)
    report = path.report
    for k, distance in enumerate(exact.distance.tolist()):
        assert report.distance_lower_bound[k] <= distance <= report.distance_upper_bound[k]
        assert report.distance_upper_bound[k] < wide * distance
    assert max(report.hamilton_jacobi) < 0.05 and min(report.smallest_determinant) > 0
