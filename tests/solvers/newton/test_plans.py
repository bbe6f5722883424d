"""Tests of transport plans from a potential: C against torch."""

import pytest
import torch

from geonet.solvers.newton.bounds_kernels import is_available
from geonet.solvers.newton.plans import CompiledPlan, TorchPlan
from geonet.solvers.newton.repairs import cell_positions


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def masses(shape, seed):
    """Return masses of cells, some of them zero."""
    values = noise(*shape, seed=seed) ** 4
    values[values < 0.05] = 0
    return values / values.sum()


SHAPES = [((13,), (1.0,)), ((8, 9), (1.0, 0.9)), ((1, 7), (0.2, 1.0)), ((5, 6, 4), (0.8, 1.0, 0.6))]


@pytest.fixture(
    params=[(*case, factors) for case in SHAPES for factors in ((-0.5, 0.5), (0.0, 1.0))], ids=str
)
def plans(request):
    """The same plan in C and in torch."""
    shape, sides, factors = request.param
    source, target = masses(shape, 1), masses(shape, 2)
    c = 0.01 * noise(*(3 * n for n in shape), seed=3)
    classes = CompiledPlan, TorchPlan
    if not is_available():
        pytest.skip("no compiled kernels")
    return [plan(c, source, target, sides, factors) for plan in classes]


def test_marginals_and_products_agree_with_torch(plans):
    compiled, reference = plans
    shape = reference.shape
    scales = [None, None], [noise(*shape, seed=4), None], [noise(*shape, seed=5) for _ in range(2)]
    means = [cell_positions(shape, reference.step) for _ in range(2)]
    for own in scales:
        for side in (0, 1):
            pair = compiled.marginal(side, own), reference.marginal(side, own)
            assert torch.allclose(*pair, rtol=0, atol=1e-6)  # displacements have single precision
        pair = [plan.product(means, own) for plan in plans]
        assert pair[0] == pytest.approx(pair[1], abs=1e-6)


@pytest.mark.parametrize(("shape", "sides"), SHAPES, ids=str)
def test_curved_plans_agree_with_torch(shape, sides):
    if not is_available():
        pytest.skip("no compiled kernels")
    source, target = masses(shape, 1), masses(shape, 2)
    c = 0.02 * noise(*(3 * n for n in shape), seed=3)  # no centre is on a knot of the spline
    plans = [kind(c, source, target, sides, reach=0.4) for kind in (CompiledPlan, TorchPlan)]
    for plan in plans:
        plan.drop_far(0.5)
    shifts = [0.01 * (noise(len(shape), *shape, seed=seed) - 0.5) for seed in (4, 5)]
    spreads = [0.001 * noise(*shape, seed=seed) for seed in (6, 7)]
    for scales in ([None, None], [noise(*shape, seed=8), noise(*shape, seed=9)]):
        for side in (0, 1):
            pair = [plan.marginal(side, scales) for plan in plans]
            assert float(pair[0].sum()) > 0
            assert torch.allclose(*pair, rtol=0, atol=1e-6)
        for farthest in (torch.inf, 0.3):
            costs = [plan.curved_cost(scales, shifts, spreads, 0.05, farthest) for plan in plans]
            assert costs[0] == pytest.approx(costs[1], rel=1e-5)


def test_curved_plans_become_straight():
    """With a far reach, the plan is that of balanced transport."""
    source, target, c = masses((9, 8), 1), masses((9, 8), 2), 0.01 * noise(9, 8, seed=3)
    straight, curved = (
        TorchPlan(c, source, target, (1.0, 1.0), reach=reach) for reach in (0.0, 1e4)
    )
    for side in (0, 1):
        pair = [plan.marginal(side, [None, None]) for plan in (straight, curved)]
        assert torch.allclose(*pair, rtol=0, atol=1e-5)


@pytest.mark.parametrize("reach", [0.0, 0.3])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30, -1e30])
@pytest.mark.parametrize("shape", [(9,), (5, 6), (3, 4, 5)], ids=str)
def test_wild_potentials_stay_within_the_arrays(value, shape, reach):
    """The sanitizers run this test: no index may leave the arrays."""
    if not is_available():
        pytest.skip("no compiled kernels")
    plan = CompiledPlan(
        torch.full(shape, value).double() * noise(*shape, seed=1),
        *(masses(shape, seed) for seed in (1, 2)),
        sides=[1.0] * len(shape),
        reach=reach,
    )
    assert plan.marginal(0, [None, None]).shape == plan.marginal(1, [None, None]).shape == shape
