"""`geonet evaluate SOLVER`: its errors on pairs whose exact paths are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.evaluation.accuracy import Accuracy
    from geonet.solvers.base import Solver

SHOWN = 3  # failures that are spelled out


def evaluate(
    solver: Annotated[str, typer.Argument(help="A name from `geonet solvers`, or a model's file.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Pairs of the paper: 1d or 2d, and -identity, -random, -high-res or -ood; repeat. "
            "By default those that the solver takes of 1d-random and 2d-random.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ",
            help="Your own pairs instead: arrays source and target (n, cells…); the truth is then "
            "what the best classical solver says.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Pairs of each suite.")] = 20,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the solver; repeat."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The errors of a solver on pairs that no training saw, against exact paths.

    For example: geonet evaluate transport-2d --suite 2d-ood
    """
    import geonet
    from geonet.cli.output import counted, print_json, print_table, working
    from geonet.cli.solver_options import parse_options

    chosen = geonet.solver(solver, **parse_options(option or []))
    if pairs is not None and suite:
        raise InputError("--pairs are measured instead of a suite; leave one of the two out.")
    found: dict[str, Accuracy] = {}
    for name in [str(pairs)] if pairs is not None else _suites(suite or [], chosen):
        with working(f"{name}: exact paths, then {solver}"):
            measured = _on_suite if pairs is None else _on_pairs
            found[name] = measured(chosen, name, count)
    if as_json:
        print_json({name: accuracy.to_json() for name, accuracy in found.items()})
        return
    for name, accuracy in found.items():
        typer.echo(f"\n{name}: {solver}, {counted(accuracy.pairs, 'pair')}, L1 in %")
        print_table(accuracy.rows(), ("t", "mean", "worst"))
        for line in _remarks(accuracy):
            typer.echo(line)


def _suites(names: list[str], solver: Solver) -> list[str]:
    """The suites that were asked for, or the random ones that the solver takes."""
    from geonet.reproduction.suites import CASES

    known = {_slug(name): case for name, case in CASES.items()}
    for name in names:
        if name not in known:
            raise InputError(f"There is no suite {name!r}; choose from {', '.join(known)}.")
    if names:
        return list(dict.fromkeys(names))
    taken = [name for name in ("1d-random", "2d-random") if _takes(solver, int(name[0]))]
    if not taken:
        raise InputError(f"No suite has pairs for {solver.name!r}; give your own by --pairs NPZ.")
    return taken


def _takes(solver: Solver, dimension: int) -> bool:
    file = getattr(solver, "file", None)
    if file is not None:
        from geonet.solvers.learned.model_file import load_model

        return load_model(Path(file))[0].settings.dimension == dimension
    return solver.dimensions is None or dimension in solver.dimensions


def _on_suite(solver: Solver, suite: str, count: int) -> Accuracy:
    from geonet.evaluation.accuracy import measure
    from geonet.reproduction.suites import CASES, pairs_of

    case = next(case for name, case in CASES.items() if _slug(name) == suite)
    known = pairs_of(case, count)
    return measure(solver, known.source, known.target, known.truth, known.distance)


def _on_pairs(solver: Solver, file: str, count: int) -> Accuracy:
    """The last pairs of a file: those that `geonet train` holds out."""
    from geonet.evaluation.accuracy import measure
    from geonet.evaluation.truth import truth_of
    from geonet.training.own import read_own

    source, target = read_own(Path(file)).test_pairs(count)
    truth = truth_of(source, target)
    return measure(solver, source, target, truth.frames, truth.distance)


def _remarks(accuracy: Accuracy) -> list[str]:
    from geonet.cli.output import counted

    lines = []
    if accuracy.distance is not None:
        lines.append(f"W2 is off by {accuracy.distance:.3g} % on average.")
    if accuracy.failures:
        lines.append(f"{counted(len(accuracy.failures), 'pair')} without an answer:")
        lines += [f"  {failure}" for failure in accuracy.failures[:SHOWN]]
    return lines


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
