"""The DOTmark study reads both formats, measures every method, and its results become tables."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import page
from benchmarks.__main__ import app
from benchmarks.dotmark.images import CLASSES, RADAR, Pair, read_dotmark, read_showers
from benchmarks.dotmark.methods import METHODS, REFERENCE, Method, solve_path
from benchmarks.dotmark.records import (
    Dotmark,
    Row,
    make_class_table,
    make_readme_table,
    read_dotmark_result,
)
from benchmarks.results import Provenance
from benchmarks.studies import dotmark as study
from geonet import Density, Grid
from geonet.errors import GeonetError, SolverError

CELLS, SHIFT = 16, 4  # of the images, and between the images 1 and 2
PROVENANCE = Provenance("abc1234", "2026-01-31", {"cpu": "A Processor", "threads": 2})


def make_images(cells: int = CELLS, shift: int = SHIFT) -> np.ndarray:
    """Return four images (4, cells, cells) of a spot; successive ones are shifted along axis 0."""
    y, x = np.mgrid[0:cells, 0:cells]
    spot = 1000 * np.exp(-((y - 5) ** 2 + (x - 7) ** 2) / 6)
    spot = np.round(np.where(spot > 5, spot, 0))
    return np.stack([np.roll(spot, k, (0, 1)) for k in ((0, 0), (shift, 0), (0, 1), (shift, 1))])


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one class in each format."""
    folder = tmp_path / "data"
    (folder / "Shapes").mkdir(parents=True)
    for k, image in enumerate(make_images(), 1):
        file = folder / "Shapes" / f"data{CELLS}_{1000 + k}.csv"
        np.savetxt(file, image, fmt="%d", delimiter=",")
    np.savez(folder / "GRFrough.npz", **{f"images_{CELLS}": make_images()})
    return folder


def write_radar(folder: Path, minutes: int, values: np.ndarray) -> None:
    """Write an image of 10:00 and some minutes, with a comment in its header."""
    header = f"P5\n# obstime\n{values.shape[1]} {values.shape[0]}\n255\n".encode()
    name = f"20170509{10 + minutes // 60:02d}{minutes % 60:02d}_radar.pgm.gz"
    (folder / name).write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def run_study(*options: str):
    return CliRunner().invoke(app, ["study", "dotmark", *options])


# ---- images


def test_both_formats_contain_the_same_pairs(folder):
    pairs = read_dotmark(folder, [], [CELLS], [(1, 2), (3, 4)])
    names = [(pair.kind, pair.name) for pair in pairs]
    assert names == [(kind, name) for kind in ("GRFrough", "Shapes") for name in ("1-2", "3-4")]
    image = make_images()[3]
    for pair in pairs[1::2]:  # the last image is normalised, and its axes are not exchanged
        expected = image / image.mean()
        np.testing.assert_allclose(np.asarray(pair.target), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "sizes", "number", "word"),
    [
        (["Nothing"], [CELLS], 2, "no class 'Nothing'"),
        (["GRFrough"], [32], 2, "no image 1 of 32²"),
        (["GRFrough"], [CELLS], 5, "no image 5"),
        (["Shapes"], [32], 2, "data32_1001.csv"),
    ],
)
def test_missing_images_are_named(folder, kinds, sizes, number, word):
    with pytest.raises(GeonetError, match=word):
        read_dotmark(folder, kinds, sizes, [(1, number)])


def test_radar_images_become_means_of_rain_rates(tmp_path):
    values = np.zeros((520, 530))
    values[4 : 4 + 256, 9 : 9 + 512] = 2 * (32 + 30)  # 30 dBZ in the upper half of the square
    values[4:6, 9:11] = 255, 255  # no data in one block of 2 × 2
    values[300:310] = 2 * (32 + 5)  # less than 0.1 mm/h
    for minutes in (0, 5, 20, 25, 60, 80, 100):
        write_radar(tmp_path, minutes, values)
    pairs = read_showers(tmp_path, [64, 256, 512])
    assert [(p.kind, p.name, p.cells) for p in pairs] == [
        (RADAR, name, cells) for cells in (256, 512) for name in ("10:00", "11:00")
    ]
    rain = np.asarray(pairs[0].source)
    assert rain[0, 0] == 0 and not rain[128:].any()
    assert rain[:128].ravel()[1:] == pytest.approx(rain[1, 1]) and rain[1, 1] > 0
    with pytest.raises(GeonetError, match="20 minutes"):
        read_showers(tmp_path / "none", [256])


# ---- measurement


def test_study_finds_the_distance_of_a_shift_by_every_method(folder, tmp_path):
    options = ["--sizes", str(CELLS), "--images", "1-2", "--out", str(tmp_path)]
    result = run_study("--data", str(folder), "--classes", "Shapes", *options)
    assert result.exit_code == 0, result.output
    found = read_dotmark_result(tmp_path)
    assert found.provenance is not None and found.provenance.machine["cpu"]
    installed = [method.label for method in METHODS if method.is_installed]
    assert [row.method for row in found.rows] == [REFERENCE, *installed]
    limits = dict.fromkeys(installed, 0.01) | {method.label: 0.05 for method in METHODS[3:4]}
    for row in found.rows[1:]:
        assert row.distance == pytest.approx(SHIFT / CELLS, rel=limits[row.method]), row.method
        assert row.converged and row.seconds > 0 and row.w2_percent is not None
    ours, simplex = found.rows[1], found.rows[3]
    assert simplex.distance == pytest.approx(SHIFT / CELLS, rel=1e-6) and simplex.bounds is None
    assert ours.bounds is not None and ours.bounds[0] <= ours.distance <= ours.bounds[1]
    assert ours.report_seconds is not None and ours.frame_percent is not None
    assert 0 < ours.frame_percent < 5
    assert "network simplex (POT)" in result.output and f"{CELLS}² cells" in result.output

    updated = run_study("--data", str(folder), "--classes", "GRFrough", "--update", *options)
    assert updated.exit_code == 0, updated.output
    merged = read_dotmark_result(tmp_path)
    assert [row for row in merged.rows if row.kind == "Shapes"] == found.rows
    assert {row.kind for row in merged.rows} == {"Shapes", "GRFrough"}


def test_pairs_of_images(folder, tmp_path, monkeypatch):
    measured: list[str] = []

    def record(pairs, *others):
        measured.extend(pair.name for pair in pairs)
        return Dotmark(None)

    monkeypatch.setattr(study, "measure", record)
    common = ["--data", str(folder), "--classes", "Shapes", "--sizes", "16", "--out", str(tmp_path)]
    assert run_study(*common, "--images", "1,3-4").exit_code == 0
    assert run_study(*common, "--images", "1-3", "--pairs", "all").exit_code == 0
    assert measured == ["1-3", "1-2", "1-3", "2-3"]


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--data", "nowhere"], "no folder nowhere"), (["--data", ".", "--images", "a"], "'a'")],
)
def test_bad_options_give_one_sentence_and_exit_code_2(options, word):
    result = run_study(*options)
    assert result.exit_code == 2 and word in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_studies_reject_options_that_they_do_not_have():
    assert CliRunner().invoke(app, ["study", "gradients", "--data", "x"]).exit_code == 2
    assert run_study().exit_code == 2  # --data is required


def test_failures_and_missing_packages_become_notes(tmp_path):
    def fail(pair: Pair):
        raise SolverError("It failed.")

    ends = (Density(image, Grid((CELLS, CELLS))) for image in make_images()[:2])
    methods = [
        Method("geonet", solve_path),
        Method("failing", fail),
        Method("small", fail, CELLS - 1),
        Method("absent", fail, package="no_such_package"),
    ]
    found = study.measure([Pair("Shapes", "1-2", *ends)], methods, tmp_path)
    assert [row.method for row in found.rows] == [REFERENCE, "geonet"]
    assert found.notes == [
        "absent needs no_such_package, which is not installed.",
        f"failing, Shapes 1-2, {CELLS}²: It failed.",
    ]
    assert read_dotmark_result(tmp_path) == found


# ---- tables and pages


def make_complete() -> Dotmark:
    """Return rows of all classes on 64² and 256² cells, and of radar images on 256²."""
    found = Dotmark(PROVENANCE)
    places = [(kind, cells) for kind in CLASSES for cells in (64, 256)] + [(RADAR, 256)]
    for kind, cells in places:
        for pair, factor in (("1-2", 1.0), ("3-4", 3.0)):
            row = Row(kind, cells, pair, "geonet", 0.01 * factor, 0.2, True, 0.1, 0.5, 1.0)
            row = replace(row, bounds=[0.199, 0.201])
            other = replace(row, method="back-and-forth", seconds=0.05 * factor, converged=False)
            found.rows.extend([row, other, Row(kind, cells, pair, REFERENCE, 1.0, 0.1, True)])
    return found


def test_tables_contain_medians_ratios_and_widths():
    found = make_complete()
    table = make_readme_table(found)
    errors = ["error of W2, %", "bounds, % wide"]
    assert table.columns == ["method", "64²: ms", *errors, "256²: ms", *errors]
    geonet_row, other_row = table.format_rows()
    assert geonet_row == ["geonet", *["20.0", "100", "1.00"] * 2]
    assert other_row == ["back-and-forth", *["100", "100", "1.00"] * 2]
    line = make_class_table(found, 64).format_rows()[1]
    assert line[1:4] == ["back-and-forth", "100", "5.00"]
    # error of W2, of the frames, its estimate, converged
    assert line[-4:] == ["100", "0.500", "1.00", "0 of 2"]


def test_sections_of_the_page_and_readme_need_complete_results(tmp_path):
    found = make_complete()
    replace(found, rows=[row for row in found.rows if row.kind != "Shapes"]).save(tmp_path)
    with pytest.raises(SystemExit, match="lacks Shapes on 64²"):
        page.format_dotmark(tmp_path)
    found.save(tmp_path)
    sections = page.format_dotmark(tmp_path)
    (readme,) = sections["README.md"].values()
    assert make_readme_table(found).to_markdown() in readme and "commit abc1234" in readme
    text = "\n".join(sections["docs/dotmark.md"].values())
    assert "| WhiteNoise | back-and-forth | 100 | 5.00 |" in text
    assert "42 of 42 references reached their tolerance." in text
