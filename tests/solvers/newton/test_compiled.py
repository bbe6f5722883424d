"""Tests of the compiled Newton systems and frames against torch, to single precision.

By default one shape of each kind runs on the build for this machine; the rest is slow.
"""

import math
from functools import cache

import pytest
import torch

from geonet.numerics import kernels
from geonet.solvers.newton import compiled
from geonet.solvers.newton.compiled import CompiledHierarchy
from geonet.solvers.newton.multigrid import apply_stiffness
from geonet.solvers.newton.path import push_frames_torch
from geonet.solvers.newton.reference import TorchHierarchy

# Odd, elongated, tiny; some have blocks of 32 cells and a remainder, some several levels.
SIDES = {
    (37,): (1.0,),
    (17, 40): (0.5, 1.0),
    (5, 2, 33): (0.5, 0.3, 1.0),
    (32, 8, 8): (1.0, 1.0, 1.0),  # its first levels are coarsened along one axis, others along all
    (3,): (1.0,),
    (1, 9): (1.0, 1.0),
    (2, 2): (1.0, 1.0),
    (100, 3): (1.0, 0.03),
    (5, 70): (1.0, 0.5),
    (6, 8, 5): (1.0, 0.8, 0.6),
    (9, 6, 1): (1.0, 0.7, 0.1),
    (1, 1, 20): (0.1, 0.1, 1.0),
}
# A position of up to n cells is rounded by 6e-8·n, and densities jump from one cell to the next.
SINGLE = 1e-6
TIMES = torch.tensor([0.0, 0.2, 0.5, 0.9]).double()
BUILDS = kernels.available_builds()


def mark_slow(values, default):
    return [
        value if value in default else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]


SHAPES = pytest.mark.parametrize("shape", mark_slow(SIDES, list(SIDES)[:4]), ids=str)
CURVATURES = pytest.mark.parametrize("curvature", mark_slow([0.0, 0.4, 12.0], [0.4, 12.0]))


@pytest.fixture(params=mark_slow(BUILDS, BUILDS[-1:]), autouse=True)
def build(request, monkeypatch):
    """Select a build of the kernels that runs here."""
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    assert compiled.is_available()


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def densities_on(shape, sides):
    both = noise(2, *shape) + 0.1
    return tuple(values / values.mean() / math.prod(sides) for values in both)


def potential(shape, sides, curvature):
    """Random coefficients with second derivatives of about this size; it folds above 2."""
    smallest = min(side / n for side, n in zip(sides, shape, strict=True))
    return 0.25 * curvature * smallest**2 * noise(*shape, seed=2)


def evaluate(hierarchy, shape, curvature, min_width=0.0):
    """Return the system, its residual and its integrals."""
    system, sides = hierarchy[0], SIDES[shape]
    system.set_densities(densities_on(shape, sides), min_width)
    return system, *system.evaluate(potential(shape, sides, curvature))


def compute_step(system):
    right = noise(*system.shape, seed=3) - 0.5
    damping = 0.03 / math.prod(SIDES[system.shape])
    step = system.compute_step(right, damping, 1e-5, 60, local_damping=0.01)
    return step - step.mean()


@cache
def torch_results(shape, curvature):
    """Return residual, integrals and a step; cached, because torch is slow."""
    system, *rest = evaluate(TorchHierarchy(shape, SIDES[shape]), shape, curvature)
    return *rest, compute_step(system)


def assert_same(residual, expected, integrals, expected_integrals):
    n = max(residual.shape)
    assert float((residual - expected).abs().max() / expected.abs().mean()) < 10 * n * SINGLE
    assert integrals[:3] == pytest.approx(expected_integrals[:3], abs=n * SINGLE)
    assert integrals[3:5] == pytest.approx(expected_integrals[3:5], rel=1e-4, abs=1e-8)
    assert integrals[5] == pytest.approx(expected_integrals[5], abs=1e-5)


@SHAPES
@CURVATURES
def test_residuals_integrals_and_steps(shape, curvature):
    hierarchy = CompiledHierarchy(shape, SIDES[shape], 1)
    system, residual, integrals = evaluate(hierarchy, shape, curvature)
    expected, expected_integrals, step = torch_results(shape, curvature)
    assert_same(residual, expected, integrals, expected_integrals)
    folded = expected_integrals[5]
    assert folded == 0 if curvature < 2 else folded > 0.01 or math.prod(shape) <= 20
    # The tolerance 1e-5 of the linear solve, over the smallest eigenvalue of the problem.
    assert float((compute_step(system) - step).norm() / step.norm()) < 1e-3


def test_solve_uses_the_matrix_of_the_last_step():
    shape, sides = (17, 40), SIDES[17, 40]
    ours, reference = (
        evaluate(h, shape, 0.4)[0]
        for h in (CompiledHierarchy(shape, sides, 1), TorchHierarchy(shape, sides))
    )
    for system in (ours, reference):
        compute_step(system)
    right = noise(*shape, seed=5) - 0.5
    solution = ours.solve(right, 1e-5, 50)
    error = apply_stiffness(reference.levels[0].fields[0], solution) - (right - right.mean())
    assert float(error.norm() / right.norm()) < 1e-4
    assert 0 < ours.iterations < 15


@cache
def torch_frames(shape, curvature, out):
    sides = SIDES[shape]
    c = potential(shape, sides, curvature)
    return push_frames_torch(c, densities_on(shape, sides), sides, TIMES, out)


def relative_difference(values, expected):
    assert values.shape == expected.shape
    return float((values - expected).abs().max() / expected.abs().max())


@SHAPES
@CURVATURES
@pytest.mark.parametrize("scale", [1, 2.3])
def test_frames(shape, curvature, scale):
    sides, out = SIDES[shape], tuple(max(1, round(scale * n)) for n in shape)
    c, densities = potential(shape, sides, curvature), densities_on(shape, sides)
    frames = compiled.push_frames(c, densities, sides, TIMES, out, 1)
    expected = torch_frames(shape, curvature, out)
    if curvature > 2:
        # Folds are boxes a thousandth of a cell wide, which rounding may put into the next cell.
        wrong = (frames - expected).abs().flatten(1).sum(1) / expected.flatten(1).sum(1)
        assert float(wrong.max()) < 1e-3
    else:
        assert relative_difference(frames, expected) < max(out) * SINGLE


@pytest.mark.parametrize("shape", [(40_000,), (160, 140), (32, 26, 30)], ids=str)
@pytest.mark.parametrize("curvature", [0.4, 12.0])
def test_threads_change_only_the_order_of_sums(shape, curvature):
    """Residuals and steps are equal bit for bit: every number is summed in one order."""
    sides = (1.0,) * len(shape)
    c, densities = potential(shape, sides, curvature), densities_on(shape, sides)
    results = []
    for threads in (1, 3):
        system = CompiledHierarchy(shape, sides, threads)[0]
        system.set_densities(densities, 0.0)
        residual, integrals = system.evaluate(c)
        step = system.compute_step(residual, 0.03, 1e-2, 20)
        frames = compiled.push_frames(c, densities, sides, TIMES, shape, threads)
        results.append((residual, step, torch.tensor(integrals), frames))
    (residual, step, integrals, frames), others = results
    assert torch.equal(residual, others[0]) and torch.equal(step, others[1])
    assert torch.allclose(integrals, others[2], rtol=1e-9, atol=1e-12)
    assert relative_difference(frames, others[3]) < 1e-6


def test_levels_share_their_memory():
    """A coarse problem between two fine ones leaves no trace."""
    shape, sides = (32, 24), (1.0, 0.75)
    hierarchy = CompiledHierarchy(shape, sides, 1)
    assert hierarchy.shapes == TorchHierarchy(shape, sides).shapes
    steps = []
    for k in (0, 1, 0):
        system = hierarchy[k]
        system.set_densities(densities_on(system.shape, sides), 0.0)
        residual, _ = system.evaluate(potential(system.shape, sides, 0.4))
        steps.append(system.compute_step(residual, 0.03, 1e-4, 30))
    assert torch.equal(steps[0], steps[2])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
@pytest.mark.parametrize("shape", [(10, 40), (6, 5, 40)], ids=str)
def test_wild_potentials_stay_in_bounds(value, shape):
    """C trusts its indices, which must lie inside for NaN and huge numbers as well."""
    sides, out = (1.0,) * len(shape), (7, 9, 8)[: len(shape)]
    densities, c = densities_on(shape, sides), torch.zeros(shape).double()
    c[(3,) * len(shape)] = value
    system = CompiledHierarchy(shape, sides, 1)[0]
    system.set_densities(densities, 0.0)
    residual, _ = system.evaluate(c)
    assert residual.shape == shape
    system.compute_step(residual, 0.03, 1e-3, 5)
    assert compiled.push_frames(c, densities, sides, TIMES, out, 1).shape == (4, *out)


def test_incompatible_libraries_are_not_called(monkeypatch):
    compiled._declare.cache_clear()
    monkeypatch.setattr(compiled, "MAX_LEVELS", compiled.MAX_LEVELS + 1)
    assert not compiled.is_available()
    monkeypatch.undo()
    compiled._declare.cache_clear()
    assert compiled.is_available()
