"""The form "geonet": hard endpoints, input distribution, path and solver."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet._toml import from_table
from geonet.errors import FileError, UnavailableError
from geonet.grid import unit_box
from geonet.metrics import l1
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural import model as opening
from geonet.solvers.neural.deeponet import BasisCache
from geonet.solvers.neural.geonet import (
    GeONet,
    GeONetPath,
    GeONetSettings,
    InputDistribution,
)
from geonet.solvers.neural.jets import Jet
from geonet.solvers.neural.layers import combine_cartesian
from geonet.solvers.neural.model import Branch, Trunk, build_model, save_model
from geonet.training.config import TrainingConfig
from geonet.training.loop import train
from geonet.training.problems import (
    Mixtures,
    make_problem,
    sensor_points,
)

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


HARD_SENSORS = {1: 12, 2: 6}
TIMES = [0.0, 0.3, 1.0]


def hard_settings(d, symmetry="both", network="mlp", features="cosines", modes=3):
    return GeONetSettings(
        dimension=d,
        sensors=HARD_SENSORS[d],
        rank=6,
        swap_symmetry=symmetry,
        ends="given",
        branch=Branch("mlp", 5, 3, modes=modes),
        trunk=Trunk(network, 4, 3, features, modes=2, sigma=0.5),
    )


@pytest.fixture
def hard_densities(generator):
    """Two ends of three hard_pairs at the sensors, (3, m) each."""

    def drawn(d):
        return 2 * torch.rand(2, 3, HARD_SENSORS[d] ** d, generator=generator)

    return drawn


def rows_at(grid, t):
    """The centres of cells at a time, (cells, d + 1)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cat([points, torch.full_like(points[:, :1], t)], dim=1)


def evaluate(model, ends, rows):
    """C at (x, t), (B, N)."""
    return combine_cartesian(model.coefficients(*ends)[0], model.density.basis(rows))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("symmetry", ["none", "density", "both"])
@pytest.mark.parametrize("modes", [0, 3])
def test_hard_endpoints_are_exact(d, symmetry, modes, randomised, hard_densities, double_precision):
    ends = hard_densities(d)
    model = randomised(GeONet(hard_settings(d, symmetry, modes=modes)))
    sensors = Grid((HARD_SENSORS[d],) * d)
    for t, end in ((0.0, ends[0]), (1.0, ends[1])):
        assert torch.allclose(evaluate(model, ends, rows_at(sensors, t)), end, rtol=0, atol=1e-12)
    halfway = evaluate(model, ends, rows_at(sensors, 0.5))
    assert (halfway - ends.mean(0)).abs().max() > 0.01  # between them the network decides


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 1.0])
def test_hard_endpoint_formula(d, t, randomised, hard_densities, generator, double_precision):
    """(1 − t)·μ0 + t·μ1 + t(1 − t)·F, with F of the same weights."""
    ends, model = hard_densities(d), randomised(GeONet(hard_settings(d)))
    sensors, inner = rows_at(Grid((HARD_SENSORS[d],) * d), t), model.density.inner
    scaled = [(end - 1) / 2 for end in ends]
    between = combine_cartesian(inner.coefficients(*scaled), inner.basis(sensors))
    expected = (1 - t) * ends[0] + t * ends[1] + t * (1 - t) * between
    assert torch.allclose(evaluate(model, ends, sensors), expected, rtol=0, atol=1e-12)


MANY_SENSORS = 100
FAMILY = make_problem("mixtures-1d")


def sample(count, seed, problem=FAMILY):
    """Densities at the sensors, (count, m)."""
    generator = torch.Generator().manual_seed(seed)
    return problem.draw(count, generator)[0](sensor_points(MANY_SENSORS, 1))


def narrower_family(spread):
    """The same family with narrower_family of other widths."""
    return Mixtures(partial(mixtures_1d, spread=spread), BOX_1D)


@pytest.fixture(scope="module")
def fitted():
    """A distribution fitted to the family."""
    made = InputDistribution(MANY_SENSORS)
    made.fit(sample(4096, 0))
    return made


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_family_is_in_distribution(fitted, seed):
    """Up to four times the outlier fraction may occur by chance."""
    unusual = ~fitted(sample(2000, seed))
    assert unusual.shape == (2000,)
    assert unusual.float().mean() <= 4 * InputDistribution.outlier_fraction


def test_narrower_lumps_are_out_of_distribution(fitted):
    """The paper's test out of distribution."""
    assert not fitted(sample(400, 5, narrower_family((0.3, 0.4)))).any()


def test_other_densities_are_out_of_distribution(fitted, generator):
    x = sensor_points(MANY_SENSORS, 1)[:, 0]
    kinds = {
        "uniform": torch.ones(MANY_SENSORS),
        "noise": 2 * torch.rand(MANY_SENSORS, generator=generator),
        "steps": 2.0 * (x > 0.5),
        "wave": 1 + torch.cos(20 * torch.pi * x),
        "one cell": MANY_SENSORS * (torch.arange(MANY_SENSORS) == 50).float(),
    }
    for name, density in kinds.items():
        assert not fitted(density[None]).any(), name


def test_mahalanobis_distance_values():
    """Two directions with variances 4 and 1, of three: the rest counts by the faint one."""
    signs = torch.cartesian_prod(torch.tensor([-2.0, 2.0]), torch.tensor([-1.0, 1.0]))
    densities = 5 + torch.cat([signs, torch.zeros(4, 1)], dim=1)
    made = InputDistribution(3)
    made.fit(densities.repeat(2, 1))
    asked = 5 + torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [2.0, 3.0, 0.0]])
    assert made.distance(asked).tolist() == pytest.approx([0, 1 / 3, 3, 10 / 3], abs=1e-5)
    aside = made.distance(torch.tensor([[5.0, 5.0, 5.1]]))
    assert aside.item() == pytest.approx(0.01 / 4e-5 / 3, rel=1e-4)  # 1e-5 of the largest, 4


@pytest.mark.parametrize(
    "sensors", [4, InputDistribution.n_directions, InputDistribution.n_directions + 1]
)
def test_input_distribution_with_any_number_of_sensors(sensors, generator):
    made = InputDistribution(sensors)
    made.fit(torch.rand(4000, sensors, generator=generator))
    assert made.is_fitted
    assert (
        made(torch.rand(2000, sensors, generator=generator)).float().mean()
        >= 1 - 4 * InputDistribution.outlier_fraction
    )
    assert not made(torch.full((1, sensors), 9.0)).any()


@pytest.mark.parametrize("height", [0.0, 1.0, 1.3])
def test_constant_family(height):
    """One density is all it has: no NaN, and nothing is known from it."""
    made = InputDistribution(MANY_SENSORS)
    same = torch.full((40, MANY_SENSORS), height)
    made.fit(same)
    assert usable(made)
    assert not made.distance(same).any()
    assert made.distance(same + 0.1).min() > 1e6
    assert not made.is_fitted


def usable(made):
    """Return whether buffers and distances are finite."""
    asked = torch.cat([sample(3, 9), torch.ones(1, MANY_SENSORS), torch.zeros(1, MANY_SENSORS)])
    kept = [*made.buffers(), made.distance(asked)]
    return all(bool(torch.isfinite(value).all()) for value in kept)


PATH_GRIDS = {
    "1D": Grid(100, -2.0, 8.0),
    "2D": Grid((40, 40), 0.0, 3.0),
    "2D, not a cube": Grid((40, 30), 1.0, (5.0, 4.0)),
}


SIGMA = 0.06  # in the unit box
V = (0.2, 0.1)
SIZES = {"rank": 4, "branch": Branch("mlp", 5, 2), "trunk": Trunk("mlp", 5, 2)}
TESTED = {"mean": [1e6] * 5, "sd": [1.0] * 5}  # of anything the ends would be good enough


def model_of(d=1, sensors=8, **more):
    """With random weights, not to be trained any more."""
    settings = GeONetSettings(dimension=d, sensors=sensors, **SIZES, **more)
    model = build_model(settings, 3).requires_grad_(False)
    noise = torch.Generator().manual_seed(4)
    for p in model.parameters():  # biases of a new network are zero
        p += 0.3 * torch.randn(p.shape, generator=noise)
    return model


every_grid = pytest.mark.parametrize("grid", PATH_GRIDS.values(), ids=PATH_GRIDS.keys())


def gaussian_lump(x, mean):
    """A Gaussian, not normalised: only its shape counts."""
    return torch.exp(-0.5 * ((x - mean) ** 2).sum(-1) / SIGMA**2)


@pytest.fixture
def path_of(jet_of):
    """The path of a gaussian_lump that moves by v in the unit box, with other errors in C and H.

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

        def jets(where, t):
            unit = box.to_points(where)
            times = torch.full_like(unit[:, 0], t)
            both = (jet_of(function, unit, times, "none") for function in (density, potential))
            return [Jet(jet.data[:, None], d, "none") for jet in both]

        path._jets = jets
        return path

    return made


def squared(path):
    """W2² in the unit box."""
    return (float(path.distance) / unit_box(path.grid).length) ** 2


@every_grid
def test_distance_of_an_exact_path(grid, path_of):
    """|v|; the lumps are 5σ away from the faces at least, so that 1e-6 of them are outside."""
    length = max(grid.lengths)
    expected = length * math.hypot(*V[: grid.dimension])
    found = path_of(grid).distance
    assert found.shape == () and found.dtype == torch.float64
    assert float(found) == pytest.approx(expected, rel=1e-5)


@every_grid
def test_distance_is_independent_of_the_density_for_the_exact_potential(grid, path_of):
    exact = path_of(grid)
    wrong = path_of(grid, of_density=lambda x, t: 0.1 * torch.cos(x.sum() + t) ** 2)
    assert float(wrong.distance) == pytest.approx(float(exact.distance), rel=1e-9)


@every_grid
def test_distance_error_is_quadratic(grid, path_of):
    """Errors of order e in both change W2² by e²."""

    def squared_with(e):
        return squared(
            path_of(
                grid,
                of_density=lambda x, t: e * torch.cos(x.sum() + t) ** 2,
                of_potential=lambda x, t: e * torch.sin(2 * x.sum() + t),
            )
        )

    exact = squared_with(0.0)
    small, large = (abs(squared_with(e) - exact) for e in (0.001, 0.002))
    assert large == pytest.approx(4 * small, rel=0.05)


def test_negative_dual_value_gives_distance_zero(path_of):
    """The dual value of a potential that is far too steep is negative."""
    steep = path_of(PATH_GRIDS["1D"], of_potential=lambda x, t: 5 * x.sum())
    assert float(steep.distance) == 0


def drawn(count, seed, spread=(0.5, 0.6)):
    """Mixtures of lumps on the box of the paper."""
    return mixtures_1d(count, torch.Generator().manual_seed(seed), spread).to_density(BOX_1D)


@pytest.fixture(scope="module")
def prepared():
    """A model that has seen the paper's 1D family, and nothing else."""
    model = model_of(sensors=100, ends="given")
    problem = Mixtures(mixtures_1d, BOX_1D)
    source, _ = problem.draw(4096, torch.Generator().manual_seed(0))
    model.prepare(source(sensor_points(100, 1)))
    return model


def test_both_ends_must_be_in_distribution(prepared):
    usual, other = drawn(2, 1), drawn(2, 2, (0.3, 0.4))
    for source, target, expected in (
        (usual, usual, [True, True]),
        (usual, other, [False, False]),
        (other, usual, [False, False]),
    ):
        report = prepared.build_path(source, target, "geonet", {}).report
        assert report.in_distribution == expected
    mixed = Density(torch.stack([usual.tensor[0], other.tensor[0]]), BOX_1D)
    report = prepared.build_path(mixed, usual, "geonet", {}).report
    assert report.in_distribution == [True, False]
    assert prepared.build_path(usual[0], usual[1], "geonet", {}).report.in_distribution is True


def calibrated(slope):
    return {"measured": {"test": TESTED, "calibration": {"slope": slope}}}


def test_residual_error_formula():
    """½ of either end's error, ½ of the created mass, ⅛ of the displaced mass."""
    source, target = drawn(2, 1), drawn(2, 2)
    path = model_of().build_path(source, target, "geonet", {})
    check = path.residuals
    expected = check.continuity_residual / 2 + check.displaced_mass / 8
    for t, end in ((0.0, source), (1.0, target)):
        expected = expected + l1(path.density(t), end) / 2
    assert torch.allclose(path.residual_error, expected)
    assert path.residual_error.shape == (2,)
    report = path.report
    assert report.continuity == pytest.approx(check.continuity_residual.tolist())
    assert report.hamilton_jacobi == pytest.approx(check.acceleration.tolist())


def test_error_estimate_is_calibrated():
    source, target = drawn(2, 1), drawn(2, 2)
    path = model_of().build_path(source, target, "geonet", calibrated(0.25))
    expected = 0.25 * path.residual_error
    assert float(expected.max()) < 2
    assert path.report.error_estimate == pytest.approx(expected.tolist())
    single = model_of().build_path(source[1], target[1], "geonet", calibrated(0.25))
    assert single.report.error_estimate == pytest.approx(expected[1].item(), rel=1e-4)


def test_calibration_is_a_median_ratio():
    model = model_of()
    path = model.build_path(drawn(3, 1), drawn(3, 2), "geonet", {})
    factors = torch.tensor([0.5, 4.0, 2.0], dtype=torch.float64)
    largest = factors * path.residual_error
    errors = largest[:, None] * torch.tensor([0.1, 1.0, 0.9], dtype=torch.float64)
    slope = model.calibrate(path, errors)["calibration"]["slope"]
    assert slope == pytest.approx(2.0)


@pytest.mark.parametrize("calibration", [3, [1.0], {}, {"slope": "steep"}, {"slope": None}])
def test_invalid_calibration(calibration):
    header = {"file": "odd.safetensors", "measured": {"test": TESTED, "calibration": calibration}}
    with pytest.raises(FileError, match="invalid test errors"):
        model_of().build_path(drawn(1, 1), drawn(1, 2), "geonet", header)


def test_chunks_of_points_change_nothing(monkeypatch):
    """Up to rounding."""
    grid = geonet.Grid((12, 12), 0, 5)
    source, target = (
        geonet.GaussianMixture.isotropic([[x, 2.5]], 0.8).to_density(grid) for x in (2.0, 3.0)
    )
    whole = geonet.geodesic(source, target, "geonet-2d").velocity(0.3, grid.points())
    monkeypatch.setattr(GeONetPath, "chunk_points", 50)
    parts = geonet.geodesic(source, target, "geonet-2d").velocity(0.3, grid.points())
    assert np.allclose(whole, parts, atol=1e-5 * float(abs(whole).max()))


CONFIG = {
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


MOMENTS = [0.0, 0.3, 1.0]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> str:
    """A 1D model_file, trained for a few steps."""
    outcome = train(from_table(TrainingConfig, CONFIG), tmp_path_factory.mktemp("tiny"))
    return str(outcome.model)


@pytest.fixture(scope="module")
def plane_model(tmp_path_factory) -> str:
    """A 2D model_file with random weights."""
    settings = GeONetSettings(
        dimension=2,
        sensors=10,
        rank=6,
        swap_symmetry="both",
        branch=Branch(width=8, depth=3),
        trunk=Trunk(width=8, depth=3),
    )
    file = tmp_path_factory.mktemp("plane") / "plane.safetensors"
    return str(save_model(file, build_model(settings, 0), {"name": "plane"}))


@pytest.fixture(scope="module")
def entropic_model(tmp_path_factory) -> str:
    """A 1D model_file of the Schrödinger bridge with ε = 0.2, trained for a few steps."""
    table = CONFIG | {
        "model": CONFIG["model"] | {"swap_symmetry": "density"},
        "loss": {"epsilon": 0.2},
        "validation": {"pairs": 0},
    }
    outcome = train(from_table(TrainingConfig, table), tmp_path_factory.mktemp("entropic"))
    return str(outcome.model)


@pytest.fixture
def mixture_pairs(generator) -> tuple[Density, Density]:
    """Three mixture_pairs of the paper's 1D mixtures."""
    source, target = (mixtures_1d(3, generator).to_density(BOX_1D) for _ in range(2))
    return source, target


def _blobs(grid: Grid, count: int = 2) -> tuple[Density, Density]:
    """Pairs of round bumps well inside [0, 1]² of a 2D grid."""
    places = torch.rand(2, count, 1, 2, generator=torch.Generator().manual_seed(0)).double()
    source, target = (
        GaussianMixture.isotropic(0.4 + 0.2 * ends, 0.09).to_density(grid) for ends in places
    )
    return source, target


def test_batch_equals_single_pairs(model_file, mixture_pairs, generator):
    many = geonet.geodesic(*mixture_pairs, solver=model_file)
    assert (many.solver, many.info) == ("geonet", {"model": "tiny"})
    assert many.density(MOMENTS).tensor.shape == (3, 3, 100)
    assert many.distance.shape == (3,)
    points = 10 * torch.rand(4, 1, generator=generator)
    for k in range(3):
        one = geonet.geodesic(mixture_pairs[0][k], mixture_pairs[1][k], solver=model_file)
        assert one.density(MOMENTS).tensor.shape == (3, 100)
        for together, alone in (
            (many.density(MOMENTS).tensor[k], one.density(MOMENTS).tensor),
            (many.distance[k], one.distance),
            (many.velocity(MOMENTS, points)[k], one.velocity(MOMENTS, points)),
            (many.potential(MOMENTS, points)[k], one.potential(MOMENTS, points)),
            (many.trajectories(MOMENTS, points)[k], one.trajectories(MOMENTS, points)),
        ):
            assert together.shape == alone.shape
            assert together.dtype == torch.float64
            assert torch.allclose(together, alone, rtol=1e-4, atol=1e-6)
    apart = (many.density(0.5).tensor[0] - many.density(0.5).tensor[1]).abs().max()
    assert float(apart) > 1e-4  # the mixture_pairs are not all answered alike


@pytest.mark.parametrize(("corner", "scale"), [(0.0, 0.1), (-40.0, 7.0), (1e5, 1e4)])
def test_everything_scales_with_the_box(model_file, mixture_pairs, corner, scale):
    """x → corner + scale·x: W2 and v scale once, u twice, the density once down."""
    moved = [Density(end.tensor, Grid(100, corner, corner + 10 * scale)) for end in mixture_pairs]
    path, other = (geonet.geodesic(*ends, solver=model_file) for ends in (mixture_pairs, moved))
    points = torch.linspace(0.5, 9.5, 7, dtype=torch.float64)[:, None]
    there = corner + scale * points
    for ours, theirs, power in (
        (path.density(MOMENTS).tensor, other.density(MOMENTS).tensor, -1),
        (path.distance, other.distance, 1),
        (path.velocity(MOMENTS, points), other.velocity(MOMENTS, there), 1),
        (path.potential(MOMENTS, points), other.potential(MOMENTS, there), 2),
    ):
        unit = ours.abs().max()
        assert float(unit) > 0
        assert torch.allclose(ours / unit, theirs / scale**power / unit, atol=2e-5)


@pytest.mark.parametrize("d", [1, 2])
def test_velocity_is_the_gradient_of_the_potential(
    model_file, plane_model, mixture_pairs, d, generator
):
    ends, length = (mixture_pairs, 10.0) if d == 1 else (_blobs(Grid((12, 12), 0.0, 3.0)), 3.0)
    path = geonet.geodesic(*ends, solver=model_file if d == 1 else plane_model)
    points = length * (0.1 + 0.8 * torch.rand(20, d, generator=generator).double())
    velocity, step = path.velocity(MOMENTS, points), 5e-3 * length
    for i in range(d):
        shift = step * torch.eye(d, dtype=torch.float64)[i]
        above, below = (path.potential(MOMENTS, points + s * shift) for s in (1, -1))
        slope = (above - below) / (2 * step)
        assert torch.allclose(slope, velocity[..., i], atol=2e-3 * float(velocity.abs().max()))


@pytest.mark.parametrize("single", [True, False])
def test_save_and_load(model_file, mixture_pairs, tmp_path, single):
    ends = (mixture_pairs[0][0], mixture_pairs[1][0]) if single else mixture_pairs
    path = geonet.geodesic(*ends, solver=model_file)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0, 0.5]))
    assert (loaded.solver, loaded.info, loaded.batch) == (path.solver, path.info, path.batch)
    finer = BOX_1D.with_shape(37)
    assert torch.equal(loaded.density(MOMENTS, finer).tensor, path.density(MOMENTS, finer).tensor)
    points = np.linspace(1, 9, 5)
    assert np.array_equal(loaded.velocity(MOMENTS, points), path.velocity(MOMENTS, points))
    assert np.array_equal(loaded.potential(MOMENTS, points), path.potential(MOMENTS, points))
    assert np.array_equal(loaded.distance, path.distance)


@pytest.fixture
def counted(model_file, mixture_pairs, monkeypatch):
    """A solver with an empty cache, and the list of what its density's trunk is asked."""
    opening._load_frozen.cache_clear()
    solver = geonet.solver(model_file)
    trunk = solver(*mixture_pairs).bases.model.density.trunk
    whole, asked = trunk.features, []

    def features(z):
        asked.append(z)
        return whole(z)

    monkeypatch.setattr(trunk, "features", features)
    return solver, asked


def test_basis_is_cached_across_pairs(counted, model_file, mixture_pairs):
    solver, asked = counted
    first = solver(*mixture_pairs)
    frames = first.density(MOMENTS)
    assert len(asked) == len(MOMENTS)
    second = solver(*mixture_pairs[::-1])
    assert not torch.equal(second.density(MOMENTS).tensor, frames.tensor)
    assert torch.equal(first.density(MOMENTS).tensor, frames.tensor)
    third = geonet.geodesic(*mixture_pairs, solver=model_file)  # by the name of the file, too
    assert torch.equal(third.density(MOMENTS).tensor, frames.tensor)
    assert len(asked) == len(MOMENTS)


def test_basis_cache_is_bounded(counted, mixture_pairs, monkeypatch):
    solver, asked = counted
    path = solver(*mixture_pairs)
    path.density(0.0)
    one = path.bases.on_grid(BOX_1D, 0.0).nbytes
    monkeypatch.setattr(BasisCache, "max_bytes", 3 * one)
    path.density([0.1, 0.2])
    path.density(0.0)  # the oldest is now 0.1
    path.density(0.3)
    assert len(asked) == 4
    path.density([0.0, 0.2, 0.3])
    assert len(asked) == 4
    path.density(0.1)
    assert len(asked) == 5
    monkeypatch.setattr(BasisCache, "max_bytes", 0)
    path.density(MOMENTS)  # nothing can be kept, and it still answers


def test_bridges_have_no_distance(entropic_model, mixture_pairs):
    path = geonet.geodesic(*mixture_pairs, solver=entropic_model)
    with pytest.raises(UnavailableError, match="no distance"):
        path.distance  # noqa: B018
    assert path.report.distance is None
    assert path.info["epsilon"] == pytest.approx(0.2)


def test_velocity_of_a_bridge(entropic_model, mixture_pairs):
    """v = ∇u + ε∇log μ, where there is mass; finite anywhere."""
    path, step = geonet.geodesic(*mixture_pairs, solver=entropic_model), 0.02
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
