"""`geonet report FILE`: what saved paths say about their error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
