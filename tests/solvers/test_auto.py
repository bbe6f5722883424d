import math

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import ConvergenceWarning
from geonet.metrics import l1
from geonet.solvers import auto
from geonet.solvers.auto import Auto
from geonet.solvers.neural.transport import solver as guess
from geonet.solvers.neural.transport.solver import network_potentials
from geonet.training.problems import FAMILIES

STEPS = 18  # cells between two blocks, along each axis


@pytest.fixture
def batch_2d():
    """Four of the paper's pairs without their formulas, on few cells."""
    ends = FAMILIES["mixtures-2d"]().densities(4, torch.Generator().manual_seed(5))
    grid = ends[0].grid.with_shape(32)
    return tuple(Density(end.resample(grid).tensor, grid) for end in ends)


@pytest.fixture
def blocks():
    """Two squares far apart, with nothing around them."""
    grid = Grid((32, 32), 0.0, 5.0)
    values = torch.zeros(2, 32, 32, dtype=torch.float64)
    values[0, 2:6, 2:6] = values[1, 2 + STEPS : 6 + STEPS, 2 + STEPS : 6 + STEPS] = 1
    return Density(values[0], grid), Density(values[1], grid)


def together(first: Density, second: Density) -> Density:
    return Density(torch.stack([first.tensor, second.tensor]), first.grid)


@pytest.fixture
def mixed():
    """A batch in space: a pair like those of the training and one unlike them."""
    ends = FAMILIES["mixtures-3d"]().densities(1, torch.Generator().manual_seed(6))
    grid = ends[0].grid.with_shape(16)
    corners = torch.zeros(2, 16, 16, 16, dtype=torch.float64)
    corners[0, 2:6, 2:6, 2:6] = corners[1, 9:13, 9:13, 9:13] = 1
    return tuple(
        together(Density(end[0].resample(grid).tensor, grid), Density(values, grid))
        for end, values in zip(ends, corners, strict=True)
    )


def test_one_dimension_goes_to_quantiles(pair_1d):
    assert geonet.geodesic(*pair_1d).report.solver == "quantile"


def test_in_the_plane_newtons_method_begins_with_a_network(pair_2d):
    """The limits have room for means over cells against values at their centres."""
    path = geonet.geodesic(*pair_2d)
    assert path.solver == path.report.solver == "midpoint"
    assert path.notes["start"] == "network" and path.notes["converged"] is True
    assert len(path.notes["newton steps"]) == 1  # on no coarser grid
    assert path.velocity(0.5, [[2.0, 2.0]]).shape == (1, 2)
    exact = geonet.geodesic(*pair_2d, "monge-ampere")
    assert float(l1(path.density(0.5), exact.density(0.5))) < 0.02
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=0.01)


def test_in_space_too():
    source, target = FAMILIES["mixtures-3d"]().densities(1, torch.Generator().manual_seed(6))
    assert geonet.geodesic(source[0], target[0]).solver == "transport-3d"


@pytest.mark.parametrize("learned", [True, False])
def test_foreign_pairs_go_to_midpoint(blocks, learned):
    """A block is carried as it is, to where it is known to be."""
    path = geonet.geodesic(*blocks, learned=learned)
    assert path.solver == path.report.solver == "midpoint"
    assert "in_distribution" not in path._checks() and path.notes["converged"] is True
    values = torch.zeros(32, 32, dtype=torch.float64)
    values[2 + STEPS // 2 : 6 + STEPS // 2, 2 + STEPS // 2 : 6 + STEPS // 2] = 1
    assert float(l1(path.density(0.5), Density(values, path.grid))) < 0.01
    shift = math.sqrt(2) * STEPS * 5 / 32
    assert float(path.distance) == pytest.approx(shift, rel=1e-3)


def test_no_network_is_needed_for_smooth_densities(pair_2d, monkeypatch):
    """The limit has room for means over cells against values at their centres."""
    monkeypatch.setattr(guess, "network_potentials", lambda *_: pytest.fail("asked"))
    path = geonet.geodesic(*pair_2d, learned=False)
    assert path.solver == "midpoint" and path.notes["residual"] < 2 * Auto.tolerance
    exact = geonet.geodesic(*pair_2d, "monge-ampere")
    assert float(l1(path.density(0.5), exact.density(0.5))) < 0.02
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=0.01)


def test_ripples_that_the_operator_cannot_do_go_to_midpoint():
    grid = Grid((64, 64))
    ends = [Density(1 + 0.2 * torch.cos(18 * torch.pi * x), grid) for x in grid.points().unbind(-1)]
    path = geonet.geodesic(*ends)
    assert path.solver == "midpoint"
    exact = geonet.geodesic(*ends, "monge-ampere")
    assert float(l1(path.density(0.5), exact.density(0.5))) < 0.01


def test_the_tolerance_is_that_of_midpoint(pair_2d, blocks):
    loose, tight = (
        geonet.geodesic(*pair_2d, learned=False, tolerance=tolerance).notes["residual"]
        for tolerance in (0.05, 1e-4)
    )
    assert tight < 2e-4 < 2e-3 < loose < 0.1
    source, target = blocks
    longer = Density(target.tensor + target.tensor.roll(1, 0), target.grid)
    with pytest.warns(ConvergenceWarning, match="did not reach the tolerance of 1e-10 %"):
        path = geonet.geodesic(source, longer, tolerance=1e-12)
    assert path.solver == "midpoint" and path.notes["converged"] is False


def test_atoms_go_to_the_linear_program():
    """Of points scattered over the cells; solid shapes of as many cells are none."""
    grid, scattered = Grid((40, 40)), torch.zeros(2, 1600, dtype=torch.float64)
    for row, seed in zip(scattered, (0, 1), strict=True):
        row[torch.randperm(1600, generator=torch.Generator().manual_seed(seed))[:90]] = 1
    ends = [Density(row.reshape(40, 40), grid) for row in scattered]
    assert geonet.geodesic(*ends).solver == "linear-program"
    solid = torch.zeros(40, 40, dtype=torch.float64)
    solid[5:15, 20:29] = 1
    shapes = [Density(values, grid) for values in (solid, solid.T)]
    assert geonet.geodesic(*shapes).solver == "midpoint"
    assert auto._special(ends[0], shapes[0]) is auto._special(*shapes[::-1]) is None


def test_the_network_is_asked_once_for_a_batch(batch_2d, monkeypatch):
    asked = []

    def counted(source, target):
        asked.append(source.leading)
        return network_potentials(source, target)

    monkeypatch.setattr(guess, "network_potentials", counted)
    path = geonet.geodesic(*batch_2d)
    assert asked == [(4,)]
    assert path.solver == "midpoint" and path.batch == (4,)
    alone = geonet.geodesic(batch_2d[0][2], batch_2d[1][2])
    assert torch.allclose(path.density(0.5).tensor[2], alone.density(0.5).tensor, atol=1e-3)


def test_each_pair_of_a_batch_gets_its_own(mixed):
    path = geonet.geodesic(*mixed)
    assert path.solver == "transport-3d, midpoint"
    report = path.report
    assert report.notes["model"] == ["transport-3d", None]
    assert report.notes["converged"] == [None, True]
    assert report.in_distribution == [True, None]
    assert "True, –" in str(report)
    frames = path.density(0.5).tensor
    for k in range(2):
        alone = geonet.geodesic(mixed[0][k], mixed[1][k])
        assert torch.allclose(frames[k], alone.density(0.5).tensor, atol=1e-4)


def test_atoms_and_gaussians_of_a_batch_get_their_own():
    grid = Grid((24, 24))
    centres = torch.tensor([[[0.35, 0.4]], [[0.6, 0.65]]], dtype=torch.float64)
    gaussians = [geonet.GaussianMixture.isotropic(own, 0.08).on(grid) for own in centres]
    atoms = torch.zeros(2, 24, 24, dtype=torch.float64)
    atoms[0, 2::7, 3::5] = atoms[1, 5::6, 1::7] = 1
    square = torch.zeros(24, 24, dtype=torch.float64)
    square[3:20, 8:22] = 1
    source = Density(torch.stack([atoms[0], square, gaussians[0].tensor]), grid)
    target = Density(torch.stack([atoms[1], square.T, gaussians[1].tensor]), grid)
    path = geonet.geodesic(source, target, learned=False)
    assert [own.solver for own in path.paths] == ["linear-program", "midpoint", "midpoint"]
    formulas = geonet.GaussianMixture.isotropic(centres, 0.08).on(grid)
    assert geonet.geodesic(formulas, formulas).solver == "bures"


def test_without_trained_models(mixed, monkeypatch):
    monkeypatch.setattr(guess, "network_potentials", lambda *_: pytest.fail("asked"))
    path = geonet.geodesic(*mixed, learned=False)
    assert path.solver == "midpoint" and path.batch == (2,)
    assert path.notes["converged"] == [True, True]


def test_gaussians_given_by_formula_go_to_bures():
    grid = Grid((32, 32))
    ends = [geonet.GaussianMixture.isotropic([[c, c]], 0.08).on(grid) for c in (0.35, 0.65)]
    path = geonet.geodesic(*ends)
    assert path.solver == "bures"
    assert abs(float(path.distance) - 0.3 * 2**0.5) < 1e-12
    outside = geonet.GaussianMixture.isotropic([[0.05, 0.5]], 0.08).on(grid)
    assert geonet.geodesic(outside, ends[1]).solver != "bures"


def test_options():
    assert (Auto().learned, Auto(learned=False).learned) == (True, False)
    with pytest.raises(geonet.errors.SolverError, match="it takes true or false"):
        geonet.solver("auto", learned=1)
