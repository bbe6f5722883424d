"""POT and OTT are called correctly: they agree with exact answers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers import (
    ENTROPIC,
    ENTROPIC_COSTS,
    BarycenterConfig,
    UnbalancedConfig,
    deposit,
    solve_entropic,
    solve_free_support,
    solve_pot_mm,
)
from benchmarks.problems import Gaussian, draw_shape, gaussian_hellinger_cost
from geonet import Grid
from geonet.errors import ConvergenceError

FIRST = Gaussian((0.42, 0.50), (0.0080, 0.0030, 0.0032), 1.0)
SECOND = Gaussian((0.56, 0.46), (0.0032, -0.0010, 0.0060), 1.8)


@pytest.mark.parametrize("label", ENTROPIC_COSTS)
def test_cost_of_gaussians_agrees_with_other_libraries(label):
    if "OTT" in label:
        pytest.importorskip("ott")
    ends = [g.to_density(Grid((32, 32))) for g in (FIRST, SECOND)]
    truth = gaussian_hellinger_cost(FIRST, SECOND, 0.5)
    found = ENTROPIC_COSTS[label](*ends, 0.5, 5e-4, UnbalancedConfig())
    assert found.converged and found.seconds > 0
    assert found.cost == pytest.approx(truth, rel=0.03)  # entropy and atoms


def test_cost_without_entropy_is_an_upper_bound_for_atoms():
    ends = [g.to_density(Grid((16, 16))) for g in (FIRST, SECOND)]
    config = UnbalancedConfig(max_mm_iterations=300)
    truth = gaussian_hellinger_cost(FIRST, SECOND, 0.2)
    assert solve_pot_mm(*ends, 0.2, 0.0, config).cost == pytest.approx(truth, rel=0.1)


def test_peers_find_the_barycenter_of_translates():
    grid, weights = Grid((24, 24)), np.array([0.5, 0.5])
    ends = [draw_shape("disc", grid, (x, 0.5), 0.5) for x in (0.35, 0.65)]
    truth, config = draw_shape("disc", grid, (0.5, 0.5), 0.5).numpy(), BarycenterConfig()
    found = [
        solve_entropic(ends, weights, 8e-3, config, function, method)
        for function, method in ENTROPIC.values()
    ]
    found.append(solve_free_support(ends, weights, config))
    errors = [np.abs(centre.density.numpy() - truth).mean() for centre in found]
    assert errors[1] < errors[0] < 0.8 and errors[1] < 0.2  # debiased and blurred
    assert errors[2] == pytest.approx(errors[1], rel=0.05)
    assert errors[3] < 0.6 and all(centre.seconds > 0 for centre in found)
    with pytest.raises(ConvergenceError, match="underflows"):
        solve_entropic(ends, weights, 1e-6, config)


def test_deposit_keeps_mass_and_mean():
    grid = Grid((8, 4))
    points = np.array([[0.3, 0.4], [0.5, 0.6]])
    masses = deposit(points, grid).numpy() * grid.cell_volume
    assert masses.sum() == pytest.approx(1)
    mean = np.einsum("ij,ijk->k", masses, grid.points().numpy())
    np.testing.assert_allclose(mean, points.mean(0), atol=1e-6)
