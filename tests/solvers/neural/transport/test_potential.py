"""Cosine series and their derivatives, and the bound on how steep a potential may be."""

import math

import pytest
import torch

from geonet.grid import Grid
from geonet.numerics.cosine import CosineSeries
from geonet.solvers.neural.transport.potential import (
    STEEPEST,
    potential_on,
    potential_table,
    steepest,
    steepness,
    unfolded,
)
from geonet.solvers.neural.transport.splines import look_up

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def upper_triangle(matrices):
    """(d, d, …) packed."""
    d = len(matrices)
    return [matrices[i, j] for i in range(d) for j in range(i, d)]


@DIMENSIONS
def test_value_gradient_and_hessian_are_the_series(potentials, d):
    coefficients, cells = potentials(d, count=2, modes=5), 9
    value, gradient, hessian = potential_on(coefficients, cells)
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
def test_the_table_gives_the_gradient_between_its_nodes(potentials, d, generator):
    coefficients = potentials(d, modes=5)
    points = torch.rand(d, 200, generator=generator)
    found = look_up(potential_table(coefficients), [x.expand(1, 1, -1) for x in points])[:, 0, 0]
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
def test_steepness_is_half_the_largest_eigenvalue(potentials, d):
    coefficients = potentials(d, count=2, radius=1.4)
    _, _, hessian = potential_on(coefficients, 32)
    assert torch.allclose(steepness(hessian), torch.tensor(0.7), atol=0.01)
    assert torch.allclose(steepness([-h for h in hessian]), steepness(hessian))


@DIMENSIONS
def test_gentle_potentials_are_left_alone(potentials, d):
    coefficients = potentials(d, count=3, radius=1.9)
    assert torch.equal(unfolded(coefficients), coefficients)
    still = torch.zeros(2, *(4,) * d)
    assert torch.equal(unfolded(still), still)


@DIMENSIONS
def test_steep_potentials_are_scaled_down_to_the_limit(potentials, d):
    gentle, steep = potentials(d, radius=1.0), potentials(d, radius=5.0, seed=1)
    bounded = unfolded(torch.cat([gentle, steep]))
    assert torch.equal(bounded[:1], gentle)
    ratio = bounded[1] / steep[0]
    assert float(ratio.max() - ratio.min()) < 1e-6
    assert 0.3 < float(ratio.mean()) < 0.5
    assert float(steepest(bounded[1:])) == pytest.approx(STEEPEST, abs=1e-4)


@DIMENSIONS
def test_the_faces_count(d):
    """Where cos(kπx) is steepest, ½k²π², there is no centre of a cell."""
    coefficients = torch.zeros(1, *(4,) * d)
    coefficients[(0, *(0,) * (d - 1), 3)] = 0.01
    assert float(steepest(coefficients)) == pytest.approx(0.01 * 4.5 * math.pi**2, rel=1e-5)
    assert float(steepness(potential_on(coefficients, 8)[2])) < 0.99 * float(steepest(coefficients))
