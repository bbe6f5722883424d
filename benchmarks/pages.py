"""Sections of documentation pages: text between markers, with commit, date and machine below it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.results import Provenance
from geonet._files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Cells = tuple[str, ...]
Sections = dict[str, dict[str, str]]  # text by page and by the name of the section


def format_table(header: Cells, rows: list[Cells]) -> str:
    """Return a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_share(value: float) -> str:
    """Format a fraction as per cent with three digits."""
    return f"{100 * float(value):.3g} %"


def publish(study: str, provenance: Provenance, sections: Sections, root: Path = ROOT) -> None:
    """Store the sections of a study in benchmarks/results/STUDY.json, and write its pages.

    Args:
        study: name of the study, see `benchmarks.__main__.STUDIES`.
        provenance: commit, date and machine, recorded before the measurement.
        sections: text by page and by section; the pages have markers <!-- section -->.
        root: folder of the repository.
    """
    file = root / "benchmarks" / "results" / f"{study}.json"
    content = {"provenance": provenance.to_json(), "pages": sections}
    with atomic_write(file) as temporary:
        text = json.dumps(content, indent=1, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    write_sections(read_sections(file), root)


def read_sections(file: Path) -> Sections:
    """Read the sections that `publish` stored, with commit, date and machine below each."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    note = format_note(
        Provenance.from_json(stored["provenance"]), f"make benchmark NAME={file.stem}"
    )
    return {
        page: {section: f"{text}\n\n{note}" for section, text in texts.items()}
        for page, texts in stored["pages"].items()
    }


def write_sections(sections: Sections, root: Path = ROOT) -> None:
    """Replace sections on their pages."""
    for page, texts in sections.items():
        for section, text in texts.items():
            replace_section(root / page, section, text)


def format_note(provenance: Provenance | None, command: str) -> str:
    """Return the line below a table: commit, date, machine, and the command that measures it."""
    if provenance is None:
        return f"Measured at an unknown commit by `{command}`."
    threads = provenance.machine["threads"]
    machine = f"{provenance.machine['cpu']}, {threads} thread{'s' if threads > 1 else ''}"
    commit = provenance.commit or "unknown"
    return f"Measured at commit {commit} on {provenance.date} ({machine}) by `{command}`."


def replace_section(file: Path, section: str, text: str) -> None:
    """Replace the text between the markers <!-- section --> and <!-- /section --> of a page."""
    content = file.read_text(encoding="utf-8")
    place = re.compile(f"(<!-- {section} -->\n)(.*?)(\n<!-- /{section} -->)", re.DOTALL)
    if len(place.findall(content)) != 1:
        raise SystemExit(f"{file} needs the markers <!-- {section} --> and <!-- /{section} -->.")
    content = place.sub(lambda match: match[1] + text + match[3], content)
    file.write_text(content, encoding="utf-8")
