"""Commands on solvers and trained models: `geonet evaluate` and `geonet export`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.evaluation import Accuracy, TestSet
    from geonet.solvers.base import Solver

# errors of a solver, the number of pairs for each solver that computed the reference, and whether
# the pairs are held out from the training of the solver
Measurement = tuple["Accuracy", dict[str, int], bool]


def evaluate(
    solver: Annotated[
        str,
        typer.Argument(metavar="SOLVER", help="A name from `geonet solvers`, or a model file."),
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The paper's pairs: 1d or 2d, followed by -identity, -random, -high-res or -ood. "
            "May be repeated. By default 1d-random and 2d-random, if the solver takes them.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ",
            help="Measure on your own densities, as for `geonet train --pairs`; the reference is "
            "the best classical solver. For a model trained on this file, only held-out pairs.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Number of pairs, at most.")] = 20,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the solver; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the errors of a solver against exact paths, on pairs outside all training data.

    For example: geonet evaluate transport-2d --suite 2d-ood
    """
    import geonet
    from geonet.cli.output import (
        format_count,
        parse_options,
        print_json,
        print_table,
        run_interruptibly,
        show_status,
    )

    chosen = geonet.solver(solver, **parse_options(option or []))
    if pairs is not None and suite:
        raise InputError("--pairs and --suite exclude each other; remove one of them.")
    if pairs is not None:
        jobs = {str(pairs): partial(_measure_pairs, chosen, pairs, count)}
    else:
        test_sets = _select_suites(suite or [], chosen)
        jobs = {name: partial(_measure_suite, chosen, s, count) for name, s in test_sets.items()}
    results: dict[str, Measurement] = {}
    for name, job in jobs.items():
        with show_status(f"{name}: exact paths, then {solver}") as show:
            results[name] = run_interruptibly(job, show)
    if as_json:
        print_json(
            {name: {**a.to_json(), "truth": truth} for name, (a, truth, _) in results.items()}
        )
        return
    for name, (accuracy, truth, is_held_out) in results.items():
        held_out = ", held out from its training for tests" if is_held_out else ""
        sample = f"{format_count(accuracy.pairs, 'pair')}{held_out}"
        typer.echo(f"\n{name}: {solver}, {sample}, L1 in %")
        print_table(accuracy.rows(), ("t", "mean", "worst"))
        for line in _format_remarks(accuracy, truth):
            typer.echo(line)


def _select_suites(names: list[str], solver: Solver) -> dict[str, TestSet]:
    """Return the requested test sets, or the random ones that the solver takes."""
    from geonet.evaluation import TEST_SETS

    known = {name.lower().replace(" ", "-"): test_set for name, test_set in TEST_SETS.items()}
    for name in names:
        if name not in known:
            raise InputError(f"There is no suite {name!r}; choose from {', '.join(known)}.")
    if not names:
        names = [name for name in ("1d-random", "2d-random") if _takes(solver, int(name[0]))]
    if not names:
        raise InputError(
            f"No suite has pairs for {solver.name!r}; pass your own pairs by --pairs NPZ."
        )
    return {name: known[name] for name in names}


def _takes(solver: Solver, dimension: int) -> bool:
    """Return whether a solver takes densities of a dimension."""
    file = getattr(solver, "file", None)
    if file is not None:
        from geonet.solvers.neural.model import load_model

        return load_model(Path(file))[0].settings.dimension == dimension
    dimensions = solver.info.dimensions
    return dimensions is None or dimension in dimensions


def _measure_suite(solver: Solver, test_set: TestSet, count: int) -> Measurement:
    from geonet.evaluation import measure, sample_pairs

    pairs = sample_pairs(test_set, count)
    return measure(solver, pairs.source, pairs.target, pairs.truth, pairs.distance), {}, False


def _measure_pairs(solver: Solver, file: Path, count: int) -> Measurement:
    """Measure on pairs of a file; for a model that was trained on it, on the held-out ones."""
    from geonet.evaluation import measure, reference_solution
    from geonet.solvers.neural.model import load_model
    from geonet.training.user_data import read_dataset

    floor, trained_on = 0.0, None
    if (model := getattr(solver, "file", None)) is not None:
        header = load_model(Path(model))[1]
        floor = header.get("floor", 0.0)
        trained_on = header.get("training", {}).get("problem", {}).get("file")
    if floor:  # mixed into the data instead, so that the reference has the same densities
        solver = replace(solver, floor=0.0)  # pyright: ignore[reportArgumentType]
    dataset = read_dataset(file, floor)
    is_training_file = trained_on is not None and Path(trained_on) == file.resolve()
    source, target = dataset.test_pairs(count) if is_training_file else dataset.pairs(count)
    reference = reference_solution(source, target)
    accuracy = measure(solver, source, target, reference.frames, reference.distance)
    return accuracy, reference.solvers, is_training_file


def _format_remarks(accuracy: Accuracy, truth: dict[str, int], max_failures: int = 3) -> list[str]:
    from geonet._format import format_percent
    from geonet.cli.output import format_count

    lines = []
    if truth:
        solvers = ", ".join(f"{solver} ({count})" for solver, count in truth.items())
        lines.append(f"Measured against {solvers}, the best classical solver for each pair.")
    if accuracy.distance is not None:
        lines.append(f"Mean error of W2: {format_percent(accuracy.distance / 100)}.")
    if accuracy.failures:
        lines.append(f"The solver failed for {format_count(len(accuracy.failures), 'pair')}:")
        lines += [f"  {failure}" for failure in accuracy.failures[:max_failures]]
    return lines


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A trained solver, such as transport-2d, or a *.safetensors file.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder of the two files; created if missing.",
        ),
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a trained model as two ONNX files, which run without torch.

    For example: geonet export transport-2d -o models
    """
    from geonet import onnx
    from geonet._format import format_number
    from geonet.cli.output import print_json, print_table, show_status

    with show_status(f"exporting {model} and comparing it with torch"):
        files = onnx.export(model, output)
    entries = [
        {
            "file": str(file),
            "bytes": file.stat().st_size,
            "largest_difference": float(onnx.read_metadata(file)["largest_difference"]),
        }
        for file in files
    ]
    if as_json:
        print_json({"model": model, "files": entries})
        return
    rows = [
        (
            entry["file"],
            f"{entry['bytes'] / 1000:,.0f} kB",
            format_number(entry["largest_difference"], 2),
        )
        for entry in entries
    ]
    print_table(rows, ("written", "size", "largest difference from torch"))
