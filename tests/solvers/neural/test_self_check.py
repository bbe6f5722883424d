"""What residuals say about a path, where it is known by hand."""

import math

import pytest
import torch

from geonet import Grid
from geonet.errors import GridError
from geonet.solvers.neural.jets import Jet
from geonet.solvers.neural.losses import GAUSS, SelfCheck, self_check

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

GRIDS = {
    "1D": Grid(200),
    "2D": Grid((50, 50)),
    "2D, not a cube": Grid((60, 30), 0.0, (1.0, 0.6)),
    "3D, not a cube": Grid((25, 20, 15), 0.0, (1.0, 0.8, 0.7)),
}
SIGMA = 0.06  # of the lumps, at least 4σ away from the faces: no more than 3e-5 are outside
V = (0.2, 0.1, -0.05)  # velocities
A = (0.3, -0.4, 0.1)  # accelerations
EPSILON = 0.01

every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())


def numbers(values, grid):
    return torch.tensor(values[: grid.dimension])


def lump(x, mean, sigma=SIGMA):
    """A Gaussian of mass one."""
    z = (x - mean) / sigma
    return torch.exp(-0.5 * z @ z) / (sigma * math.sqrt(math.tau)) ** len(mean)


def path_of(grid):
    """C and H of a lump that moves by v: ρ(x − vt) and v·x − ½|v|²t."""
    v, start = numbers(V, grid), 0.5 * grid.corner("upper") - 0.5 * numbers(V, grid)

    def density(x, t):
        return lump(x, start + v * t)

    def potential(x, t):
        return v @ x - 0.5 * t * v @ v

    return density, potential


@pytest.fixture
def check(jet_of):
    """The check of paths (C, H), each a pair of functions of (x, t)."""

    def found(grid, *paths, epsilon=0.0):
        points = grid.points().reshape(-1, grid.dimension)

        def jets(t):
            times = torch.full_like(points[:, 0], t)
            both = []
            for functions in zip(*paths, strict=True):
                made = [jet_of(function, points, times, "laplacian") for function in functions]
                data = torch.stack([jet.data for jet in made], dim=1)
                both.append(Jet(data, grid.dimension, "laplacian"))
            return tuple(both)

        return self_check(jets, grid, epsilon)

    return found


def test_gauss_s_rule_integrates_polynomials_up_to_the_fifteenth_power():
    times, weights = (torch.tensor(part) for part in GAUSS)
    for power in range(16):
        assert (weights * times**power).sum().item() == pytest.approx(1 / (power + 1), rel=1e-12)


@every_grid
def test_nothing_is_wrong_with_an_exact_path(grid, check):
    for part in check(grid, path_of(grid)):
        assert part.shape == (1,)
        assert part.abs().max() < 1e-10


@every_grid
@pytest.mark.parametrize("share", [0.3, -0.2])
def test_mass_from_nowhere_is_counted(grid, share, check):
    """C gains a lump that moves along: r = s(x − vt), and its integral is known."""
    density, potential = path_of(grid)
    made = check(grid, (lambda x, t: (1 + share * t) * density(x, t), potential))
    assert made.created.item() == pytest.approx(abs(share), rel=1e-4)
    assert made.bent.item() < 1e-10 and made.displaced.item() < 1e-10


def test_mass_that_is_carried_off_counts_as_that_which_comes(check):
    """0.2 leave on the left and come on the right, apart by ten widths."""

    def density(x, t):
        here, there = (lump(x, torch.tensor([place]), 0.03) for place in (0.2, 0.7))
        return (1 - 0.2 * t) * here + 0.2 * t * there

    still = check(GRIDS["1D"], (density, lambda x, t: 0 * t * x.sum()))
    assert still.created.item() == pytest.approx(0.4, rel=1e-6)
    assert still.bent.item() == still.displaced.item() == 0


@every_grid
def test_an_acceleration_is_relative_to_the_speed(grid, check):
    """−a·x·t in H bends by a: ∇H = v − at, whose mean square is |v|² − v·a + ⅓|a|²."""
    v, a = numbers(V, grid), numbers(A, grid)
    density, potential = path_of(grid)
    made = check(grid, (density, lambda x, t: potential(x, t) - t * a @ x))
    speed = (v @ v - v @ a + a @ a / 3).sqrt()
    assert made.bent.item() == pytest.approx((a.norm() / speed).item(), rel=1e-4)


def test_an_acceleration_displaces(check):
    """∫|a·∇ρ| = 2|a|/(σ√2π) for a Gaussian; differences over cells of σ/12 lose 1e-3 of it."""
    for grid in (GRIDS["1D"], Grid((200, 20))):
        a = numbers((0.3, 0.0), grid)
        density, potential = path_of(grid)
        made = check(grid, (density, lambda x, t, u=potential, a=a: u(x, t) - t * a @ x))
        expected = 2 * 0.3 / (SIGMA * math.sqrt(math.tau))
        assert made.displaced.item() == pytest.approx(expected, rel=3e-3)


def test_every_axis_has_its_own_spacing(check):
    """The same acceleration along either axis of a box that is no cube, with other cells."""
    grid, still = GRIDS["2D, not a cube"], path_of(GRIDS["2D, not a cube"])
    found = []
    for axis in (0, 1):
        bending = (still[0], lambda x, t, i=axis: still[1](x, t) - 0.3 * t * x[i])
        found.append(check(grid, bending))
    speeds = [(0.05 - 0.3 * v + 0.03) ** 0.5 for v in V[:2]]  # |v|² − v·a + ⅓|a|²
    for made, speed in zip(found, speeds, strict=True):
        assert made.bent.item() == pytest.approx(0.3 / speed, rel=1e-4)
        expected = 2 * 0.3 / (SIGMA * math.sqrt(math.tau))
        assert made.displaced.item() == pytest.approx(expected, rel=0.05)  # cells of σ/3.6 and σ/3


def test_where_there_is_no_mass_nothing_bends(check):
    """H is wrong in the right half of the box alone, the lump is in the left."""

    def density(x, t):
        return lump(x, torch.tensor([0.25]), 0.03)

    def wrong(x, t):
        return 0.1 * x.sum() + t * torch.relu(x.sum() - 0.6)

    made = check(GRIDS["1D"], (density, wrong))
    assert made.bent.item() < 1e-10 and made.displaced.item() < 1e-10


def test_a_batch_is_its_paths(check):
    grid = GRIDS["2D, not a cube"]
    density, potential = path_of(grid)
    paths = [
        (density, potential),
        (lambda x, t: (1 + 0.3 * t) * density(x, t), lambda x, t: potential(x, t) - t * x[0]),
        (density, lambda x, t: potential(x, t) + 0.5 * t * x[1]),
    ]
    together, alone = check(grid, *paths), [check(grid, path) for path in paths]
    for name in SelfCheck._fields:
        parts = getattr(together, name)
        assert parts.shape == (3,)
        for part, single in zip(parts, alone, strict=True):
            assert part.item() == pytest.approx(getattr(single, name).item(), abs=1e-10)


def test_a_path_without_motion_has_no_nan(check):
    grid = GRIDS["1D"]
    made = check(grid, (lambda x, t: lump(x, torch.tensor([0.5])), lambda x, t: 0 * t * x.sum()))
    assert [part.item() for part in made] == [0, 0, 0]


def bridge(d):
    """C = f·g and H = −2ε log f, where two lumps f spread by ε, and one, g, the other way."""
    left, right, end = (torch.full((d,), place) for place in (0.3, 0.5, 0.45))

    def f(x, t):
        width = (SIGMA**2 + 2 * EPSILON * t).sqrt()
        return lump(x, left, width) + lump(x, right, width)

    def g(x, t):
        return lump(x, end, (SIGMA**2 + 2 * EPSILON * (1 - t)).sqrt())

    return lambda x, t: f(x, t) * g(x, t), lambda x, t: -2 * EPSILON * f(x, t).log()


@pytest.mark.parametrize("grid", [Grid(100), Grid((40, 32), 0.0, (1.0, 0.8))], ids=["1D", "2D"])
def test_a_bridge_has_equations_of_its_own(grid, check):
    path = bridge(grid.dimension)
    right, without = (check(grid, path, epsilon=epsilon) for epsilon in (EPSILON, 0.0))
    assert all(part.item() < 1e-9 for part in right)
    assert all(part.item() > 1e-3 for part in without)


def test_what_the_residuals_explain():
    parts = (torch.tensor([a, b]) for a, b in ((0.1, 0.0), (5.0, 7.0), (0.0, 0.8)))
    assert SelfCheck(*parts).expected.tolist() == pytest.approx([0.05, 0.1])


def test_the_fewest_cells_along_an_axis(check):
    """Two: a grid has no axis with less."""
    with pytest.raises(GridError, match="at least 2 whole cells"):
        Grid((100, 1))
    grid = Grid((100, 2))
    v, a = torch.tensor([0.2, 0.1]), torch.tensor([0.3, -0.4])

    def density(x, t):
        return lump(x[:1], 0.4 + v[:1] * t)

    made = check(grid, (density, lambda x, t: v @ x - 0.5 * t * v @ v - t * a @ x))
    speed = (v @ v - v @ a + a @ a / 3).sqrt()
    assert made.bent.item() == pytest.approx((a.norm() / speed).item(), rel=1e-6)
