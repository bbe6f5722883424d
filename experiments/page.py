"""Sections and pictures of docs/reproduction.md from the results in experiments/results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.pages import ROOT, format_note
from benchmarks.results import Provenance
from experiments.paper.experiments import EXPERIMENTS

RESULTS = ROOT / "experiments" / "results"
PAGE = "docs/reproduction.md"


def format_sections(results: Path = RESULTS) -> dict[str, str]:
    """Return the sections of all experiments by marker."""
    return {name: format_section(name, results) for name in EXPERIMENTS}


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


def copy_pictures(images: Path, results: Path = RESULTS) -> None:
    """Copy the pictures of all experiments to a folder."""
    for name in EXPERIMENTS:
        if (results / f"{name}.png").exists():
            shutil.copyfile(results / f"{name}.png", images / f"reproduction-{name}.png")
