"""The velocity on grids, against exact characteristics."""

import pytest
import torch

from geonet.grid import Grid
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.solvers.neural.transport import potential as velocity
from geonet.solvers.neural.transport.potential import CELLS, acceleration, refined, velocity_on_cube

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def exactly(coefficients, t, points):
    """V and Dv = D²u(I + sD²u)⁻¹ at points (N, d) of the unit cube."""
    d, s = points.shape[1], t - 0.5
    lines = Characteristics(CosineSeries(coefficients.double(), Grid((2,) * d)))
    (origin,) = lines.origins(torch.tensor([s], dtype=torch.float64), points)
    spread = torch.eye(d, dtype=torch.float64) + s * origin.hessian
    return origin.gradient, torch.linalg.solve(spread, origin.hessian)


@DIMENSIONS
@pytest.mark.parametrize("radius", [1.0, 1.6])
def test_velocity_on_the_cube(potentials, d, radius):
    coefficients, times = potentials(d, count=2, radius=radius), torch.tensor([0.0, 0.3, 1.0])
    found = velocity_on_cube(coefficients, times)
    assert len(found) == d and found[0].shape == (2, 3, CELLS[d] ** d)
    points = Grid((CELLS[d],) * d).points().reshape(-1, d)
    for k, t in enumerate(times.tolist()):
        expected, _ = exactly(coefficients[1], t, points)
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
def test_velocity_and_its_slope_on_a_grid_of_the_box(potentials, grid):
    d, coefficients = grid.dimension, potentials(grid.dimension)
    found, slope = refined(velocity_on_cube(coefficients, torch.tensor([0.2])), grid)
    unit = (grid.points() - grid.corner("lower")).reshape(-1, d) / max(grid.lengths)
    expected, matrices = exactly(coefficients[0], 0.2, unit)
    for i in range(d):
        assert torch.allclose(found[i][0, 0].double(), expected[:, i], atol=2e-4)
    for entry, (i, j) in zip(slope, torch.triu_indices(d, d).T.tolist(), strict=True):
        assert torch.allclose(entry[0, 0].double(), matrices[:, i, j], atol=0.02)
        assert float((entry[0, 0] - matrices[:, i, j]).abs().mean()) < 2e-3


@DIMENSIONS
@pytest.mark.parametrize("radius", [0.3, 1.0, 1.8])
def test_acceleration_is_small_for_any_potential(potentials, d, radius):
    assert float(acceleration(potentials(d, count=2, radius=radius)).max()) < 0.02
    assert float(acceleration(torch.zeros(1, *(4,) * d))) == 0


def test_acceleration_sees_a_velocity_that_does_not_follow_its_lines(potentials, monkeypatch):
    whole = velocity_on_cube

    def frozen(coefficients, times):
        return whole(coefficients, torch.full_like(times, 0.5))  # ∂_t v is missing

    monkeypatch.setattr(velocity, "velocity_on_cube", frozen)
    assert float(acceleration(potentials(2))) > 0.1
