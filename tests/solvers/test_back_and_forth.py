"""The back-and-forth method against exact distances."""

import math
from dataclasses import replace

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.errors import ConvergenceWarning, SolverError
from geonet.grid import Grid
from geonet.metrics import l1
from geonet.numerics import c_transform as transforms
from geonet.solvers.back_and_forth import BackAndForth, cell_masses, dual_estimates


def gaussian(grid, mean, widths):
    place = (grid.points() - torch.tensor(mean)) / torch.tensor(widths)
    return Density((-(place**2).sum(-1) / 2).exp(), grid)


def disc(grid, radius=0.2, apart=0.0):
    """Return a disc in the middle with its halves moved apart; cells on the rim are averaged."""
    fine = Grid([5 * n for n in grid.shape], grid.lower, grid.upper)
    x, y = (fine.points() - 0.5).unbind(-1)
    inside = (torch.hypot(x.abs() - apart, y) < radius) & (x.abs() > apart)
    return Density(inside.double(), fine).resample(grid)


def solve(source, target, **options):
    return geonet.geodesic(source, target, "back-and-forth", **options)


@pytest.mark.parametrize("cells", [64, 128])
def test_gaussians_2d(cells):
    grid = Grid((cells, cells))
    ends = gaussian(grid, [0.4, 0.4], [0.06, 0.05]), gaussian(grid, [0.6, 0.55], [0.05, 0.08])
    exact = math.sqrt(0.2**2 + 0.15**2 + 0.01**2 + 0.03**2)
    assert float(solve(*ends).distance) == pytest.approx(exact, rel=1.5e-3)


def test_gaussians_on_a_long_box_far_from_zero():
    grid = Grid((48, 96), (100.0, -3.0), (102.0, 1.0))
    ends = gaussian(grid, [100.8, -1.8], [0.2, 0.4]), gaussian(grid, [101.2, -0.4], [0.25, 0.3])
    exact = math.sqrt(0.4**2 + 1.4**2 + 0.05**2 + 0.1**2)
    assert float(solve(*ends).distance) == pytest.approx(exact, rel=2e-3)


def test_gaussians_3d():
    grid = Grid((24, 24, 24))
    ends = gaussian(grid, [0.4, 0.4, 0.5], [0.1] * 3), gaussian(grid, [0.6, 0.55, 0.5], [0.1] * 3)
    assert float(solve(*ends).distance) == pytest.approx(0.25, rel=1e-2)


def test_halves_of_a_disc_that_move_apart():
    """The densities have holes and the map has a jump."""
    grid = Grid((64, 64))
    whole, split = disc(grid), disc(grid, apart=0.2)
    for ends in ((whole, split), (split, whole)):
        path = solve(*ends)
        assert float(path.distance) == pytest.approx(0.2, rel=2e-3)
        assert path.report.distance_lower_bound <= 0.2


def test_blocks_at_the_walls():
    grid = Grid((64, 16), 0.0, (1.0, 0.25))
    left = grid.points()[..., 0] < 0.5
    path = solve(Density(left.double(), grid), Density((~left).double(), grid))
    assert float(path.distance) == pytest.approx(0.5, rel=2e-4)


@pytest.mark.parametrize("seed", range(6))
def test_1d_densities_agree_with_quantiles(seed):
    grid = Grid(256, -1.0, 2.0)
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(2, 16, dtype=torch.float64, generator=generator).cumsum(1)
    values = steps.exp().repeat_interleave(16, 1)
    if seed % 2:
        values[0, :80], values[1, 190:] = 0, 0
    ends = Density(values[0], grid), Density(values[1], grid)
    exact = float(geonet.geodesic(*ends, "quantile").distance)
    path = solve(*ends)
    assert float(path.distance) == pytest.approx(exact, rel=1e-3)
    assert float(path._diagnostics()["distance_lower_bound"]) <= exact


def test_distance_is_without_the_bias_of_atoms():
    """For a shift by a fraction θ of a cell, W2² of atoms has the error θ(1 − θ)h²."""
    grid = Grid((64, 64))
    for shift in (0.2 / 64, 0.5 / 64, 1.5 / 64):
        ends = (gaussian(grid, [0.5, 0.5 + side * shift / 2], [0.08] * 2) for side in (-1, 1))
        error = float(solve(*ends).distance) ** 2 - shift**2
        assert abs(error) < 0.06 / 64**2


@pytest.mark.parametrize("d", [1, 2, 3])
def test_any_potential_gives_a_lower_bound(d):
    grid = Grid((12,) * d, 0.0, 1.0)
    generator = torch.Generator().manual_seed(d)
    x = grid.points()
    for strength in (0.0, 0.05, 0.5):
        slope = strength * torch.randn(d, dtype=torch.float64, generator=generator)
        noise = torch.rand(grid.shape, dtype=torch.float64, generator=generator)
        phi = x @ slope + 0.01 * strength * noise
        source = Density(1.0 + (x[..., 0] > 0.4), grid)
        lower, estimate = dual_estimates(cell_masses(source), cell_masses(source), phi, grid)
        assert float(lower) <= 0 and float(lower) <= float(estimate)  # W2 is zero
        if strength == 0:
            assert float(estimate) == pytest.approx(0, abs=1e-15)


def test_frames_and_particles_move_along_straight_lines():
    grid = Grid((48, 48))
    ends = gaussian(grid, [0.35, 0.4], [0.08] * 2), gaussian(grid, [0.6, 0.55], [0.08] * 2)
    path = solve(*ends)
    assert float(l1(path.density(1.0), ends[1])) < 1e-12
    middle = gaussian(grid, [0.475, 0.475], [0.08] * 2)
    assert float(l1(path.density(0.5), middle)) < 0.15
    assert torch.allclose(path.density(0.5).mean(), middle.mean(), atol=2e-3)
    moved = path.trajectories(1.0, [[0.35, 0.4], [0.4, 0.35]])
    expected = torch.tensor([[0.6, 0.55], [0.65, 0.5]], dtype=torch.float64)
    assert torch.allclose(moved, expected, atol=1.0 / 48)
    assert 0 < path.report.mismatch < 0.3


def test_results_without_compiled_loops_are_the_same(monkeypatch):
    if not transforms.is_available():
        pytest.skip("needs compiled kernels")
    grid = Grid((20, 24))
    ends = disc(grid), disc(grid, apart=0.15)
    first = solve(*ends)
    monkeypatch.setenv("GEONET_COMPILED", "0")
    second = solve(*ends)
    assert first.info["iterations"] == second.info["iterations"]
    assert float(first.distance) == pytest.approx(float(second.distance), rel=1e-9)
    assert torch.allclose(first.density(0.3).tensor, second.density(0.3).tensor, atol=1e-6)


def test_reaching_max_iterations_is_a_warning():
    grid = Grid((32, 32))
    ends = gaussian(grid, [0.3, 0.4], [0.08] * 2), gaussian(grid, [0.6, 0.55], [0.05] * 2)
    with pytest.warns(ConvergenceWarning, match="stopped after 5 iterations while W2 still"):
        path = solve(*ends, max_iterations=5, tolerance=1e-6)
    assert path.info["converged"] is False and path.info["relative change"] > 1e-6
    assert path.report.distance_lower_bound <= math.sqrt(0.3**2 + 0.15**2 + 2 * 0.03**2) + 1e-4
    settled = solve(*ends)
    assert settled.info["converged"] and settled.info["relative change"] <= 1e-3
    assert settled.info["iterations"] < 30


def test_stagnation_with_too_long_steps_is_not_convergence(monkeypatch):
    monkeypatch.setattr(BackAndForth, "config", replace(BackAndForth.config, first_step=1e6))
    grid = Grid((32, 32))
    path = solve(disc(grid), disc(grid, apart=0.2))
    assert float(path.distance) == pytest.approx(0.2, rel=1e-2)


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_invalid_options_are_an_error(options):
    with pytest.raises(SolverError, match="both must be positive"):
        geonet.solver("back-and-forth", **options)


# ---- periodic axes


def rolled_disc(grid, row, column=0):
    """Return a disc that is moved by whole cells, across the seam if necessary."""
    values = disc(Grid(grid.shape)).tensor
    return Density(values.roll((row, column), (0, 1)), grid)


@pytest.mark.parametrize("periodic", [(True, False), (True, True)], ids=str)
def test_a_disc_moves_across_the_seam(periodic):
    """Move by an eighth of a period; for a quarter it is better to split the disc on the torus."""
    grid = Grid((64, 64), periodic=periodic)
    columns = (36, 28, 32) if periodic[1] else (0, 0, 0)
    source, target, middle = map(rolled_disc, [grid] * 3, (28, 36, 32), columns)
    path = geonet.geodesic(source, target, "back-and-forth", tolerance=1e-4)
    expected = math.hypot(8, columns[1] - columns[0]) / 64
    assert path.distance == pytest.approx(expected, rel=2e-3)
    assert float(l1(path.density(0.5), middle)) < 0.1
    assert path.report.distance_lower_bound <= expected * (1 + 1e-9)
    assert path.report.mass_error < 1e-12 and path.report.target_error < 1e-12


def test_a_shift_of_both_ends_changes_nothing():
    grid = Grid((32, 48), 0, (1, 1.5), periodic=True)
    ends = gaussian(grid, (0.4, 0.7), (0.1, 0.2)), gaussian(grid, (0.6, 0.9), (0.15, 0.1))
    shifted = (Density(end.tensor.roll((13, 21), (0, 1)), grid) for end in ends)
    path, moved = (geonet.geodesic(*pair, "back-and-forth") for pair in (ends, shifted))
    assert float(moved.distance) == pytest.approx(float(path.distance), rel=1e-6)
    # beside the mass the potential may differ
    frame = path.density(0.5).tensor.roll((13, 21), (0, 1))
    assert float((moved.density(0.5).tensor - frame).abs().sum()) * grid.cell_volume < 1e-3


def test_periodic_dual_values_are_the_ones_of_the_circle():
    grid = Grid(96, 0, 2, periodic=True)
    values = torch.rand(2, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    values[0, 20:70] = values[1, 60:80] = 0
    ends = [Density(row, grid) for row in values]
    exact = float(geonet.geodesic(*ends).distance)
    path = geonet.geodesic(*ends, "back-and-forth", tolerance=1e-5)
    assert float(path.distance) == pytest.approx(exact, rel=2e-3)
    assert path.report.distance_lower_bound <= exact


def test_particles_cross_the_seam():
    grid = Grid((32, 32), periodic=(True, False))
    path = geonet.geodesic(rolled_disc(grid, 12), rolled_disc(grid, 20), "back-and-forth")
    start = [[0.9, 0.5], [0.95, 0.45]]
    expected = [[0.15, 0.5], [0.2, 0.45]]
    ends = torch.as_tensor(path.trajectories(1.0, start))
    assert torch.allclose(ends, torch.tensor(expected, dtype=torch.float64), atol=0.03)
