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


def test_every_solver_is_listed_with_what_it_gives():
    listed = geonet.list_solvers()
    assert set(listed) >= {"auto", "quantile", "bures", "monge-ampere", "linear-program", "linear"}
    assert "velocity" in listed["monge-ampere"] and "velocity" not in listed["barycenter"]


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


def test_unknown_options_are_refused():
    with pytest.raises(
        SolverError, match="'monge-ampere' has no option 'flor'; did you mean 'floor'"
    ):
        geonet.solver("monge-ampere", flor=0.1)
    with pytest.raises(SolverError, match="'quantile' has no option 'floor'; it takes none"):
        geonet.geodesic(density(Grid(8)), density(Grid(8)), "quantile", floor=0.1)
    with pytest.raises(SolverError, match="this solver already has its own"):
        geonet.geodesic(density(), density(), geonet.solver("linear"), floor=0.1)


def test_solvers_of_the_wrong_dimension_are_refused():
    with pytest.raises(SolverError, match="'quantile' takes 1D densities, these are 2D"):
        geonet.geodesic(density(), density(), "quantile")
    with pytest.raises(SolverError, match="takes 1D and 2D and 3D densities, these are 4D"):
        geonet.geodesic(density(Grid((2,) * 4)), density(Grid((2,) * 4)), "monge-ampere")


def test_different_boxes_and_grids_are_refused():
    with pytest.raises(GridError, match="different boxes: .* put both on one box"):
        geonet.geodesic(density(), density(Grid((8, 8), 0, 2)))
    with pytest.raises(GridError, match=r"different grids: .* use density.resample\(grid\)"):
        geonet.geodesic(density(), density(Grid((9, 8))))


def test_different_batches_are_refused():
    with pytest.raises(SolverError, match="two batches of the same length"):
        geonet.geodesic(density(batch=(2,)), density(batch=(3,)), "linear")
    with pytest.raises(SolverError, match="two single densities"):
        geonet.geodesic(density(), density(batch=(3,)), "linear")
    with pytest.raises(SolverError, match="give two single densities"):
        geonet.geodesic(density(batch=(2, 2)), density(batch=(2, 2)), "linear")


def test_mixtures_need_a_grid_unless_the_solver_takes_formulas():
    mixture = GaussianMixture.isotropic([[0.5, 0.5]], 0.2)
    with pytest.raises(InputError, match="has no grid and 'auto' needs one; give grid="):
        geonet.geodesic(mixture, mixture)
    assert geonet.geodesic(mixture, mixture, "linear", grid=GRID).grid == GRID


def test_arrays_are_not_densities():
    with pytest.raises(InputError, match=r"\(8, 8\); give geonet.Density\(values, grid\)"):
        geonet.geodesic(torch.ones(8, 8), density())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("monge-ampere", {"floor": "much"}, "floor of 'monge-ampere' is 'much'; it takes a number"),
        ("monge-ampere", {"max_iterations": 2.5}, "it takes a whole number"),
        ("linear-program", {"coarsen": 1}, "it takes true or false"),
        ("barycenter", {"reg": "abc"}, "it takes a number or none"),
    ],
)
def test_options_of_the_wrong_type_are_refused(name, options, message):
    with pytest.raises(SolverError, match=message):
        geonet.solver(name, **options)


def test_a_solver_must_be_a_name_or_a_solver():
    with pytest.raises(SolverError, match="solver is 3; give a name"):
        geonet.geodesic(density(), density(), 3)


def test_a_grid_for_a_density_that_has_one_is_refused():
    with pytest.raises(InputError, match="this density lies on 8×8 cells"):
        geonet.geodesic(density(), density(), grid=Grid((9, 9)))


def in_a_new_process(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_geonet_does_not_import_torch():
    in_a_new_process("import sys, geonet, geonet.cli; assert 'torch' not in sys.modules")


def test_functions_and_packages_have_names_of_their_own():
    in_a_new_process(
        "import geonet.solvers.registry as registry\n"
        "import geonet\n"
        "assert 'quantile' in geonet.list_solvers() and 'quantile' in registry.solver_names()\n"
        "assert callable(geonet.geodesic) and geonet.solvers.registry is registry\n"
    )


@pytest.mark.parametrize("name", geonet.__all__)
def test_what_is_public_is_there(name):
    assert callable(getattr(geonet, name)) and name in dir(geonet)


def test_packages_are_there_without_importing_them():
    in_a_new_process("import geonet; geonet.errors.GridError, geonet.measures, geonet.plotting")


def test_what_is_not_public_is_not_there():
    with pytest.raises(AttributeError, match="module 'geonet' has no attribute 'geodesique'"):
        _ = geonet.geodesique


def test_names_of_files_are_not_densities():
    with pytest.raises(
        InputError, match=r"'a\.png' is the name of a file, not a Density; give geonet\.read"
    ):
        geonet.geodesic("a.png", "b.png")


def test_words_for_times_are_named():
    density = geonet.Density([1.0, 2.0], geonet.Grid(2))
    with pytest.raises(InputError, match=r"t is 'half'; give a number in \[0, 1\]"):
        geonet.geodesic(density, density).density("half")
