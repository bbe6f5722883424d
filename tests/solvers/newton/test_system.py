"""Tests of the equation at t = ½ and of the linear system of a Newton step, in torch."""

import math

import pytest
import torch

from benchmarks.pairs import draw
from geonet.numerics.splines import evaluate_along_axis
from geonet.solvers.newton import compiled
from geonet.solvers.newton.multigrid import apply_stiffness
from geonet.solvers.newton.reference import (
    TorchHierarchy,
    project_onto_splines,
    signed_det_and_cofactor,
)
from geonet.solvers.newton.system import (
    ResidualIntegrals,
    build_hierarchy,
    evaluate_residual,
    unmatched_mass,
)

SHAPES = pytest.mark.parametrize("shape", [(9,), (1, 6), (6, 5), (4, 3, 5)], ids=str)
needs_kernels = pytest.mark.skipif(not compiled.is_available(), reason="needs compiled kernels")


def noise(*shape, seed=7):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sides_of(shape):
    return [1.0 - 0.25 * axis for axis in range(len(shape))]


def density(shape, seed=7):
    values = noise(*shape, seed=seed) + 0.1
    return values / values.mean() / math.prod(sides_of(shape))


def system_on(shape, min_width=0.0):
    system = TorchHierarchy(shape, sides_of(shape))[0]
    system.set_densities((density(shape), density(shape, seed=8)), min_width)
    return system


def potential(shape, curvature, seed=9):
    """Random coefficients with second derivatives of about this size."""
    smallest = min(side / n for side, n in zip(sides_of(shape), shape, strict=True))
    return 0.25 * curvature * smallest**2 * (noise(*shape, seed=seed) - 0.5)


# ---- matrices


@pytest.mark.parametrize("d", [1, 2, 3])
def test_determinants_and_cofactors_of_positive_matrices(d):
    root = noise(20, d, d)
    matrix = root @ root.mT + 0.1 * torch.eye(d)
    det, cofactor, folds = signed_det_and_cofactor(matrix)
    expected = torch.linalg.det(matrix)
    assert not bool(folds.any())
    assert torch.allclose(det, expected)
    assert torch.allclose(cofactor, expected[:, None, None] * torch.linalg.inv(matrix))


def test_folds_have_negative_determinants():
    """Two negative eigenvalues are a fold as well, although their product is positive."""
    matrix = torch.diag_embed(torch.tensor([[-2.0, 3.0], [-2.0, -3.0], [0.0, 1.0]]).double())
    det, cofactor, folds = signed_det_and_cofactor(matrix)
    assert bool(folds.all())
    assert det.tolist() == [-6.0, -6.0, 0.0]
    expected = torch.diag_embed(torch.tensor([[3.0, 2.0], [3.0, 2.0], [1.0, 0.0]]).double())
    assert torch.allclose(cofactor, expected)
    line, one, _ = signed_det_and_cofactor(torch.tensor([[[-0.5]]]).double())
    assert line.tolist() == [-0.5] and one.tolist() == [[[1.0]]]


@SHAPES
def test_stiffness_is_symmetric_and_positive_except_for_constants(shape):
    d, n = len(shape), math.prod(shape)
    root = noise(*(2,) * d, *shape, d, d) - 0.3
    weights = root @ root.mT + 0.01 * torch.eye(d)
    units = torch.eye(n).double()
    matrix = torch.stack([apply_stiffness(weights, e.reshape(shape)).flatten() for e in units])
    assert torch.allclose(matrix, matrix.mT, atol=1e-11 * float(matrix.abs().max()))
    values = torch.linalg.eigvalsh(matrix)
    assert float(values[0]) == pytest.approx(0, abs=1e-10 * float(values[-1]))
    assert float(values[1]) > 1e-6 * float(values[-1])


@SHAPES
def test_projection_is_the_transpose_of_evaluation(shape):
    x, y, d = noise(*shape), noise(*(2,) * len(shape), *shape, seed=8), len(shape)
    values = x
    for axis in range(d):
        values = evaluate_along_axis(values, 2 * axis, 0).movedim(0, axis)
    projected = float((x * project_onto_splines(y)).sum())
    assert float((values * y).sum()) == pytest.approx(projected, rel=1e-12)


# ---- multigrid


@pytest.mark.parametrize(
    ("shape", "most"), [((100,), 8), ((32, 32), 8), ((33, 20), 9), ((12, 10, 8), 13)], ids=str
)
def test_multigrid_converges_fast_for_smooth_weights(shape, most):
    """A V-cycle leaves about a tenth of an error, in 3D a quarter: 1e-6 takes six to ten."""
    system = system_on(shape, min_width=1.0)
    residual, _ = system.evaluate(potential(shape, 0.2))
    step = system.compute_step(residual, 0.1, 1e-6, 50)
    assert system.iterations <= most
    error = apply_stiffness(system.levels[0].fields[0], step) - (residual - residual.mean())
    assert float(error.norm()) < 2e-6 * float(residual.norm())


def test_multigrid_with_jumping_weights():
    system = TorchHierarchy((32, 32), (1.0, 1.0))[0]
    source, target = torch.zeros(2, 32, 32).double()
    source[4:13, 6:20], target[15:28, 9:14] = 1.0, 1.0
    system.set_densities((source / source.mean(), target / target.mean()), 0.0)
    residual, _ = system.evaluate(torch.zeros(32, 32).double())
    system.compute_step(residual, 0.03, 1e-3, 100)  # weights jump from 0.03 to 30
    assert system.iterations <= 12


# ---- the equation


@pytest.mark.parametrize("min_width", [0.0, 1.0])
@SHAPES
def test_pulled_back_densities_keep_their_mass(shape, min_width):
    """In 1D half-cells tile the line exactly; else they overlap by squares of the shear, 1e-3."""
    exact = len(shape) == 1 and min_width == 0
    for curvature, allowed in ((0.0, 1e-12), (0.4, 1e-12 if exact else 1e-3)):
        sums = system_on(shape, min_width).evaluate(potential(shape, curvature))[1]
        integrals = ResidualIntegrals(*sums)
        assert integrals.source_mass == pytest.approx(1, abs=allowed)
        assert integrals.target_mass == pytest.approx(1, abs=allowed)
        assert integrals.folded_mass == 0


def test_shift_by_whole_cells_solves_the_equation():
    """The potential is linear within the block: no residual, and its dual value is W2."""
    n, k = 32, 6
    block = noise(8, 7) + 0.1
    source, target = torch.zeros(2, n, n).double()
    source[5:13, 10:17], target[5 + k : 13 + k, 10:17] = block, block
    slope = torch.zeros(n).double()
    slope[6:21] = k / n  # ∇u in the region of the mass at t = ½
    c = (slope.cumsum(0) / n)[:, None] + torch.zeros(n).double()
    system = TorchHierarchy((n, n), (1.0, 1.0))[0]
    system.set_densities((source / source.mean(), target / target.mean()), 0.0)
    residual, integrals = system.evaluate(c)
    assert float(residual.abs().sum()) < 1e-10
    assert ResidualIntegrals(*integrals).distance == pytest.approx(k / n, rel=1e-9)


def test_stiffness_is_the_derivative_of_the_residual():
    """For smooth densities, up to quadrature errors that vanish with h."""
    n = 48
    x = (torch.arange(n).double() + 0.5) / n
    wave = lambda k: torch.cos(k * torch.pi * x)  # noqa: E731
    system = TorchHierarchy((n, n), (1.0, 1.0))[0]
    source, target = 1 + 0.3 * wave(1)[:, None] * wave(2), 1 - 0.2 * wave(1) + 0 * x[:, None]
    system.set_densities((source, target), 0.0)
    c, change = 0.02 * wave(2)[:, None] * wave(1), wave(1)[:, None] * wave(1)
    before, _ = system.evaluate(c)
    system.compute_step(before, 0.0, 0.5, 1)
    expected = apply_stiffness(system.levels[0].fields[0], change)
    after, _ = system.evaluate(c + 1e-4 * change)
    difference = (before - after) / 1e-4
    assert float((difference - expected).norm() / expected.norm()) < 0.02


def test_torch_is_used_without_kernels(monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", "0")
    assert isinstance(build_hierarchy((4, 4), (1.0, 1.0), 1), TorchHierarchy)


# ---- batches


@pytest.fixture
def batch():
    """Potentials that displace mass by about a cell, and three pairs, (3, 32, 32) each."""
    pairs = [draw(kind, 32) for kind in ("smooth", "shapes", "white-noise")]
    source, target = (torch.stack([pair[end].tensor.float() for pair in pairs]) for end in (0, 1))
    coarse = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bicubic")[:, 0]
    return 2 * wide, source, target


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batch_agrees_with_single_pairs(batch, threads):
    state = evaluate_residual(*batch, threads)
    system = build_hierarchy((32, 32), (1.0, 1.0), 1)[0]
    for k, (c, source, target) in enumerate(zip(*batch, strict=True)):
        system.set_densities((source, target), 0.0)
        mean = float((c.double() * state.weight[k]).sum() / state.weight[k].sum())
        residual, integrals = system.evaluate(c.double() / 32**2)
        # In single precision half-cells may fall into another cell, and constants round.
        assert float((state.residual[k] - residual * 32**2).abs().mean()) < 1e-4
        assert state.integrals[k].tolist() == pytest.approx(integrals, rel=1e-4, abs=1e-7)
        centred = ResidualIntegrals(*system.evaluate((c.double() - mean) / 32**2)[1])
        dual = centred.kinetic_energy / 2 + 2 * centred.dual_term
        assert float(state.dual[k]) == pytest.approx(dual, rel=1e-3, abs=1e-6)


def test_dual_value_is_invariant_under_constants(batch):
    """Although the masses of source and target differ after quadrature."""
    c, source, target = batch
    peaks = [end * (end > 1.5) * 8 for end in (source, target)]
    state, shifted = (evaluate_residual(own, *peaks, 1) for own in (3 * c, 3 * c + 1000))
    masses = state.integrals[:, 2] - state.integrals[:, 1]
    assert float(masses.abs().max()) > 1e-3
    torch.testing.assert_close(shifted.dual, state.dual, rtol=1e-4, atol=1e-6)
    assert float(state.gradient.mean((1, 2)).abs().max()) < 1e-5


@needs_kernels
def test_threads_do_not_change_the_residual():
    c, source, target = torch.rand(3, 1, 160, 160, generator=torch.Generator().manual_seed(1))
    alone, together = (evaluate_residual(5 * c, source, target, threads) for threads in (1, 3))
    assert torch.equal(alone.residual, together.residual)
    assert torch.equal(alone.weight, together.weight)


@needs_kernels
@pytest.mark.parametrize("d", [1, 2, 3])
def test_compiled_batch_agrees_with_torch(d, monkeypatch):
    shape = (8, 6, 4)[:d]
    generator = torch.Generator().manual_seed(d)
    source, target = torch.rand(2, 3, *shape, generator=generator)
    c = 0.1 * torch.randn(3, *shape, generator=generator)
    states = []
    for choice in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", choice)
        states.append(evaluate_residual(c, source, target, 2))
    for ours, expected in zip(*states, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("matched", "growth", "expected"),
    [
        (0.999, 0.001, 0.001),  # quadrature is exact: the difference
        (1.0015, 0.001, 0.001 / 1.0025),  # too large by quadrature: relative to the sum
        (0.3, 0.2, 0.7),  # a half of the mass is not pulled back: the difference
    ],
)
def test_unmatched_mass_is_free_of_quadrature_errors(matched, growth, expected):
    assert unmatched_mass(1.0, matched, growth) == pytest.approx(expected, rel=1e-12)
