"""The velocity on grids follows its straight lines."""

import pytest
import torch

from geonet.solvers.midpoint import velocity
from geonet.solvers.midpoint.velocity import acceleration

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


@DIMENSIONS
@pytest.mark.parametrize("radius", [0.3, 1.0, 1.8])
def test_acceleration_is_small_for_any_potential(potentials, d, radius):
    assert float(acceleration(potentials(d, count=2, radius=radius)).max()) < 0.02
    assert float(acceleration(torch.zeros(1, *(4,) * d))) == 0


def test_acceleration_sees_a_velocity_that_does_not_follow_its_lines(potentials, monkeypatch):
    whole = velocity.velocity_on_cube

    def frozen(coefficients, times):
        return whole(coefficients, torch.full_like(times, 0.5))  # ∂_t v is missing

    monkeypatch.setattr(velocity, "velocity_on_cube", frozen)
    assert float(acceleration(potentials(2))) > 0.1
