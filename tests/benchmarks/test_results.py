"""How results are written: numbers as text, tables as Markdown, files whole or not at all."""

import json
import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.results import DPI, Result, Spread, Stamp, Table, format_digits, make_means, make_spreads, format_cell
from geonet.errors import FileError


def table(**changes):
    rows = [["`a`", Spread(4.917, 0.5), 3, None], ["b", 12.345, 0.0004, "yes"]]
    return Table(
        **{"title": "Errors in %", "columns": ("", "t = 0", "n", "–"), "rows": rows} | changes
    )


def result(**changes):
    parts = {"name": "some", "title": "Some errors", "quick": False, "tables": [table()]}
    return Result(**parts | changes)


def drawn():
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [1, 0])
    return figure


# ---- text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.000"),
        (0.0004, "0.000"),
        (0.0006, "0.001"),
        (0.1234, "0.123"),
        (0.999, "0.999"),
        (1.0, "1.00"),
        (1.234, "1.23"),
        (9.99, "9.99"),
        (10.0, "10.0"),
        (12.345, "12.3"),
        (99.9, "99.9"),
        (100.0, "100"),
        (1234.5678, "1235"),
        (-0.1234, "-0.123"),
        (-1.234, "-1.23"),
        (-12.345, "-12.3"),
        (-123.4, "-123"),
        (0, "0"),
        (3, "3"),
        (12, "12"),
        (24000, "24000"),
    ],
)
def test_numbers_have_three_digits(number, text):
    assert format_digits(number) == text
    assert format_cell(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0.99961, "1.00"), (9.9961, "10.0"), (99.961, "100"), (-9.9961, "-10.0")]
)
def test_numbers_that_are_rounded_up_to_another_digit_have_three_too(number, text):
    assert format_digits(number) == text


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        ("no: entropic", "no: entropic"),
        ("", ""),
        (Spread(4.917, 0.5), "4.92 ± 0.500"),
        (Spread(112.0, 3.61), "112 ± 3.61"),
    ],
)
def test_cells_as_text(cell, text):
    assert format_cell(cell) == text


def test_a_table_in_markdown():
    assert table().format_rows() == [
        ["`a`", "4.92 ± 0.500", "3", "–"],
        ["b", "12.3", "0.000", "yes"],
    ]
    assert table().to_markdown() == (
        "**Errors in %**\n\n"
        "|  | t = 0 | n | – |\n"
        "| --- | --- | --- | --- |\n"
        "| `a` | 4.92 ± 0.500 | 3 | – |\n"
        "| b | 12.3 | 0.000 | yes |"
    )
    assert table(title="").to_markdown() == table().to_markdown().split("\n\n")[1]


def test_a_result_in_markdown():
    one, two = table(), table(title="More")
    whole = result(tables=[one, two], remarks=["First.", "Second."], figure=drawn())
    assert whole.to_markdown() == "\n\n".join(
        [one.to_markdown(), two.to_markdown(), "First.", "Second.", "![Some errors](some.png)"]
    )
    assert result().to_markdown() == one.to_markdown()


# ---- means and deviations


ERRORS = torch.tensor([[0.01, 0.5], [0.03, 0.5], [0.02, 0.8]])  # (pairs, times)


def test_spreads_are_over_the_pairs():
    first, second = make_spreads(ERRORS)
    assert (first.mean, first.sd) == (pytest.approx(2), pytest.approx(1))
    assert (second.mean, second.sd) == (pytest.approx(60), pytest.approx(30 / 3**0.5))
    assert make_spreads(ERRORS, 1.0)[0].mean == pytest.approx(0.02)
    assert make_spreads(ERRORS, 1.0)[0].sd == pytest.approx(0.01)


def test_one_pair_has_no_deviation():
    assert make_spreads(torch.tensor([[0.25, 0.5]])) == [Spread(25.0, 0.0), Spread(50.0, 0.0)]


def test_means_are_over_the_pairs():
    assert make_means(ERRORS) == pytest.approx([2, 60])
    assert make_means(ERRORS, 1.0) == pytest.approx([0.02, 0.6])


def test_numbers_are_plain_and_double():
    """For JSON; a thousand equal float32 errors have no rounding error in their mean."""
    errors = torch.full((1000, 1), 0.1)
    exact = 100 * float(errors[0, 0])
    assert make_means(errors) == [pytest.approx(exact, rel=1e-12)]
    assert type(make_means(errors)[0]) is float
    (spread,) = make_spreads(errors)
    assert spread.mean == pytest.approx(exact, rel=1e-12) and spread.sd < 1e-10
    assert type(spread.mean) is type(spread.sd) is float


# ---- files


def test_files(tmp_path):
    folder = tmp_path / "new" / "results"
    whole = result(quick=True, remarks=["Über ½."], figure=drawn())
    files = whole.save(folder)
    assert files == [folder / f"some.{kind}" for kind in ("json", "md", "png")]
    assert sorted(folder.iterdir()) == sorted(files)  # and nothing temporary
    assert files[1].read_text(encoding="utf-8") == whole.to_markdown() + "\n"
    with Image.open(files[2]) as image:
        assert image.format == "PNG" and image.size == (220, 110)


def test_json_has_it_all(tmp_path):
    whole = result(remarks=["Über ½."], tables=[table(), table(title="More")])
    text = whole.save(tmp_path)[0].read_text(encoding="utf-8")
    assert text.endswith("}\n") and "Über ½." in text
    expected = {
        "title": "Errors in %",
        "columns": ["", "t = 0", "n", "–"],
        "rows": [["`a`", {"mean": 4.917, "sd": 0.5}, 3, None], ["b", 12.345, 0.0004, "yes"]],
    }
    assert json.loads(text) == {
        "name": "some",
        "title": "Some errors",
        "quick": False,
        "tables": [expected, expected | {"title": "More"}],
        "remarks": ["Über ½."],
        "stamp": None,
    }


def test_json_has_the_stamp(tmp_path):
    stamp = Stamp("abc1234", "2026-11-17", {"cpu": "A Processor", "threads": 2}, "0123456789abcdef")
    content = json.loads(result(stamp=stamp).save(tmp_path)[0].read_text(encoding="utf-8"))
    assert Stamp.from_json(content["stamp"]) == stamp


def test_without_a_figure_there_is_no_picture(tmp_path):
    assert [file.name for file in result().save(tmp_path)] == ["some.json", "some.md"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_is_strict(tmp_path, number):
    """No reader of JSON knows NaN; what was there is kept."""
    file = result().save(tmp_path)[0]
    before = file.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        result(tables=[table(rows=[["`a`", number]])]).save(tmp_path)
    assert file.read_bytes() == before


def test_a_full_disk_leaves_the_old_picture(tmp_path, monkeypatch):
    file = result(figure=drawn()).save(tmp_path)[2]
    before = file.read_bytes()

    whole = Image.Image.save

    def half(image, to, *arguments, **options):
        if isinstance(to, BytesIO):  # what matplotlib draws into
            return whole(image, to, *arguments, **options)
        Path(to).write_bytes(before[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(FileError) as error:
        result(figure=drawn()).save(tmp_path)
    assert str(error.value) == f"Cannot write {file}: No space left on device."
    assert file.read_bytes() == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["some.json", "some.md", "some.png"]


def test_pictures_have_few_colours_and_look_the_same(tmp_path):
    figure = Figure(figsize=(2, 1))
    figure.subplots().imshow(np.random.default_rng(0).random((8, 8)), cmap="viridis")
    drawn_in_full = BytesIO()
    figure.savefig(drawn_in_full, dpi=DPI, format="png")
    with Image.open(drawn_in_full) as image:
        expected = np.asarray(image.convert("RGB"), dtype=float)
    with Image.open(result(figure=figure).save(tmp_path)[2]) as image:
        assert image.mode == "P"
        found = np.asarray(image.convert("RGB"), dtype=float)
    assert np.abs(found - expected).mean() < 3  # of 255


def test_an_earlier_result_is_replaced(tmp_path):
    result(remarks=["Old."]).save(tmp_path)
    files = result(remarks=["New."]).save(tmp_path)
    assert all("New." in file.read_text() and "Old." not in file.read_text() for file in files)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError) as error:
        result().save(tmp_path / "file" / "results")
    assert str(error.value) == f"Cannot make the folder {tmp_path}/file/results: Not a directory."


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "some.md").mkdir()
    with pytest.raises(FileError) as error:
        result().save(tmp_path)
    assert str(error.value).startswith(f"Cannot write {tmp_path}/some.md: ")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
