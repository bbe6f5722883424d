"""`geonet solvers` lists the solvers or the options of one; `geonet report` reads saved paths."""

from __future__ import annotations

from dataclasses import MISSING, asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from geonet.solvers.base import SolverInfo
    from geonet.solvers.registry import Option


def solvers(
    name: Annotated[
        str | None,
        typer.Argument(metavar="SOLVER", help="A solver, or a model file: list its options."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the solvers with their dimensions and quantities, or the options of one.

    For example: geonet solvers midpoint

    For scripts: geonet solvers --json
    """
    from geonet.cli.output import print_json
    from geonet.solvers.registry import list_options, load_solver_class, load_solver_classes

    if name is None:
        # A plugin may register a class under a name of its own.
        infos = {name: cls.info for name, cls in load_solver_classes().items()}
        print_json([_describe(*item) for item in infos.items()]) if as_json else _print_all(infos)
        return
    cls = load_solver_class(name)
    options = [o for o in list_options(cls) if o.name != "file" or not Path(name).suffix]
    if as_json:
        print_json(_describe(cls.info.name, cls.info) | {"options": _to_json(options)})
    else:
        _print_one(cls.info, options)


def _describe(name: str, info: SolverInfo) -> dict[str, Any]:
    keys = ("family", "dimensions", "provides", "differentiable", "exact", "tolerance", "summary")
    return {"name": name} | {key: getattr(info, key) for key in keys}


def _to_json(options: list[Option]) -> list[dict[str, Any]]:
    return [asdict(o) | {"default": None if o.default is MISSING else o.default} for o in options]


def _print_one(info: SolverInfo, options: list[Option]) -> None:
    from geonet.cli.output import print_table

    typer.echo(f"{info.name}: {info.summary}\n")
    rows = [
        ("family", info.family),
        ("takes", _format_dimensions(info.dimensions)),
        ("provides", ", ".join(info.provides)),
    ]
    if info.tolerance is not None:
        rows.append(("tolerance", info.tolerance))
    print_table(rows)
    if not options:
        typer.echo("\nIt takes no options.")
        return
    typer.echo()
    headings = ("--option", "default", "type", "meaning")
    print_table([(o.name, o.default_text, o.type, o.help) for o in options], headings)


def _print_all(infos: dict[str, SolverInfo]) -> None:
    from geonet.cli.output import print_table

    symbols = {"distance": "W₂", "velocity": "v", "potential": "u", "trajectories": "x"}
    rows = [
        (
            name,
            _format_dimensions(info.dimensions),
            *("✓" if quantity in info.provides else "" for quantity in symbols),
            info.summary,
        )
        for name, info in infos.items()
    ]
    print_table(rows, ("solver", "takes", *symbols.values(), "for"))
    legend = ", ".join(f"{symbol} {quantity}" for quantity, symbol in symbols.items())
    typer.echo(f"\nAll provide densities; ✓ marks {legend}.")
    typer.echo("Options of one solver: geonet solvers NAME")


def _format_dimensions(dimensions: tuple[int, ...] | None) -> str:
    """Return "any D", "1D" or "1–3D"."""
    if dimensions is None:
        return "any D"
    first, last = min(dimensions), max(dimensions)
    if 1 < len(dimensions) == last - first + 1:
        return f"{first}–{last}D"
    return ", ".join(f"{d}D" for d in dimensions)


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Paths that `geonet geodesic -o` saved."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the reports of saved paths: measured errors, bounds and advice.

    For example: geonet report path.npz
    """
    import geonet
    from geonet.cli.output import print_json, print_report

    paths = {str(file): geonet.load(file) for file in files}  # fail before anything is printed
    if as_json:
        print_json({name: path.report.to_dict() for name, path in paths.items()})
        return
    for name, path in paths.items():
        print_report(path.report, [("file", name), ("grid", str(path.grid))])
