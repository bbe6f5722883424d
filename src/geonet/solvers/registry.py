"""All solvers by name, with their options; modules are imported when a solver is first used."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

from geonet._format import choose_verb
from geonet._utils import import_object
from geonet.errors import SolverError
from geonet.solvers.base import Solver, SolverInfo
from geonet.solvers.neural.pretrained import PRETRAINED_MODELS, pretrained_solver, solver_for_form

AUTO_CHOICES = ("midpoint", "quantile", "bures", "linear-program")  # from which auto chooses
PROBLEM_OPTIONS = ("reach", "growth")  # options that change the problem and not the method

_LOCATIONS: dict[str, str] = {
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


def register(name: str, location: str) -> None:
    """Add a solver to the registry.

    Args:
        name: name of the solver.
        location: "module:Class"; the module is imported when the solver is first used.
    """
    if not name:
        raise SolverError("The name of the solver is empty; give a string.")
    if ":" not in location:
        raise SolverError(f"The location {location!r} is not of the form 'module:Class'.")
    if name in list_solver_names():
        raise SolverError(f"A solver named {name!r} exists already; choose another name.")
    _LOCATIONS[name] = location


def list_solver_names() -> list[str]:
    """Return all names; entry points of other packages come last."""
    return list(dict.fromkeys((*_LOCATIONS, *PRETRAINED_MODELS, *_find_plugins())))


def load_solver_classes() -> dict[str, type[Solver]]:
    """Return every solver class by name; plugins that cannot be imported are left out."""
    classes = {}
    for name in list_solver_names():
        with suppress(SolverError):
            classes[name] = load_solver_class(name)
    return classes


def list_solvers_with_option(name: str) -> list[str]:
    """Return the names of the solvers that have an option of this name."""
    classes = load_solver_classes().items()
    return [solver for solver, cls in classes if name in {o.name for o in list_options(cls)}]


def list_periodic_solvers(dimension: int) -> list[str]:
    """Return the names of the solvers that take periodic axes in this dimension."""
    infos = ((name, cls.info) for name, cls in load_solver_classes().items())
    return [name for name, info in infos if info.periodic and info.takes(dimension)]


def load_solver_class(name: str) -> type[Solver]:
    """Return the class of a registered solver, or of a model file (*.safetensors)."""
    if name in _LOCATIONS:
        return _import_class(name, _LOCATIONS[name])
    if name in PRETRAINED_MODELS:
        return pretrained_solver(name)
    if name.endswith(".safetensors"):
        return _load_model_class(Path(name))
    if name in _find_plugins():
        return _import_class(name, _find_plugins()[name].value)
    names = list_solver_names()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}."
    raise SolverError(f"There is no solver {name!r}; {hint}")


def find_info(name: str) -> SolverInfo:
    """Return the metadata of a solver; a minimal record for names that are not registered."""
    try:
        return load_solver_class(name).info
    except SolverError:  # a path of a model file, or of a plugin that is not installed
        return SolverInfo(name, summary="", family="unknown")


@cache  # reading the installed entry points takes as long as a small solve
def _find_plugins() -> dict[str, EntryPoint]:
    """Return the entry points of other packages in the group "geonet.solvers"."""
    return {point.name: point for point in entry_points(group="geonet.solvers")}


@cache
def _import_class(name: str, location: str) -> type[Solver]:
    """Import a solver class; every failure becomes a `SolverError`."""
    try:
        cls = import_object(location)
        if not (isinstance(cls, type) and issubclass(cls, Solver)):
            raise TypeError("it is not a subclass of geonet.Solver")
    except Exception as error:
        raise SolverError(
            f"The solver {name!r} cannot be imported from {location}: {error}; "
            "repair or uninstall the package that provides it."
        ) from error
    return cls


def _load_model_class(file: Path) -> type[Solver]:
    """Return the solver class for a model file; reading a file of unknown form fails later."""
    from geonet.solvers.neural.model import FORMS, read_kind
    from geonet.solvers.neural.solver import NetworkSolver

    form, dimension = read_kind(file)
    return solver_for_form(form, dimension) if form in FORMS else NetworkSolver


def import_all_solvers() -> None:
    """Import every module with a path class, so that saved paths of all kinds can be loaded."""
    load_solver_classes()


def make_solver(name: str | Path, **options: Any) -> Solver:
    """Return a solver by name or by model file, with its options as keywords."""
    if not isinstance(name, str | Path):
        raise SolverError(
            f"solver is of type {type(name).__name__}; give a name from geonet.list_solvers(), "
            "a model file (*.safetensors) or a Solver."
        )
    name = str(name)
    cls = load_solver_class(name)
    if options:
        _check_options(cls, name, options)
    return cls(**{"file": name} | options if name.endswith(".safetensors") else options)


def _check_options(cls: type[Solver], name: str, values: dict[str, Any]) -> None:
    """Raise SolverError for options that the solver does not have, or of a wrong type."""
    options = {option.name: option for option in list_options(cls)}
    for key, value in values.items():
        if key not in options and key in PROBLEM_OPTIONS:
            raise SolverError(
                f"The solver {name!r} is for balanced transport and takes no {key}; choose one of "
                f"{', '.join(list_solvers_with_option(key))}."
            )
        if key not in options:
            if name == "auto":
                _check_option_of_choices(key)
            close = difflib.get_close_matches(key, options, n=1)
            hint = f"did you mean {close[0]!r}? It" if close else "it"
            takes = ", ".join(map(str, options.values())) or "none"
            raise SolverError(f"The solver {name!r} has no option {key!r}; {hint} takes {takes}.")
        kind = _get_hints(cls)[key]
        if not any(_is_instance(value, one) for one in get_args(kind) or (kind,)):
            option = options[key]
            raise SolverError(
                f"The option {key} of {name!r} is {value!r}; it takes {option.type}: {option.help}."
            )


def _check_option_of_choices(key: str) -> None:
    """Raise SolverError for an option of a solver that auto may choose, and name the solver."""
    owners = set(list_solvers_with_option(key))
    if chosen := [f"solver={name!r}" for name in AUTO_CHOICES if name in owners]:
        raise SolverError(
            f"The solver 'auto' has no option {key!r}; {' and '.join(chosen)} "
            f"{choose_verb(len(chosen), 'has', 'have')} it."
        )


@cache  # evaluating annotations takes as long as a small network
def _get_hints(cls: type[Solver]) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_instance(value: Any, kind: type) -> bool:
    """Like isinstance, but integers are numbers, and booleans are not."""
    if isinstance(value, bool):
        return kind is bool
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real)
    return isinstance(value, kind)


@dataclass(frozen=True)
class Option:
    """An option of a solver.

    Attributes:
        name: keyword of the option.
        type: accepted types in plain language.
        default: default value; `dataclasses.MISSING` if there is none.
        help: description in the docstring of the solver.
    """

    name: str
    type: str
    default: Any
    help: str

    def __str__(self) -> str:
        if self.default is dataclasses.MISSING:
            return f"{self.name} ({self.type})"
        return f"{self.name} ({self.type}, by default {self.default_text})"

    @property
    def default_text(self) -> str:
        """The default as `--option` takes it; a dash if there is none."""
        if self.default is dataclasses.MISSING:
            return "–"
        return self.default if isinstance(self.default, str) else repr(self.default).lower()


def list_options(cls: type[Solver]) -> tuple[Option, ...]:
    """Return the options of a solver: its fields, explained by its docstring and its bases'."""
    types = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "a name",
        "Tensor": "an array",
        "None": "none",
    }
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        helps |= split_docstring(base.__dict__.get("__doc__"))[1]
    options = []
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        annotation = getattr(field.type, "__name__", str(field.type))
        kinds = [types.get(kind.strip(), kind.strip()) for kind in annotation.split("|")]
        default = field.default
        if field.name == "file" and isinstance(default, str):
            default = Path(default).name
        about = helps.get(field.name, "").rstrip(".")
        options.append(Option(field.name, " or ".join(kinds), default, about))
    return tuple(options)


def split_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the text before the section "Attributes:", and its entries by name."""
    text, _, section = inspect.cleandoc(docstring or "").partition("\nAttributes:")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return text.strip(), {name: " ".join(about.split()) for name, about in entries}


def recommend_solver(dimension: int | None, general: bool = False) -> str:
    """Return the name of the most reliable solver for densities of a dimension.

    Args:
        dimension: dimension of the densities; None if it is unknown.
        general: whether to prefer the automatic choice.
    """
    if dimension is not None and dimension > 3:
        return "linear-program"
    return "auto" if general else "quantile" if dimension == 1 else "midpoint"
