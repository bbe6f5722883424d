"""Solvers with the options under which they take part in the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

from geonet.errors import InputError
from geonet.solvers.base import Solver
from geonet.solvers.registry import list_solver_names, load_solver_class, make_solver, register

Kind = Literal["classical", "learned", "per-pair"]
SHORT = {"epsilon": "ε"}


@dataclass(frozen=True)
class Contestant:
    """A solver with options.

    Attributes:
        label: unique name in tables.
        solver: name of the solver, or a model file.
        dimensions: the dimensions in which it takes part; None for all.
        kind: classical, learned, or trained for every pair.
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


def _sweep(
    solver: str, dimension: int, *settings: dict[str, Any], quick: Sequence[int] = (0,)
) -> list[Contestant]:
    """Return a classical solver with several settings; `quick` selects settings for quick runs."""
    return [
        make_labelled(solver, (dimension,), options, k in quick)
        for k, options in enumerate(settings)
    ]


def make_labelled(
    solver: str, dimensions: tuple[int, ...], options: dict[str, Any], quick: bool = False
) -> Contestant:
    """Return a classical solver whose label lists its options."""
    texts = [v if isinstance(v, str) else f"{SHORT.get(k, k)} {v:g}" for k, v in options.items()]
    return Contestant(", ".join([solver, *texts]), solver, dimensions, "classical", options, quick)


LEARNED_1D = [
    Contestant(name, name, (1,), "learned", quick=True)
    for name in ("transport-1d", "geonet-1d", "deeponet-1d")
]
CLASSICAL_1D = [
    Contestant("quantile", "quantile", (1,), quick=True),
    Contestant("monge-ampere", "monge-ampere", (1,), quick=True),
    *_sweep("linear-program", 1, {"method": "emd"}, {"method": "emd_1d"}, quick=(1,)),
    *_sweep("schrodinger", 1, *({"epsilon": e, "tolerance": 1e-3} for e in (0.01, 0.1))),
    *_sweep(
        "barycenter",
        1,
        {"reg": 6e-4},  # the paper's
        {"reg": 6e-4, "tolerance": 0.5},  # and its early stop
        {"reg": 6e-4, "tolerance": 10.0},
        {"reg": 2e-3},
        {"reg": 2e-4},
        {"reg": 6e-4, "method": "sinkhorn_log"},
        quick=(0, 1),
    ),
    *_sweep("debiased-barycenter", 1, {"method": "sinkhorn"}, {"method": "sinkhorn_log"}),
    *_sweep("ott-barycenter", 1, *({"epsilon": 6e-4, "tolerance": tol} for tol in (1e-2, 1e-4))),
    Contestant("linear", "linear", (1,), quick=True),
    Contestant("auto", "auto", (1,)),  # uses `quantile`
]
LEARNED_2D = [
    Contestant("transport-2d", "transport-2d", (2,), "learned", quick=True),
    Contestant(
        "transport-2d, network alone", "transport-2d", (2,), "learned", {"max_iterations": 0}
    ),
    Contestant("geonet-2d", "geonet-2d", (2,), "learned", quick=True),
    Contestant("universal-2d", "universal-2d", (2,), "learned", quick=True),
    Contestant("auto", "auto", (2,), "learned", quick=True),  # uses `universal-2d` first
]
CLASSICAL_2D = [
    Contestant("monge-ampere", "monge-ampere", (2,), quick=True),
    Contestant("linear-program, at most 48²", "linear-program", (2,), options={"coarsen": True}),
    *_sweep(  # in units of the box, [0, 5]²
        "schrodinger",
        2,
        {"epsilon": 0.004, "tolerance": 1e-3},
        {"epsilon": 0.006, "tolerance": 1e-3},
        {"epsilon": 0.008, "tolerance": 1e-2},
        {"epsilon": 0.016, "tolerance": 1e-2},
        {"epsilon": 0.025, "tolerance": 1e-3},
        {"epsilon": 0.05, "tolerance": 1e-2},
        quick=(1, 3),
    ),
    *_sweep(
        "barycenter",
        2,
        {"reg": 4e-3},  # the paper's
        {"reg": 4e-3, "tolerance": 10.0},  # and its early stop
        {"reg": 4e-3, "tolerance": 0.5},
        {"reg": 1e-3},
        {"reg": 2e-3},
        {"reg": 1e-2},
        {"reg": 4e-3, "method": "sinkhorn_log"},
        quick=(0, 1),
    ),
    *_sweep(
        "debiased-barycenter",
        2,
        *(
            {"method": "sinkhorn", "reg": reg, "tolerance": tolerance}
            for tolerance, reg in product((1e-2, 1e-4), (4e-3, 2e-3))
        ),
        {"method": "sinkhorn_log", "reg": 4e-3},
    ),
    *_sweep(
        "ott-barycenter",
        2,
        *(
            {"epsilon": epsilon, "tolerance": tolerance}
            for tolerance, epsilon in product((1e-2, 1e-4), (4e-3, 2e-3))
        ),
    ),
    Contestant("linear", "linear", (2,), quick=True),
]
PER_PAIR = [
    Contestant(name, name, (1, 2), "per-pair")
    for name in ("pinn", "flow-matching", "rectified-flow")
]
CONTESTANTS = (*LEARNED_1D, *CLASSICAL_1D, *LEARNED_2D, *CLASSICAL_2D, *PER_PAIR)


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
