"""Newton's method from coarse to fine: any pair, any grid, and honest about how far it got."""

import math

import pytest
import torch

from benchmarks.pairs import KINDS, draw, exact_pair
from geonet.numerics.splines import at_points, refined
from geonet.solvers.newton import compiled
from geonet.solvers.newton.iteration import DETAIL, DETAIL_OF_FEW, LOST, Newton, Start

TOLERANCE = 2e-3
NEWTON = Newton(TOLERANCE)
with_loops = pytest.mark.skipif(not compiled.available(), reason="torch alone takes minutes")


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def density(values, sides):
    """Of mass one in the box."""
    return values / values.mean() / math.prod(sides)


def bump(shape, sides, place, width=0.2):
    axes = [s * (torch.arange(n).double() + 0.5) / n for n, s in zip(shape, sides, strict=True)]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    offset = points - torch.tensor(place, dtype=torch.float64)
    return density((-(offset**2).sum(-1) / (2 * width**2)).exp(), sides)


def honest(found):
    """What it says of itself belongs together."""
    assert found.converged == (found.residual <= 2 * TOLERANCE)
    assert found.coefficients.dtype == torch.float64
    assert bool(torch.isfinite(found.coefficients).all())
    return found.converged


@with_loops
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pair(kind):
    """The first of each, on 64 × 64 cells. Spots are the hardest: they may end just above."""
    source, target = draw(kind, 64)
    found = NEWTON.solved(source.tensor, target.tensor, (1.0, 1.0))
    assert honest(found) or (kind == "spots" and found.residual < 0.02)
    totals = found.totals
    assert totals.source == pytest.approx(1, abs=LOST) and totals.target == pytest.approx(
        1, abs=LOST
    )


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((2,), (1.0,)),
        ((3,), (1.0,)),
        ((50,), (1.0,)),
        ((2, 2), (1.0, 1.0)),
        ((2, 30), (1.0, 1.0)),
        ((40, 25), (1.0, 0.5)),
        ((9, 64), (1.0, 0.1)),
        ((2, 2, 2), (1.0, 1.0, 1.0)),
        ((12, 10, 8), (1.0, 0.8, 0.5)),
    ],
    ids=str,
)
def test_any_shape_of_grid(shape, sides):
    ends = (density(noise(*shape, seed=k) + 0.2, sides) for k in (1, 2))
    found = NEWTON.solved(*ends, sides)
    assert honest(found)
    for n, m in zip(shape, found.coefficients.shape, strict=True):
        assert m in (n, 2 * n, 4 * n)


def test_a_shift_is_found():
    """∇u is the shift where the mass is halfway."""
    sides = (1.0, 1.0)
    source, target = (
        bump((32, 32), sides, (0.35, 0.4), 0.06),
        bump((32, 32), sides, (0.6, 0.5), 0.06),
    )
    found = Newton(1e-4).solved(source, target, sides)
    middle = torch.tensor([[0.475, 0.45], [0.5, 0.42], [0.44, 0.47]]).double()
    gradient = at_points(found.coefficients, [1 / 32] * 2, middle).gradient
    assert torch.allclose(gradient, torch.tensor([[0.25, 0.1]]).double().expand(3, 2), atol=2e-3)
    assert found.totals.distance == pytest.approx(math.hypot(0.25, 0.1), rel=1e-3)


def test_a_smaller_tolerance_is_reached():
    sides = (1.0, 0.6)
    ends = bump((24, 16), sides, (0.3, 0.3)), bump((24, 16), sides, (0.6, 0.4))
    residuals = [Newton(10.0**-k).solved(*ends, sides).residual for k in (2, 3, 4)]
    for k, residual in zip((2, 3, 4), residuals, strict=True):
        assert residual <= 2 * 10.0**-k


def test_mass_is_never_lost_where_half_cells_jump_over_it():
    """Two far atoms on a line: a potential that misses both has no residual, and is refused."""
    source, target = torch.zeros(2, 64).double()
    source[10], target[50] = 64, 64
    found = NEWTON.solved(source, target, (1.0,))
    assert honest(found)
    assert found.totals.source == pytest.approx(1, abs=LOST)
    assert found.totals.distance == pytest.approx(40 / 64, rel=1e-3)


def test_equal_ends_take_no_step():
    end = density(noise(20, 12), (1.0, 0.6))
    found = NEWTON.solved(end, end, (1.0, 0.6))
    assert found.residual == 0 and not bool(found.coefficients.any())
    assert sum(steps for _, steps, _ in found.steps) == 0


def test_levels_are_told_from_coarse_to_fine():
    pair = exact_pair("known-map", 64)
    found = NEWTON.solved(pair.source.tensor, pair.target.tensor, (1.0, 1.0))
    assert [name for name, _, _ in found.steps] == ["8×8", "16×16", "32×32", "64×64"]


def test_detail_is_refined_if_that_is_allowed():
    ends = [density(noise(16, 16, seed=k) ** 4 + 1e-3, (1.0, 1.0)) for k in (1, 2)]
    assert NEWTON.solved(*ends, (1.0, 1.0)).coefficients.shape in ((32, 32), (64, 64))
    kept = Newton(TOLERANCE, refine=False).solved(*ends, (1.0, 1.0))
    assert kept.coefficients.shape == (16, 16)


@with_loops
@pytest.mark.parametrize(("cells", "found"), [(28, 56), (64, 64)])
def test_few_cells_are_halved_sooner(cells, found):
    """What is left unmatched halfway is between both limits."""
    ends = [end.tensor for end in draw("shapes", cells)]
    kept = Newton(TOLERANCE, refine=False).solved(*ends, (1.0, 1.0))
    assert DETAIL_OF_FEW < kept.totals.mismatch < DETAIL
    assert NEWTON.solved(*ends, (1.0, 1.0)).coefficients.shape == (found, found)


# ---- where to begin


def test_a_good_start_saves_levels_and_a_bad_one_does_no_harm():
    pair = exact_pair("known-map", 64)
    ends, sides = (pair.source.tensor, pair.target.tensor), (1.0, 1.0)
    plain = NEWTON.solved(*ends, sides)
    again = NEWTON.solved(*ends, sides, plain.coefficients)
    assert [name for name, _, _ in again.steps] == ["64×64"] and again.steps[0][1] == 0
    coarse = NEWTON.solved(*ends, sides, NEWTON.solved(*exact_32(), sides).coefficients)
    assert [name for name, _, _ in coarse.steps] == ["32×32", "64×64"]
    wild = NEWTON.solved(*ends, sides, noise(20, 30))
    for found in (again, coarse, wild):
        assert honest(found)
        assert found.totals.distance == pytest.approx(plain.totals.distance, rel=2e-3)
    assert wild.steps == plain.steps  # it was not begun with


def exact_32():
    pair = exact_pair("known-map", 32)
    return pair.source.tensor, pair.target.tensor


@pytest.mark.parametrize("shape", [(5, 7), (33, 32), (200, 100)], ids=str)
def test_starts_of_any_shape(shape):
    sides = (1.0, 0.6)
    ends = bump((24, 16), sides, (0.4, 0.3)), bump((24, 16), sides, (0.5, 0.3))
    found = NEWTON.solved(*ends, sides, torch.zeros(shape))
    assert honest(found) and found.coefficients.shape == (24, 16)


# ---- without compiled loops


def test_torch_solves_it_as_well(monkeypatch):
    sides = (1.0, 0.8)
    ends = bump((20, 16), sides, (0.35, 0.3)), bump((20, 16), sides, (0.6, 0.5))
    compiled = NEWTON.solved(*ends, sides)
    monkeypatch.setenv("GEONET_COMPILED", "0")
    plain = NEWTON.solved(*ends, sides)
    assert honest(compiled) and honest(plain)
    assert plain.totals.distance == pytest.approx(compiled.totals.distance, rel=1e-3)
    apart = plain.coefficients - compiled.coefficients
    assert float((apart - apart.mean()).abs().max()) < 0.02 * float(plain.coefficients.std())


class Chain(Start):
    """Potentials on ever smaller cells, which are asked for one by one."""

    def __init__(self, *potentials):
        super().__init__(potentials[0])
        self.others = potentials[1:]

    def finer(self):
        return Chain(*self.others) if self.others else None


@pytest.fixture(scope="module")
def noisy():
    """Noise on 32² cells, and its potential there, on halves and on quarters of the cells."""
    source, target = (density(0.2 + noise(32, 32, seed=k), (1.0, 1.0)) for k in (1, 2))
    fine = NEWTON.solved(source, target, (1.0, 1.0)).coefficients
    assert fine.shape == (128, 128)
    chain = [fine.reshape(32, 4, 32, 4).mean((1, 3)), fine.reshape(64, 2, 64, 2).mean((1, 3)), fine]
    return source, target, chain


@with_loops
def test_finer_potentials_are_taken_where_cells_are_too_large(noisy):
    source, target, chain = noisy
    found = NEWTON.solved(source, target, (1.0, 1.0), Chain(*chain))
    assert found.coefficients.shape == (128, 128) and honest(found)
    assert found.steps == (("128×128", 0, 0),)  # which is where the potential comes from
    few = Newton(TOLERANCE, max_steps=1).polished(source, target, (1.0, 1.0), Chain(*chain))
    assert few.coefficients.shape == (128, 128) and few.converged


@with_loops
def test_finer_potentials_that_are_worse_are_not_taken(noisy):
    source, target, chain = noisy
    wrong = Chain(chain[0], torch.zeros(64, 64))
    newton = Newton(TOLERANCE, max_steps=3)
    few = newton.polished(source, target, (1.0, 1.0), wrong)
    assert few.coefficients.shape == (32, 32)
    alone = newton.polished(source, target, (1.0, 1.0), Start(chain[0]))
    assert torch.equal(few.coefficients, alone.coefficients)


@with_loops
def test_smooth_pairs_are_not_asked_for_finer_potentials():
    source, target = (bump((32, 32), (1.0, 1.0), place) for place in ((0.4, 0.4), (0.6, 0.5)))
    right = NEWTON.solved(source, target, (1.0, 1.0)).coefficients
    chain = Chain(right, refined(right, (64, 64)))
    found = NEWTON.solved(source, target, (1.0, 1.0), chain)
    assert found.coefficients.shape == (32, 32) and found.steps == (("32×32", 0, 0),)


@with_loops
def test_polishing_takes_so_many_steps_at_most():
    source, target = draw("shapes", 64)
    start = Start(torch.zeros(64, 64, dtype=torch.float64))
    for most in (0, 2):
        found = Newton(TOLERANCE, max_steps=most).polished(
            source.tensor, target.tensor, (1.0, 1.0), start
        )
        assert found.steps[0][1] == most and not found.converged and not found.late
