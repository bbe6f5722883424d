"""What an experiment gives: tables, remarks and a figure; and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from geonet.evaluation.stamp import Stamp
from geonet.files import made_folder, written_atomically

DPI = 110


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the pairs."""

    mean: float
    sd: float


Cell = Spread | float | int | str | None


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of each its label."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def texts(self) -> list[list[str]]:
        """The rows as they are printed."""
        return [[written(cell) for cell in row] for row in self.rows]

    def markdown(self) -> str:
        """The table with its title above."""
        lines = [f"**{self.title}**\n"] if self.title else []
        lines += [_line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join([*lines, *(_line(row) for row in self.texts())])


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment.

    Attributes:
        name: of the experiment.
        title: one line.
        quick: whether it is only a check, with few pairs.
        tables: what was measured.
        remarks: sentences about it, with the figures that were measured.
        figure: or None.
        stamp: when, where and from what it was measured; None if nobody noted it.
    """

    name: str
    title: str
    quick: bool
    tables: list[Table]
    remarks: list[str] = field(default_factory=list)
    figure: Figure | None = None
    stamp: Stamp | None = None

    def markdown(self) -> str:
        """Tables, remarks and figure."""
        parts = [table.markdown() for table in self.tables]
        parts += self.remarks
        if self.figure is not None:
            parts.append(f"![{self.title}]({self.name}.png)")
        return "\n\n".join(parts)

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.json, NAME.md and, if there is a figure, NAME.png; gives the files."""
        folder = made_folder(folder)
        files = [folder / f"{self.name}.{kind}" for kind in ("json", "md")]
        content = {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "tables": [asdict(table) for table in self.tables],
            "remarks": self.remarks,
            "stamp": None if self.stamp is None else self.stamp.to_json(),
        }
        with written_atomically(files[0]) as temporary:
            text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        with written_atomically(files[1]) as temporary:
            temporary.write_text(self.markdown() + "\n", encoding="utf-8")
        if self.figure is not None:
            files.append(folder / f"{self.name}.png")
            with written_atomically(files[2]) as temporary:
                save_figure(self.figure, temporary)
        return files


def save_figure(figure: Figure, file: Path) -> None:
    """A PNG of 256 colours, a third of the bytes of all colours."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256).save(file, optimize=True)


def written(cell: Cell) -> str:
    """A cell as text: three digits."""
    if cell is None:
        return "–"
    if isinstance(cell, Spread):
        return f"{digits(cell.mean)} ± {digits(cell.sd)}"
    return cell if isinstance(cell, str) else digits(cell)


def digits(number: float) -> str:
    """Three significant digits, at most three behind the point."""
    size = abs(float(f"{number:.3g}"))  # as it is shown: 9.996 is 10.0
    if isinstance(number, int) or size >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.2f}" if size >= 1 else f"{number:.3f}"


def spreads(errors: Tensor, scale: float = 100.0) -> list[Cell]:
    """Mean and standard deviation over the pairs at each time, from (pairs, times)."""
    errors = scale * errors.double()
    deviations = errors.std(0) if len(errors) > 1 else 0 * errors[0]
    return [Spread(m, s) for m, s in zip(errors.mean(0).tolist(), deviations.tolist(), strict=True)]


def means(errors: Tensor, scale: float = 100.0) -> list[Cell]:
    """Means over the pairs at each time, from (pairs, times)."""
    return list((scale * errors.double()).mean(0).tolist())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
