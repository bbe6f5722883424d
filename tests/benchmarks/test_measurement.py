"""Studies store their tables one by one, and pages show them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks import page
from benchmarks.__main__ import app
from benchmarks.measurement import Study, read_study, run_study
from benchmarks.results import Provenance, Table
from benchmarks.studies import barycenters, periodic_axes, unbalanced
from geonet.errors import InputError

PROVENANCE = Provenance("abc1234", "2026-01-31", {"cpu": "A Processor", "threads": 2})


def test_study_stores_each_section_and_keeps_the_others(tmp_path):
    table = Table("One", ("a", "b"), [["x", 1.5]])
    sections = {"one": lambda: table, "two": lambda: replace(table, title="Two")}
    run_study("name", sections, "", True, tmp_path)
    run_study("name", {**sections, "one": lambda: replace(table, rows=[])}, "one", True, tmp_path)
    found = read_study(tmp_path / "name.json")
    assert set(found.tables) == {"one", "two"} and found.tables["one"].rows == []
    assert found.quick and found.tables["two"].to_markdown().endswith("| x | 1.50 |")
    with pytest.raises(InputError, match="three"):
        run_study("name", sections, "three", True, tmp_path)


def test_sections_of_other_commits_are_dropped(tmp_path):
    table = Table("One", ("a",), [["x"]])
    Study(PROVENANCE, True, {"one": table}).save(tmp_path / "name.json")
    run_study("name", {"one": lambda: table, "two": lambda: table}, "two", True, tmp_path)
    assert set(read_study(tmp_path / "name.json").tables) == {"two"}


def test_study_measures_the_other_sections_if_one_fails(tmp_path):
    def fail() -> Table:
        raise ValueError("reason")

    nan = Table("No number", ("a",), [[float("nan")]])
    sections = {"one": fail, "nan": lambda: nan, "two": lambda: Table("Two", ("a",), [["x"]])}
    with pytest.raises(InputError, match="one: ValueError: reason"):
        run_study("name", sections, "", True, tmp_path)
    assert set(read_study(tmp_path / "name.json").tables) == {"two"}


def test_tables_become_sections_of_their_page(tmp_path):
    study, file = Study(PROVENANCE, False, {"seam": Table("Seam", ("a",), [["x"]])}), "periodic"
    study.save(tmp_path / f"{file}.json")
    (text,) = page.format_tables(tmp_path / f"{file}.json")["docs/periodic.md"].values()
    assert "| x |\n\nMeasured at commit abc1234 on 2026-01-31" in text
    replace(study, quick=True).save(tmp_path / f"{file}.json")
    with pytest.raises(SystemExit, match="quick"):
        page.format_tables(tmp_path / f"{file}.json")


LIMITS = {  # per cent on the coarse grids of a quick run, by study, section and column
    ("barycenters", "accuracy", "objective, %"): 2,
    ("unbalanced", "gaussians", "error, %"): 3,
    ("periodic", "seam", "W2, %"): 2,
    ("periodic", "maps", "W2, %"): 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("study", ["unbalanced", "periodic", "barycenters"])
def test_quick_studies(study, tmp_path):
    result = CliRunner().invoke(app, ["study", study, "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = read_study(tmp_path / f"{study}.json")
    modules = {"unbalanced": unbalanced, "periodic": periodic_axes, "barycenters": barycenters}
    measured = [name for name in vars(modules[study]) if name.startswith("measure_")]
    assert {f"measure_{name}" for name in found.tables} == {*measured} - {"measure_median"}
    assert found.quick and found.provenance is not None
    for table in found.tables.values():
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert (study != "barycenters") or (tmp_path / barycenters.PICTURE).exists()
    for (name, section, column), limit in LIMITS.items():
        if name == study:
            table = found.tables[section]
            errors = [row[list(table.columns).index(column)] for row in table.rows]
            assert max(map(abs, errors)) < limit, (section, errors)
