"""Who takes part, by default and by name."""

import pytest

from benchmarks.any_pair.suite import ENTRANTS as ANY_PAIR
from benchmarks.contestants import ENTRANTS, Entrant, check_all_take_part, entrants, taking_part
from geonet.errors import FileError, InputError, SolverError
from geonet.solvers import registry
from geonet.solvers.neural.model import PRETRAINED
from geonet.solvers.registry import make_solver, solver_class, solver_names


@pytest.mark.parametrize("dimension", [1, 2])
def test_labels_are_unique(dimension):
    labels = [entrant.label for entrant in taking_part(ENTRANTS, dimension)]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda entrant: entrant.label)
def test_every_one_can_be_made_and_takes_its_dimension(entrant):
    make_solver(entrant.solver, **entrant.options)
    takes = solver_class(entrant.solver).dimensions
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
    own = {entrant.solver for entrant in (*ENTRANTS, *ANY_PAIR)}
    assert own & set(solver_names()) == set(solver_names()) - others


def test_quick_has_fewer_and_none_that_is_trained_for_a_pair():
    full, quick = entrants([], quick=False), entrants([], quick=True)
    assert full == list(ENTRANTS)
    assert set(map(id, quick)) < set(map(id, full))
    assert {entrant.kind for entrant in quick} == {"classical", "learned"}


def test_by_name():
    chosen = entrants(["linear", "schrodinger", "linear"], quick=False)
    own = [entrant for entrant in ENTRANTS if entrant.solver in ("linear", "schrodinger")]
    assert sorted(map(id, chosen)) == sorted(map(id, own))
    assert entrants(["schrodinger"], quick=True) == [
        entrant for entrant in own if entrant.solver == "schrodinger" and entrant.quick
    ]


def test_a_named_one_without_a_quick_form_is_run_as_it_is():
    assert [entrant.label for entrant in entrants(["pinn"], quick=True)] == ["pinn"]


def test_a_solver_that_is_not_in_the_list(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry.register("mine", "geonet.solvers.linear:Linear")
    assert entrants(["mine"], quick=True) == [
        Entrant("mine", "mine", None, "classical", location="geonet.solvers.linear:Linear")
    ]
    (entropic,) = entrants(["er-geonet-1d"], quick=True)
    assert (entropic.kind, entropic.dimensions) == ("learned", (1,))


def test_a_file_of_a_model():
    file = PRETRAINED / "transport-1d.safetensors"
    (entrant,) = entrants([str(file)], quick=False)
    assert (entrant.label, entrant.solver, entrant.kind) == (str(file), str(file), "learned")
    with pytest.raises(FileError, match="There is no file nowhere.safetensors"):
        entrants(["nowhere.safetensors"], quick=False)


def test_an_unknown_solver():
    with pytest.raises(SolverError, match="There is no solver 'quantil'; did you mean 'quantile'?"):
        entrants(["linear", "quantil"], quick=False)


def test_one_that_no_suite_has_a_use_for():
    chosen = entrants(["linear", "transport-3d"], quick=False)
    with pytest.raises(InputError, match="'transport-3d' takes no part .* 1D and 2D densities"):
        check_all_take_part(chosen, [1, 2])
    check_all_take_part(entrants(["linear", "quantile"], quick=False), [1])
