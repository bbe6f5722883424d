"""Draw the pictures of README and of the gallery, by the examples.

    python -m benchmarks.gallery --radar FOLDER

Every example of the gallery runs in a temporary folder; its figure NAME.png becomes
docs/images/gallery-NAME.png. `geonet demo` draws docs/images/demo.png. The radar images of the
committed pictures are those of the Finnish Meteorological Institute, see docs/gallery.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from PIL import Image

from benchmarks.pages import ROOT
from geonet._files import atomic_write

IMAGES = ROOT / "docs" / "images"
EXAMPLES = ROOT / "examples"


def main(
    radar: Annotated[Path, typer.Option(help="Folder of radar images.")],
    only: Annotated[str, typer.Option(metavar="NAME,…", help="Pictures; default: all.")] = "",
) -> None:
    """Run the examples, and copy their figures to docs/images."""
    chosen = only.split(",") if only else [*list_gallery(), "overview", "demo"]
    for name in chosen:
        typer.echo(name)
        with TemporaryDirectory() as folder:
            _save_small(_draw(name, Path(folder), radar.resolve()), _name_picture(name))


def list_gallery() -> list[str]:
    """Return the names of the examples in percent format, which form the gallery."""
    files = sorted(EXAMPLES.glob("*.py"))
    return [file.stem for file in files if file.read_text(encoding="utf-8").startswith("# %%")]


def _draw(name: str, folder: Path, radar: Path) -> Path:
    """Run one example in a folder; return the file of its figure."""
    if name == "demo":
        arguments, file = ["-m", "geonet", "demo", "-o", "."], "geodesics.png"
    elif name == "overview":
        arguments, file = [str(EXAMPLES / "readme_picture.py"), str(radar)], "overview.png"
    else:
        arguments, file = [str(EXAMPLES / f"{name}.py")], f"{name}.png"
    environment = {**os.environ, "MPLBACKEND": "Agg", "RADAR_FILES": str(radar)}
    environment.pop("EXAMPLE_STEPS", None)  # the committed picture shows the full training
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True)
    return folder / file


def _name_picture(name: str) -> Path:
    return IMAGES / (f"{name}.png" if name in ("overview", "demo") else f"gallery-{name}.png")


def _save_small(file: Path, picture: Path) -> None:
    """Write an image with a palette of 256 colours, which is a third of the size."""
    with Image.open(file) as image, atomic_write(picture) as temporary:
        image.convert("RGB").quantize(256).save(temporary, format="PNG", optimize=True)


if __name__ == "__main__":
    typer.run(main)
