"""The Schrödinger bridge against closed forms, its equations and its limit."""

import math

import pytest
import torch

import geonet
from benchmarks import pairs
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, SolverError
from geonet.metrics import mass_error
from geonet.mixture import mixtures_1d
from geonet.numerics.heat_kernel import MIN_VARIANCE, HeatKernel, _log_kernel
from geonet.solvers.bures import moment_bounds
from geonet.solvers.schrodinger import min_epsilon

LINE = Grid(100, 0, 10)
SQUARE = Grid((40, 40), 0, 5)
TIMES = (0.0, 1e-4, 0.003, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class GaussianBridge:
    """Bridge between N(m0, S0) and N(m1, S1) on R^d for commuting S0, S1.

    The plan has cross-covariance C = ½((4·S0·S1 + (2ε)²)^½ − 2ε), and
    S_t = (1−t)²S0 + t²S1 + t(1−t)(2C + 2ε).
    """

    def __init__(self, m0, S0, m1, S1, epsilon):
        self.m0, self.m1, self.S0, self.S1 = (
            torch.as_tensor(x, dtype=torch.float64) for x in (m0, m1, S0, S1)
        )
        self.epsilon = epsilon
        self.I = torch.eye(len(self.S0), dtype=torch.float64)
        values, vectors = torch.linalg.eigh(4 * self.S0 @ self.S1 + (2 * epsilon) ** 2 * self.I)
        root = vectors @ values.sqrt().diag() @ vectors.T
        self.C = (root - 2 * epsilon * self.I) / 2

    def ends(self, grid):
        pairs = ((self.m0, self.S0), (self.m1, self.S1))
        return tuple(GaussianMixture(m[None], S[None]).to_density(grid) for m, S in pairs)

    def mean(self, t):
        return torch.lerp(self.m0, self.m1, t)

    def covariance(self, t):
        noise = 2 * self.C + 2 * self.epsilon * self.I
        return (1 - t) ** 2 * self.S0 + t**2 * self.S1 + t * (1 - t) * noise

    def density(self, t, grid):
        return GaussianMixture(self.mean(t)[None], self.covariance(t)[None]).pdf(grid.points())

    def slope(self, t):
        """Return A with v = m' + A(x − m): half the logarithmic derivative of the covariance."""
        noise = 2 * self.C + 2 * self.epsilon * self.I
        rate = -2 * (1 - t) * self.S0 + 2 * t * self.S1 + (1 - 2 * t) * noise
        return rate @ torch.linalg.inv(self.covariance(t)) / 2

    def velocity(self, t, x):
        return (self.m1 - self.m0) + (x - self.mean(t)) @ self.slope(t).T

    def regularised_velocity(self, t, x):
        """Return `path.velocity`: at the ends, relative to a plan from that end to itself."""
        if t not in (0, 1):
            return self.velocity(t, x)
        S = self.S1 if t else self.S0
        to_itself = GaussianBridge([0.0], S, [0.0], S, self.epsilon).C
        sign = -1 if t else 1
        slope = sign * (self.C - to_itself) @ torch.linalg.inv(S)
        return (self.m1 - self.m0) + (x - self.mean(t)) @ slope.T

    def drift(self, t, x):
        inverse = torch.linalg.inv(self.covariance(t))
        return self.velocity(t, x) + self.epsilon * (x - self.mean(t)) @ inverse.T

    def potential(self, t, x):
        """Return u up to a constant; its value c(t) at the mean obeys c' = ½|m'|² + ε·tr D²u."""
        hessian = self._hessian(t)
        moved, speed = x - self.mean(t), self.m1 - self.m0
        nodes = (torch.arange(100, dtype=torch.float64) + 0.5) * (t / 100)
        laplacians = torch.stack([self._hessian(float(s)).trace() for s in nodes])
        at_mean = 0.5 * t * speed @ speed + self.epsilon * t * laplacians.mean()
        return at_mean + moved @ speed + 0.5 * (moved @ hessian * moved).sum(-1)

    def _hessian(self, t):
        return self.slope(t) + self.epsilon * torch.linalg.inv(self.covariance(t))

    def points(self, t, n=7, reach=2.5):
        """Return points (n^d, d) within some standard deviations of the mean."""
        axis = torch.linspace(-reach, reach, n, dtype=torch.float64)
        cube = torch.cartesian_prod(*[axis] * len(self.m0)).reshape(-1, len(self.m0))
        return self.mean(t) + cube @ torch.linalg.cholesky(self.covariance(t)).T


def on_line(epsilon):
    return GaussianBridge([3.0], [[0.25]], [6.5], [[0.49]], epsilon)


def on_square(epsilon):
    """Rotate the axes by 30°: the covariances commute but are not diagonal."""
    c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
    rotation = torch.tensor([[c, -s], [s, c]])
    S0, S1 = (
        rotation @ torch.diag(torch.tensor(v)) @ rotation.T for v in ([0.16, 0.09], [0.1, 0.2])
    )
    return GaussianBridge([1.9, 2.1], S0.tolist(), [3.0, 2.8], S1.tolist(), epsilon)


def l1(values, reference, grid):
    return float((values - reference).abs().sum()) * grid.cell_volume


def draw(kind, cells):
    """Return a pair of torch densities."""
    return [Density(end.tensor, end.grid) for end in pairs.draw(kind, cells)]


def bridge(source, target, **options):
    return geonet.geodesic(source, target, solver="schrodinger", **options)


@pytest.fixture(scope="module")
def mixtures():
    pair = mixtures_1d(2, torch.Generator().manual_seed(0))
    return pair[0].to_density(LINE), pair[1].to_density(LINE)


@pytest.fixture(scope="module")
def path(mixtures):
    return bridge(*mixtures, epsilon=0.1)


# ---- against closed forms


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.02, 0.005])
def test_gaussians_on_the_line(epsilon):
    exact = on_line(epsilon)
    path = bridge(*exact.ends(LINE), epsilon=epsilon)
    frames = path.density(TIMES).tensor
    errors = [l1(f, exact.density(t, LINE), LINE) for f, t in zip(frames, TIMES, strict=True)]
    assert max(errors) < 5e-4  # measured: 1e-4 at the smallest epsilon, 6e-5 otherwise


@pytest.mark.parametrize("epsilon", [0.1, 0.02])
def test_gaussians_on_the_square(epsilon):
    exact = on_square(epsilon)
    path = bridge(*exact.ends(SQUARE), epsilon=epsilon)
    frames = path.density(TIMES).tensor
    errors = [l1(f, exact.density(t, SQUARE), SQUARE) for f, t in zip(frames, TIMES, strict=True)]
    assert max(errors) < 2e-3
    for t in TIMES:
        x = exact.points(t, n=5, reach=2.0)
        torch.testing.assert_close(path.drift(t, x), exact.drift(t, x), atol=0.02, rtol=0)
        torch.testing.assert_close(
            path.velocity(t, x), exact.regularised_velocity(t, x), atol=0.02, rtol=0
        )


@pytest.mark.parametrize("epsilon", [0.1, 0.02, 0.005])
def test_potential_drift_and_velocity_of_gaussians(epsilon):
    exact = on_line(epsilon)
    path = bridge(*exact.ends(LINE), epsilon=epsilon)
    constants = []
    for t in TIMES:
        x = exact.points(t, n=31)
        torch.testing.assert_close(path.drift(t, x), exact.drift(t, x), atol=2e-3, rtol=0)
        torch.testing.assert_close(
            path.velocity(t, x), exact.regularised_velocity(t, x), atol=2e-3, rtol=0
        )
        constants.append(path.potential(t, x) - exact.potential(t, x))
    spread = torch.stack(constants)
    assert float(spread.max() - spread.min()) < 2e-3  # one constant for all x and t


@pytest.mark.parametrize("epsilon", [0.1, 0.005])
def test_trajectories_of_gaussians_scale_with_the_spread(epsilon):
    exact = on_line(epsilon)
    path = bridge(*exact.ends(LINE), epsilon=epsilon)
    start = exact.points(0.0, n=9)
    times = (0.5, 0.0, 1.0, 0.1)  # in any order
    expected = torch.stack(
        [
            exact.mean(t) + (start - exact.m0) * (exact.covariance(t) / exact.S0).sqrt()
            for t in times
        ]
    )
    torch.testing.assert_close(path.trajectories(times, start), expected, atol=1e-4, rtol=0)


def test_transport_cost_of_gaussians():
    exact = on_line(0.1)
    path = bridge(*exact.ends(LINE), epsilon=0.1)
    shift = exact.m1 - exact.m0
    expected = (shift @ shift + (exact.S0 + exact.S1 - 2 * exact.C).trace()).sqrt()
    assert float(path.transport_cost) == pytest.approx(float(expected), abs=1e-4)
    assert path.transport_cost > geonet.geodesic(*exact.ends(LINE), solver="quantile").distance


def test_uniform_stays_uniform_between_reflecting_walls():
    uniform = Density(torch.ones(20, 30), Grid((20, 30), (0, 0), (1, 2)))
    path = bridge(uniform, uniform)
    frames = path.density(TIMES).tensor
    torch.testing.assert_close(frames, torch.full_like(frames, 0.5), atol=1e-9, rtol=0)
    points = torch.tensor([[0.0, 0.0], [0.3, 1.9], [1.0, 2.0]])
    assert float(path.velocity(TIMES, points).abs().max()) < 1e-9


def test_gaussians_in_3d():
    grid = Grid((16, 18, 20), 0, 1)
    spread = (0.02 * torch.eye(3)).tolist()
    exact = GaussianBridge([0.4, 0.45, 0.5], spread, [0.6, 0.5, 0.45], spread, 0.01)
    source, target = exact.ends(grid)
    path = bridge(source, target, epsilon=0.01)
    middle = path.density(0.5)
    assert l1(path.density(1.0).tensor, target.tensor, grid) < 1e-6
    assert float(mass_error(middle)) < 1e-3
    torch.testing.assert_close(middle.mean(), exact.mean(0.5), atol=5e-3, rtol=0)


@pytest.mark.parametrize("variance", [1 / 256, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("lattice", [{}, {"at": 4}, {"nodes": 4}], ids=str)
def test_blockwise_kernel_equals_the_full_logsumexp(variance, lattice):
    cells = 40
    log_kernel = _log_kernel(cells, variance, **{"at": 1, "nodes": 1} | lattice)
    generator = torch.Generator().manual_seed(0)
    log_values = 500 * torch.randn(log_kernel.shape[1], 3, generator=generator).double()
    log_values[::3, 1] = log_values[1:, 2] = -math.inf
    expected = (log_kernel[:, :, None] + log_values).logsumexp(1)
    torch.testing.assert_close(HeatKernel(cells, variance, **lattice)(log_values, 0), expected)


# ---- equations


def test_potential_obeys_the_viscous_hamilton_jacobi_equation(path):
    x, dt, dx = torch.linspace(2, 8, 61), 1e-3, 0.1
    for t in (0.2, 0.5, 0.8):
        later, earlier = (path.potential(t + s * dt, x) for s in (1, -1))
        u, right, left = (path.potential(t, x + s * dx) for s in (0, 1, -1))
        change = (later - earlier) / (2 * dt)
        kinetic = 0.5 * path.drift(t, x)[:, 0] ** 2
        diffusion = path.epsilon * (right - 2 * u + left) / dx**2
        residual = change + kinetic - diffusion
        assert float(residual.abs().max()) < 5e-3 * float(change.abs().max())


def test_density_obeys_both_continuity_equations(path):
    x, h, dt, t = LINE.points()[:, 0], LINE.spacing[0], 1e-3, 0.4
    later, density, earlier = path.density((t + dt, t, t - dt)).tensor[:, None].unbind(0)
    change = ((later - earlier) / (2 * dt))[0]
    density = density[0]
    current = (density * path.velocity(t, x)[:, 0]).diff()
    drift = (density * path.drift(t, x)[:, 0]).diff()
    divergence, drift_divergence = ((c[1:] + c[:-1]) / (2 * h) for c in (current, drift))
    laplacian = density.diff().diff() / h**2
    scale = float(change.abs().max())
    assert float((change[1:-1] + divergence).abs().max()) < 0.01 * scale
    residual = change[1:-1] + drift_divergence + path.epsilon * laplacian
    assert float(residual.abs().max()) < 0.01 * scale


def test_particles_transport_the_density(path, mixtures):
    """Quantiles of the source move to quantiles of the target."""
    edges, levels = LINE.edges()[0], torch.linspace(0.02, 0.98, 33, dtype=torch.float64)

    def quantiles(density):
        distribution = torch.cat([torch.zeros(1), density.tensor.cumsum(0) * LINE.cell_volume])
        right = torch.searchsorted(distribution, levels).clamp(1, len(edges) - 1)
        low, high = distribution[right - 1], distribution[right]
        return torch.lerp(edges[right - 1], edges[right], (levels - low) / (high - low))

    arrived = path.trajectories(1.0, quantiles(mixtures[0]))[:, 0]
    torch.testing.assert_close(arrived, quantiles(mixtures[1]), atol=0.01, rtol=0)


def test_vanishing_noise_gives_the_geodesic(mixtures):
    truth = geonet.geodesic(*mixtures, solver="quantile").density(0.5).tensor
    errors = [
        l1(bridge(*mixtures, epsilon=epsilon).density(0.5).tensor, truth, LINE)
        for epsilon in (1.0, 0.3, 0.1, 0.03, 0.01)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 5e-3  # the two discretisations differ by 2e-3


# ---- rough densities, distances and options


@pytest.mark.parametrize("epsilon", [None, 3e-3, 0.5 / 28**2])
def test_densities_with_zeros(epsilon):
    grid = Grid((28, 28), 0, 1)
    x, y = grid.points().unbind(-1)
    disc = Density(((x - 0.25) ** 2 + (y - 0.3) ** 2 < 0.02).double(), grid)
    two = Density((((x - 0.7).abs() < 0.1) & ((y - 0.5).abs() > 0.2)).float(), grid)
    path = bridge(disc, two, epsilon=epsilon)
    frames = path.density(TIMES)
    assert l1(frames.tensor[0], disc.tensor, grid) < 1e-6
    assert l1(frames.tensor[-1], two.tensor, grid) < 1e-6
    assert float(frames.tensor[0][disc.tensor == 0].max()) == 0
    assert float(mass_error(frames).max()) < 0.02
    points = grid.points().reshape(-1, 2)[::7]
    for quantity in (path.velocity, path.drift, path.potential):
        assert bool(torch.isfinite(quantity(TIMES, points)).all())
    arrived = path.trajectories(1.0, points[disc.tensor.reshape(-1)[::7] > 0])
    assert float((arrived[:, 0] - 0.7).abs().max()) < 0.15  # all end on the two rectangles
    assert float((arrived[:, 1] - 0.5).abs().min()) > 0.15


def test_mass_of_steps_and_single_cells_is_conserved():
    grid = Grid(64, 0, 1)
    x = grid.points()[:, 0]
    generator = torch.Generator().manual_seed(0)
    noise = Density(torch.rand(64, generator=generator) ** 4, grid)
    step = Density(((x > 0.1) & (x < 0.3)).double() + 1e-12, grid)
    spike = Density((x - 0.7).abs() < 0.01, grid)
    for source, target in ((noise, step), (step, spike), (spike, spike), (noise, noise)):
        frames = bridge(source, target).density(torch.linspace(0, 1, 41))
        assert float(mass_error(frames).max()) < 0.01


def test_default_epsilon_depends_on_the_box_and_the_grid(mixtures):
    assert bridge(*mixtures).epsilon == pytest.approx(1e-3 * 10**2)
    coarse = Grid(10, 0, 10)
    path = bridge(*(end.resample(coarse) for end in mixtures))
    assert path.epsilon == pytest.approx(0.5)
    assert float(mass_error(path.density(0.5))) < 1e-3


@pytest.mark.parametrize("epsilon", [None, 2.5e-4])
@pytest.mark.parametrize("kind", ["smooth", "rough", "photographs", "shapes", "white-noise"])
def test_distance_is_within_its_bounds_and_close_to_midpoint(kind, epsilon):
    """At 64² the error was at most 1 % for all pairs that move by more than a cell."""
    ends = draw(kind, 48)
    exact = float(geonet.geodesic(*ends, "midpoint").distance)
    path = bridge(*ends, epsilon=epsilon, tolerance=1e-5)
    report, slack = path.report, 1 + 2e-3  # of midpoint
    assert report.distance_lower_bound < exact * slack
    assert exact < report.distance_upper_bound * slack
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
    assert float(path.distance) == pytest.approx(exact, rel=0.12 if kind == "white-noise" else 0.01)
    assert float(path.transport_cost) > exact


def test_distance_with_much_noise_is_the_bound_from_moments():
    ends = [GaussianMixture.isotropic([[x]], [0.5]).to_density(LINE) for x in (3.0, 6.0)]
    path = bridge(*ends, epsilon=500.0)
    report, moments = path.report, float(moment_bounds(*ends)[0])
    assert float(path.distance) == pytest.approx(moments) == pytest.approx(3.0, rel=1e-3)
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound


def test_transport_cost_is_the_sharper_upper_bound_for_densities_with_holes():
    grid = Grid((24, 24))
    values = torch.rand(2, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    values[0, 12:], values[1, :, :9] = 0, 0
    ends = Density(values[0], grid), Density(values[1], grid)
    atoms = float(geonet.geodesic(*ends, "linear-program").distance)
    path = bridge(*ends, epsilon=0.5 / 24**2)
    assert atoms <= float(path.transport_cost) < atoms * 1.03
    assert path.report.distance_upper_bound <= float(path.transport_cost)


@pytest.mark.parametrize(
    ("kind", "limit"), [("smooth", 0.05), ("rough", 0.2), ("photographs", 0.1), ("digits", 0.4)]
)
def test_velocities_at_rough_ends_are_close_to_the_geodesic(kind, limit):
    """At 64² the errors were 0.015, 0.07, 0.03 and 0.15 of W2; ε∇log μ alone is up to 0.5."""
    source, target = draw(kind, 32)
    path, exact = bridge(source, target), geonet.geodesic(source, target, "midpoint")
    points = source.grid.points().reshape(-1, 2)
    for t, end in ((0.0, source), (1.0, target)):
        error = ((path.velocity(t, points) - exact.velocity(t, points)) ** 2).sum(-1)
        mean = (end.tensor.flatten() * error).sum() * source.grid.cell_volume
        assert float(mean.sqrt() / exact.distance) < limit


def test_equal_densities_have_zero_velocity_at_the_ends():
    density = draw("digits", 28)[0]
    points = density.grid.points().reshape(-1, 2)
    velocity = bridge(density, density, tolerance=1e-10).velocity((0.0, 1.0), points)
    assert float((velocity.norm(dim=-1) * density.tensor.flatten()).mean()) < 1e-6


def test_epsilon_below_the_resolution_of_the_grid_is_an_error(mixtures):
    message = r"epsilon = 0\.001 is below .* at least 0\.005 or a finer grid"
    with pytest.raises(SolverError, match=message):
        bridge(*mixtures, epsilon=0.001)


@pytest.mark.parametrize(
    "options",
    [{"epsilon": 0.0}, {"epsilon": math.nan}, {"epsilon": math.inf}, {"max_iterations": 0}],
)
def test_invalid_options_are_an_error(options):
    with pytest.raises(SolverError, match="positive"):
        geonet.solver("schrodinger", **options)


def test_slow_convergence_is_an_error(mixtures):
    with pytest.raises(ConvergenceError, match="after 10 iterations") as caught:
        bridge(*mixtures, epsilon=0.02, max_iterations=10)
    assert caught.value.residual > 1e-7


# ---- periodic axes


def wrapped_ends(grid, centres=((0.9, 0.4), (0.15, 0.35)), std=0.06):
    return [GaussianMixture.isotropic([centre], std).to_density(grid) for centre in centres]


def test_periodic_bridge_crosses_the_seam():
    grid = Grid((64, 48), 0, (1, 0.75), periodic=(True, False))
    path = geonet.geodesic(*wrapped_ends(grid), "schrodinger")
    # W2² of product densities is the sum over the axes; tails go the other way round
    axes = (Grid(64, periodic=True), (0.9, 0.15)), (Grid(48, 0, 0.75), (0.4, 0.35))
    ends = ([wrapped_ends(line, [[x]])[0] for x in centres] for line, centres in axes)
    expected = math.hypot(*(geonet.geodesic(*pair, "quantile").distance for pair in ends))
    assert path.distance == pytest.approx(expected, rel=1e-3)
    assert path.report.distance_lower_bound <= expected <= path.report.distance_upper_bound
    assert path.transport_cost >= expected * (1 - 1e-3)
    assert path.report.mass_error < 1e-6 and path.report.target_error < 1e-5
    # halfway it is a Gaussian on the seam but for the tails (see GaussianBridge), S = 0.06²
    variance = 0.0036 / 2 + math.hypot(0.0036, path.epsilon) / 2
    (middle,) = wrapped_ends(grid, [(0.025, 0.375)], math.sqrt(variance))
    assert l1(path.density(0.5).tensor, middle.tensor, grid) < 0.02
    velocity = torch.as_tensor(path.velocity([0, 0.5, 1], [[0.9, 0.4], [0.025, 0.375]]))
    assert torch.allclose(velocity[0, 0], torch.tensor([0.25, -0.05]).double(), atol=2e-3)
    assert torch.allclose(velocity[1, 1], torch.tensor([0.25, -0.05]).double(), atol=2e-3)
    ends = torch.as_tensor(path.trajectories(1.0, [[0.9, 0.4]]))
    assert torch.allclose(ends, torch.tensor([[0.15, 0.35]]).double(), atol=2e-3)


def test_a_shift_of_both_ends_changes_nothing():
    grid = Grid((24, 20), periodic=True)
    ends = wrapped_ends(grid, ((0.4, 0.3), (0.7, 0.55)), 0.08)
    shifted = [Density(end.tensor.roll((9, 13), (0, 1)), grid) for end in ends]
    ends = [Density(end.tensor, grid) for end in ends]
    path, moved = (
        geonet.geodesic(*pair, "schrodinger", tolerance=1e-9) for pair in (ends, shifted)
    )
    assert float(moved.distance) == pytest.approx(float(path.distance), rel=1e-6)
    assert float(moved.transport_cost) == pytest.approx(float(path.transport_cost), rel=1e-6)
    for t in (0.0, 0.003, 0.3, 1.0):
        frame = path.density(t).tensor.roll((9, 13), (0, 1))
        assert torch.allclose(moved.density(t).tensor, frame, atol=1e-6)
    offset = torch.tensor([9 / 24, 13 / 20], dtype=torch.float64)
    points = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for t in (0.0, 0.4, 1.0):
        here, there = path.velocity(t, points), moved.velocity(t, points + offset)
        assert torch.allclose(here, there, atol=1e-4)


@pytest.mark.parametrize("lattice", [{}, {"at": 4}, {"nodes": 4}], ids=str)
@pytest.mark.parametrize("variance", [MIN_VARIANCE, 3.0, 1e4])
def test_periodic_kernel_is_the_sum_over_images(variance, lattice):
    cells, sizes = 12, {"at": 1, "nodes": 1} | lattice
    x, y = ((torch.arange(cells * m).double() + 0.5) / m for m in sizes.values())
    images = x[:, None, None] - y[:, None] + cells * torch.arange(-400, 401)
    kernel = (images.square() / (-2 * variance)).exp().sum(-1)
    kernel = kernel / kernel.sum(1, keepdim=True)
    assert torch.allclose(_log_kernel(cells, variance, **sizes, periodic=True).exp(), kernel)


@pytest.mark.parametrize(("factor", "expected"), [(8, 4), (1.8, 1.001), (1.2, None)])
def test_a_smaller_epsilon_is_recommended_down_to_the_resolution(factor, expected):
    least = min_epsilon(SQUARE)
    path = geonet.geodesic(*pairs_on_square(), "schrodinger", epsilon=factor * least)
    assert path.info.get("smaller epsilon") == (expected and pytest.approx(expected * least))


def test_no_smaller_epsilon_is_recommended_if_the_iteration_is_slow():
    options = {"epsilon": 8 * min_epsilon(SQUARE)}
    info = geonet.geodesic(*pairs_on_square(), "schrodinger", **options).info
    limit = 16 * info["iterations"]
    slow = geonet.geodesic(*pairs_on_square(), "schrodinger", max_iterations=limit - 1, **options)
    assert "smaller epsilon" in info and "smaller epsilon" not in slow.info


def pairs_on_square():
    """Return two Gaussians."""
    means = ((2.0, 2.0), (3.0, 2.5))
    return tuple(GaussianMixture.isotropic([m], 0.5).to_density(SQUARE) for m in means)
