"""Copy the results in experiments/results to docs/reproduction.md, between the page's markers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.pages import ROOT, format_note, replace_section
from benchmarks.results import Provenance
from experiments.paper.experiments import EXPERIMENTS

RESULTS, IMAGES = ROOT / "experiments" / "results", ROOT / "docs" / "images"


def format_section(name: str, results: Path = RESULTS) -> str:
    """Return the tables of one experiment with their provenance; reject results of a quick run."""
    stored = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
    if stored["quick"]:
        raise SystemExit(
            f"{results / name}.json is of a quick run; run make reproduce NAME={name}."
        )
    text = (results / f"{name}.md").read_text(encoding="utf-8").strip()
    text = text.replace(f"]({name}.png)", f"](images/reproduction-{name}.png)")
    note = format_note(Provenance.from_json(stored["provenance"]), f"make reproduce NAME={name}")
    return f"{text}\n\n{note}"


def main() -> None:
    """Update all sections and pictures of the page."""
    for name in EXPERIMENTS:
        replace_section(ROOT / "docs" / "reproduction.md", name, format_section(name))
        if (RESULTS / f"{name}.png").exists():
            shutil.copyfile(RESULTS / f"{name}.png", IMAGES / f"reproduction-{name}.png")


if __name__ == "__main__":
    main()
