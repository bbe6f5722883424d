"""The solver of the transport form, with untrained and pretrained models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import FileError, SolverError
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.solvers.neural.model import (
    build_model,
    load_model,
    save_model,
)
from geonet.solvers.neural.transport.network import TransportSettings, predict_potential
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import (
    MAX_SPECTRAL_RADIUS,
    evaluate_potential,
    half_spectral_radius,
    max_spectral_radius,
)
from geonet.solvers.newton.path import MidpointGeodesic
from geonet.training.problems import make_problem

TIMES = [0.0, 0.3, 1.0]
CHECKS = (
    "distance_lower_bound",
    "distance_upper_bound",
    "error_estimate",
    "in_distribution",
    "mismatch",
    "hamilton_jacobi",
    "smallest_determinant",
)


NEVER, ALWAYS = 0.0, 10.0  # limits to the mismatch


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """Files of untrained models, by dimension and by the limit up to which pairs are usual."""
    folder = tmp_path_factory.mktemp("random")

    def make(d: int, limit: float | None) -> str:
        settings = TransportSettings(dimension=d, sensors=12, seen=6, modes=6, width=4, depth=2)
        measured = {} if limit is None else {"calibration": {"slope": 0.2, "limit": limit}}
        file = folder / f"{d}-{limit}.safetensors"
        if not file.exists():
            save_model(file, build_model(settings, 5), {"name": "random", "measured": measured})
        return str(file)

    return make


def mixtures(d: int, count: int = 2) -> tuple[Density, Density]:
    family, box = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D.with_shape(24))}[d]
    values = family(2 * count, torch.Generator().manual_seed(d)).to_density(box).tensor
    return Density(values[:count], box), Density(values[count:], box)


def family(d: int, count: int, seed: int = 21) -> tuple[Density, Density]:
    return make_problem(f"mixtures-{d}d").draw_densities(count, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("max_iterations", "message"),
    [(-1, "max_iterations is -1"), (1.5, "max_iterations")],
)
def test_impossible_corrections(max_iterations, message):
    with pytest.raises(SolverError, match=message):
        geonet.solver("transport-2d", max_iterations=max_iterations)


@pytest.mark.parametrize("d", [1, 2])
def test_without_corrections_the_network_alone_answers(random_model, d):
    source, target = mixtures(d)
    for limit in (NEVER, ALWAYS, None):
        file = random_model(d, limit)
        path = geonet.geodesic(source, target, file, max_iterations=0)
        bare = predict_potential(load_model(Path(file))[0], source, target)
        assert torch.equal(path.coefficients, bare)
        assert path.info == {"model": "random"}


@pytest.mark.parametrize("d", [1, 2])
def test_newton_solves_unusual_pairs_only(random_model, d):
    source, target = mixtures(d)
    bare = geonet.geodesic(source, target, random_model(d, NEVER), max_iterations=0)
    path = geonet.geodesic(source, target, random_model(d, NEVER), max_iterations=3)
    assert all(isinstance(own, MidpointGeodesic) for own in path.paths)
    assert path.solver == bare.solver == "transport"
    assert path.info["corrected"] == path.info["converged"] == [True, True]
    assert path.info["model"] == ["random", "random"]
    assert path.report.in_distribution == bare.report.in_distribution == [False, False]
    assert bool((torch.tensor(path.report.mismatch) < 0.1 * bare.certificate.mismatch).all())
    usual = geonet.geodesic(source, target, random_model(d, ALWAYS), max_iterations=3)
    assert torch.equal(usual.coefficients, bare.coefficients)
    assert "corrected" not in usual.info
    assert usual.report.in_distribution == [True, True]


def test_mixed_batches(random_model):
    source, target = mixtures(2, 3)
    source = Density(torch.stack([target.tensor[0], *source.tensor[1:]]), source.grid)
    path = geonet.geodesic(source, target, random_model(2, 1e-3), max_iterations=2)
    assert path.info["corrected"] == [False, True, True]
    assert path.report.in_distribution == [True, False, False]
    bare = geonet.geodesic(source, target, random_model(2, 1e-3), max_iterations=0)
    kinds = [CosineGeodesic, MidpointGeodesic, MidpointGeodesic]
    assert [type(own) for own in path.paths] == kinds
    assert torch.equal(path.paths[0].coefficients[0], bare.coefficients[0])
    for k, own in enumerate(path.paths):
        alone = geonet.geodesic(source[k], target[k], random_model(2, 1e-3), max_iterations=2)
        assert type(alone) is kinds[k]
        assert torch.allclose(own.coefficients, alone.coefficients, atol=1e-5)
        apart = float(l1(path.density(0.5)[k], bare.density(0.5)[k]))
        assert apart < 1e-6 if k == 0 else apart > 0.03
    assert alone.info["corrected"] is True


@pytest.mark.parametrize(
    "measured",
    [
        *({"calibration": {"slope": 0.1}}, {"calibration": [1, 2]}, {"calibration": 3}, [1]),
        *({"calibration": {"slope": 0.1, "limit": odd}} for odd in ("much", None, 10**400)),
    ],
)
def test_invalid_calibration(tmp_path, measured):
    settings = TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1)
    file = save_model(
        tmp_path / "odd.safetensors", build_model(settings, 0), {"measured": measured}
    )
    with pytest.raises(FileError, match="invalid calibration"):
        geonet.geodesic(*mixtures(1), str(file))


@pytest.mark.parametrize("d", [1, 2])
def test_folding_potentials_are_scaled_down(d, tmp_path):
    """Newton's method gets the right path from them all the same, as from no guess at all."""
    settings = TransportSettings(dimension=d, sensors=12, seen=6, modes=6, width=4, depth=2)
    model = build_model(settings, 1)
    with torch.no_grad():
        for weight in model.network.output.weights:
            weight *= 1e3
    file = save_model(tmp_path / "steep.safetensors", model, {})
    source, target = mixtures(d)
    raw = predict_potential(load_model(file)[0], source, target)
    assert float(half_spectral_radius(evaluate_potential(raw, 12)[2]).min()) > 2
    path = geonet.geodesic(source, target, str(file), max_iterations=0)
    assert (
        float(half_spectral_radius(evaluate_potential(path.coefficients, 12)[2]).max())
        <= MAX_SPECTRAL_RADIUS + 1e-5
    )
    assert torch.allclose(
        max_spectral_radius(path.coefficients), torch.tensor(MAX_SPECTRAL_RADIUS), atol=1e-3
    )
    ratio = path.coefficients / raw
    assert torch.allclose(ratio, ratio[:, :1, ...].expand_as(ratio), rtol=1e-3)
    corrected = geonet.geodesic(source, target, str(file)).density(0.5)
    truth = geonet.geodesic(source, target, "midpoint", tolerance=1e-4).density(0.5)
    assert float(l1(corrected, truth).max()) < 0.01 < float(l1(path.density(0.5), truth).min())


@pytest.mark.parametrize(("name", "shape"), [("transport-1d", (12,)), ("transport-2d", (6, 6))])
def test_batches_of_rough_pairs_equal_single_pairs(name, shape):
    """Each takes as many of Newton's steps as it needs."""
    values = np.random.default_rng(1).uniform(0, 1, (2, 6, *shape)) ** len(shape)
    source, target = (Density(end, Grid(shape)) for end in values)
    together = geonet.geodesic(source, target, name).density(0.3)
    for k in range(6):
        alone = geonet.geodesic(source[k], target[k], name).density(0.3)
        assert float(l1(together[k], alone)) < 1e-4


@pytest.mark.parametrize("d", [1, 2])
def test_swap(random_model, d):
    source, target = mixtures(d)
    for limit, atol in ((ALWAYS, 1e-7), (NEVER, 1e-5)):
        forth, back = (
            geonet.geodesic(*ends, random_model(d, limit))
            for ends in ((source, target), (target, source))
        )
        ways = ([forth], [back]) if limit == ALWAYS else (forth.paths, back.paths)
        for own, other in zip(*ways, strict=True):
            assert float(own.coefficients.abs().max()) > 1e-4
            assert torch.allclose(own.coefficients, -other.coefficients, atol=atol)
        assert float(l1(back.density(0.7), forth.density(0.3)).max()) < 1e-4


@pytest.mark.parametrize("limit", [ALWAYS, NEVER])
def test_torch_modes_and_default_dtype(random_model, limit):
    source, target = mixtures(2)
    file = random_model(2, limit)
    with torch.inference_mode():
        inside = geonet.geodesic(source, target, file)
        report, frames = inside.report, inside.density(TIMES).tensor.numpy()
    torch.set_default_dtype(torch.float64)
    try:
        double = geonet.geodesic(source, target, file)
        assert np.allclose(double.density(TIMES).tensor, frames, atol=1e-5)
        assert double.report.mismatch == pytest.approx(report.mismatch, rel=1e-3)
    finally:
        torch.set_default_dtype(torch.float32)
    source.tensor.requires_grad_()
    path = geonet.geodesic(source, target, file)
    with torch.no_grad():
        assert np.allclose(path.density(TIMES).tensor, frames, atol=1e-5)


def unusual_pairs(d: int, name: str) -> tuple[Density, Density]:
    """Three pairs that no model of the paper's mixtures has ever seen."""
    grid = (BOX_1D, BOX_2D)[d - 1]
    length = max(grid.lengths)
    if name == "checkerboard":
        squares = torch.stack([(n * grid.points() / length).long().sum(-1) % 2 for n in (6, 7, 8)])
        return Density(squares.double(), grid), Density(1 - squares.double(), grid)
    # Widths of the box, and distances from the middle in whole cells. In 2D the first two are so
    # narrow and far apart that the network brings them to places that have nothing in common.
    widths = length * torch.tensor([0.03, 0.04, 0.05], dtype=torch.float64)
    offsets = length / grid.shape[0] * torch.tensor(halves(grid), dtype=torch.float64)
    ends = []
    for side in (-1, 1):
        means = torch.full((3, 1, d), 0.5 * length, dtype=torch.float64)
        means[:, 0, 0] += side * offsets
        ends.append(GaussianMixture.isotropic(means, widths[:, None]).to_density(grid))
    return ends[0], ends[1]


def halves(grid: Grid) -> tuple[int, int, int]:
    """Return the shifts of the narrow pairs until t = ½, in cells."""
    n = grid.shape[0]
    return n // 5, n // 5, n // 10


@pytest.mark.parametrize("d", [1, 2])
def test_mixtures_are_in_distribution(d):
    source, target = family(d, 20)
    path = geonet.geodesic(source, target, f"transport-{d}d", max_iterations=0)
    report = path.report
    assert sum(report.in_distribution) >= 19
    assert int(path.is_certified.sum()) >= 19
    assert sum(report.error_estimate) / 20 < 0.01


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", ["narrow", "checkerboard"])
def test_newton_solves_pairs_out_of_distribution(d, name):
    """Also if the network moves both ends to disjoint regions."""
    source, target = unusual_pairs(d, name)
    path = geonet.geodesic(source, target, f"transport-{d}d")
    report, middle = path.report, path.density(0.5)
    assert path.info["corrected"] == path.info["converged"] == [True] * 3
    bounds = zip(report.distance_lower_bound, report.distance_upper_bound, strict=True)
    for distance, (lower, upper) in zip(report.distance, bounds, strict=True):
        assert 0.999 * lower <= distance <= upper < 1.03 * lower
    if name == "narrow":
        rows = zip(source.tensor, halves(source.grid), strict=True)
        truth = torch.stack([row.roll(shift, 0) for row, shift in rows])
    elif d == 1:
        truth = geonet.geodesic(source, target, "quantile").density(0.5).tensor
    else:
        return  # no reference
    errors = l1(middle, Density.from_unnormalized(truth, source.grid))
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


@pytest.mark.parametrize("d", [1, 2, 3])
def test_pretrained_models_commute_with_swap_and_reflections(d):
    source, target = family(d, 1)
    path = geonet.geodesic(source, target, f"transport-{d}d")
    back = geonet.geodesic(target, source, f"transport-{d}d")
    assert torch.allclose(path.coefficients, -back.coefficients, atol=1e-6)
    mirrored = [Density(end.tensor.flip(-1), end.grid) for end in (source, target)]
    other = geonet.geodesic(*mirrored, f"transport-{d}d")
    sign = torch.where(torch.arange(path.coefficients.shape[-1]) % 2 == 0, 1.0, -1.0)
    assert torch.allclose(path.coefficients, other.coefficients * sign, atol=1e-5)
    still = geonet.geodesic(source, source, f"transport-{d}d")
    assert float(still.coefficients.abs().max()) < 1e-7 and still.in_distribution.tolist() == [True]


def test_long_1d_grids():
    grid = BOX_1D.with_shape(20_000)
    mixture = mixtures_1d(2, torch.Generator().manual_seed(1))
    ends = [Density(mixture[k].to_density(grid).tensor, grid) for k in (0, 1)]
    path = geonet.geodesic(*ends, "transport-1d")
    truth = geonet.geodesic(*ends, "quantile")
    assert float(l1(path.density(0.5), truth.density(0.5))) < 3e-3


def test_report_without_convergence():
    """A square that one step is not enough to tear apart."""
    values = torch.zeros(2, 24, 24)
    values[0, 8:16, 8:16] = values[1, :4, :4] = values[1, 20:, 20:] = 1.0
    source, target = (Density(own, Grid((24, 24))) for own in values)
    path = geonet.geodesic(source, target, "transport-2d", max_iterations=1)
    assert path.info["corrected"] is True and path.info["converged"] is False
    assert path.report.error_estimate > 0.05
