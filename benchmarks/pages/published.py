"""Which figures stand on which pages, what measures them again, and whether they are stale.

Figures are stamped when they are measured: those of `geonet reproduce` and `geonet benchmark` in
their own files, those of page writers in studies/results/pages.json. A stamp whose sources differ
from the present ones is stale, and so is a result from before there were stamps. Below every
section a note says at which commit it was measured, or that it is stale.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import ROOT, between, put

from benchmarks.any_pair.run import MODULES as ANY_PAIR
from benchmarks.results import Stamp, stamp
from benchmarks.run import MODULES as BENCHMARK
from experiments.paper.experiments import EXPERIMENTS
from geonet._files import atomic_write

STAMPS = "pages.json"
NOTE = re.compile(r"(\A|\n\n)\*?(Measured (at|before|outside)|Not measured yet;) [^\n]*\Z")
Places = dict[str, tuple[str, ...]]  # names of sections by the page they are on
Sections = dict[str, dict[str, str]]  # their texts, likewise


@dataclass(frozen=True)
class Figures:
    """What one command measures.

    Attributes:
        name: each has its own.
        command: measures them again.
        modules: where the measurement begins, see `geonet.evaluation.sources`.
        places: where they are quoted.
        file: in studies/results, which has the stamp.
        part: the table of the file that has it; None for the file itself.
    """

    name: str
    command: str
    modules: tuple[str, ...]
    places: Places
    file: str = STAMPS
    part: str | None = None

    def stored(self, root: Path = ROOT) -> Stamp | None:
        """The stamp of the present figures; None from before there were stamps."""
        content = self._content(root)
        return Stamp.from_json(content.get(self.name if self.file == STAMPS else "stamp"))

    def is_fresh(self, root: Path = ROOT) -> bool:
        """Whether the sources are still those that were measured."""
        stored = self.stored(root)
        return stored is not None and stored.is_fresh(self.modules, folders(root))

    def note(self, root: Path = ROOT) -> str:
        """What a page says below them."""
        stored = self.stored(root)
        if (self.part is not None and not self._content(root)) or self._is_blank(root):
            return f"*Not measured yet; `{self.command}` measures it.*"
        if stored is None:
            when = "at an unknown commit, before sources were noted"
        else:
            where = _machine(stored)
            if self.is_fresh(root):
                at = f"at commit {stored.commit}" if stored.commit else "outside a clone"
                return f"Measured {at} on {where}."
            when = f"before its sources changed (commit {stored.commit or 'unknown'}, on {where})"
        return f"*Measured {when}; `{self.command}` measures it again.*"

    def _is_blank(self, root: Path) -> bool:
        """Whether all of its places hold nothing yet; what only prints has none."""
        places = ((root / page, name) for page, names in self.places.items() for name in names)
        texts = [between(page, name) for page, name in places]
        return bool(texts) and not any(without_note(text).strip() for text in texts)

    def _content(self, root: Path) -> dict[str, Any]:
        """What the file has, or the part of it."""
        file = root / "studies" / "results" / self.file
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return content if self.part is None else content.get(self.part) or {}


def _by_page_writer(target: str, script: str, places: Places, *more: str) -> Figures:
    return Figures(target, f"make {target}", (script, *more), places)


_TRANSPORT, _TRAINING, _BENCHMARK = "docs/transport.md", "docs/training.md", "docs/benchmark.md"
_LISTED = (
    _by_page_writer(
        "accuracy",
        "exact_solvers",
        {"docs/accuracy.md": ("comparison", "quantile", "monge-ampere", "schrodinger")},
    ),
    _by_page_writer(
        "models",
        "learned_solvers",
        {
            "docs/models.md": (
                "geonet-1d",
                "geonet-2d",
                "distance-1d",
                "distance-2d",
                "trust-1d",
                "trust-2d",
                "er-geonet-1d",
                "er-geonet-2d",
            ),
        },
    ),
    _by_page_writer(
        "transport",
        "transport_accuracy",
        {_TRANSPORT: ("errors", "distances", "estimates")},
    ),
    _by_page_writer("transport-speed", "transport_speed", {_TRANSPORT: ("speed", "training")}),
    _by_page_writer("transport-failures", "transport_failures", {_TRANSPORT: ("failures",)}),
    _by_page_writer("training-step", "training_step", {_TRAINING: ("step",)}),
    _by_page_writer("variants", "training_variants", {_TRAINING: ("variants", "equations")}),
    _by_page_writer("gradients", "gradient_accuracy", {"docs/gradients.md": ("gradients",)}),
    _by_page_writer("inference-floor", "inference_floor", {_BENCHMARK: ("floor",)}),
    _by_page_writer(
        "midpoint",
        "midpoint_accuracy",
        {"docs/midpoint.md": ("exact", "trust", "cost", "large")},
    ),
    _by_page_writer(
        "universal",
        "universal_accuracy",
        {"docs/universal.md": ("discs", "alone", "corrected", "start", "families")},
    ),
    _by_page_writer("universal-3d", "universal_3d", {"docs/universal.md": ("space",)}),
    _by_page_writer("own-training", "own_training", {_TRAINING: ("own",)}),
    _by_page_writer(
        "universal-variants", "universal_variants", {"docs/universal.md": ("variants",)}
    ),
    _by_page_writer("busy", "busy_machine", {"docs/threads.md": ("busy",)}),
    _by_page_writer("app-latency", "app_latency", {"docs/app.md": ("latency", "crowd")}),
    _by_page_writer("radar", "radar_fields", {"docs/fields.md": ("radar", "growth")}),
    _by_page_writer("field-cluster", "field_cluster", {"docs/fields.md": ("field-cluster",)}),
    # It measures commands and draws with them, and prints what it finds.
    _by_page_writer("command-line", "command_line", {}, "geonet.cli.main", "geonet.plotting"),
    Figures(
        "benchmark",
        "make benchmark",
        BENCHMARK,
        {
            _BENCHMARK: (
                *("front", "2d", "1d", "sizes", "loads"),
                *("equal-error", "paper", "scaling", "left-out"),
            ),
            "README.md": ("benchmark",),
        },
        "benchmark.json",
    ),
    Figures(
        "any",
        "make benchmark",
        ANY_PAIR,
        {
            _BENCHMARK: ("any", "any-trust", "any-kinds", "any-out"),
            "README.md": ("any",),
        },
        "benchmark.json",
        "any",
    ),
    *(
        Figures(
            name,
            f"make reproduce NAME={name}",
            experiment.modules,
            {"docs/reproduction.md": (name,)},
            f"{name}.json",
        )
        for name, experiment in EXPERIMENTS.items()
    ),
)
FIGURES = {figures.name: figures for figures in _LISTED}


def _machine(stored: Stamp) -> str:
    threads = stored.machine["threads"]
    return f"{stored.machine['cpu']}, {threads} thread{'s' if threads > 1 else ''}"


def folders(root: Path = ROOT) -> tuple[Path, ...]:
    """Where modules are: the package, and the page writers."""
    return root / "src", root / "studies" / "pages"


def begun(name: str, root: Path = ROOT) -> Stamp:
    """The stamp of figures that are about to be measured."""
    return stamp(FIGURES[name].modules, folders(root))


def publish(name: str, stamped: Stamp, sections: Sections, root: Path = ROOT) -> None:
    """Store the stamp, and put the sections on their pages, each with its note."""
    figures = FIGURES[name]
    if {page: tuple(texts) for page, texts in sections.items()} != figures.places:
        raise SystemExit(f"The places of {name} are others; list them in published.py.")
    file = root / "studies" / "results" / STAMPS
    stamps = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    stamps = dict(sorted((stamps | {name: stamped.to_json()}).items()))
    with atomic_write(file) as temporary:
        text = json.dumps(stamps, indent=1, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    for page, texts in sections.items():
        for section, text in texts.items():
            put(root / page, section, text)
    write_notes(figures, root)


def write_notes(figures: Figures, root: Path = ROOT) -> None:
    """Renew the notes below figures, wherever they are quoted."""
    note = figures.note(root)
    for page, sections in figures.places.items():
        for section in sections:
            text = without_note(between(root / page, section))
            put(root / page, section, f"{text}\n\n{note}")


def without_note(text: str) -> str:
    """The figures of a section alone."""
    return NOTE.sub("", text)
