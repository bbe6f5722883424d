"""`geonet solvers`: lists the solvers, or the options of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from geonet.solvers.catalogue import Card

ANSWERS = {"distance": "W₂", "velocity": "v", "potential": "u", "trajectories": "x"}


def solvers(
    name: Annotated[
        str | None,
        typer.Argument(help="A solver, or a model's file, whose options are to be listed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the solvers, with the dimensions and answers of each, or the options of one.

    For example: geonet solvers midpoint

    For scripts: geonet solvers --json
    """
    from geonet.cli.output import print_json
    from geonet.solvers import registry

    if name is not None:
        card = registry.solver_card(name)
        print_json(_entry(card) | {"options": _options(card)}) if as_json else _print(card)
        return
    cards = registry.solver_cards()
    print_json([_entry(card) for card in cards]) if as_json else _print_all(cards)


def _entry(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "dimensions": card.dimensions,
        "gives": ["density", *card.gives],
        "summary": card.summary,
    }


def _options(card: Card) -> list[dict[str, Any]]:
    from geonet.solvers.catalogue import REQUIRED

    return [
        option._asdict() | {"default": None if option.default is REQUIRED else option.default}
        for option in card.options
    ]


def _print(card: Card) -> None:
    from geonet.cli.output import print_table

    typer.echo(f"{card.name}: {card.summary}\n")
    print_table(
        [
            ("takes", _dimensions(card.dimensions)),
            ("gives", ", ".join(("density", *card.gives))),
        ]
    )
    if not card.options:
        typer.echo("\nIt takes no options.")
        return
    typer.echo()
    rows = [(o.name, o.written_default(), o.takes, o.meaning) for o in card.options]
    print_table(rows, ("--option", "default", "takes", "meaning"))


def _print_all(cards: list[Card]) -> None:
    from geonet.cli.output import print_table

    rows = [
        (
            card.name,
            _dimensions(card.dimensions),
            *("✓" if what in card.gives else "" for what in ANSWERS),
            card.summary,
        )
        for card in cards
    ]
    print_table(rows, ("solver", "takes", *ANSWERS.values(), "for"))
    legend = ", ".join(f"{symbol} {what}" for what, symbol in ANSWERS.items())
    typer.echo(f"\nAll give densities; ✓ where also {legend}.")
    typer.echo("Options of one: geonet solvers NAME")


def _dimensions(dimensions: tuple[int, ...] | None) -> str:
    if dimensions is None:
        return "any D"
    first, last = min(dimensions), max(dimensions)
    if 1 < len(dimensions) == last - first + 1:
        return f"{first}–{last}D"
    return ", ".join(f"{d}D" for d in dimensions)


# ---- `geonet report FILE`: what saved paths say about their error.


def report(
    files: Annotated[list[Path], typer.Argument(help="Paths that `geonet geodesic -o` saved.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print how far saved paths can be trusted, measured from the paths themselves.

    For example: geonet report path.npz
    """
    import geonet
    from geonet.cli.output import print_json, print_report

    paths = {str(file): geonet.load(file) for file in files}  # all, before anything is printed
    if as_json:
        print_json({name: path.report.to_dict() for name, path in paths.items()})
        return
    for name, path in paths.items():
        print_report(path.report, [("file", name), ("grid", str(path.grid))])
