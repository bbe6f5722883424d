"""Puts the results of `geonet reproduce` into docs/reproduction.md, between their markers.

Run it by `make reproduction`. Results of a quick run are refused: they are checks.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pages import ROOT, put
from published import FIGURES, write_notes

from experiments.paper.experiments import EXPERIMENTS

RESULTS, IMAGES = ROOT / "studies" / "results", ROOT / "docs" / "images"


def section(name: str, results: Path = RESULTS) -> str:
    """What a result has for the page, with its picture where the page finds it."""
    if json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["quick"]:
        raise SystemExit(f"studies/results/{name} is of a quick run; run geonet reproduce {name}.")
    text = (results / f"{name}.md").read_text(encoding="utf-8").strip()
    return text.replace(f"]({name}.png)", f"](images/reproduction-{name}.png)")


def main() -> None:
    """All sections and pictures."""
    for name in EXPERIMENTS:
        put(ROOT / "docs" / "reproduction.md", name, section(name))
        if (RESULTS / f"{name}.png").exists():
            shutil.copyfile(RESULTS / f"{name}.png", IMAGES / f"reproduction-{name}.png")
        write_notes(FIGURES[name])


if __name__ == "__main__":
    main()
