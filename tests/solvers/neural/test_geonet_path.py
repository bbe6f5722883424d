"""What a GeONet's path says of itself: its distance, what is usual, and the error to expect."""

import math
from functools import partial

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import FileError
from geonet.grid import unit_box
from geonet.metrics import l1
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.jets import Jet
from geonet.solvers.neural.model import Branch, Trunk, build
from geonet.training.problems import Mixtures, sensor_points

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

GRIDS = {
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
    model = build(settings, 3).requires_grad_(False)
    noise = torch.Generator().manual_seed(4)
    for p in model.parameters():  # biases of a new network are zero
        p += 0.3 * torch.randn(p.shape, generator=noise)
    return model


# ---- the distance

every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())


def lump(x, mean):
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
        ends = [Density(lump(points, start + v * t), grid) for t in (0.0, 1.0)]
        path = model_of(d).path(*ends, "geonet", {})

        def density(x, t):
            return lump(x, start + v * t) + of_density(x, t)

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
def test_the_distance_of_an_exact_path(grid, path_of):
    """|v|; the lumps are 5σ away from the faces at least, so that 1e-6 of them are outside."""
    length = max(grid.lengths)
    expected = length * math.hypot(*V[: grid.dimension])
    found = path_of(grid).distance
    assert found.shape == () and found.dtype == torch.float64
    assert float(found) == pytest.approx(expected, rel=1e-5)


@every_grid
@pytest.mark.parametrize("error", [0.02, -0.02, 0.1])
def test_an_error_of_the_velocity_counts_squared(grid, error, path_of):
    """∇H = v + b with a constant b: W2² comes out as |v|² − |b|², and not as |v + b|²."""
    b = error * torch.tensor([1.0, -0.5][: grid.dimension], dtype=torch.float64)
    exact, wrong = path_of(grid), path_of(grid, of_potential=lambda x, t: b @ x)
    assert squared(exact) - squared(wrong) == pytest.approx(float(b @ b), rel=1e-4)


@every_grid
def test_any_error_of_the_potential_counts_squared(grid, path_of):
    """Twice the error costs four times as much, whatever its sign; W2 is never too large."""

    def wave(x, t, e):
        return e * (1 + t) * torch.cos(math.pi * x).prod()

    exact = squared(path_of(grid))
    lost = {
        e: exact - squared(path_of(grid, of_potential=partial(wave, e=e)))
        for e in (0.01, -0.01, 0.02)
    }
    # |∇ of the wave| is about 5e, so that 25e² is 0.0025 at most.
    assert 1e-4 < lost[0.01] < 0.01
    assert lost[-0.01] == pytest.approx(lost[0.01], rel=0.02)
    assert lost[0.02] == pytest.approx(4 * lost[0.01], rel=0.02)


@every_grid
def test_an_error_of_the_density_does_not_count_where_the_potential_is_exact(grid, path_of):
    exact = path_of(grid)
    wrong = path_of(grid, of_density=lambda x, t: 0.1 * torch.cos(x.sum() + t) ** 2)
    assert float(wrong.distance) == pytest.approx(float(exact.distance), rel=1e-9)


@every_grid
def test_errors_of_both_count_as_their_product(grid, path_of):
    """Of order e in both, W2² is off by e²."""

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


def test_a_constant_in_the_potential_does_not_count(path_of):
    grid = GRIDS["2D"]
    shifted = path_of(grid, of_potential=lambda x, t: 3.0 + 0 * t)
    assert float(shifted.distance) == pytest.approx(float(path_of(grid).distance), rel=1e-9)


def test_a_function_of_time_in_the_potential_does_not_count(path_of):
    """∫(H_1 − H_0) gains what the residual takes away again."""
    grid = GRIDS["1D"]
    shifted = path_of(grid, of_potential=lambda x, t: torch.sin(3 * t))
    assert float(shifted.distance) == pytest.approx(float(path_of(grid).distance), rel=1e-9)


def test_a_potential_that_explains_nothing_has_no_distance(path_of):
    """The dual value of a potential that is far too steep is negative."""
    steep = path_of(GRIDS["1D"], of_potential=lambda x, t: 5 * x.sum())
    assert float(steep.distance) == 0


# ---- usual densities


def drawn(count, seed, spread=(0.5, 0.6)):
    """Mixtures of lumps on the box of the paper."""
    return mixtures_1d(count, torch.Generator().manual_seed(seed), spread).on(BOX_1D)


@pytest.fixture(scope="module")
def prepared():
    """A model that has seen the paper's 1D family, and nothing else."""
    model = model_of(sensors=100, ends="given")
    problem = Mixtures(mixtures_1d, BOX_1D)
    source, _ = problem.draw(4096, torch.Generator().manual_seed(0))
    model.prepare(source(sensor_points(100, 1)))
    return model


def test_both_ends_have_to_be_usual(prepared):
    usual, other = drawn(2, 1), drawn(2, 2, (0.3, 0.4))
    for source, target, expected in (
        (usual, usual, [True, True]),
        (usual, other, [False, False]),
        (other, usual, [False, False]),
    ):
        report = prepared.path(source, target, "geonet", {}).report
        assert report.in_distribution == expected
    mixed = Density(torch.stack([usual.tensor[0], other.tensor[0]]), BOX_1D)
    report = prepared.path(mixed, usual, "geonet", {}).report
    assert report.in_distribution == [True, False]
    assert prepared.path(usual[0], usual[1], "geonet", {}).report.in_distribution is True


def test_usual_densities_count_and_not_the_errors_at_the_ends(prepared):
    """Where the ends are given, these are small for all densities."""
    usual, other = drawn(1, 1)[0], drawn(1, 2, (0.3, 0.4))[0]
    for mean in (1e6, 0.0):
        header = {"measured": {"test": {"mean": [mean] * 5, "sd": [0.0] * 5}}}
        assert prepared.path(usual, usual, "geonet", header).report.in_distribution is True
        assert prepared.path(other, usual, "geonet", header).report.in_distribution is False


def test_other_boxes_and_grids_do_not_change_what_is_usual(prepared):
    """What counts is the density relative to its box; 150 cells are read by splines."""
    generator = torch.Generator().manual_seed(1)
    fine = mixtures_1d(3, generator).on(BOX_1D.with_shape(150))
    moved = Density(fine.tensor, Grid(150, -3.0, 2.0))
    for ends in (fine, moved):
        report = prepared.path(ends, ends, "geonet", {}).report
        assert report.in_distribution == [True] * 3


# ---- the error to expect


def calibrated(slope):
    return {"measured": {"test": TESTED, "calibration": {"slope": slope}}}


def test_what_ends_and_residuals_explain():
    """½ of either end's error, ½ of the mass from nowhere, ⅛ of what is displaced."""
    source, target = drawn(2, 1), drawn(2, 2)
    path = model_of().path(source, target, "geonet", {})
    check = path.self_check
    expected = check.created / 2 + check.displaced / 8
    for t, end in ((0.0, source), (1.0, target)):
        expected = expected + l1(path.density(t), end) / 2
    assert torch.allclose(path.explained_error, expected)
    assert path.explained_error.shape == (2,)
    report = path.report
    assert report.continuity == pytest.approx(check.created.tolist())
    assert report.hamilton_jacobi == pytest.approx(check.bent.tolist())


def test_the_expected_error_is_calibrated():
    source, target = drawn(2, 1), drawn(2, 2)
    path = model_of().path(source, target, "geonet", calibrated(0.25))
    expected = 0.25 * path.explained_error
    assert float(expected.max()) < 2
    assert path.report.error_estimate == pytest.approx(expected.tolist())
    single = model_of().path(source[1], target[1], "geonet", calibrated(0.25))
    assert single.report.error_estimate == pytest.approx(expected[1].item(), rel=1e-4)


def test_the_expected_error_is_that_of_disjoint_densities_at_most():
    path = model_of().path(drawn(2, 1), drawn(2, 2), "geonet", calibrated(1e6))
    assert path.report.error_estimate == [2.0, 2.0]


@pytest.mark.parametrize("header", [{}, {"measured": {"test": TESTED}}])
def test_without_a_calibration_there_is_no_expected_error(header):
    path = model_of().path(drawn(2, 1), drawn(2, 2), "geonet", header)
    assert path.report.error_estimate is None


def test_a_calibration_is_the_median_of_the_largest_errors_over_those_explained():
    model = model_of()
    path = model.path(drawn(3, 1), drawn(3, 2), "geonet", {})
    factors = torch.tensor([0.5, 4.0, 2.0], dtype=torch.float64)
    largest = factors * path.explained_error
    errors = largest[:, None] * torch.tensor([0.1, 1.0, 0.9], dtype=torch.float64)
    slope = model.calibration(path, errors)["calibration"]["slope"]
    assert slope == pytest.approx(2.0)


def test_a_bridge_is_not_calibrated():
    model = model_of()
    path = model.path(drawn(3, 1), drawn(3, 2), "geonet", {"epsilon": 0.002})
    assert model.calibration(path, torch.ones(3, 5)) == {}


def test_the_checks_of_a_bridge_have_its_epsilon():
    ends = drawn(2, 1), drawn(2, 2)
    model = model_of(ends="given")
    plain, bridge = (
        model.path(*ends, "geonet", {"epsilon": epsilon}).self_check for epsilon in (0.0, 0.05)
    )
    for ours, theirs in zip(plain, bridge, strict=True):
        assert (ours - theirs).abs().min() > 1e-6


@pytest.mark.parametrize("calibration", [3, [1.0], {}, {"slope": "steep"}, {"slope": None}])
def test_an_odd_calibration_is_refused(calibration):
    header = {"file": "odd.safetensors", "measured": {"test": TESTED, "calibration": calibration}}
    with pytest.raises(FileError, match="odd.safetensors has odd test errors; get it again"):
        model_of().path(drawn(1, 1), drawn(1, 2), "geonet", header)


def test_many_points_are_answered_in_parts(monkeypatch):
    """As all at once, up to how products of other sizes round."""
    grid = geonet.Grid((12, 12), 0, 5)
    source, target = (
        geonet.GaussianMixture.isotropic([[x, 2.5]], 0.8).on(grid) for x in (2.0, 3.0)
    )
    whole = geonet.geodesic(source, target, "geonet-2d").velocity(0.3, grid.points())
    monkeypatch.setattr("geonet.solvers.neural.geonet.AT_ONCE", 50)
    parts = geonet.geodesic(source, target, "geonet-2d").velocity(0.3, grid.points())
    assert torch.allclose(whole, parts, atol=1e-5 * float(whole.abs().max()))
