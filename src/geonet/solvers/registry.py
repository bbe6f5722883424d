"""All solvers by name. Adding one is adding a line; shipped models have a table of their own."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from geonet._utils import import_object
from geonet._validation import check_instance, short_repr
from geonet.errors import SolverError
from geonet.solvers.catalogue import Card, Option, card_at, card_of
from geonet.solvers.neural.pretrained import SHIPPED, class_of_form, shipped_card, shipped_class

if TYPE_CHECKING:
    from geonet.solvers.base import Solver

# Modules are imported when a solver is first asked for: POT alone takes longer than most solves.
_REGISTRY: dict[str, str] = {
    "auto": "geonet.solvers.auto:Auto",
    "quantile": "geonet.solvers.quantile:Quantile",
    "midpoint": "geonet.solvers.newton.solver:Midpoint",
    "monge-ampere": "geonet.solvers.monge_ampere:MongeAmpere",
    "bures": "geonet.solvers.bures:Bures",
    "linear-program": "geonet.solvers.linear_program:LinearProgram",
    "back-and-forth": "geonet.solvers.back_and_forth:BackAndForth",
    "schrodinger": "geonet.solvers.schrodinger:Schrodinger",
    "linear": "geonet.solvers.linear:Linear",
}

SUFFIX = ".safetensors"  # of a model's file


def register(name: str, location: str) -> None:
    """Add a solver under `name`; location is 'module:Class'."""
    if not isinstance(name, str) or not name:
        raise SolverError(f"name is {short_repr(name)}; give the name of the solver, a string.")
    if not isinstance(location, str) or ":" not in location:
        raise SolverError(f"The location {short_repr(location)} is not 'module:Class'; give both.")
    if name in solver_names():
        raise SolverError(f"A solver named {name!r} exists already; choose another name.")
    _REGISTRY[name] = location


def solver_names() -> list[str]:
    """All names; those of other packages come last."""
    ours = dict.fromkeys((*_REGISTRY, *SHIPPED))
    return [*ours, *(name for name in _others() if name not in ours)]


def solver_classes() -> dict[str, type[Solver]]:
    """Every solver's class by name, but for those of other packages that cannot be loaded."""
    classes = {}
    for name in solver_names():
        with suppress(SolverError):  # raised when that solver is asked for
            classes[name] = solver_class(name)
    return classes


def solver_card(name: str) -> Card:
    """What is to be known of a solver, or of a model's file; ours are not imported for it."""
    if name in SHIPPED:
        return shipped_card(name)
    if name in _REGISTRY and _REGISTRY[name].startswith("geonet."):
        return card_at(_REGISTRY[name])
    if not name.endswith(SUFFIX):
        return card_of(solver_class(name))._replace(name=name)
    card = card_of(_class_of_file(Path(name)))
    return card._replace(options=tuple(o for o in card.options if o.name != "file"))


def solver_cards() -> list[Card]:
    """Every solver's card, but for those of other packages that cannot be loaded."""
    cards = []
    for name in solver_names():
        with suppress(SolverError):  # raised when that solver is asked for
            cards.append(solver_card(name))
    return cards


def solver_class(name: str) -> type[Solver]:
    """The class behind a name."""
    if name in SHIPPED:
        return shipped_class(name)
    if name in _REGISTRY:
        return _loaded(name, _REGISTRY[name], lambda: import_object(_REGISTRY[name]))
    if name in _others():
        point = _others()[name]
        return _loaded(name, point.value, point.load)
    names = solver_names()
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}."
    raise SolverError(f"There is no solver {name!r}; {hint}")


@cache  # reading them takes as long as many a solve
def _others() -> dict[str, EntryPoint]:
    """The solvers of other packages: their entry points in the group "geonet.solvers"."""
    return {point.name: point for point in entry_points(group="geonet.solvers")}


def _loaded(name: str, location: str, load: Callable[[], Any]) -> type[Solver]:
    """A solver's class; what another package does wrong is a `SolverError`."""
    from geonet.solvers.base import Solver

    try:
        found = load()
        if not (isinstance(found, type) and issubclass(found, Solver)):
            raise TypeError("it is no subclass of geonet.Solver")
    except Exception as error:
        raise SolverError(
            f"The solver {name!r} of another package, {location}, cannot be loaded: "
            f"{error}; mend or remove that package."
        ) from error
    return found


def _class_of_file(file: Path) -> type[Solver]:
    """The solver for a model file; for an unknown form one whose reading says what is wrong."""
    from geonet.solvers.neural.model import FORMS, kind_of
    from geonet.solvers.neural.solver import NetworkSolver

    form = kind_of(file)
    return class_of_form(form) if form in FORMS else NetworkSolver


def import_all() -> None:
    """Import every solver, which registers the kinds of path, and known maps, which need none."""
    solver_classes()
    import_module("geonet.evaluation")


def make_solver(name: str | Path, **options: Any) -> Solver:
    """A solver by name or by a trained model's file, with its options as keywords."""
    name = str(name) if isinstance(name, Path) else name
    remedy = "give a name from geonet.list_solvers(), a model's file (*.safetensors) or a Solver"
    check_instance(name, str, "solver", remedy, SolverError)
    if name.endswith(SUFFIX):
        cls = _class_of_file(Path(name))
        options = {"file": name, **options}
    else:
        cls = solver_class(name)
    hints = _hints(cls)
    names = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    unknown = [key for key in options if key not in names]
    if unknown:
        known = _options(cls)
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {close[0]!r}? It" if close else "it"
        takes = ", ".join(map(str, known.values())) or "none"
        raise SolverError(
            f"The solver {name!r} has no option {unknown[0]!r}; {hint} takes {takes}."
        )
    for option, value in options.items():
        wanted = get_args(hints[option]) or (hints[option],)
        if not any(_fits(value, kind) for kind in wanted):
            about = _options(cls)[option]
            raise SolverError(
                f"The option {option} of {name!r} is {value!r}; it takes {about.takes}: "
                f"{about.meaning}."
            )
    return cls(**options)


@cache  # reading them takes as long as a small network
def _hints(cls: type[Solver]) -> dict[str, Any]:
    return get_type_hints(cls)


def _options(cls: type[Solver]) -> dict[str, Option]:
    """What a solver takes, for what is said of a mistake."""
    return {option.name: option for option in card_of(cls).options}


def _fits(value: Any, kind: type) -> bool:
    """isinstance, but a whole number is a number, and true is neither."""
    if isinstance(value, bool):
        return kind is bool
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real)
    return isinstance(value, kind)
