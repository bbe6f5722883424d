"""OTT-JAX's barycenters through the solver interface; where OTT is missing, what is said of it."""

import subprocess
import sys

import pytest
import torch

import geonet
from benchmarks.baselines import ott_barycenter
from benchmarks.baselines.ott_barycenter import OttBarycenter, OttBarycenterPath
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, ConvergenceWarning, SolverError, UnavailableError
from geonet.metrics import l1, mass_error

NAME = "ott-barycenter"
LINE = Grid(50, 0, 10)
SQUARE = Grid((24, 24), 0, 5)
OBLONG = Grid((24, 18), (0, 0), (5, 4))
CUBE = Grid((10, 10, 10), 0, 5)
GRIDS = {"1D": LINE, "2D": SQUARE, "oblong": OBLONG, "3D": CUBE}
every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())


@pytest.fixture
def with_ott():
    pytest.importorskip("ott")


needs_ott = pytest.mark.usefixtures("with_ott")


def pair_on(grid):
    """Two Gaussians, away from the faces."""
    if grid.dimension == 1:
        means, stds = ([3.0], [6.5]), (0.8, 1.0)
    else:
        means, stds = ([2.0, 2.0, 2.0], [3.0, 2.5, 2.5]), (0.6, 0.7)
    return tuple(
        GaussianMixture.isotropic([mean[: grid.dimension]], [std]).to_density(grid)
        for mean, std in zip(means, stds, strict=True)
    )


def lumps(epsilon):
    """A path whose mass has to go far, from and to cells with nothing between them."""
    x = LINE.points()[:, 0]
    ends = [Density(((x - centre).abs() < 0.5).double(), LINE) for centre in (0.5, 9.5)]
    return geonet.geodesic(*ends, solver=NAME, epsilon=epsilon)


# ---- what comes out


@needs_ott
@every_grid
def test_against_the_closed_form(grid):
    source, target = pair_on(grid)
    times = [0.0, 0.3, 0.5, 1.0]
    truth = geonet.geodesic(source, target, solver="bures").density(times)
    answer = geonet.geodesic(source, target, solver=NAME).density(times)
    assert float(l1(answer, truth).max()) < 0.02
    assert float(mass_error(answer).max()) < 1e-5
    assert answer.tensor.dtype == torch.float64


@needs_ott
def test_against_quantiles(pair_1d):
    times = [0.0, 0.25, 0.5, 1.0]
    truth = geonet.geodesic(*pair_1d, solver="quantile").density(times)
    errors = l1(geonet.geodesic(*pair_1d, solver=NAME).density(times), truth)
    assert float(errors.max()) < 0.01
    assert float(errors[[0, -1]].max()) < 1e-4


@needs_ott
@pytest.mark.parametrize("grid", [LINE, SQUARE], ids=["1D", "2D"])
def test_nearly_the_same_as_pots(grid):
    """The debiasing goes on slowly once the marginals are met; POT stops by another measure."""
    source, target = pair_on(grid)
    options = {"tolerance": 1e-6}
    pots = geonet.geodesic(source, target, "debiased-barycenter", reg=8e-3, **options)
    otts = geonet.geodesic(source, target, NAME, epsilon=8e-3, **options)
    assert float(l1(otts.density(0.3), pots.density(0.3))) < 1e-3


@needs_ott
@every_grid
def test_blurred_unless_debiased(grid):
    """Along each axis the variance grows by ε/2 of the squared span of the longest axis."""
    source, target = pair_on(grid)
    epsilon = 1e-2
    span = max(length - h for length, h in zip(grid.lengths, grid.spacing, strict=True))
    plain, debiased = (
        geonet.geodesic(source, target, NAME, epsilon=epsilon, debiased=debiased).density(0.0)
        for debiased in (False, True)
    )
    variance = source.covariance().diagonal()
    blur = torch.full_like(variance, epsilon / 2 * span**2)
    torch.testing.assert_close(plain.covariance().diagonal() - variance, blur, rtol=0.1, atol=0)
    torch.testing.assert_close(debiased.covariance().diagonal(), variance, rtol=0.01, atol=0)


# ---- how it answers


@needs_ott
def test_batch_other_grid_and_mass():
    source, target = pair_on(SQUARE)
    both = [
        Density(torch.stack([a.tensor, b.tensor]), SQUARE)
        for a, b in ((source, target), (target, source))
    ]
    path = geonet.geodesic(*both, solver=NAME)
    frames = path.density((0.25, 0.75))
    assert frames.tensor.shape == (2, 2, 24, 24)
    torch.testing.assert_close(frames.tensor[0], frames.tensor[1].flip(0), atol=1e-6, rtol=0)
    finer = path.density(0.5, grid=SQUARE.with_shape(30))
    assert float(mass_error(finer).max()) < 1e-4


@needs_ott
def test_frames_are_kept_and_compiled_once(monkeypatch):
    path = geonet.geodesic(*pair_on(SQUARE), solver=NAME)
    first = path.density([0.25, 0.5]).tensor
    compiled = ott_barycenter._compiled_barycenter()
    shapes = compiled._cache_size()
    other = geonet.geodesic(*pair_on(SQUARE), solver=NAME, epsilon=6e-3, tolerance=1e-3)
    other.density([0.1, 0.2, 0.3])
    assert compiled._cache_size() == shapes
    monkeypatch.setattr(OttBarycenterPath, "_solve", None)
    assert torch.equal(path.density([0.5, 0.25]).tensor, first.flip(0))


@needs_ott
def test_the_users_jax_stays_as_it_is():
    import jax.numpy as jnp

    before = jnp.ones(2).dtype
    geonet.geodesic(*pair_on(LINE), solver=NAME).density(0.5)
    assert jnp.ones(2).dtype == before


@needs_ott
def test_save_and_load(tmp_path):
    path = geonet.geodesic(*pair_on(LINE), solver=NAME, epsilon=5e-3, debiased=False)
    again = geonet.load(path.save(tmp_path / "path.npz", times=(0.5,)))
    assert (again.info, again.solver) == (path.info, NAME)
    torch.testing.assert_close(again.density(0.3).tensor, path.density(0.3).tensor)


@needs_ott
@pytest.mark.parametrize("what", ["distance", "velocity", "potential"])
def test_nothing_but_density(what):
    path = geonet.geodesic(*pair_on(LINE), solver=NAME)
    with pytest.raises(UnavailableError, match=f"gives no {what}"):
        _ = path.distance if what == "distance" else getattr(path, what)(0.5, [5.0])


# ---- what can go wrong


@needs_ott
@pytest.mark.parametrize("asked", [3, 12])
def test_stopping_early_is_a_warning_and_a_note(asked):
    path = geonet.geodesic(*pair_on(LINE), solver=NAME, max_iterations=asked, tolerance=1e-12)
    done = {3: 10, 12: 20}[asked]
    with pytest.warns(
        ConvergenceWarning, match=rf"t = 0\.5 stopped at .* after {done} iterations"
    ) as seen:
        path.density(0.5)
    assert seen[0].filename == __file__
    assert path.info["stopped early at t"] == [0.5]


@needs_ott
def test_underflow_is_an_error():
    for t in (0.0, 0.5, 1.0):
        with pytest.raises(ConvergenceError, match=rf"t = {t:g} is not finite.* larger epsilon"):
            lumps(epsilon=2e-4).density(t)
    assert float(lumps(epsilon=5e-3).density(0.5).mean()) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0; give a positive number"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"max_iterations": 0}, "both must be positive"),
        ({"tolerance": -1.0}, "both must be positive"),
        ({"debiased": 1}, "it takes true or false"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(SolverError, match=message):
        geonet.solver(NAME, **options)


def test_a_missing_ott_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ott", None)  # what makes an import fail
    solver = geonet.solver(NAME)
    message = r"needs OTT-JAX, which is not installed; run pip install 'geonet\[ott\]'\.$"
    with pytest.raises(SolverError, match=message):
        solver(*pair_on(LINE))


def test_a_saved_path_loads_without_ott(monkeypatch, tmp_path):
    path = OttBarycenterPath(*pair_on(LINE), OttBarycenter(epsilon=5e-3))
    with monkeypatch.context() as answered:
        answered.setattr(OttBarycenterPath, "_density", lambda *_: torch.ones(1, 50))
        file = path.save(tmp_path / "path.npz", times=[0.5])
    monkeypatch.setitem(sys.modules, "jax", None)
    loaded = geonet.load(file)
    assert loaded.info == path.info
    with pytest.raises(SolverError, match="needs OTT-JAX"):
        loaded.density(0.5)


def test_the_module_needs_no_jax():
    script = (
        "import sys; sys.modules['jax'] = sys.modules['ott'] = None\n"
        "import benchmarks.baselines\nfrom geonet.solvers.registry import make_solver\n"
        f"print(make_solver({NAME!r}).name)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == NAME
