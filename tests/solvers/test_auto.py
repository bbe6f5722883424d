"""The automatic choice: which solver, how often networks are evaluated, and all quantities."""

import dataclasses
import math

import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceWarning, SolverError
from geonet.metrics import l1
from geonet.mixture import BOX_2D, BOX_3D, mixtures_2d, mixtures_3d
from geonet.solvers import auto
from geonet.solvers.auto import Auto, _find_special_solver
from geonet.solvers.neural import cascade
from geonet.solvers.newton.solver import Midpoint
from geonet.solvers.registry import recommend_solver

SHIFT = 18  # cells between two blocks, along each axis


@pytest.fixture
def blocks():
    """Two squares far apart, with nothing around them."""
    grid = Grid((32, 32), 0.0, 5.0)
    values = torch.zeros(2, 32, 32, dtype=torch.float64)
    values[0, 2:6, 2:6] = values[1, 2 + SHIFT : 6 + SHIFT, 2 + SHIFT : 6 + SHIFT] = 1
    return Density(values[0], grid), Density(values[1], grid)


@pytest.fixture
def batch_3d():
    """Return a batch of a pair of mixtures and a pair of cubes."""
    grid = BOX_3D.with_shape(16)
    ends = mixtures_3d(2, torch.Generator().manual_seed(6)).to_density(grid).tensor
    corners = torch.zeros(2, 16, 16, 16, dtype=torch.float64)
    corners[0, 2:6, 2:6, 2:6] = corners[1, 9:13, 9:13, 9:13] = 1
    return tuple(
        Density(torch.stack([end, values]), grid) for end, values in zip(ends, corners, strict=True)
    )


def scatter_atoms(seed: int) -> Density:
    values = torch.zeros(1600, dtype=torch.float64)
    values[torch.randperm(1600, generator=torch.Generator().manual_seed(seed))[:90]] = 1
    return Density(values.reshape(40, 40), Grid((40, 40)))


def fail(*_):
    pytest.fail("the network is evaluated")


def test_1d_is_solved_by_quantiles(pair_1d):
    assert geonet.geodesic(*pair_1d).solver == "quantile"


def test_2d_is_solved_by_newton_from_a_network(pair_2d):
    """The tolerances allow for cell means against values at the centres."""
    path = geonet.geodesic(*pair_2d)
    assert path.solver == path.report.solver == "midpoint"
    assert path.info["start"] == "network" and path.info["converged"] is True
    assert len(path.info["newton steps"]) == 1  # on no coarser grid
    exact = geonet.geodesic(*pair_2d, "monge-ampere")
    assert float(l1(path.density(0.5), exact.density(0.5))) < 0.02
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=0.01)


def test_3d_is_solved_by_newton(batch_3d):
    path = geonet.geodesic(*batch_3d)
    assert path.solver == "midpoint" and path.info["converged"] == [True, True]
    assert not path.report.is_distance_uncertain


@pytest.mark.parametrize("learned", [True, False])
def test_a_block_is_translated(blocks, learned):
    path = geonet.geodesic(*blocks, learned=learned)
    assert path.solver == "midpoint" and path.info["converged"] is True
    values = torch.zeros(32, 32, dtype=torch.float64)
    values[2 + SHIFT // 2 : 6 + SHIFT // 2, 2 + SHIFT // 2 : 6 + SHIFT // 2] = 1
    assert float(l1(path.density(0.5), Density(values, path.grid))) < 0.01
    assert float(path.distance) == pytest.approx(math.sqrt(2) * SHIFT * 5 / 32, rel=1e-3)


def test_ripples_are_solved_by_newton():
    grid = Grid((64, 64))
    ends = [Density(1 + 0.2 * torch.cos(18 * torch.pi * x), grid) for x in grid.points().unbind(-1)]
    path = geonet.geodesic(*ends)
    assert path.solver == "midpoint"
    exact = geonet.geodesic(*ends, "monge-ampere")
    assert float(l1(path.density(0.5), exact.density(0.5))) < 0.01


def test_tolerance_of_newton(pair_2d, blocks, monkeypatch):
    loose, tight = (
        geonet.geodesic(*pair_2d, learned=False, tolerance=tolerance).info["residual"]
        for tolerance in (0.05, 1e-4)
    )
    assert tight < 2e-4 < 2e-3 < loose < 0.1
    source, target = blocks
    longer = Density(target.tensor + target.tensor.roll(1, 0), target.grid)
    monkeypatch.setattr(auto, "MAX_ENTRIES", 0)  # the linear program is exact for this pair
    with pytest.warns(ConvergenceWarning, match="tolerance"):
        path = geonet.geodesic(source, longer, tolerance=1e-12)
    assert path.solver == "midpoint" and path.info["converged"] is False


def test_isolated_cells_are_solved_by_the_linear_program():
    ends = [scatter_atoms(seed) for seed in (0, 1)]
    solid = torch.zeros(40, 40, dtype=torch.float64)
    solid[5:15, 20:29] = 1
    shapes = [Density(values, Grid((40, 40))) for values in (solid, solid.T)]
    path = geonet.geodesic(*ends)
    assert path.solver == "linear-program" and path.report.distance_uncertainty < 0.01
    assert geonet.geodesic(*shapes).solver == "midpoint"
    assert _find_special_solver(ends[0], shapes[0]) is _find_special_solver(*shapes) is None


def test_the_distance_of_isolated_cells_is_the_distance_of_uniform_cells():
    """A cell that is divided between two others costs less than its centre."""
    grid = Grid((8, 8))
    values = torch.zeros(2, 8, 8, dtype=torch.float64)
    values[0, 3, 3] = values[1, 3, 0] = values[1, 3, 6] = 1
    path = geonet.geodesic(*(Density(v, grid) for v in values))
    rows = [Density(v[3], Grid(8)) for v in values]
    exact = float(geonet.geodesic(*rows, "quantile").distance)
    assert path.solver == "linear-program"
    assert float(path.distance) == pytest.approx(exact, rel=1e-9) and exact < 0.97 * 3 / 8


def test_many_cells_are_not_solved_by_the_linear_program(monkeypatch):
    ends = [scatter_atoms(seed) for seed in (0, 1)]
    monkeypatch.setattr(auto, "MAX_ENTRIES", 90**2 - 1)
    assert _find_special_solver(*ends) is None


@pytest.mark.parametrize("batch", [False, True])
def test_the_linear_program_replaces_paths_that_did_not_converge(batch, monkeypatch):
    """Stripes in antiphase; the iteration is stopped after one step."""
    grid = Grid((16, 16))
    values = torch.ones(2, 16, 16, dtype=torch.float64)
    values[0, ::2] = values[1, 1::2] = 0.01
    ends = [Density(v[None] if batch else v, grid) for v in values]
    solve = Midpoint.solve_from

    def stop(self, *arguments):
        path = solve(dataclasses.replace(self, max_iterations=1, refine=False), *arguments)
        path.info["converged"] = False
        return path

    monkeypatch.setattr(Midpoint, "solve_from", stop)
    monkeypatch.setattr(auto, "_measure_gap", lambda path: path.solver == "midpoint")
    assert geonet.geodesic(*ends, learned=False).solver == "linear-program"
    monkeypatch.setattr(auto, "_measure_gap", lambda path: path.solver != "midpoint")
    with pytest.warns(ConvergenceWarning):
        assert geonet.geodesic(*ends, learned=False).solver == "midpoint"
    monkeypatch.setattr(auto, "MAX_ENTRIES", 10)
    with pytest.warns(ConvergenceWarning):
        assert geonet.geodesic(*ends, learned=False).solver == "midpoint"


def test_gaussians_with_a_formula_are_solved_by_bures():
    grid = Grid((32, 32))
    ends = [GaussianMixture.isotropic([[c, c]], 0.08).to_density(grid) for c in (0.35, 0.65)]
    path = geonet.geodesic(*ends)
    assert path.solver == "bures" and abs(float(path.distance) - 0.3 * 2**0.5) < 1e-12
    outside = GaussianMixture.isotropic([[0.05, 0.5]], 0.08).to_density(grid)
    assert geonet.geodesic(outside, ends[1]).solver != "bures"


@pytest.mark.parametrize("kind", ["atoms", "Gaussians", "shapes", "1D"])
def test_every_quantity_for_every_kind_of_pair(kind, blocks, pair_1d):
    ends = {
        "atoms": [scatter_atoms(0), scatter_atoms(1)],
        "Gaussians": [
            GaussianMixture.isotropic([[c, c]], 0.08).to_density(Grid((32, 32))) for c in (0.4, 0.6)
        ],
        "shapes": blocks,
        "1D": pair_1d,
    }[kind]
    path = geonet.geodesic(*ends)
    points = path.grid.points().reshape(-1, path.grid.dimension)[::7]
    for t in (0.0, 0.5, 1.0):
        for quantity in (path.velocity, path.potential, path.trajectories):
            assert bool(torch.isfinite(torch.as_tensor(quantity(t, points))).all())


def test_a_batch_evaluates_the_network_once(monkeypatch):
    grid = BOX_2D.with_shape(32)
    values = mixtures_2d(8, torch.Generator().manual_seed(5)).to_density(grid).tensor
    source, target = Density(values[:4], grid), Density(values[4:], grid)
    evaluate, batches = cascade.initial_potentials, []

    def record(source, target):
        batches.append(source.batch_shape)
        return evaluate(source, target)

    monkeypatch.setattr(cascade, "initial_potentials", record)
    path = geonet.geodesic(source, target)
    assert batches == [(4,)] and path.solver == "midpoint" and path.batch == (4,)
    single = geonet.geodesic(source[2], target[2])
    assert torch.allclose(path.density(0.5).tensor[2], single.density(0.5).tensor, atol=1e-3)


def test_atoms_in_a_batch():
    grid = Grid((24, 24))
    atoms = torch.zeros(2, 24, 24, dtype=torch.float64)
    atoms[0, 2::7, 3::5] = atoms[1, 5::6, 1::7] = 1
    square = torch.zeros(24, 24, dtype=torch.float64)
    square[3:20, 8:22] = 1
    source = Density(torch.stack([atoms[0], square]), grid)
    target = Density(torch.stack([atoms[1], square.T]), grid)
    path = geonet.geodesic(source, target, learned=False)
    assert [pair.solver for pair in path.paths] == ["linear-program", "midpoint"]


def test_without_networks(batch_3d, pair_2d, monkeypatch):
    monkeypatch.setattr(cascade, "initial_potentials", fail)
    path = geonet.geodesic(*batch_3d, learned=False)
    assert path.solver == "midpoint" and path.info["converged"] == [True, True]
    assert geonet.geodesic(*pair_2d, learned=False).info["residual"] < 2 * Auto.tolerance


@pytest.mark.parametrize("options", [{"tolerance": 2.0}, {"time_limit": 0.0}, {"learned": 1}])
def test_invalid_options_raise(options):
    with pytest.raises(SolverError, match=next(iter(options))):
        geonet.solver("auto", **options)


def test_recommended_solvers():
    assert [recommend_solver(d) for d in (None, 1, 2, 3, 4)] == [
        *("midpoint", "quantile", "midpoint", "midpoint", "linear-program"),
    ]
    assert recommend_solver(2, general=True) == "auto"
