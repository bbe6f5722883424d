"""Lists all figures that are quoted on pages, fresh or stale, and renews the notes below them.

Run it by `make stale`. It measures nothing; the commands that it lists do.
"""

from __future__ import annotations

from pathlib import Path

from pages import ROOT, Cells, table
from published import FIGURES, Figures, write_notes


def row(figures: Figures, root: Path = ROOT) -> Cells:
    """Name, state, commit and command."""
    stored = figures.stored(root)
    state = "fresh" if figures.is_fresh(root) else "stale"
    commit = "unknown" if stored is None else stored.commit or "none"
    return figures.name, state, commit, figures.command


def main(root: Path = ROOT) -> None:
    """Print a table and renew the notes."""
    rows = [row(figures, root) for figures in FIGURES.values()]
    for figures in FIGURES.values():
        write_notes(figures, root)
    print(table(("figures", "state", "commit", "measured again by"), rows))
    count = sum(cells[1] == "stale" for cells in rows)
    print(f"\n{count} of {len(rows)} are stale; the pages say which.")


if __name__ == "__main__":
    main()
