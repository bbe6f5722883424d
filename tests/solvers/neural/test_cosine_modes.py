"""Densities at sensors as cosine series: through the sensors, cut, and as inputs of a branch."""

import math

import pytest
import torch

from geonet import Grid
from geonet.solvers.neural.layers import CosineModes, LowModes

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

SENSORS = {1: 12, 2: 6, 3: 4}


def rows_of(grid):
    """The centres of cells at t = 0.3, (cells, d + 1)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cat([points, torch.full_like(points[:, :1], 0.3)], dim=1)


def wave(grid, *modes):
    """Π_i cos(k_i πx_i) at the centres of cells, (1, cells)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cos(math.pi * torch.tensor(modes) * points).prod(-1)[None]


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_series_goes_through_the_sensors(d, generator):
    n = SENSORS[d]
    values = torch.rand(3, n**d, generator=generator)
    series = CosineModes(d, n, n)
    coefficients = series(values)
    assert coefficients.shape == (3, n**d)
    found = coefficients @ series.functions(rows_of(Grid((n,) * d))).T
    assert torch.allclose(found, values, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_series_goes_through_the_sensors_in_single_precision(d, generator):
    n = SENSORS[d]
    values = torch.rand(3, n**d, generator=generator).float()
    series = CosineModes(d, n, n)
    found = series(values) @ series.functions(rows_of(Grid((n,) * d)).float()).T
    assert found.dtype == torch.float32
    assert torch.allclose(found, values, rtol=0, atol=1e-5)  # sums of some 100 rounded numbers


@pytest.mark.parametrize("d", [1, 2, 3])
def test_functions_follow_the_chain_rule(d, check_jets):
    check_jets(CosineModes(d, SENSORS[d], 3).functions, d)


@pytest.mark.parametrize(("d", "modes"), [(1, (3,)), (2, (2, 1)), (3, (1, 0, 2))])
def test_a_single_wave_has_a_single_coefficient(d, modes):
    """At its place in row-major order."""
    n = SENSORS[d]
    coefficients = CosineModes(d, n, n)(wave(Grid((n,) * d), *modes)).reshape((n,) * d)
    expected = torch.zeros((n,) * d)
    expected[modes] = 1
    assert torch.allclose(coefficients, expected, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_cut_keeps_low_waves_and_drops_high_ones(d):
    n = SENSORS[d]
    grid, cut = Grid((n,) * d), CosineModes(d, n, 3)
    low = 1 + 0.5 * wave(grid, *[2] * d) - 0.3 * wave(grid, *[1] * d)
    high = wave(grid, 3, *[0] * (d - 1))
    functions = cut.functions(rows_of(grid))
    assert functions.shape == (n**d, 3**d)
    assert torch.allclose(cut(low + 0.7 * high) @ functions.T, low, rtol=0, atol=1e-13)
    assert cut(high).abs().max() < 1e-13


def test_a_cut_keeps_a_smooth_density():
    """Of a Gaussian with σ = 0.1 the modes from 16 on are e^(−(16π·0.1)²/2) ≈ 3e-6 of the first."""
    grid = Grid(60)
    density = torch.exp(-0.5 * ((grid.points()[:, 0] - 0.5) / 0.1) ** 2)[None]
    rows = rows_of(Grid(60))
    for modes, limit in ((16, 1e-5), (60, 1e-13)):
        cut = CosineModes(1, 60, modes)
        assert (cut(density) @ cut.functions(rows).T - density).abs().max() < limit
    coarse = CosineModes(1, 60, 4)
    assert (coarse(density) @ coarse.functions(rows).T - density).abs().max() > 0.1


@pytest.mark.parametrize("d", [1, 2, 3])
def test_inputs_of_a_branch_are_as_large_as_sensors(d, generator):
    """By Parseval's identity |v|² = n Σ_k c_k² / 2^(axes with k_i > 0)."""
    n = SENSORS[d]
    values = torch.randn(20, n**d, generator=generator)
    ratio = LowModes(d, n, n)(values).norm(dim=1) / values.norm(dim=1)
    assert bool((ratio >= 1).all()) and bool((ratio <= 2 ** (d / 2)).all())
    constant = torch.full((1, n**d), 0.7)
    assert torch.allclose(LowModes(d, n, n)(constant).norm(), constant.norm())


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_branch_does_not_see_high_waves(d):
    n = SENSORS[d]
    grid, seen = Grid((n,) * d), LowModes(d, n, 3)
    low, high = wave(grid, *[2] * d), wave(grid, *[0] * (d - 1), 3)
    assert seen(low).shape == (1, 3**d)
    assert torch.allclose(seen(low + high), seen(low), rtol=0, atol=1e-12)
    assert seen(low).abs().max() > 1


@pytest.mark.parametrize("kind", [CosineModes, LowModes])
def test_a_series_has_nothing_to_learn_or_to_save(kind):
    series = kind(2, 4, 3)
    assert not list(series.parameters())
    assert not series.state_dict()


@pytest.mark.parametrize("d", [1, 2])
def test_a_series_can_be_differentiated_in_the_sensors(d, generator):
    values = torch.rand(2, 4**d, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(CosineModes(d, 4, 3), values)
