"""Tests of the multilevel Newton iteration: levels, initial guesses, refinement."""

import math

import pytest
import torch
from scipy.ndimage import gaussian_filter

from benchmarks.pairs import draw, exact_pair
from geonet.numerics.splines import evaluate_at_points
from geonet.solvers.newton import compiled
from geonet.solvers.newton.iteration import DEFAULT_CONFIG, InitialGuess, MultilevelNewton

TOLERANCE = 2e-3
NEWTON = MultilevelNewton(TOLERANCE)
SQUARE = (1.0, 1.0)
needs_kernels = pytest.mark.skipif(not compiled.is_available(), reason="torch takes minutes")


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def density(values, sides):
    return values / values.mean() / math.prod(sides)


def bump(shape, sides, centre, width=0.2):
    axes = [s * (torch.arange(n).double() + 0.5) / n for n, s in zip(shape, sides, strict=True)]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    offset = points - torch.tensor(centre, dtype=torch.float64)
    return density((-(offset**2).sum(-1) / (2 * width**2)).exp(), sides)


def assert_converged(result):
    assert result.converged and result.residual <= TOLERANCE
    assert result.coefficients.dtype == torch.float64
    assert bool(torch.isfinite(result.coefficients).all())


def level_names(result):
    return [name for name, _, _ in result.steps]


def test_shift():
    """∇u is the shift in the region of the mass at t = ½."""
    ends = bump((32, 32), SQUARE, (0.35, 0.4), 0.06), bump((32, 32), SQUARE, (0.6, 0.5), 0.06)
    result = MultilevelNewton(1e-4).solve(*ends, SQUARE)
    points = torch.tensor([[0.475, 0.45], [0.5, 0.42], [0.44, 0.47]]).double()
    gradient = evaluate_at_points(result.coefficients, [1 / 32] * 2, points).gradient
    assert torch.allclose(gradient, torch.tensor([[0.25, 0.1]]).double().expand(3, 2), atol=2e-3)
    assert result.integrals.distance == pytest.approx(math.hypot(0.25, 0.1), rel=1e-3)


def test_mass_between_quadrature_points_counts_as_unbalanced():
    """Two distant atoms on a line: a potential that misses both has no other residual."""
    source, target = torch.zeros(2, 64).double()
    source[10], target[50] = 64, 64
    result = NEWTON.solve(source, target, (1.0,))
    assert_converged(result)
    assert result.integrals.source_mass == pytest.approx(1, abs=0.05)
    assert result.integrals.distance == pytest.approx(40 / 64, rel=1e-3)


def test_levels_from_coarse_to_fine():
    pair = exact_pair("known-map", 64)
    result = NEWTON.solve(pair.source.tensor, pair.target.tensor, SQUARE)
    assert level_names(result) == ["8×8", "16×16", "32×32", "64×64"]


@needs_kernels
@pytest.mark.parametrize(("cells", "expected"), [(28, 56), (64, 64)])
def test_small_grids_are_refined_sooner(cells, expected):
    ends = [end.tensor for end in draw("shapes", cells)]
    unrefined = MultilevelNewton(TOLERANCE, refine=False).solve(*ends, SQUARE)
    mismatch = unrefined.integrals.mismatch
    assert DEFAULT_CONFIG.small_grid_mismatch < mismatch < DEFAULT_CONFIG.detail_mismatch
    assert NEWTON.solve(*ends, SQUARE).coefficients.shape == (expected, expected)


def islands(cells, seed):
    """Return the upper twelfth of smooth noise: many islands, zero elsewhere."""
    smooth = torch.from_numpy(gaussian_filter(noise(cells, cells, seed=seed).numpy(), 1.2))
    return density((smooth - smooth.quantile(11 / 12)).clamp(min=0), SQUARE)


@needs_kernels
def test_islands():
    """Steps stay small if the residual is large and the density halfway is zero."""
    ends = islands(64, 1), islands(64, 2)
    result = NEWTON.solve(*ends, SQUARE)
    assert_converged(result)
    assert level_names(result)[-1] == "128×128"
    assert all(steps <= 16 for _, steps, _ in result.steps)


@needs_kernels
def test_masses_at_the_solution_are_one():
    """Different masses halfway would remain in the residual, and change the dual value."""
    ends = [end.tensor for end in draw("shapes", 64)]
    result = NEWTON.solve(*ends, SQUARE)
    assert_converged(result)
    assert result.integrals.source_mass == pytest.approx(1, abs=1e-3)
    assert result.integrals.target_mass == pytest.approx(result.integrals.source_mass, abs=5e-4)
    shifted = NEWTON.solve(*ends, SQUARE, result.coefficients + 1)
    assert shifted.integrals.distance == pytest.approx(result.integrals.distance, rel=2e-3)


@needs_kernels
@pytest.mark.parametrize("width", [1, 2])
def test_stripes(width):
    """Uniform mass to stripes of some cells: two stripes are squeezed into one."""
    stripes = (torch.arange(64) // width % 2).double()[:, None].expand(64, 64)
    result = NEWTON.solve(torch.ones(64, 64).double(), density(stripes, SQUARE), SQUARE)
    assert_converged(result)
    assert result.integrals.distance == pytest.approx(width / 64 / math.sqrt(3), rel=0.01)


@needs_kernels
def test_checkerboard():
    """Splines on the cells of a checkerboard cannot see it; smaller cells can."""
    board = (torch.arange(16)[:, None] + torch.arange(16)).double() % 2
    uniform = torch.ones(16, 16).double()
    result = NEWTON.solve(uniform, 2 * board, SQUARE)
    fine = [values.repeat_interleave(8, 0).repeat_interleave(8, 1) for values in (uniform, board)]
    expected = NEWTON.solve(fine[0], 2 * fine[1], SQUARE).integrals.distance
    assert_converged(result)
    assert result.integrals.distance == pytest.approx(expected, rel=0.03)


# ---- initial guesses


def test_good_guesses_save_levels_and_bad_ones_are_ignored():
    pair, coarse_pair = exact_pair("known-map", 64), exact_pair("known-map", 32)
    ends = pair.source.tensor, pair.target.tensor
    coarse = NEWTON.solve(coarse_pair.source.tensor, coarse_pair.target.tensor, SQUARE)
    from_zero = NEWTON.solve(*ends, SQUARE)
    from_solution = NEWTON.solve(*ends, SQUARE, from_zero.coefficients)
    from_coarse = NEWTON.solve(*ends, SQUARE, coarse.coefficients)
    from_noise = NEWTON.solve(*ends, SQUARE, noise(20, 30))
    assert level_names(from_solution) == ["64×64"] and from_solution.steps[0][1] == 0
    assert level_names(from_coarse) == ["32×32", "64×64"]
    assert from_noise.steps == from_zero.steps
    for result in (from_solution, from_coarse, from_noise):
        assert_converged(result)
        distance = from_zero.integrals.distance
        assert result.integrals.distance == pytest.approx(distance, rel=2e-3)


class Chain(InitialGuess):
    """Guesses on ever smaller cells."""

    def __init__(self, *potentials):
        super().__init__(potentials[0])
        self.others = potentials[1:]

    def refine(self):
        return Chain(*self.others) if self.others else None


@pytest.fixture(scope="module")
def noisy():
    """Noise on 32² cells, and its potential there, on halves and on quarters of the cells."""
    source, target = (density(0.2 + noise(32, 32, seed=k), SQUARE) for k in (1, 2))
    fine = NEWTON.solve(source, target, SQUARE).coefficients
    assert fine.shape == (128, 128)
    chain = [fine.reshape(32, 4, 32, 4).mean((1, 3)), fine.reshape(64, 2, 64, 2).mean((1, 3)), fine]
    return source, target, chain


@needs_kernels
def test_polish_refines_guesses_if_cells_are_too_large(noisy):
    source, target, chain = noisy
    newton = MultilevelNewton(TOLERANCE, max_iterations=1)
    polished = newton.polish(source, target, SQUARE, Chain(*chain))
    assert polished.coefficients.shape == (128, 128) and polished.converged


@needs_kernels
def test_polish_limits_the_number_of_steps():
    source, target = draw("shapes", 64)
    guess = InitialGuess(torch.zeros(64, 64, dtype=torch.float64))
    for count in (0, 2):
        newton = MultilevelNewton(TOLERANCE, max_iterations=count)
        result = newton.polish(source.tensor, target.tensor, SQUARE, guess)
        assert result.steps[0][1] == count
        assert not result.converged and not result.timed_out
