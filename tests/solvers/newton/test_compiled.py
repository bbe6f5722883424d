"""The compiled multigrid, equation and frames give what torch gives, to single precision."""

import math
from functools import cache

import pytest
import torch

from geonet.solvers.neural.transport import compiled as loops
from geonet.solvers.newton import compiled
from geonet.solvers.newton.path import plainly_carried
from geonet.solvers.newton.system import PlainLevels, stiffness

# Odd, elongated, tiny; some have blocks of 32 cells and a rest, some several levels.
CASES = {
    (2,): (1.0,),
    (3,): (1.0,),
    (37,): (1.0,),
    (64,): (1.0,),
    (1, 9): (1.0, 1.0),
    (2, 2): (1.0, 1.0),
    (16, 16): (1.0, 1.0),
    (17, 40): (0.5, 1.0),
    (100, 3): (1.0, 0.03),
    (5, 70): (1.0, 0.5),
    (6, 8, 5): (1.0, 0.8, 0.6),
    (5, 2, 33): (0.5, 0.3, 1.0),
    (2, 5, 9): (1.0, 0.5, 0.9),
    (32, 8, 8): (
        1.0,
        1.0,
        1.0,
    ),  # whose first levels are coarsened along one axis, others along all
}
# A place of up to n cells is rounded by 6e-8·n and the densities jump from one cell to the next.
SINGLE = 1e-6
TIMES = torch.tensor([0.0, 0.2, 0.5, 0.9]).double()
every_case = pytest.mark.parametrize("shape", CASES, ids=str)
every_potential = pytest.mark.parametrize("bend", [0.0, 0.4, 12.0], ids=["zero", "smooth", "folds"])


@pytest.fixture(params=loops.loadable(), autouse=True)
def each_build(request, monkeypatch):
    """Every build of the loops that runs here."""
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    assert compiled.available()


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ends_on(shape, sides):
    both = noise(2, *shape) + 0.1
    return tuple(end / end.mean() / math.prod(sides) for end in both)


def potential(shape, sides, bend):
    """Random coefficients with second derivatives of about this size; above 2 it folds."""
    least = min(side / n for side, n in zip(sides, shape, strict=True))
    return 0.25 * bend * least**2 * noise(*shape, seed=2)


def looked(levels, shape, bend, softness=0.0):
    """The equation, its residual and its totals."""
    equation, sides = levels.at(0), CASES[shape]
    equation.between(*ends_on(shape, sides), softness)
    return equation, *equation.look(potential(shape, sides, bend))


@cache
def plain_answers(shape, bend):
    """Once for all builds, as torch is slow: residual, totals, and a step for a right side."""
    equation, residual, totals = looked(PlainLevels(shape, CASES[shape]), shape, bend)
    return residual, totals, step_of(equation)


def step_of(equation):
    right = noise(*equation.shape, seed=3) - 0.5
    found = equation.step_for(right, 0.03 / math.prod(CASES[equation.shape]), 1e-5, 60)
    return found - found.mean()


def apart(found, expected):
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


@every_case
@every_potential
def test_residuals_totals_and_newtons_steps(shape, bend):
    equation, ours, our_totals = looked(compiled.Levels(shape, CASES[shape], 1), shape, bend)
    theirs, their_totals, expected = plain_answers(shape, bend)
    same(ours, theirs, our_totals, their_totals)
    if bend < 2:
        assert their_totals[5] == 0
    elif math.prod(shape) > 20:
        assert their_totals[5] > 0.01
    # What 1e-5 of the right side leaves to solve, over the smallest eigenvalue of the problem.
    assert float((step_of(equation) - expected).norm() / expected.norm()) < 1e-3


@every_case
def test_ends_that_are_averaged_more_widely(shape):
    (_, *ours), (_, *theirs) = (
        looked(levels, shape, 0.4, softness=1.0)
        for levels in (compiled.Levels(shape, CASES[shape], 1), PlainLevels(shape, CASES[shape]))
    )
    same(ours[0], theirs[0], ours[1], theirs[1])


def same(residual, expected, totals, expected_totals):
    n = max(residual.shape)
    assert float((residual - expected).abs().max() / expected.abs().mean()) < 10 * n * SINGLE
    assert totals[:3] == pytest.approx(expected_totals[:3], abs=n * SINGLE)
    assert totals[3:5] == pytest.approx(expected_totals[3:5], rel=1e-4, abs=1e-8)
    assert totals[5] == pytest.approx(expected_totals[5], abs=1e-5)


def test_what_is_solved_again_has_the_same_matrix():
    shape, sides = (17, 40), CASES[17, 40]
    ours, theirs = (
        looked(levels, shape, 0.4)[0]
        for levels in (compiled.Levels(shape, sides, 1), PlainLevels(shape, sides))
    )
    for equation in (ours, theirs):
        step_of(equation)
    right = noise(*shape, seed=5) - 0.5
    found = ours.solved(right, 1e-5, 50)
    left = stiffness(theirs.levels[0].weights, found) - (right - right.mean())
    assert float(left.norm() / right.norm()) < 1e-4
    assert 0 < ours.iterations < 15


@pytest.mark.parametrize(
    ("shape", "most"), [((1000,), 8), ((128, 128), 8), ((97, 60), 9), ((24, 20, 28), 13)], ids=str
)
def test_multigrid_takes_few_steps_on_any_grid(shape, most):
    """As many on fine grids as on coarse ones; see the plain one's test.

    On a line of a thousand cells single precision ends at 1e-4.
    """
    sides = (1.0,) * len(shape)
    equation = compiled.Levels(shape, sides, 1).at(0)
    x = [(torch.arange(n).double() + 0.5) / n for n in shape]
    waves = sum(torch.cos(4 * g) for g in torch.meshgrid(*x, indexing="ij"))
    ends = [(sign * waves).exp() for sign in (1, -1)]
    equation.between(*(end / end.mean() for end in ends), 1.0)
    residual, _ = equation.look(torch.zeros(shape).double())
    equation.step_for(residual, 0.03, 1e-5 if len(shape) > 1 else 1e-3, 60)
    assert 0 < equation.iterations <= most


def test_multigrid_with_jumps():
    equation = compiled.Levels((64, 64), (1.0, 1.0), 1).at(0)
    source, target = torch.zeros(2, 64, 64).double()
    source[8:26, 12:40], target[30:56, 18:28] = 1.0, 1.0
    equation.between(source / source.mean(), target / target.mean(), 0.0)
    residual, _ = equation.look(torch.zeros(64, 64).double())
    equation.step_for(residual, 0.03, 1e-3, 100)  # weights jump from 0.03 to 8
    assert 0 < equation.iterations <= 15


@cache
def plain_frames(shape, bend, out):
    sides = CASES[shape]
    c = potential(shape, sides, bend)
    return plainly_carried(c, ends_on(shape, sides), sides, TIMES, out)


@every_case
@every_potential
@pytest.mark.parametrize("finer", [1, 2.3], ids=["own cells", "others"])
def test_frames(shape, bend, finer):
    sides, out = CASES[shape], [max(1, round(finer * n)) for n in shape]
    c, ends = potential(shape, sides, bend), ends_on(shape, sides)
    ours = compiled.carried(c, ends, sides, TIMES, out, 1)
    theirs = plain_frames(shape, bend, tuple(out))
    if bend > 2:
        # What folds is a box a thousandth of a cell wide, which rounding may put into the next one:
        # a few half-cells of the whole.
        wrong = (ours - theirs).abs().flatten(1).sum(1) / theirs.flatten(1).sum(1)
        assert float(wrong.max()) < 1e-3
    else:
        assert apart(ours, theirs) < max(out) * SINGLE


@pytest.mark.parametrize("shape", [(40_000,), (160, 140), (32, 26, 30)], ids=str)
@pytest.mark.parametrize("bend", [0.4, 12.0])
def test_threads_change_nothing_but_the_order_of_sums(shape, bend):
    """Residuals and steps not at all: every number is summed in one order."""
    sides = (1.0,) * len(shape)
    c, ends = potential(shape, sides, bend), ends_on(shape, sides)
    answers = []
    for threads in (1, 3):
        equation = compiled.Levels(shape, sides, threads).at(0)
        equation.between(*ends, 0.0)
        residual, totals = equation.look(c)
        step = equation.step_for(residual, 0.03, 1e-2, 20)
        frames = compiled.carried(c, ends, sides, TIMES, shape, threads)
        answers.append((residual, step, torch.tensor(totals), frames))
    (residual, step, totals, frames), others = answers
    assert torch.equal(residual, others[0]) and torch.equal(step, others[1])
    assert torch.allclose(totals, others[2], rtol=1e-9, atol=1e-12)
    assert apart(frames, others[3]) < 1e-6


def test_all_levels_share_their_room():
    """A coarse problem between two fine ones leaves no trace."""
    shape, sides = (32, 24), (1.0, 0.75)
    levels = compiled.Levels(shape, sides, 1)
    assert levels.shapes == PlainLevels(shape, sides).shapes
    answers = []
    for k in (0, 1, 0):
        equation = levels.at(k)
        equation.between(*ends_on(equation.shape, sides), 0.0)
        residual, _ = equation.look(potential(equation.shape, sides, 0.4))
        answers.append(equation.step_for(residual, 0.03, 1e-4, 30))
    assert torch.equal(answers[0], answers[2])


def test_inputs_of_any_type_and_order():
    shape, sides = (12, 9), (1.0, 1.0)
    source, target = ends_on(shape, sides)
    c = potential(shape, sides, 0.4)
    equation = compiled.Levels(shape, sides, 1).at(0)
    equation.between(source, target, 0.0)
    expected, _ = equation.look(c)
    turned = [values.T.contiguous().T for values in (source, target, c)]
    equation.between(turned[0].float(), turned[1].float(), 0.0)
    found, _ = equation.look(turned[2])
    assert torch.equal(found, expected)
    assert torch.equal(
        compiled.carried(turned[2], (turned[0], turned[1]), sides, TIMES, shape, 1),
        compiled.carried(c, (source, target), sides, TIMES, shape, 1),
    )


def test_what_is_no_number_stays_in_bounds():
    """C trusts its indices: where potentials are NaN or huge they must still be inside."""
    shape, sides = (10, 40), (1.0, 1.0)
    ends = ends_on(shape, sides)
    for wild in (torch.nan, torch.inf, -torch.inf, 1e30, -1e30):
        c = torch.zeros(shape).double()
        c[3, 7] = wild
        equation = compiled.Levels(shape, sides, 1).at(0)
        equation.between(*ends, 0.0)
        residual, _ = equation.look(c)
        assert residual.shape == shape
        equation.step_for(residual, 0.03, 1e-3, 5)
        assert compiled.carried(c, ends, sides, TIMES, (7, 9), 1).shape == (4, 7, 9)


def test_a_library_with_other_structures_is_not_called():
    try:
        with pytest.MonkeyPatch.context() as patch:
            compiled._declared.cache_clear()
            patch.setattr(compiled, "MOST_LEVELS", compiled.MOST_LEVELS + 1)
            assert not compiled.available()
    finally:
        compiled._declared.cache_clear()
    assert compiled.available()
