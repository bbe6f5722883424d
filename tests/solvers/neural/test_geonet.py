"""The form "geonet": hard endpoints, input distribution, path and solver."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import FileError, UnavailableError
from geonet.grid import unit_box
from geonet.metrics import l1
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural.deeponet import BasisCache
from geonet.solvers.neural.geonet import GeONetPath, GeONetSettings, InputDistribution
from geonet.solvers.neural.jets import Jet
from geonet.solvers.neural.layers import combine_cartesian
from geonet.solvers.neural.model import Branch, Trunk, build_model, save_model
from geonet.training.problems import Mixtures, make_problem, sensor_points

SENSORS = 100

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def sample(count, seed, spread=(0.5, 0.6)):
    """Mixtures of the paper's box at the sensors, (count, m)."""
    problem = Mixtures(partial(mixtures_1d, spread=spread), BOX_1D)
    generator = torch.Generator().manual_seed(seed)
    return problem.draw(count, generator)[0](sensor_points(SENSORS, 1))


def test_input_distribution(generator):
    """The family is usual; narrower lumps (the paper's test) and other densities are not."""
    fitted = InputDistribution(SENSORS)
    fitted.fit(sample(4096, 0))
    unusual = ~fitted(sample(2000, 1))
    assert unusual.shape == (2000,)
    assert unusual.float().mean() <= 4 * InputDistribution.outlier_fraction  # by chance
    x = sensor_points(SENSORS, 1)[:, 0]
    others = [
        torch.ones(SENSORS),
        2 * torch.rand(SENSORS, generator=generator),
        2.0 * (x > 0.5),
        1 + torch.cos(20 * torch.pi * x),
        SENSORS * (torch.arange(SENSORS) == 50).float(),
    ]
    assert not fitted(sample(400, 5, (0.3, 0.4))).any()
    assert not fitted(torch.stack(others)).any()


def test_mahalanobis_distance_values():
    """Two directions with variances 4 and 1, of three: the rest counts by the faint one."""
    signs = torch.cartesian_prod(torch.tensor([-2.0, 2.0]), torch.tensor([-1.0, 1.0]))
    densities = 5 + torch.cat([signs, torch.zeros(4, 1)], dim=1)
    made = InputDistribution(3)
    made.fit(densities.repeat(2, 1))
    points = 5 + torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [2.0, 3.0, 0.0]])
    assert made.distance(points).tolist() == pytest.approx([0, 1 / 3, 3, 10 / 3], abs=1e-5)
    aside = made.distance(torch.tensor([[5.0, 5.0, 5.1]]))
    assert aside.item() == pytest.approx(0.01 / 4e-5 / 3, rel=1e-4)  # 1e-5 of the largest, 4


SIGMA = 0.06  # in the unit box
V = (0.2, 0.1)  # of the moving lump in the unit box


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(("symmetry", "modes"), [("none", 3), ("density", 0), ("both", 3)])
def test_hard_endpoints(d, symmetry, modes, generator, double_precision):
    """(1 − t)·μ0 + t·μ1 + t(1 − t)·F with F of the same weights."""
    side = {1: 12, 2: 6}[d]
    model = model_of(d, side, modes, swap_symmetry=symmetry, ends="given")
    ends = 2 * torch.rand(2, 3, side**d, generator=generator)
    inner, scaled = model.density.inner, (ends - 1) / 2
    points = Grid((side,) * d).points().reshape(-1, d)
    for t in (0.0, 0.2, 0.5, 1.0):
        rows = torch.cat([points, torch.full_like(points[:, :1], t)], dim=1)
        result = combine_cartesian(model.coefficients(*ends)[0], model.density.basis(rows))
        between = combine_cartesian(inner.coefficients(*scaled), inner.basis(rows))
        expected = (1 - t) * ends[0] + t * ends[1] + t * (1 - t) * between
        assert torch.allclose(result, expected, rtol=0, atol=1e-12)
        assert between.abs().max() > 0.01


TESTED = {"mean": [1e6] * 5, "sd": [1.0] * 5}  # of anything the ends would be good enough


def model_of(d=1, sensors=8, modes=0, **more):
    """With random weights, not to be trained any more."""
    sizes = {"rank": 4, "branch": Branch("mlp", 5, 2, modes=modes), "trunk": Trunk("mlp", 5, 2)}
    settings = GeONetSettings(dimension=d, sensors=sensors, **sizes, **more)
    model = build_model(settings, 3).requires_grad_(False)
    noise = torch.Generator().manual_seed(4)
    for p in model.parameters():  # biases of a new network are zero
        p += 0.3 * torch.randn(p.shape, generator=noise)
    return model


def gaussian_lump(x, mean):
    """A Gaussian, not normalised: only its shape counts."""
    return torch.exp(-0.5 * ((x - mean) ** 2).sum(-1) / SIGMA**2)


@pytest.fixture
def path_of(jet_of):
    """The path of a lump that moves by v in the unit box, with other errors in C and H.

    Exact are C = ρ(x − vt) and H = v·x − ½|v|²t.
    """

    def made(grid, of_density=lambda x, t: 0.0, of_potential=lambda x, t: 0.0):
        d, box = grid.dimension, unit_box(grid)
        v = torch.tensor(V[:d], dtype=torch.float64)
        start = torch.tensor(box.sides, dtype=torch.float64) / 2 - v / 2
        points = box.to_points(grid.points())
        ends = [Density(gaussian_lump(points, start + v * t), grid) for t in (0.0, 1.0)]
        path = model_of(d).build_path(*ends, "geonet", {})

        def density(x, t):
            return gaussian_lump(x, start + v * t) + of_density(x, t)

        def potential(x, t):
            return v @ x - 0.5 * t * v @ v + of_potential(x, t)

        def jets(points, t):
            unit = box.to_points(points)
            times = torch.full_like(unit[:, 0], t)
            both = (jet_of(function, unit, times, "none") for function in (density, potential))
            return [Jet(jet.data[:, None], d, "none") for jet in both]

        path._jets = jets
        return path

    return made


@pytest.mark.parametrize(
    "grid", [Grid(100, -2.0, 8.0), Grid((40, 30), 1.0, (5.0, 4.0))], ids=["1D", "2D"]
)
def test_distance_is_exact_up_to_second_order(grid, path_of):
    """|v|, with any density if H is exact; errors of order e in both change W2² by e²."""

    def distance(e_density, e_potential):
        return float(
            path_of(
                grid,
                of_density=lambda x, t: e_density * torch.cos(x.sum() + t) ** 2,
                of_potential=lambda x, t: e_potential * torch.sin(2 * x.sum() + t),
            ).distance
        )

    exact = distance(0, 0)
    # The lumps are 5σ away from the faces at least, so that 1e-6 of them are outside.
    assert exact == pytest.approx(max(grid.lengths) * math.hypot(*V[: grid.dimension]), rel=1e-5)
    assert distance(0.1, 0) == pytest.approx(exact, rel=1e-9)
    small, large = (abs(distance(e, e) ** 2 - exact**2) for e in (0.001, 0.002))
    assert large == pytest.approx(4 * small, rel=0.05)
    steep = path_of(grid, of_potential=lambda x, t: 5 * x.sum())  # has a negative dual value
    assert float(steep.distance) == 0


def drawn(count, seed, spread=(0.5, 0.6)):
    """Mixtures of lumps on the box of the paper."""
    return mixtures_1d(count, torch.Generator().manual_seed(seed), spread).to_density(BOX_1D)


@pytest.fixture(scope="module")
def prepared():
    """A model that was prepared with the paper's 1D family."""
    model = model_of(sensors=SENSORS, ends="given")
    model.prepare(sample(4096, 0))
    return model


def test_both_ends_must_be_in_distribution(prepared):
    usual, other = drawn(2, 1), drawn(2, 2, (0.3, 0.4))
    mixed = Density(torch.stack([usual.tensor[0], other.tensor[0]]), BOX_1D)
    for source, target, expected in (
        (usual, usual, [True, True]),
        (usual, other, [False, False]),
        (other, usual, [False, False]),
        (mixed, usual, [True, False]),
        (usual[0], usual[1], True),
    ):
        report = prepared.build_path(source, target, "geonet", {}).report
        assert report.in_distribution == expected


def test_error_estimate():
    """½ of either end's error, ½ of the created mass, ⅛ of the displaced mass; calibrated."""
    source, target = drawn(2, 1), drawn(2, 2)
    header = {"measured": {"test": TESTED, "calibration": {"slope": 0.25}}}
    path = model_of().build_path(source, target, "geonet", header)
    check, report = path.residuals, path.report
    expected = check.continuity_residual / 2 + check.displaced_mass / 8
    for t, end in ((0.0, source), (1.0, target)):
        expected = expected + l1(path.density(t), end) / 2
    assert path.residual_error.shape == (2,) and float(expected.max()) < 8
    assert torch.allclose(path.residual_error, expected)
    assert report.continuity == pytest.approx(check.continuity_residual.tolist())
    assert report.hamilton_jacobi == pytest.approx(check.acceleration.tolist())
    assert report.error_estimate == pytest.approx((0.25 * expected).tolist())
    single = model_of().build_path(source[1], target[1], "geonet", header)
    assert single.report.error_estimate == pytest.approx(0.25 * expected[1].item(), rel=1e-4)


def test_calibration_is_a_median_ratio():
    model = model_of()
    path = model.build_path(drawn(3, 1), drawn(3, 2), "geonet", {})
    factors = torch.tensor([0.5, 4.0, 2.0], dtype=torch.float64)
    errors = (factors * path.residual_error)[:, None] * torch.tensor([0.1, 1.0, 0.9]).double()
    assert model.calibrate(path, errors)["calibration"]["slope"] == pytest.approx(2.0)


@pytest.mark.parametrize("calibration", [3, [1.0], {}, {"slope": "steep"}, {"slope": None}])
def test_invalid_calibration(calibration):
    header = {"file": "odd.safetensors", "measured": {"test": TESTED, "calibration": calibration}}
    with pytest.raises(FileError, match="invalid test errors"):
        model_of().build_path(drawn(1, 1), drawn(1, 2), "geonet", header)


MOMENTS = [0.0, 0.3, 1.0]


@pytest.mark.parametrize("d", [1, 2])
def test_velocity_is_the_gradient_of_the_potential(d, generator, monkeypatch):
    """By central differences; chunks of points change nothing."""
    source, target = make_problem(f"mixtures-{d}d").draw_densities(2, generator)
    path = model_of(d).build_path(source, target, "geonet", {})
    length = max(source.grid.lengths)
    points = length * (0.1 + 0.8 * torch.rand(20, d, generator=generator).double())
    velocity, step = path.velocity(MOMENTS, points), 5e-3 * length
    monkeypatch.setattr(GeONetPath, "chunk_points", 7)
    assert torch.allclose(path.velocity(MOMENTS, points), velocity, rtol=1e-4, atol=1e-4)
    for i in range(d):
        shift = step * torch.eye(d, dtype=torch.float64)[i]
        above, below = (path.potential(MOMENTS, points + s * shift) for s in (1, -1))
        slope = (above - below) / (2 * step)
        assert torch.allclose(slope, velocity[..., i], atol=2e-3 * float(velocity.abs().max()))


def test_basis_cache(tmp_path, monkeypatch):
    """Bases are shared by pairs and bounded in size; the oldest is dropped first."""
    file = str(save_model(tmp_path / "model.safetensors", model_of(), {}))
    solver, ends = geonet.solver(file), (drawn(3, 1), drawn(3, 2))
    first, second = solver(*ends), solver(*ends[::-1])
    trunk = first.bases.model.density.trunk
    features, calls = trunk.features, []
    monkeypatch.setattr(trunk, "features", lambda z: calls.append(z) or features(z))
    frames = first.density(MOMENTS).tensor
    assert len(calls) == 3
    assert not torch.equal(second.density(MOMENTS).tensor, frames)
    third = geonet.geodesic(*ends, solver=file)  # by the name of the file, too
    assert torch.equal(third.density(MOMENTS).tensor, frames)
    assert len(calls) == 3
    monkeypatch.setattr(BasisCache, "max_bytes", 3 * first.bases.on_grid(BOX_1D, 0.0).nbytes)
    for times, count in (([0.1, 0.2], 5), ([0.2, 0.0, 0.1], 5), (0.3, 6), (0.1, 6), (0.2, 7)):
        first.density(times)
        assert len(calls) == count, times
    monkeypatch.setattr(BasisCache, "max_bytes", 0)
    assert torch.equal(first.density(MOMENTS).tensor, frames)


def test_velocity_of_a_bridge():
    """v = ∇u + ε∇log μ, where there is mass; finite anywhere. A bridge has no distance."""
    model = model_of(sensors=12, ends="given")
    path, step = model.build_path(drawn(3, 1), drawn(3, 2), "geonet", {"epsilon": 0.002}), 0.02
    with pytest.raises(UnavailableError, match="no distance"):
        path.distance  # noqa: B018
    assert path.report.distance is None and path.info["epsilon"] == pytest.approx(0.2)
    everywhere = path.velocity([0.0, 0.5, 1.0], torch.linspace(0, 10, 101)[:, None])
    assert bool(torch.isfinite(everywhere).all())
    cells = Grid(200, 0.0, 10.0)
    x = cells.points()[1:-1]
    density = path.density(0.5, cells).tensor
    score = (density[:, 2:] - density[:, :-2]) / (2 * cells.spacing[0]) / density[:, 1:-1]
    slope = (path.potential(0.5, x + step) - path.potential(0.5, x - step)) / (2 * step)
    massive = density[:, 1:-1] > 0.02
    assert int(massive.sum()) > 20
    expected = (slope + 0.2 * score)[massive]
    scale = float(expected.abs().max())
    assert torch.allclose(path.velocity(0.5, x)[..., 0][massive], expected, atol=5e-3 * scale)
    assert float((0.2 * score)[massive].abs().max()) > 0.05 * scale  # the term counts
