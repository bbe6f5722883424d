"""Cosine potentials, their table, and the velocity against exact characteristics."""

from __future__ import annotations

import math

import pytest
import torch

from geonet.grid import Grid
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.solvers.neural.transport import potential
from geonet.solvers.neural.transport.potential import (
    MAX_SPECTRAL_RADIUS,
    VELOCITY,
    evaluate_potential,
    half_spectral_radius,
    interpolate_velocity,
    max_spectral_radius,
    relative_acceleration,
    scale_to_injective,
    solve_velocity,
)

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


@DIMENSIONS
def test_spectral_radius(potentials, d):
    """Of a potential and its negative; the maximum ½k²π² of a cosine is at a face."""
    _, _, hessian = evaluate_potential(potentials(d, count=2, radius=1.4), 32)
    for own in (hessian, [-h for h in hessian]):
        assert torch.allclose(half_spectral_radius(own), torch.tensor(0.7), atol=0.01)
    coefficients = torch.zeros(1, *(4,) * d)
    coefficients[(0, *(0,) * (d - 1), 3)] = 0.01
    largest = float(max_spectral_radius(coefficients))
    assert largest == pytest.approx(0.01 * 4.5 * math.pi**2, rel=1e-5)
    assert float(half_spectral_radius(evaluate_potential(coefficients, 8)[2])) < 0.99 * largest


def upper_triangle(matrices):
    """(d, d, …) packed."""
    d = len(matrices)
    return [matrices[i, j] for i in range(d) for j in range(i, d)]


@DIMENSIONS
def test_evaluation_equals_the_series(potentials, d):
    coefficients, cells = potentials(d, count=2, modes=5), 9
    value, gradient, hessian = evaluate_potential(coefficients, cells)
    assert value.shape == gradient[0].shape == hessian[0].shape == (2, cells**d)
    grid = Grid((cells,) * d)
    for k in range(2):
        series = CosineSeries(coefficients[k].double(), grid)
        slopes, matrices = series.derivatives_on(grid)
        assert torch.allclose(value[k].double(), series.values_on(grid).flatten(), atol=1e-6)
        for found, expected in zip(gradient, slopes, strict=True):
            assert torch.allclose(found[k].double(), expected.flatten(), atol=1e-5)
        for found, expected in zip(hessian, upper_triangle(matrices), strict=True):
            assert torch.allclose(found[k].double(), expected.flatten(), atol=1e-4)


@DIMENSIONS
def test_scale_to_injective(potentials, d):
    gentle, steep = potentials(d, radius=1.0), potentials(d, radius=5.0, seed=1)
    bounded = scale_to_injective(torch.cat([gentle, steep]))
    assert torch.equal(bounded[:1], gentle)
    ratio = bounded[1] / steep[0]
    assert float(ratio.max() - ratio.min()) < 1e-6
    assert 0.3 < float(ratio.mean()) < 0.5
    assert float(max_spectral_radius(bounded[1:])) == pytest.approx(MAX_SPECTRAL_RADIUS, abs=1e-4)


def exact_velocity(coefficients, t, points):
    """V and Dv = D²u(I + sD²u)⁻¹ at points (N, d) of the unit cube."""
    d, s = points.shape[1], t - 0.5
    lines = Characteristics(CosineSeries(coefficients.double(), Grid((2,) * d)))
    (origin,) = lines.trace_back(torch.tensor([s], dtype=torch.float64), points)
    spread = torch.eye(d, dtype=torch.float64) + s * origin.hessian
    return origin.gradient, torch.linalg.solve(spread, origin.hessian)


@pytest.mark.parametrize(
    "grid",
    [Grid(300, 2.0, 5.0), Grid((24, 16), 0.0, (3.0, 2.0)), Grid((9, 12, 10), 0.0, (1.0, 1.0, 0.8))],
    ids=str,
)
def test_velocity_and_jacobian_on_a_grid(potentials, grid):
    d, coefficients = grid.dimension, potentials(grid.dimension)
    values, slope = interpolate_velocity(solve_velocity(coefficients, torch.tensor([0.2])), grid)
    unit = (grid.points() - grid.lower_tensor).reshape(-1, d) / max(grid.lengths)
    expected, matrices = exact_velocity(coefficients[0], 0.2, unit)
    for i in range(d):
        assert torch.allclose(values[i][0, 0].double(), expected[:, i], atol=2e-4)
    for entry, (i, j) in zip(slope, torch.triu_indices(d, d).T.tolist(), strict=True):
        assert torch.allclose(entry[0, 0].double(), matrices[:, i, j], atol=0.02)
        assert float((entry[0, 0] - matrices[:, i, j]).abs().mean()) < 2e-3
    for radius in (1.0, 1.6):  # without interpolation
        coefficients, times = potentials(d, count=2, radius=radius), torch.tensor([0.0, 0.3, 1.0])
        values, n = solve_velocity(coefficients, times), VELOCITY[d].cells
        assert len(values) == d and values[0].shape == (2, 3, n**d)
        for k, t in enumerate(times.tolist()):
            points = Grid((n,) * d).points().reshape(-1, d)
            expected, _ = exact_velocity(coefficients[1], t, points)
            for i in range(d):
                error = (values[i][1, k] - expected[:, i]).abs()
                assert float(error.max()) < (3e-3 if d == 3 else 2e-5)
                assert float(error.mean()) < 1e-5


def test_relative_acceleration(potentials, monkeypatch):
    """Small for straight lines, large for a velocity that is frozen in time."""
    for d in (1, 2, 3):
        for radius in (0.3, 1.8):
            assert float(relative_acceleration(potentials(d, count=2, radius=radius)).max()) < 0.02
        assert float(relative_acceleration(torch.zeros(1, *(4,) * d))) == 0

    def frozen(coefficients, times):
        return solve_velocity(coefficients, torch.full_like(times, 0.5))  # ∂_t v is missing

    monkeypatch.setattr(potential, "solve_velocity", frozen)
    assert float(relative_acceleration(potentials(2))) > 0.1
