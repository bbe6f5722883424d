"""`geonet evaluate SOLVER`: its errors on pairs whose exact paths are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.evaluation import Accuracy
    from geonet.solvers.base import Solver

SHOWN = 3  # failures that are spelled out
Measured = tuple["Accuracy", dict[str, int]]  # and the solvers that gave the truth, if not formulas


def evaluate(
    solver: Annotated[str, typer.Argument(help="A name from `geonet solvers`, or a model's file.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The paper's pairs: 1d or 2d, followed by -identity, -random, -high-res or -ood. "
            "May be repeated. By default 1d-random and 2d-random, as far as the solver takes them.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ",
            help="Measure on your own densities, as for `geonet train --pairs`; the truth is then "
            "the best classical solver's. For a model trained on this file, only held-out pairs.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="The most pairs.")] = 20,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the solver; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a solver's errors on pairs that no training saw, against exact paths.

    For example: geonet evaluate transport-2d --suite 2d-ood
    """
    import geonet
    from geonet.cli.geodesic import parse_options
    from geonet.cli.output import counted, print_json, print_table, waited_for, working

    chosen = geonet.solver(solver, **parse_options(option or []))
    if pairs is not None and suite:
        raise InputError("--pairs are measured instead of a suite; leave one of the two out.")
    found: dict[str, Measured] = {}
    for name in [str(pairs)] if pairs is not None else _suites(suite or [], chosen):
        measured = partial(_on_suite if pairs is None else _on_pairs, chosen, name, count)
        with working(f"{name}: exact paths, then {solver}") as show:
            found[name] = waited_for(measured, show)
    if as_json:
        print_json(
            {name: {**got.to_json(), "truth": truth} for name, (got, truth) in found.items()}
        )
        return
    for name, (accuracy, truth) in found.items():
        typer.echo(f"\n{name}: {solver}, {counted(accuracy.pairs, 'pair')}, L1 in %")
        print_table(accuracy.rows(), ("t", "mean", "worst"))
        for line in _remarks(accuracy, truth):
            typer.echo(line)


def _suites(names: list[str], solver: Solver) -> list[str]:
    """The suites that were asked for, or the random ones that the solver takes."""
    from geonet.evaluation import TEST_SETS

    known = {_slug(name): case for name, case in TEST_SETS.items()}
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
        from geonet.solvers.neural.model import load_model

        return load_model(Path(file))[0].settings.dimension == dimension
    return solver.info.takes(dimension)


def _on_suite(solver: Solver, suite: str, count: int) -> Measured:
    from geonet.evaluation import TEST_SETS, measure, sample_pairs

    case = next(case for name, case in TEST_SETS.items() if _slug(name) == suite)
    known = sample_pairs(case, count)
    found = measure(solver, known.source, known.target, known.truth, known.distance)
    return found, {}


def _on_pairs(solver: Solver, file: str, count: int) -> Measured:
    """Pairs of a file; for a model that was trained on it, those that were held out."""
    from geonet.evaluation import measure, reference_solution
    from geonet.solvers.neural.model import load_model
    from geonet.training.user_data import read_own

    floor, trained_on = 0.0, None
    if (model := getattr(solver, "file", None)) is not None:
        header = load_model(Path(model))[1]
        floor = header.get("floor", 0.0)
        trained_on = header.get("training", {}).get("problem", {}).get("file")
    if floor:  # the truth has the same densities as the model
        solver = replace(solver, floor=0.0)  # pyright: ignore[reportArgumentType]
    own = read_own(Path(file), floor)
    held_out = trained_on is not None and Path(trained_on) == Path(file).resolve()
    source, target = own.test_pairs(count) if held_out else own.pairs(count)
    truth = reference_solution(source, target)
    return measure(solver, source, target, truth.frames, truth.distance), truth.solvers


def _remarks(accuracy: Accuracy, truth: dict[str, int]) -> list[str]:
    from geonet._format import format_percent
    from geonet.cli.output import counted

    lines = []
    if truth:
        exact = ", ".join(f"{solver} ({count})" for solver, count in truth.items())
        lines.append(f"Measured against {exact}, the best classical solver for each pair.")
    if accuracy.distance is not None:
        lines.append(f"W2 is off by {format_percent(accuracy.distance / 100)} on average.")
    if accuracy.failures:
        lines.append(f"{counted(len(accuracy.failures), 'pair')} without an answer:")
        lines += [f"  {failure}" for failure in accuracy.failures[:SHOWN]]
    return lines


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


# ---- `geonet export MODEL`: a trained model as ONNX files.


def export(
    model: Annotated[
        str, typer.Argument(help="A trained solver, such as transport-2d, or a *.safetensors file.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write to; created if missing.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a trained model as two ONNX files, which run without torch.

    For example: geonet export transport-2d -o models
    """
    from geonet._format import format_number
    from geonet.cli.output import print_json, print_table, working
    from geonet.onnx import export, read_metadata

    with working(f"exporting {model} and comparing it with torch"):
        files = export(model, output)
    found = [
        {
            "file": str(file),
            "bytes": file.stat().st_size,
            "largest_difference": float(read_metadata(file)["largest_difference"]),
        }
        for file in files
    ]
    if as_json:
        print_json({"model": model, "files": found})
        return
    rows = [
        (
            entry["file"],
            f"{entry['bytes'] / 1000:,.0f} kB",
            format_number(entry["largest_difference"], 2),
        )
        for entry in found
    ]
    print_table(rows, ("written", "size", "largest difference from torch"))
