"""Who takes part, by default and by name."""

import pytest

from benchmarks.any_pair.suite import CONTESTANTS as ANY_PAIR
from benchmarks.contestants import CONTESTANTS, Contestant, check_participation, select_contestants, filter_by_dimension
from geonet.errors import FileError, InputError, SolverError
from geonet.solvers import registry
from geonet.solvers.neural.model import PRETRAINED
from geonet.solvers.registry import make_solver, load_solver_class, list_solver_names


@pytest.mark.parametrize("dimension", [1, 2])
def test_labels_are_unique(dimension):
    labels = [entrant.label for entrant in filter_by_dimension(CONTESTANTS, dimension)]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("entrant", CONTESTANTS, ids=lambda entrant: entrant.label)
def test_every_one_can_be_made_and_takes_its_dimension(entrant):
    make_solver(entrant.solver, **entrant.options)
    takes = load_solver_class(entrant.solver).info.dimensions
    assert takes is None or set(entrant.dimensions) <= set(takes)
    assert (entrant.kind == "learned") == ("file" in vars(make_solver(entrant.solver))) or (
        entrant.solver == "auto"
    )


def test_the_list_is_complete():
    """Every solver for 1D and 2D, but for those of other families or of noise.

    Those for any pair count too: some of these are for that suite alone.
    """
    others = {"bures", "er-geonet-1d", "er-geonet-2d", "transport-3d", "universal-3d"}
    others |= {"geonet-cloud", "transport-cloud", "geonet-mnist", "transport-mnist"}
    own = {entrant.solver for entrant in (*CONTESTANTS, *ANY_PAIR)}
    assert own & set(list_solver_names()) == set(list_solver_names()) - others


def test_quick_has_fewer_and_none_that_is_trained_for_a_pair():
    full, quick = select_contestants([], quick=False), select_contestants([], quick=True)
    assert full == list(CONTESTANTS)
    assert set(map(id, quick)) < set(map(id, full))
    assert {entrant.kind for entrant in quick} == {"classical", "learned"}


def test_by_name():
    chosen = select_contestants(["linear", "schrodinger", "linear"], quick=False)
    own = [entrant for entrant in CONTESTANTS if entrant.solver in ("linear", "schrodinger")]
    assert sorted(map(id, chosen)) == sorted(map(id, own))
    assert select_contestants(["schrodinger"], quick=True) == [
        entrant for entrant in own if entrant.solver == "schrodinger" and entrant.quick
    ]


def test_a_named_one_without_a_quick_form_is_run_as_it_is():
    assert [entrant.label for entrant in select_contestants(["pinn"], quick=True)] == ["pinn"]


def test_a_solver_that_is_not_in_the_list(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry.register("mine", "geonet.solvers.linear:Linear")
    assert select_contestants(["mine"], quick=True) == [
        Contestant("mine", "mine", None, "classical", location="geonet.solvers.linear:Linear")
    ]
    (entropic,) = select_contestants(["er-geonet-1d"], quick=True)
    assert (entropic.kind, entropic.dimensions) == ("learned", (1,))


def test_a_file_of_a_model():
    file = PRETRAINED / "transport-1d.safetensors"
    (entrant,) = select_contestants([str(file)], quick=False)
    assert (entrant.label, entrant.solver, entrant.kind) == (str(file), str(file), "learned")
    with pytest.raises(FileError, match="There is no file nowhere.safetensors"):
        select_contestants(["nowhere.safetensors"], quick=False)


def test_an_unknown_solver():
    with pytest.raises(SolverError, match="There is no solver 'quantil'; did you mean 'quantile'?"):
        select_contestants(["linear", "quantil"], quick=False)


def test_one_that_no_suite_has_a_use_for():
    chosen = select_contestants(["linear", "transport-3d"], quick=False)
    with pytest.raises(InputError, match="'transport-3d' takes no part .* 1D and 2D densities"):
        check_participation(chosen, [1, 2])
    check_participation(select_contestants(["linear", "quantile"], quick=False), [1])
