"""`geonet export MODEL`: a trained model as ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from geonet.cli.output import print_json, print_table, working
    from geonet.export.onnx_files import export_onnx, metadata
    from geonet.wording import number

    with working(f"exporting {model} and comparing it with torch"):
        files = export_onnx(model, output)
    found = [
        {
            "file": str(file),
            "bytes": file.stat().st_size,
            "largest_difference": float(metadata(file)["largest_difference"]),
        }
        for file in files
    ]
    if as_json:
        print_json({"model": model, "files": found})
        return
    rows = [
        (entry["file"], f"{entry['bytes'] / 1000:,.0f} kB", number(entry["largest_difference"], 2))
        for entry in found
    ]
    print_table(rows, ("written", "size", "largest difference from torch"))
