"""Tests of transport plans from a potential: C against torch, and repaired marginals."""

import pytest
import torch

from geonet.solvers.newton import bounds


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def masses(shape, seed):
    """Return masses of cells, some of them zero."""
    values = noise(*shape, seed=seed) ** 4
    values[values < 0.05] = 0
    return values / values.sum()


SHAPES = [((13,), (1.0,)), ((8, 9), (1.0, 0.9)), ((1, 7), (0.2, 1.0)), ((5, 6, 4), (0.8, 1.0, 0.6))]


@pytest.fixture(params=SHAPES, ids=str)
def plans(request):
    """The same plan in C and in torch."""
    shape, sides = request.param
    source, target = masses(shape, 1), masses(shape, 2)
    c = 0.01 * noise(*(3 * n for n in shape), seed=3)
    classes = bounds.CompiledPlan, bounds.TorchPlan
    if not bounds.is_available():
        pytest.skip("no compiled kernels")
    return [plan(c, source, target, sides) for plan in classes]


def test_marginals_and_products_agree_with_torch(plans):
    compiled, reference = plans
    shape = reference.shape
    scales = [None, None], [noise(*shape, seed=4), None], [noise(*shape, seed=5) for _ in range(2)]
    means = [bounds.cell_positions(shape, reference.step) for _ in range(2)]
    for own in scales:
        for side in (0, 1):
            pair = compiled.marginal(side, own), reference.marginal(side, own)
            assert torch.allclose(*pair, rtol=0, atol=1e-6)  # displacements have single precision
        pair = [plan.product(means, own) for plan in plans]
        assert pair[0] == pytest.approx(pair[1], abs=1e-6)


def test_repairs_agree_with_torch(plans):
    compiled, reference = plans
    required = reference.masses[0]
    held = reference.marginal(0, [None, None])
    held = held / held.sum()
    potential = bounds._solve_poisson(held - required, reference.step)
    pushed = compiled.push(potential, held)
    assert torch.allclose(pushed, reference.push(potential, held), rtol=0, atol=1e-14)
    assert float(pushed.sum()) == pytest.approx(1.0, abs=1e-14)
    assert float(pushed.min()) >= -1e-15
    means = compiled.repair_blocks(held, required)
    assert torch.allclose(means, reference.repair_blocks(held, required), rtol=0, atol=1e-13)
    pulled = [plan.pull(potential, held, means) for plan in plans]
    assert torch.allclose(*pulled, rtol=0, atol=1e-13)


def test_repaired_marginals_have_the_right_mean(plans):
    for plan in plans:
        required = plan.masses[1]
        held = plan.marginal(1, [None, None])
        held = held / held.sum()
        means = bounds._repair_marginal(plan, held, required, bounds.DEFAULT_BOUNDS)
        centres = bounds.cell_positions(required.shape, plan.step)
        axes = tuple(range(1, means.ndim))
        assert torch.allclose((held * means).sum(axes), (required * centres).sum(axes), atol=1e-14)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30, -1e30])
@pytest.mark.parametrize("shape", [(9,), (5, 6), (3, 4, 5)], ids=str)
def test_wild_potentials_stay_within_the_arrays(value, shape):
    """The sanitizers run this test: no index may leave the arrays."""
    if not bounds.is_available():
        pytest.skip("no compiled kernels")
    plan = bounds.CompiledPlan(
        torch.full(shape, value).double() * noise(*shape, seed=1),
        *(masses(shape, seed) for seed in (1, 2)),
        sides=[1.0] * len(shape),
    )
    assert plan.marginal(0, [None, None]).shape == plan.marginal(1, [None, None]).shape == shape
