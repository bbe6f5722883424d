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


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("monge-amper", "did you mean 'monge-ampere'"),
        ("quantil", "did you mean 'quantile'"),
        ("zzz", "choose from auto, quantile"),
    ],
)
def test_unknown_solvers_get_a_suggestion(name, hint):
    with pytest.raises(SolverError, match=f"There is no solver '{name}'; {hint}"):
        geonet.geodesic(density(), density(), name)


def test_unknown_options_raise():
    with pytest.raises(
        SolverError, match="'monge-ampere' has no option 'flor'; did you mean 'floor'"
    ):
        geonet.solver("monge-ampere", flor=0.1)
    with pytest.raises(SolverError, match="'quantile' has no option 'floor'; it takes none"):
        geonet.geodesic(density(Grid(8)), density(Grid(8)), "quantile", floor=0.1)
    with pytest.raises(SolverError, match="this one is an object"):
        geonet.geodesic(density(), density(), geonet.solver("linear"), floor=0.1)


def test_wrong_dimensions_raise():
    with pytest.raises(SolverError, match="'quantile' takes 1D densities, these are 2D"):
        geonet.geodesic(density(), density(), "quantile")
    with pytest.raises(SolverError, match="takes 1D and 2D and 3D densities, these are 4D"):
        geonet.geodesic(density(Grid((2,) * 4)), density(Grid((2,) * 4)), "monge-ampere")


def test_different_grids_raise():
    with pytest.raises(GridError, match="different grids"):
        geonet.geodesic(density(), density(Grid((8, 8), 0, 2)))
    with pytest.raises(GridError, match=r"different grids: .* use density.resample\(grid\)"):
        geonet.geodesic(density(), density(Grid((9, 8))))


def test_different_batches_raise():
    with pytest.raises(SolverError, match="two batches of the same length"):
        geonet.geodesic(density(batch=(2,)), density(batch=(3,)), "linear")
    with pytest.raises(SolverError, match="two single densities"):
        geonet.geodesic(density(), density(batch=(3,)), "linear")
    with pytest.raises(SolverError, match="give two single densities"):
        geonet.geodesic(density(batch=(2, 2)), density(batch=(2, 2)), "linear")


def test_mixtures_need_a_grid():
    mixture = GaussianMixture.isotropic([[0.5, 0.5]], 0.2)
    with pytest.raises(InputError, match="has no grid and 'auto' needs one; give grid="):
        geonet.geodesic(mixture, mixture)
    assert geonet.geodesic(mixture, mixture, "linear", grid=GRID).grid == GRID


def test_arrays_are_not_densities():
    with pytest.raises(InputError, match=r"\(8, 8\); give geonet.Density\(values, grid\)"):
        geonet.geodesic(torch.ones(8, 8), density())


def test_a_grid_for_a_density_raises():
    with pytest.raises(InputError, match="this density lies on 8×8 cells"):
        geonet.geodesic(density(), density(), grid=Grid((9, 9)))


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


@pytest.mark.parametrize("name", geonet.__all__)
def test_public_names_exist(name):
    assert callable(getattr(geonet, name)) and name in dir(geonet)


def test_submodules_are_imported_on_use():
    run_in_new_process("import geonet; geonet.errors.GridError, geonet.metrics, geonet.plotting")


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="module 'geonet' has no attribute 'geodesique'"):
        _ = geonet.geodesique


def test_file_names_are_not_densities():
    with pytest.raises(
        InputError, match=r"'a\.png' is a file name, not a Density; give geonet\.read"
    ):
        geonet.geodesic("a.png", "b.png")
