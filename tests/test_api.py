import subprocess
import sys

import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import GridError, InputError, SolverError

GRID = Grid((8, 8))


def density(grid=GRID, batch=()):
    return Density(torch.ones(*batch, *grid.shape), grid)


def test_solvers_are_listed_with_their_results():
    listed = geonet.list_solvers()
    assert set(listed) >= {"auto", "quantile", "bures", "monge-ampere", "linear-program", "linear"}
    assert "velocity" in listed["monge-ampere"] and "velocity" not in listed["linear"]


def run_in_new_process(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_geonet_does_not_import_torch():
    run_in_new_process("import sys, geonet, geonet.cli; assert 'torch' not in sys.modules")


def test_functions_and_modules_have_different_names():
    run_in_new_process(
        "import geonet.solvers.registry as registry\n"
        "import geonet\n"
        "assert set(geonet.list_solvers()) == set(registry.list_solver_names())\n"
        "assert callable(geonet.geodesic) and geonet.solvers.registry is registry\n"
    )


def test_public_names():
    for name in geonet.__all__:
        assert callable(getattr(geonet, name)) and name in dir(geonet)
    with pytest.raises(AttributeError, match="geodesique"):
        _ = geonet.geodesique


def test_mixtures_need_a_grid():
    mixture = GaussianMixture.isotropic([[0.5, 0.5]], 0.2)
    with pytest.raises(InputError, match="give grid="):
        geonet.geodesic(mixture, mixture)
    assert geonet.geodesic(mixture, mixture, "linear", grid=GRID).grid == GRID


@pytest.mark.parametrize(
    ("ends", "arguments", "error", "message"),
    [
        ((density(), density()), {"solver": "quantil"}, SolverError, "did you mean 'quantile'"),
        ((density(), density()), {"solver": "zzz"}, SolverError, "choose from auto, quantile"),
        ((density(), density()), {"solver": "linear", "floor": 0.1}, SolverError, "no option"),
        ((density(), density()), {"solver": "monge-ampere", "flor": 0.1}, SolverError, "'floor'"),
        ((density(), density()), {"solver": "quantile"}, SolverError, "takes 1D densities"),
        ((density(), density(Grid((8, 8), 0, 2))), {}, GridError, "different grids"),
        ((density(), density(Grid((9, 8)))), {}, GridError, r"density.resample\(grid\)"),
        ((density(), density()), {"grid": Grid((9, 9))}, InputError, "lies on 8×8 cells"),
        ((density(batch=(2,)), density(batch=(3,))), {}, SolverError, "the same length"),
        ((density(), density(batch=(3,))), {}, SolverError, "two single densities"),
        ((density(batch=(2, 2)),) * 2, {}, SolverError, "two single densities"),
        ((torch.ones(8, 8), density()), {}, InputError, "geonet.Density"),
        (("a.png", "b.png"), {}, InputError, "geonet.read"),
    ],
)
def test_invalid_arguments_raise(ends, arguments, error, message):
    with pytest.raises(error, match=message):
        geonet.geodesic(*ends, **arguments)


def test_options_of_a_solver_object_raise():
    with pytest.raises(SolverError, match=r"geonet\.solver\(name"):
        geonet.geodesic(density(), density(), geonet.solver("linear"), floor=0.1)
