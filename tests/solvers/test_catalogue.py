"""What is read from the source of a solver is what its class has."""

from __future__ import annotations

import pytest

from geonet.errors import SolverError
from geonet.solvers.catalogue import REQUIRED, card_at, card_of, gives_of_form
from geonet.solvers.neural.model import FORMS, form_of
from geonet.solvers.neural.solver import NetworkSolver
from geonet.solvers.registry import make_solver, register, solver_card, solver_class, solver_names


@pytest.mark.parametrize("name", solver_names())
def test_the_source_says_what_the_class_says(name):
    card = solver_card(name)
    assert card == card_of(solver_class(name))
    assert card.name == name and card.summary
    for option in card.options:
        assert option.meaning, option.name
        assert option.default is not REQUIRED, option.name


@pytest.mark.parametrize("form", FORMS)
def test_answers_of_a_form(form):
    assert gives_of_form(form) == form_of(form).gives


def test_defaults_that_are_expressions_and_bases():
    options = {option.name: option for option in solver_card("linear-program").options}
    assert options["max_cells"].default == 48 * 48
    names = [option.name for option in solver_card("rectified-flow").options]
    assert names[0] == "steps" and names[-1] == "rounds"  # of the first base, and its own


def test_an_option_without_a_default():
    (file,) = card_of(NetworkSolver).options
    assert file == card_at("geonet.solvers.neural.solver:NetworkSolver").options[0]
    assert file.default is REQUIRED
    assert (str(file), file.written_default()) == ("file (a name)", "–")


def test_what_is_wrong_with_an_option_is_said_with_what_there_is():
    with pytest.raises(SolverError) as error:
        make_solver("midpoint", tolerence=1e-3)
    assert str(error.value).startswith(
        "The solver 'midpoint' has no option 'tolerence'; did you mean 'tolerance'? It takes "
        "tolerance (a number, by default 0.002), start (a name or an array, by default zero), "
    )
    with pytest.raises(SolverError, match="The option refine of 'midpoint' is 'no'; it takes true"):
        make_solver("midpoint", refine="no")
    with pytest.raises(SolverError, match="'linear' has no option 'x'; it takes none."):
        make_solver("linear", x=1)


def test_a_solver_that_was_registered_elsewhere(monkeypatch):
    from geonet.solvers import registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    register("own", "tests.solvers.own:Missing")
    with pytest.raises(SolverError, match="'own' of another package"):
        solver_card("own")
