"""Solvers with the options under which they take part in the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from geonet.errors import InputError
from geonet.solvers.base import Solver
from geonet.solvers.registry import list_solver_names, load_solver_class, make_solver, register

Kind = Literal["classical", "learned"]
SHORT = {"epsilon": "ε"}


@dataclass(frozen=True)
class Contestant:
    """A solver with options.

    Attributes:
        label: unique name in tables.
        solver: name of the solver, or a model file.
        dimensions: the dimensions in which it takes part; None for all.
        kind: classical or learned.
        options: options of the solver.
        quick: True if quick runs include it.
        location: 'module:Class' of a solver that a new process must register.
    """

    label: str
    solver: str
    dimensions: tuple[int, ...] | None
    kind: Kind = "classical"
    options: dict[str, Any] = field(default_factory=dict)
    quick: bool = False
    location: str | None = None


def make_labelled(
    solver: str, dimensions: tuple[int, ...], options: dict[str, Any], quick: bool = False
) -> Contestant:
    """Return a classical solver whose label lists its options."""
    texts = [v if isinstance(v, str) else f"{SHORT.get(k, k)} {v:g}" for k, v in options.items()]
    return Contestant(", ".join([solver, *texts]), solver, dimensions, "classical", options, quick)


LEARNED = [
    Contestant("transport-1d", "transport-1d", (1,), "learned", quick=True),
    Contestant("geonet-1d", "geonet-1d", (1,), "learned", quick=True),
    Contestant("deeponet-1d", "deeponet-1d", (1,), "learned"),
    Contestant("transport-2d", "transport-2d", (2,), "learned", quick=True),
    Contestant("geonet-2d", "geonet-2d", (2,), "learned"),
    Contestant("auto", "auto", (2,), "learned", quick=True),  # uses `universal-2d` first
]
CLASSICAL_1D = [
    Contestant("quantile", "quantile", (1,), quick=True),
    make_labelled("linear-program", (1,), {"method": "emd_1d"}),
    make_labelled("schrodinger", (1,), {"epsilon": 0.01, "tolerance": 1e-3}),
    make_labelled("barycenter", (1,), {"reg": 6e-4}, quick=True),  # the paper's
    make_labelled("barycenter", (1,), {"reg": 6e-4, "tolerance": 0.5}),  # and its early stop
    make_labelled("debiased-barycenter", (1,), {"method": "sinkhorn"}),
    make_labelled("ott-barycenter", (1,), {"epsilon": 6e-4, "tolerance": 1e-2}),
]
CLASSICAL_2D = [
    Contestant("midpoint", "midpoint", (2,), quick=True),
    Contestant("monge-ampere", "monge-ampere", (2,)),
    Contestant("back-and-forth", "back-and-forth", (2,)),
    # ε is in units of the box, [0, 5]²
    make_labelled("schrodinger", (2,), {"epsilon": 0.004, "tolerance": 1e-3}),
    make_labelled("schrodinger", (2,), {"epsilon": 0.05, "tolerance": 1e-2}, quick=True),
    make_labelled("barycenter", (2,), {"reg": 4e-3}),  # the paper's
    make_labelled("barycenter", (2,), {"reg": 4e-3, "tolerance": 10.0}),  # and its early stop
    make_labelled(
        "debiased-barycenter", (2,), {"method": "sinkhorn", "reg": 4e-3, "tolerance": 1e-2}
    ),
    make_labelled("ott-barycenter", (2,), {"epsilon": 4e-3, "tolerance": 1e-2}),
    Contestant("linear-program, at most 48²", "linear-program", (2,), options={"coarsen": True}),
]
LINEAR = Contestant("linear", "linear", (1, 2), quick=True)
CONTESTANTS = (*LEARNED, *CLASSICAL_1D, *CLASSICAL_2D, LINEAR)


def select_contestants(solvers: Sequence[str], quick: bool) -> list[Contestant]:
    """Return all contestants, or the ones with the given solvers.

    Other solvers and model files take part with their default options.
    """
    if not solvers:
        return [entrant for entrant in CONTESTANTS if entrant.quick or not quick]
    chosen = []
    for name in dict.fromkeys(solvers):
        own = [entrant for entrant in CONTESTANTS if entrant.solver == name] or [make_default(name)]
        chosen += [entrant for entrant in own if entrant.quick or not quick] or own
    return chosen


def make_default(name: str) -> Contestant:
    """Return a registered solver or a model file with its default options."""
    if name.endswith(".safetensors"):
        make_solver(name)  # raises if it is not a model
        return Contestant(name, str(Path(name).resolve()), None, "learned")
    cls = load_solver_class(name)
    learned = any(option.name == "file" for option in fields(cls))  # type: ignore[arg-type]
    kind: Kind = "learned" if learned else "classical"
    location = f"{cls.__module__}:{cls.__qualname__}"
    return Contestant(name, name, cls.info.dimensions, kind, location=location)


def build_solver(entrant: Contestant) -> Solver:
    """Build the solver, and register it first if this process does not know it."""
    if entrant.location is not None and entrant.solver not in list_solver_names():
        register(entrant.solver, entrant.location)
    return make_solver(entrant.solver, **entrant.options)


def filter_by_dimension(chosen: Sequence[Contestant], dimension: int) -> list[Contestant]:
    """Return the contestants for densities of a dimension."""
    return [e for e in chosen if e.dimensions is None or dimension in e.dimensions]


def check_participation(chosen: Sequence[Contestant], dimensions: Sequence[int]) -> None:
    """Raise InputError if a solver takes part in none of the suites."""
    for solver in dict.fromkeys(entrant.solver for entrant in chosen):
        own = [entrant for entrant in chosen if entrant.solver == solver]
        if not any(filter_by_dimension(own, dimension) for dimension in dimensions):
            suites = " and ".join(f"{d}D" for d in dimensions) or "no"
            raise InputError(
                f"The solver {solver!r} takes no part in the chosen suites, which have {suites} "
                "densities; choose another solver or suite."
            )
