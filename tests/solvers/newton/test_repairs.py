"""Tests of repairs of masses: C against torch, exact final masses."""

import pytest
import torch

from geonet.solvers.newton.bounds_kernels import is_available
from geonet.solvers.newton.repairs import (
    CompiledFlows,
    TorchFlows,
    cell_positions,
    improve_on_torus,
    repair_marginal,
    repair_on_torus,
    solve_poisson,
)


def masses(shape, seed):
    """Return masses of cells, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, dtype=torch.float64, generator=generator) ** 4
    values[values < 0.05] = 0
    return values / values.sum()


CASES = [((13,), (0.1,)), ((8, 9), (0.1, 0.2)), ((1, 7), (0.2, 0.1)), ((5, 6, 4), (0.1, 0.2, 0.3))]


@pytest.mark.parametrize(("shape", "step"), CASES, ids=str)
def test_compiled_flows_agree_with_torch(shape, step):
    if not is_available():
        pytest.skip("no compiled kernels")
    held, required = masses(shape, 1), masses(shape, 2)
    compiled, reference = CompiledFlows(shape, step), TorchFlows(shape, step)
    potential = solve_poisson(held - required, step)
    pushed = compiled.push(potential, held)
    assert torch.allclose(pushed, reference.push(potential, held), rtol=0, atol=1e-14)
    assert float(pushed.sum()) == pytest.approx(1.0, abs=1e-14)
    assert float(pushed.min()) >= -1e-15
    means = compiled.repair_blocks(held, required)
    assert torch.allclose(means, reference.repair_blocks(held, required), rtol=0, atol=1e-13)
    pulled = [flows.pull(potential, held, means) for flows in (compiled, reference)]
    assert torch.allclose(*pulled, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("shape", "step"), CASES, ids=str)
def test_repaired_masses_have_the_right_mean(shape, step):
    held, required = masses(shape, 1), masses(shape, 2)
    means = repair_marginal(held, required, step, 20, 5e-4)
    centres = cell_positions(shape, step)
    axes = tuple(range(1, means.ndim))
    assert torch.allclose((held * means).sum(axes), (required * centres).sum(axes), atol=1e-14)


@pytest.mark.parametrize(("shape", "step"), CASES, ids=str)
def test_moments_without_periodic_axes(shape, step):
    held, required = masses(shape, 1), masses(shape, 2)
    moments = repair_on_torus(held, required, step, [False] * len(shape), 20, 5e-4)
    means = repair_marginal(held, required, step, 20, 5e-4)
    assert torch.allclose(moments.first, means, rtol=0, atol=1e-12)
    axes, centres = tuple(range(1, means.ndim)), cell_positions(shape, step)
    squares = (held * moments.second).sum(axes), (required * centres**2).sum(axes)
    assert torch.allclose(*squares, rtol=0, atol=1e-13)
    assert bool((moments.second >= moments.first**2 - 1e-12).all())


@pytest.mark.parametrize(("shape", "step"), CASES, ids=str)
@pytest.mark.parametrize("levels", [0, 2, 9])
def test_partial_repairs(shape, step, levels):
    required = masses(shape, 2)
    held = masses(shape, 1) * (required > 0)
    held = held / held.sum()
    after, moments = improve_on_torus(held, required, step, [False] * len(shape), 3, 5e-4, levels)
    assert float(after.sum()) == pytest.approx(1.0) and float(after.min()) >= -1e-15
    assert float(after[required == 0].abs().sum()) == 0
    before = float((held - required).abs().sum())
    limit = {0: 1.1, 2: 1.0, 9: 1e-12}[levels]  # flows alone may be stuck beside empty cells
    assert float((after - required).abs().sum()) <= limit * before
    axes, centres = tuple(range(1, len(shape) + 1)), cell_positions(shape, step)
    for power, moment in enumerate(moments, start=1):
        pair = (held * moment).sum(axes), (after * centres**power).sum(axes)
        assert torch.allclose(*pair, rtol=0, atol=1e-13)


@pytest.mark.parametrize("axis", [0, 1])
def test_flows_cross_periodic_faces(axis):
    """Mass beside a face moves to its neighbour beyond it: 7/8 of the flow, 1/8 goes around."""
    held, required = torch.zeros(2, 2, 8).double()
    held[:, 0], required[:, 7] = 0.5, 0.5
    if axis == 0:
        held, required = held.T.contiguous(), required.T.contiguous()
    periodic = [k == axis for k in (0, 1)]
    moments = repair_on_torus(held, required, (0.1, 0.1), periodic, 20, 5e-4)
    mean = float((held * moments.first[axis]).sum())
    # Most mass ends at −0.05 or at 0.75, some of the rest one period further.
    share = (0.75 - mean) / 0.8
    assert 0.8 < share <= 1
    square = share * 0.05**2 + (1 - share) * 0.75**2
    assert float((held * moments.second[axis]).sum()) == pytest.approx(square, rel=1e-4)
