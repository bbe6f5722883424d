"""The back-and-forth method against distances that are known."""

import math

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.errors import ConvergenceWarning, SolverError
from geonet.grid import Grid
from geonet.metrics import l1
from geonet.numerics import c_transform as transforms
from geonet.solvers.back_and_forth import cell_masses, dual_squares


def gaussian(grid, mean, widths):
    place = (grid.points() - torch.tensor(mean)) / torch.tensor(widths)
    return Density((-(place**2).sum(-1) / 2).exp(), grid)


def disc(grid, radius=0.2, apart=0.0):
    """A disc in the middle, its halves moved apart; cells on the rim are partly filled."""
    fine = Grid([5 * n for n in grid.shape], grid.lower, grid.upper)
    x, y = (fine.points() - 0.5).unbind(-1)
    inside = (torch.hypot(x.abs() - apart, y) < radius) & (x.abs() > apart)
    return Density(inside.double(), fine).resample(grid)


def solve(source, target, **options):
    return geonet.geodesic(source, target, "back-and-forth", **options)


@pytest.mark.parametrize("cells", [64, 128])
def test_gaussians(cells):
    grid = Grid((cells, cells))
    ends = gaussian(grid, [0.4, 0.4], [0.06, 0.05]), gaussian(grid, [0.6, 0.55], [0.05, 0.08])
    exact = math.sqrt(0.2**2 + 0.15**2 + 0.01**2 + 0.03**2)
    assert float(solve(*ends).distance) == pytest.approx(exact, rel=1.5e-3)


def test_gaussians_on_a_long_box_far_from_zero():
    grid = Grid((48, 96), (100.0, -3.0), (102.0, 1.0))
    ends = gaussian(grid, [100.8, -1.8], [0.2, 0.4]), gaussian(grid, [101.2, -0.4], [0.25, 0.3])
    exact = math.sqrt(0.4**2 + 1.4**2 + 0.05**2 + 0.1**2)
    assert float(solve(*ends).distance) == pytest.approx(exact, rel=2e-3)


def test_gaussians_in_space():
    grid = Grid((24, 24, 24))
    ends = gaussian(grid, [0.4, 0.4, 0.5], [0.1] * 3), gaussian(grid, [0.6, 0.55, 0.5], [0.1] * 3)
    assert float(solve(*ends).distance) == pytest.approx(0.25, rel=1e-2)


def test_a_disc_that_is_torn():
    """Halves move apart: densities with holes, a map with a jump, one way and the other."""
    grid = Grid((64, 64))
    whole, torn = disc(grid), disc(grid, apart=0.2)
    for ends in ((whole, torn), (torn, whole)):
        path = solve(*ends)
        assert float(path.distance) == pytest.approx(0.2, rel=2e-3)
        assert path.report.distance_lower_bound <= 0.2


def test_blocks_at_the_walls():
    grid = Grid((64, 16), 0.0, (1.0, 0.25))
    left = grid.points()[..., 0] < 0.5
    path = solve(Density(left.double(), grid), Density((~left).double(), grid))
    assert float(path.distance) == pytest.approx(0.5, rel=2e-4)


@pytest.mark.parametrize("seed", range(6))
def test_lines_against_quantiles(seed):
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
    assert float(path._checks()["distance_lower_bound"]) <= exact


def test_the_bias_of_atoms_on_a_lattice_is_taken_off():
    """A shift by a share of a cell: W2² of atoms is off by θ(1 − θ)h², ours is not."""
    grid = Grid((64, 64))
    for shift in (0.2 / 64, 0.5 / 64, 1.5 / 64):
        ends = (gaussian(grid, [0.5, 0.5 + side * shift / 2], [0.08] * 2) for side in (-1, 1))
        off = float(solve(*ends).distance) ** 2 - shift**2
        assert abs(off) < 0.06 / 64**2


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
        lower, estimate = dual_squares(cell_masses(source), cell_masses(source), phi, grid)
        assert float(lower) <= 0 and float(lower) <= float(estimate)  # W2 is zero
        if strength == 0:
            assert float(estimate) == pytest.approx(0, abs=1e-15)


def test_frames_begin_and_end_right_and_move_straight():
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


def test_the_plain_loops_give_the_same(monkeypatch):
    if not transforms.available():
        pytest.skip("the loops were not compiled here")
    grid = Grid((20, 24))
    ends = disc(grid), disc(grid, apart=0.15)
    first = solve(*ends)
    monkeypatch.setenv("GEONET_COMPILED", "0")
    second = solve(*ends)
    assert first.notes["iterations"] == second.notes["iterations"]
    assert float(first.distance) == pytest.approx(float(second.distance), rel=1e-9)
    assert torch.allclose(first.density(0.3).tensor, second.density(0.3).tensor, atol=1e-6)


def test_stopping_early_is_said():
    grid = Grid((32, 32))
    ends = gaussian(grid, [0.3, 0.4], [0.08] * 2), gaussian(grid, [0.6, 0.55], [0.05] * 2)
    with pytest.warns(ConvergenceWarning, match="stopped after 5 iterations while W2 still"):
        path = solve(*ends, max_iterations=5, tolerance=1e-6)
    assert path.notes["converged"] is False and path.notes["relative change"] > 1e-6
    assert path.report.distance_lower_bound <= math.sqrt(0.3**2 + 0.15**2 + 2 * 0.03**2) + 1e-4
    settled = solve(*ends)
    assert settled.notes["converged"] and settled.notes["relative change"] <= 1e-3
    assert settled.notes["iterations"] < 30


def test_long_steps_that_stand_still_are_not_taken_for_settled(monkeypatch):
    monkeypatch.setattr("geonet.solvers.back_and_forth.FIRST_STEP", 1e6)
    grid = Grid((32, 32))
    path = solve(disc(grid), disc(grid, apart=0.2))
    assert float(path.distance) == pytest.approx(0.2, rel=1e-2)


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_options_that_make_no_sense(options):
    with pytest.raises(SolverError, match="both must be positive"):
        geonet.solver("back-and-forth", **options)
