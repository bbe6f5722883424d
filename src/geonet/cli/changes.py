"""What was coarsened, padded or replaced on the way to an answer: its first line.

Whoever changes what was given calls `changed` with a sentence. What solvers did is in the notes of
their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from geonet.wording import number, percent

if TYPE_CHECKING:
    from geonet.geodesics.base import Geodesic
    from geonet.measures.grid import Grid

_sentences: ContextVar[list[str] | None] = ContextVar("sentences", default=None)


@contextmanager
def gathered() -> Iterator[list[str]]:
    """The sentences of all that is changed meanwhile, each once."""
    sentences: list[str] = []
    token = _sentences.set(sentences)
    try:
        yield sentences
    finally:
        _sentences.reset(token)


def changed(sentence: str) -> None:
    """Say that something was changed."""
    sentences = _sentences.get()
    if sentences is not None and sentence not in sentences:
        sentences.append(sentence)


def cells(grid: Grid) -> str:
    """64×64, without the box."""
    return "×".join(map(str, grid.shape))


def changes_in(path: Geodesic, asked: str) -> list[str]:
    """What the solver of a path changed, if `asked` was the solver that was asked for."""
    notes, found = path.notes, []
    if "solved on" in notes:
        coarser = str(notes["solved on"]).partition(" cells")[0]
        found.append(
            f"Coarsened: solved on {coarser} cells, not on {cells(path.grid)} "
            "(--option max_cells=… takes more)."
        )
    if notes.get("floor"):
        found.append(
            f"Changed: {percent(notes['floor'])} of the mass of both ends is spread evenly "
            "(--option floor=0 for none)."
        )
    if notes.get("epsilon raised from"):
        found.append(
            f"Changed: epsilon is {number(notes['epsilon'])}, the least that these cells resolve, "
            f"and not {number(notes['epsilon raised from'])}."
        )
    if asked == "auto" and path.solver == "linear-program":
        found.append(
            "Chosen: the mass stands in separate cells, so linear-program moves these one by one "
            "(--solver midpoint spreads them)."
        )
    return found
