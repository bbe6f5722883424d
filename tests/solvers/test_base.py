"""Checks of pairs that all solvers share."""

import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import GridError, SolverError
from geonet.solvers.registry import list_periodic_solvers, load_solver_classes

PERIODIC = Grid((8, 8), periodic=(True, False))
WITHOUT = [
    name
    for name, cls in load_solver_classes().items()
    if not cls.info.periodic and cls.info.takes(2)
]


def ends(grid=PERIODIC):
    mixtures = (GaussianMixture.isotropic([[x] * grid.dimension], 0.1) for x in (0.3, 0.6))
    return [mixture.to_density(grid) for mixture in mixtures]


@pytest.mark.parametrize("name", WITHOUT)
def test_solvers_without_periodic_axes_name_the_others(name):
    with pytest.raises(SolverError, match="takes no periodic axes") as raised:
        geonet.geodesic(*ends(), name)
    assert all(other in str(raised.value) for other in list_periodic_solvers(2))
    assert "periodic along axis 0" in str(raised.value)


def test_ends_of_different_dimensions_raise():
    with pytest.raises(GridError, match="one is 2D and the other 1D; give two densities of one"):
        geonet.geodesic(ends()[0], ends(Grid(8))[0])


def test_ends_of_four_dimensions_have_a_solver():
    pair = ends(Grid((3,) * 4))
    with pytest.raises(SolverError, match="1D, 2D and 3D densities.*solver='linear-program'"):
        geonet.geodesic(*pair)
    assert geonet.geodesic(*pair, "linear-program").distance > 0


def test_the_listed_solvers_take_periodic_axes():
    assert {"auto", "back-and-forth", "schrodinger", "linear", "midpoint"} <= set(
        list_periodic_solvers(2)
    )
    assert "quantile" in list_periodic_solvers(1) and "quantile" not in list_periodic_solvers(2)
    assert {"bures", "linear-program", "monge-ampere"} <= set(WITHOUT)


def test_ends_with_different_boundaries_raise():
    (first, _), (_, second) = ends(), ends(Grid((8, 8)))
    with pytest.raises(GridError, match="both need the same periodic axes"):
        geonet.geodesic(first, second)


def test_the_path_of_gaussians_on_the_plane_takes_no_periodic_grid():
    path = geonet.geodesic(*(GaussianMixture.isotropic([[x, x]], 0.1) for x in (0.3, 0.6)), "bures")
    with pytest.raises(GridError, match="without periodic axes"):
        path.density(0.5, PERIODIC)


def test_auto_chooses_solvers_for_periodic_axes(monkeypatch):
    used = []
    monkeypatch.setattr(
        "geonet.solvers.auto.Midpoint.solve_silently",
        lambda self, source, target: used.append(self.start) or _StopError.throw(),
    )
    with pytest.raises(_StopError):
        geonet.geodesic(*ends())
    spots = torch.zeros(2, 8, 8)
    spots[0, 1, 1] = spots[1, 7, 7] = 1
    with pytest.raises(_StopError):
        geonet.geodesic(*(Density(values, PERIODIC) for values in spots))
    assert used == ["zero", "zero"]
    assert geonet.geodesic(*ends(Grid(8, periodic=True))).solver == "quantile"


class _StopError(Exception):
    @classmethod
    def throw(cls):
        raise cls


def test_linear_blends_periodic_densities():
    path = geonet.geodesic(*ends(), "linear")
    assert path.density(0.5).grid == PERIODIC
    assert path.report.distance_upper_bound == pytest.approx(1.25**0.5)  # the farthest points
