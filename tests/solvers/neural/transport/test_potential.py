"""Cosine potentials, their table, and the velocity against exact characteristics."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from geonet.grid import Grid
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.solvers.neural.transport import potential as velocity
from geonet.solvers.neural.transport.potential import (
    MAX_SPECTRAL_RADIUS,
    VELOCITY,
    evaluate_potential,
    half_spectral_radius,
    interpolate_table,
    interpolate_velocity,
    max_spectral_radius,
    relative_acceleration,
    scale_to_injective,
    solve_velocity,
    tabulate_potential,
)

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


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
def test_table_interpolates_the_gradient(potentials, d, generator):
    coefficients = potentials(d, modes=5)
    points = torch.rand(d, 200, generator=generator)
    found = interpolate_table(
        tabulate_potential(coefficients), [x.expand(1, 1, -1) for x in points]
    )[:, 0, 0]
    rest, hessian = found[:d], found[d:]
    matrices = torch.empty(d, d, 200)
    for k, (i, j) in enumerate(torch.triu_indices(d, d).T.tolist()):
        matrices[i, j] = matrices[j, i] = hessian[k]
    quadratic = rest + 0.5 * torch.einsum("ijn,jn->in", matrices, points)
    series = CosineSeries(coefficients[0].double(), Grid((4,) * d))
    _, expected, expected_hessian = series.at(points.T.double())
    assert float((quadratic.T - expected).abs().max()) < 5e-5
    assert torch.allclose(matrices.movedim(-1, 0).double(), expected_hessian, atol=0.02)


@DIMENSIONS
def test_half_spectral_radius(potentials, d):
    coefficients = potentials(d, count=2, radius=1.4)
    _, _, hessian = evaluate_potential(coefficients, 32)
    assert torch.allclose(half_spectral_radius(hessian), torch.tensor(0.7), atol=0.01)
    assert torch.allclose(
        half_spectral_radius([-h for h in hessian]), half_spectral_radius(hessian)
    )


@DIMENSIONS
def test_scale_to_injective(potentials, d):
    gentle, steep = potentials(d, radius=1.0), potentials(d, radius=5.0, seed=1)
    bounded = scale_to_injective(torch.cat([gentle, steep]))
    assert torch.equal(bounded[:1], gentle)
    ratio = bounded[1] / steep[0]
    assert float(ratio.max() - ratio.min()) < 1e-6
    assert 0.3 < float(ratio.mean()) < 0.5
    assert float(max_spectral_radius(bounded[1:])) == pytest.approx(MAX_SPECTRAL_RADIUS, abs=1e-4)


@DIMENSIONS
def test_spectral_radius_includes_the_faces(d):
    """The maximum ½k²π² of a cosine is at a face, not at a cell centre."""
    coefficients = torch.zeros(1, *(4,) * d)
    coefficients[(0, *(0,) * (d - 1), 3)] = 0.01
    assert float(max_spectral_radius(coefficients)) == pytest.approx(
        0.01 * 4.5 * math.pi**2, rel=1e-5
    )
    assert float(half_spectral_radius(evaluate_potential(coefficients, 8)[2])) < 0.99 * float(
        max_spectral_radius(coefficients)
    )


def multilinear(table, points):
    """One field (*nodes) at points (N, d) of the unit cube, corner by corner."""
    last = torch.tensor(table.shape, dtype=torch.float64) - 1
    scaled = points.clamp(0, 1) * last
    first = torch.minimum(scaled.floor(), last - 1)
    value = torch.zeros(len(points), dtype=torch.float64)
    for corner in itertools.product((0, 1), repeat=table.ndim):
        offset = torch.tensor(corner, dtype=torch.float64)
        weight = torch.where(offset == 1, scaled - first, 1 - scaled + first).prod(-1)
        value += weight * table[tuple((first + offset).long().T)]
    return value


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_interpolation_is_multilinear(d, batch, generator):
    nodes, times, count = (5, 4, 6)[:d], 2, 30
    table = torch.rand(batch, 2, *nodes, generator=generator)
    points = [1.4 * torch.rand(batch, times, count, generator=generator) - 0.2 for _ in range(d)]
    found = interpolate_table(table, points)
    assert found.shape == (2, batch, times, count)
    outside = torch.stack([(x < 0) | (x > 1) for x in points]).any(0)
    assert 0 < int(outside.sum()) < outside.numel()  # these move to the faces
    for b, t, c in itertools.product(range(batch), range(times), range(2)):
        where = torch.stack([x[b, t] for x in points], -1).double()
        expected = multilinear(table[b, c].double(), where)
        assert torch.allclose(found[c, b, t].double(), expected, atol=1e-5)


DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def exact_velocity(coefficients, t, points):
    """V and Dv = D²u(I + sD²u)⁻¹ at points (N, d) of the unit cube."""
    d, s = points.shape[1], t - 0.5
    lines = Characteristics(CosineSeries(coefficients.double(), Grid((2,) * d)))
    (origin,) = lines.trace_back(torch.tensor([s], dtype=torch.float64), points)
    spread = torch.eye(d, dtype=torch.float64) + s * origin.hessian
    return origin.gradient, torch.linalg.solve(spread, origin.hessian)


@DIMENSIONS
@pytest.mark.parametrize("radius", [1.0, 1.6])
def test_velocity_on_the_coarse_grid(potentials, d, radius):
    coefficients, times = potentials(d, count=2, radius=radius), torch.tensor([0.0, 0.3, 1.0])
    found = solve_velocity(coefficients, times)
    assert len(found) == d and found[0].shape == (2, 3, VELOCITY[d].cells ** d)
    points = Grid((VELOCITY[d].cells,) * d).points().reshape(-1, d)
    for k, t in enumerate(times.tolist()):
        expected, _ = exact_velocity(coefficients[1], t, points)
        for i in range(d):
            off = (found[i][1, k] - expected[:, i]).abs()
            assert float(off.max()) < (3e-3 if d == 3 else 2e-5)
            assert float(off.mean()) < 1e-5


@pytest.mark.parametrize(
    "grid",
    [
        Grid(300, 2.0, 5.0),
        Grid((20, 33)),
        Grid((24, 16), 0.0, (3.0, 2.0)),
        Grid((9, 12, 10), 0.0, (1.0, 1.0, 0.8)),
    ],
    ids=str,
)
def test_velocity_and_jacobian_on_a_grid(potentials, grid):
    d, coefficients = grid.dimension, potentials(grid.dimension)
    found, slope = interpolate_velocity(solve_velocity(coefficients, torch.tensor([0.2])), grid)
    unit = (grid.points() - grid.lower_tensor).reshape(-1, d) / max(grid.lengths)
    expected, matrices = exact_velocity(coefficients[0], 0.2, unit)
    for i in range(d):
        assert torch.allclose(found[i][0, 0].double(), expected[:, i], atol=2e-4)
    for entry, (i, j) in zip(slope, torch.triu_indices(d, d).T.tolist(), strict=True):
        assert torch.allclose(entry[0, 0].double(), matrices[:, i, j], atol=0.02)
        assert float((entry[0, 0] - matrices[:, i, j]).abs().mean()) < 2e-3


@DIMENSIONS
@pytest.mark.parametrize("radius", [0.3, 1.0, 1.8])
def test_relative_acceleration_is_small(potentials, d, radius):
    assert float(relative_acceleration(potentials(d, count=2, radius=radius)).max()) < 0.02
    assert float(relative_acceleration(torch.zeros(1, *(4,) * d))) == 0


def test_relative_acceleration_detects_a_frozen_velocity(potentials, monkeypatch):
    whole = solve_velocity

    def frozen(coefficients, times):
        return whole(coefficients, torch.full_like(times, 0.5))  # ∂_t v is missing

    monkeypatch.setattr(velocity, "solve_velocity", frozen)
    assert float(relative_acceleration(potentials(2))) > 0.1
