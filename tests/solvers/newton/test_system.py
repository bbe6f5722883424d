"""The equation of the potential, and the elliptic problem of Newton's step, in torch."""

import math

import pytest
import torch

from geonet.numerics.splines import along_axis, half_cell_places
from geonet.solvers.newton.system import (
    PlainLevels,
    Totals,
    brought,
    levels_on,
    moved_boxes,
    signed,
    spread_back,
    stiffness,
)

SHAPES = pytest.mark.parametrize("shape", [(9,), (1, 6), (6, 5), (4, 3, 5)], ids=str)


def noise(*shape, seed=7):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sides_of(shape):
    return [1.0 - 0.25 * axis for axis in range(len(shape))]


def density(shape, seed=7):
    """Of mass one in the box."""
    values = noise(*shape, seed=seed) + 0.1
    return values / values.mean() / math.prod(sides_of(shape))


def equation(shape, softness=0.0):
    own = PlainLevels(shape, sides_of(shape)).at(0)
    own.between(density(shape), density(shape, seed=8), softness)
    return own


def potential(shape, bend, seed=9):
    """Random coefficients with second derivatives of about this size."""
    least = min(side / n for side, n in zip(sides_of(shape), shape, strict=True))
    return 0.25 * bend * least**2 * (noise(*shape, seed=seed) - 0.5)


def positive(shape):
    """Weights (2, …, *cells, d, d) of an elliptic problem."""
    d = len(shape)
    root = noise(*(2,) * d, *shape, d, d) - 0.3
    return root @ root.mT + 0.01 * torch.eye(d)


# ---- matrices


@pytest.mark.parametrize("d", [1, 2, 3])
def test_determinants_and_cofactors_where_nothing_folds(d):
    root = noise(20, d, d)
    matrix = root @ root.mT + 0.1 * torch.eye(d)
    det, cof, folds = signed(matrix)
    assert not bool(folds.any())
    assert torch.allclose(det, torch.linalg.det(matrix))
    assert torch.allclose(cof, torch.linalg.det(matrix)[:, None, None] * torch.linalg.inv(matrix))


def test_a_fold_counts_as_negative():
    """Also where two eigenvalues are negative and the determinant is not."""
    matrix = torch.diag_embed(torch.tensor([[-2.0, 3.0], [-2.0, -3.0], [0.0, 1.0]]).double())
    det, cof, folds = signed(matrix)
    assert bool(folds.all())
    assert det.tolist() == [-6.0, -6.0, 0.0]
    expected = torch.diag_embed(torch.tensor([[3.0, 0.0], [0.0, 0.0], [1.0, 0.0]]).double())
    assert torch.allclose(cof, expected)
    line, one, _ = signed(torch.tensor([[[-0.5]]]).double())
    assert line.tolist() == [-0.5] and one.tolist() == [[[1.0]]]


# ---- the stiffness


@SHAPES
def test_the_stiffness_is_symmetric_and_positive(shape):
    weights = positive(shape)
    x, y = noise(*shape), noise(*shape, seed=8)
    one, other = (stiffness(weights, x) * y).sum(), (x * stiffness(weights, y)).sum()
    assert float(one) == pytest.approx(float(other), rel=1e-11)
    n = math.prod(shape)
    columns = [stiffness(weights, unit.reshape(shape)).flatten() for unit in torch.eye(n).double()]
    values = torch.linalg.eigvalsh(torch.stack(columns))
    assert float(values[0]) == pytest.approx(0, abs=1e-10 * float(values[-1]))  # the constant
    assert float(values[1]) > 1e-6 * float(values[-1])
    constant = stiffness(weights, torch.ones(shape).double())
    assert float(constant.abs().max()) < 1e-10


@SHAPES
def test_spread_back_is_the_transpose_of_values(shape):
    x, y, d = noise(*shape), noise(*(2,) * len(shape), *shape, seed=8), len(shape)
    values = x
    for axis in range(d):
        values = along_axis(values, 2 * axis, 0).movedim(0, axis)
    assert float((values * y).sum()) == pytest.approx(float((x * spread_back(y)).sum()), rel=1e-12)


# ---- multigrid


@pytest.mark.parametrize(
    ("shape", "most"), [((100,), 8), ((32, 32), 8), ((33, 20), 9), ((12, 10, 8), 13)], ids=str
)
def test_conjugate_gradients_with_multigrid_are_quick_for_smooth_coefficients(shape, most):
    """A V-cycle leaves about a tenth of an error, in 3D a quarter: 1e-6 takes six to ten."""
    own = equation(shape, softness=1.0)
    residual, _ = own.look(potential(shape, 0.2))
    found = own.step_for(residual, 0.1, 1e-6, 50)
    assert own.iterations <= most
    left = stiffness(own.levels[0].weights, found) - (residual - residual.mean())
    assert float(left.norm()) < 2e-6 * float(residual.norm())


def test_jumps_of_coefficients_by_a_thousand_take_longer_but_not_long():
    own = PlainLevels((32, 32), (1.0, 1.0)).at(0)
    source, target = torch.zeros(2, 32, 32).double()
    source[4:13, 6:20], target[15:28, 9:14] = 1.0, 1.0
    own.between(source / source.mean(), target / target.mean(), 0.0)
    residual, _ = own.look(torch.zeros(32, 32).double())
    own.step_for(residual, 0.03, 1e-3, 100)  # weights jump from 0.03 to 30
    assert own.iterations <= 12


def test_nothing_to_solve_is_solved():
    own = equation((8, 8))
    own.look(torch.zeros(8, 8).double())
    assert not bool(own.step_for(torch.zeros(8, 8).double(), 0.1, 1e-6, 10).any())
    assert own.iterations == 0


# ---- the equation


@pytest.mark.parametrize("softness", [0.0, 1.0])
@SHAPES
def test_both_ends_keep_their_mass(shape, softness):
    """In 1D half-cells fill the line exactly; else they overlap by squares of the shear, 1e-3."""
    exact = len(shape) == 1 and softness == 0
    for bend, allowed in ((0.0, 1e-12), (0.4, 1e-12 if exact else 1e-3)):
        totals = Totals(*equation(shape, softness).look(potential(shape, bend))[1])
        assert totals.source == pytest.approx(1, abs=allowed)
        assert totals.target == pytest.approx(1, abs=allowed)
        assert totals.folding == 0


def test_the_residual_of_equal_ends_is_zero():
    own = PlainLevels((7, 5), (1.0, 0.5)).at(0)
    own.between(density((7, 5)), density((7, 5)), 0.0)
    residual, totals = own.look(torch.zeros(7, 5).double())
    assert float(residual.abs().max()) == 0 and Totals(*totals).distance == 0


def test_a_linear_potential_moves_a_block_by_whole_cells():
    """Inside of it; so the exact answer has no residual, and its dual value is W2."""
    n, k = 32, 6
    block = noise(8, 7) + 0.1
    source, target = torch.zeros(2, n, n).double()
    source[5:13, 10:17], target[5 + k : 13 + k, 10:17] = block, block
    source, target = source / source.mean(), target / target.mean()
    x = (torch.arange(n).double() + 0.5) / n
    slope = torch.zeros(n).double()
    slope[6:21] = k / n  # ∇u where mass passes at t = ½, bent away from it
    c = (slope.cumsum(0) / n)[:, None] + 0 * x
    own = PlainLevels((n, n), (1.0, 1.0)).at(0)
    own.between(source, target, 0.0)
    residual, totals = own.look(c)
    assert float(residual.abs().sum()) < 1e-10
    assert Totals(*totals).distance == pytest.approx(k / n, rel=1e-9)


@SHAPES
def test_newtons_step_lowers_the_residual(shape):
    own = equation(shape, softness=1.0)
    c = torch.zeros(shape).double()
    before, _ = own.look(c)
    after, _ = own.look(c + own.step_for(before, 0.03, 1e-3, 50))
    assert float(after.abs().sum()) < 0.6 * float(before.abs().sum())


def test_the_stiffness_is_the_derivative_of_the_residual():
    """For smooth densities, up to errors of the quadrature that vanish with h."""
    n = 48
    x = (torch.arange(n).double() + 0.5) / n
    wave = lambda k: torch.cos(k * torch.pi * x)  # noqa: E731
    own = PlainLevels((n, n), (1.0, 1.0)).at(0)
    own.between(1 + 0.3 * wave(1)[:, None] * wave(2), 1 - 0.2 * wave(1) + 0 * x[:, None], 0.0)
    c, change = 0.02 * wave(2)[:, None] * wave(1), wave(1)[:, None] * wave(1)
    before, _ = own.look(c)
    own.step_for(before, 0.0, 0.5, 1)
    expected = stiffness(own.levels[0].weights, change)
    after, _ = own.look(c + 1e-4 * change)
    found = (before - after) / 1e-4
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_boxes_after_a_map():
    shape, step = (4, 3), [0.25, 0.3]
    places = half_cell_places(shape)
    gradient = torch.zeros(*places.shape).double()
    gradient[..., 0] = 0.5
    hessian = torch.zeros(*places.shape, 2).double()
    hessian[..., 1, 1] = 1.0
    where, width, matrix = moved_boxes(places, gradient, hessian, 0.5, step)
    assert torch.allclose(where[..., 0], places[..., 0] + 1.0)  # half of ½ over a cell of ¼
    assert torch.allclose(where[..., 1], places[..., 1])
    assert width[0, 0, 0, 0].tolist() == [0.5, 0.75]
    assert torch.allclose(matrix[0, 0, 0, 0], torch.tensor([[1.0, 0.0], [0.0, 1.5]]).double())
    folded = moved_boxes(places, gradient, -9 * hessian, 0.5, step)[1]
    assert 0 < float(folded.min()) < 1e-5 and float(folded.max()) <= 1


def test_an_end_that_does_not_move_is_itself():
    end = noise(5, 4)
    still = torch.zeros(2, 2, 5, 4, 2).double()
    found, matrix = brought(end, still, torch.zeros(2, 2, 5, 4, 2, 2).double(), 0.5, [0.2, 0.2])
    assert torch.allclose(found, end.expand(2, 2, 5, 4))
    assert torch.equal(matrix, torch.eye(2).double().expand(2, 2, 5, 4, 2, 2))


def test_a_distance_is_never_the_root_of_a_negative_number():
    assert Totals(0.1, 1, 1, 0.1, -1.0, 0).distance == 0
    assert Totals(0.1, 1, 1, 2.0, 0.0, 0).distance == 1


def test_without_compiled_loops_torch_does_it(monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", "0")
    assert isinstance(levels_on((4, 4), (1.0, 1.0), 1), PlainLevels)
