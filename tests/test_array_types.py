"""Results have the array type of the densities: NumPy for NumPy and lists, torch for torch."""

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid, metrics

GRID = Grid(12, 0, 2)
SOLVERS = {"quantile": True, "linear-program": True, "schrodinger": True, "linear": False}


def values(batch: tuple[int, ...], shift: float) -> np.ndarray:
    bump = 0.2 + np.exp(-20 * (GRID.axes()[0].numpy() - shift) ** 2)
    return np.broadcast_to(bump, (*batch, 12)).copy()


def check(result, shape: tuple[int, ...], is_torch: bool) -> None:
    if is_torch:
        assert isinstance(result, torch.Tensor) and tuple(result.shape) == shape
    elif shape == ():
        assert type(result) is float
    else:
        assert type(result) is np.ndarray and result.shape == shape


@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
@pytest.mark.parametrize("kinds", ["numpy", "list", "torch", "mixed"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_paths(solver, kinds, batch):
    convert = {"numpy": np.asarray, "list": np.ndarray.tolist}.get(kinds, torch.as_tensor)
    other = np.asarray if kinds == "mixed" else convert
    path = geonet.geodesic(
        Density(convert(values(batch, 0.7)), GRID), Density(other(values(batch, 1.2)), GRID), solver
    )
    is_torch = kinds in ("torch", "mixed")
    assert path.is_torch == is_torch
    for t, times in ((0.5, ()), ([0.0, 0.5, 1.0], (3,))):
        frame = path.density(t)
        check(frame.values, (*batch, *times, 12), is_torch)
        check(frame.mass, (*batch, *times), is_torch)
        check(frame.at([0.5, 1.0]), (*batch, *times, 2), is_torch)
        check(frame.mean(), (*batch, *times, 1), is_torch)
        check(frame.covariance(), (*batch, *times, 1, 1), is_torch)
        if SOLVERS[solver]:
            check(path.velocity(t, [0.5, 1.0]), (*batch, *times, 2, 1), is_torch)
            check(path.potential(t, 0.5), (*batch, *times), is_torch)
            check(path.trajectories(t, np.ones((2, 3, 1))), (*batch, *times, 2, 3, 1), is_torch)
    if SOLVERS[solver]:
        check(path.distance, batch, is_torch)
    if batch:
        assert path[0].is_torch == path.source[0].is_torch | path.target[0].is_torch
    json_report = path.report.to_dict()
    assert isinstance(json_report["mass_error"], list if batch else float)


@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
@pytest.mark.parametrize("kinds", ["numpy", "torch", "mixed"])
def test_metrics(kinds, batch):
    first, second = values(batch, 0.7), values(batch, 1.2)
    density = Density(first if kinds == "numpy" else torch.as_tensor(first), GRID)
    truth = Density(torch.as_tensor(second) if kinds == "torch" else second, GRID)
    is_torch = kinds != "numpy"
    for metric in (metrics.l1, metrics.l2, metrics.w1, metrics.w2):
        check(metric(density, truth), batch, is_torch)
    check(metrics.block_l1(density, truth, 4), batch, is_torch)
    check(metrics.mass_error(density), batch, is_torch)
    check(metrics.negativity(truth), batch, kinds == "torch")
    path = geonet.geodesic(density, truth)
    check(metrics.constant_speed_defect(path, 0.0, 0.5), batch, is_torch)


@pytest.mark.parametrize("is_torch", [False, True])
def test_densities_from_other_sources(is_torch, tmp_path):
    convert = torch.as_tensor if is_torch else np.asarray
    mixture = GaussianMixture.isotropic(convert([[1.0], [0.5]]), 0.2)
    check(mixture.pdf([0.3, 0.4]), (2,), is_torch)
    check(mixture.sample(5), (5, 1), is_torch)
    check(mixture.to_density(GRID).values, (12,), is_torch)
    check(geonet.from_samples(convert([0.1, 0.2]), GRID).values, (12,), is_torch)
    check(geonet.from_function(lambda x: convert(x[..., 0]), GRID).values, (12,), is_torch)
    density = Density(convert(values((), 1.0)), GRID)
    for derived in (density.resample(Grid(6, 0, 2)), density.with_floor(0.1), density.detach()):
        assert derived.is_torch == is_torch
    gaussian = GaussianMixture.isotropic(convert([[1.0]]), 0.2)
    path = geonet.geodesic(gaussian, gaussian, "bures")
    check(path.distance, (), is_torch)
    file = geonet.geodesic(density, density).save(tmp_path / "path.npz")
    check(geonet.load(file).distance, (), False)  # files hold NumPy arrays


def test_torch_results_have_gradients():
    source = torch.as_tensor(values((), 0.7)).requires_grad_()
    target = Density(values((), 1.2), GRID)
    geonet.geodesic(Density(source, GRID), target).distance.backward()
    assert source.grad is not None and bool((source.grad != 0).any())
