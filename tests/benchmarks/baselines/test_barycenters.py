"""Barycenters of POT and OTT-JAX through the solver interface."""

import sys
from importlib.util import find_spec

import numpy as np
import ot
import pytest
import torch

import geonet
from benchmarks.baselines.ott_barycenter import OttBarycenter, OttBarycenterPath
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, ConvergenceWarning, SolverError, UnavailableError
from geonet.metrics import l1, mass_error

LINE = Grid(50, 0, 10)
SQUARE = Grid((24, 24), 0, 5)
GRIDS = {"oblong": Grid((24, 18), (0, 0), (5, 4)), "3D": Grid((10, 10, 10), 0, 5)}
POT, OTT = ("barycenter", "debiased-barycenter"), "ott-barycenter"

needs_ott = pytest.mark.skipif(find_spec("ott") is None, reason="OTT-JAX is not installed")
every_name = pytest.mark.parametrize("name", [*POT, pytest.param(OTT, marks=needs_ott)])


def make_pair(grid):
    """Return two Gaussians, away from the faces."""
    if grid.dimension == 1:
        means, stds = ([3.0], [6.5]), (0.6, 0.8)
    else:
        means, stds = ([2.0, 2.0, 2.0], [3.0, 2.5, 2.5]), (0.6, 0.7)
    return tuple(
        GaussianMixture.isotropic([mean[: grid.dimension]], [std]).to_density(grid)
        for mean, std in zip(means, stds, strict=True)
    )


def make_distant_pair():
    """Return two narrow boxes with nothing between them."""
    x = LINE.points()[:, 0]
    return [Density(((x - centre).abs() < 0.5).double(), LINE) for centre in (0.5, 9.5)]


def call_pot(source, target, t, reg, suffix="", **options):
    """Return the masses of POT's own barycenter."""
    weights = np.array([1 - t, t])
    ends = [end.numpy() * end.grid.cell_volume for end in (source, target)]
    if source.grid.dimension == 1:
        cost = ot.dist(source.grid.points().numpy())
        barycenter = getattr(ot.bregman, f"barycenter{suffix}")
        ends = np.stack(ends, axis=1)
        return barycenter(ends, cost / cost.max(), reg, weights=weights, **options)
    barycenter = getattr(ot.bregman, f"convolutional_barycenter2d{suffix}")
    return barycenter(np.stack(ends), reg, weights=weights, **options)


@pytest.mark.parametrize(("grid", "reg"), [(LINE, 6e-4), (SQUARE, 4e-3)], ids=["1D", "2D"])
def test_plain_barycenter_equals_pot(grid, reg):
    source, target = make_pair(grid)
    path = geonet.geodesic(source, target, solver="barycenter")
    for t in (0.0, 0.3, 1.0):
        expected = call_pot(source, target, t, reg)
        np.testing.assert_allclose(path.density(t).numpy() * grid.cell_volume, expected, atol=1e-9)


@pytest.mark.parametrize("grid", [LINE, SQUARE.with_shape(12)], ids=["1D", "2D"])
def test_debiased_barycenter_equals_pot(grid):
    source, target = make_pair(grid)
    path = geonet.geodesic(source, target, solver="debiased-barycenter", reg=4e-3)
    options = {"method": "sinkhorn_log", "stopThr": 1e-4}
    expected = call_pot(source, target, 0.3, 4e-3, "_debiased", **options)
    np.testing.assert_allclose(path.density(0.3).numpy() * grid.cell_volume, expected, atol=1e-9)


@needs_ott
@pytest.mark.parametrize("grid", [LINE, SQUARE, *GRIDS.values()], ids=["1D", "2D", *GRIDS])
def test_ott_barycenter_is_close_to_the_closed_form(grid):
    source, target = make_pair(grid)
    times = [0.0, 0.3, 0.5, 1.0]
    exact = geonet.geodesic(source, target, solver="bures").density(times)
    frames = geonet.geodesic(source, target, solver=OTT).density(times)
    assert float(l1(frames, exact).max()) < 0.02
    assert float(mass_error(frames).max()) < 1e-5
    assert frames.tensor.dtype == torch.float64


@needs_ott
def test_ott_barycenter_is_close_to_the_one_of_pot():
    source, target = make_pair(SQUARE)
    pot = geonet.geodesic(source, target, "debiased-barycenter", reg=8e-3, tolerance=1e-6)
    ott = geonet.geodesic(source, target, OTT, epsilon=8e-3, tolerance=1e-6)
    assert float(l1(ott.density(0.3), pot.density(0.3))) < 1e-3


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        ("barycenter", {"reg": 8e-3}, 4e-3),
        ("debiased-barycenter", {"reg": 8e-3}, 0.0),
        pytest.param(OTT, {"epsilon": 8e-3, "debiased": False}, 4e-3, marks=needs_ott),
        pytest.param(OTT, {"epsilon": 8e-3}, 0.0, marks=needs_ott),
    ],
)
def test_blur_has_a_variance_of_half_the_regularisation(name, options, share):
    """The unit of length is the distance of the outermost cell centres."""
    source, target = make_pair(SQUARE)
    blur = share * (SQUARE.lengths[0] - SQUARE.spacing[0]) ** 2
    first = geonet.geodesic(source, target, solver=name, **options).density(0.0)
    variance = source.covariance().diagonal()
    np.testing.assert_allclose(first.covariance().diagonal(), variance + blur, rtol=0.02)


@every_name
def test_batches_and_other_grids(name):
    grid = SQUARE.with_shape(12)
    ends = [end.tensor for end in make_pair(grid)]
    both = [Density(torch.stack(order), grid) for order in (ends, ends[::-1])]
    path = geonet.geodesic(*both, solver=name, **({} if name == OTT else {"method": "sinkhorn"}))
    frames = path.density((0.25, 0.75)).tensor
    assert frames.shape == (2, 2, 12, 12)
    torch.testing.assert_close(frames[0], frames[1].flip(0), atol=1e-3, rtol=0)
    assert float(mass_error(path.density(0.5, grid=grid.with_shape(30))).max()) < 1e-3


@every_name
def test_save_and_load(name, tmp_path):
    path = geonet.geodesic(*make_pair(LINE), solver=name)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=(0.5,)))
    assert (loaded.info, loaded.solver) == (path.info, name)
    torch.testing.assert_close(loaded.density(0.3).tensor, path.density(0.3).tensor)
    for quantity in ("velocity", "potential", "trajectories"):
        with pytest.raises(UnavailableError, match="provides no"):
            getattr(loaded, quantity)(0.5, [5.0])
    with pytest.raises(UnavailableError, match="provides no"):
        _ = loaded.distance


@every_name
def test_early_stop_warns_and_is_recorded(name):
    batch = [Density(end.tensor[None], LINE) for end in make_pair(LINE)]
    path = geonet.geodesic(*batch, solver=name, max_iterations=10, tolerance=1e-12)
    with pytest.warns(ConvergenceWarning, match=r"t = 0\.5 stopped at .* after 10 iterations"):
        path.density(0.5)
    assert path.info["stopped early at t"] == [[0.5]]


@pytest.mark.parametrize(
    ("name", "failing", "working"),
    [
        ("barycenter", {"max_iterations": 50}, {"method": "sinkhorn_log"}),
        pytest.param(OTT, {"epsilon": 2e-4}, {"epsilon": 5e-3}, marks=needs_ott),
    ],
)
def test_underflow_raises(name, failing, working):
    ends = make_distant_pair()
    with pytest.raises(ConvergenceError, match=r"t = 0\.5 is not finite.* larger"):
        geonet.geodesic(*ends, solver=name, **failing).density(0.5)
    middle = geonet.geodesic(*ends, solver=name, **working).density(0.5)
    assert float(middle.mean()) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("grid", [Grid((12, 16), 0, 1), Grid((12, 12), (0, 0), (1, 2))])
def test_pot_accepts_only_square_grids(grid):
    uniform = Density(torch.ones(grid.shape), grid)
    with pytest.raises(SolverError, match="square box"):
        geonet.geodesic(uniform, uniform, solver="barycenter")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((POT[0], {"reg": 0.0}), (OTT, {"epsilon": 0.0}), (POT[0], {"method": "newton"})),
        *((name, {"tolerance": -1.0}) for name in (POT[0], OTT)),
        *((name, {"max_iterations": 0}) for name in (POT[0], OTT)),
    ],
)
def test_wrong_options_raise(name, options):
    with pytest.raises(SolverError, match=next(iter(options))):
        geonet.solver(name, **options)


def test_paths_of_ott_load_without_the_library(monkeypatch, tmp_path):
    path = OttBarycenterPath(*make_pair(LINE), OttBarycenter(epsilon=5e-3))
    with monkeypatch.context() as patch:
        patch.setattr(OttBarycenterPath, "_density", lambda *_: torch.ones(1, 50))
        file = path.save(tmp_path / "path.npz", times=[0.5])
    for module in ("jax", "ott"):
        monkeypatch.setitem(sys.modules, module, None)  # makes an import fail
    assert geonet.load(file).info == path.info
    with pytest.raises(SolverError, match=r"needs OTT-JAX.*geonet-ot\[ott\]"):
        geonet.solver(OTT)(*make_pair(LINE))
