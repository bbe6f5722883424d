"""`geonet solvers`: lists the solvers."""

from __future__ import annotations

from typing import Annotated

import typer

ANSWERS = {"distance": "W₂", "velocity": "v", "potential": "u", "trajectories": "x"}


def solvers(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the solvers: the dimensions each takes and what its paths can answer.

    For scripts: geonet solvers --json
    """
    from geonet.cli.output import print_json, print_table
    from geonet.solvers.registry import solver_classes

    classes = solver_classes()
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "dimensions": cls.dimensions,
                    "gives": ["density", *cls.gives],
                    "summary": cls.summary,
                }
                for name, cls in classes.items()
            ]
        )
        return
    rows = [
        (
            name,
            _dimensions(cls.dimensions),
            *("✓" if what in cls.gives else "" for what in ANSWERS),
            cls.summary,
        )
        for name, cls in classes.items()
    ]
    print_table(rows, ("solver", "takes", *ANSWERS.values(), "for"))
    legend = ", ".join(f"{symbol} {what}" for what, symbol in ANSWERS.items())
    typer.echo(f"\nAll give densities; ✓ where also {legend}.")


def _dimensions(dimensions: tuple[int, ...] | None) -> str:
    if dimensions is None:
        return "any D"
    first, last = min(dimensions), max(dimensions)
    if 1 < len(dimensions) == last - first + 1:
        return f"{first}–{last}D"
    return ", ".join(f"{d}D" for d in dimensions)
