"""Studies store their tables one by one, and pages show them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks import page
from benchmarks.__main__ import app
from benchmarks.measurement import StoredTable, read_tables, run_study, save_tables
from benchmarks.results import Provenance, Table
from benchmarks.studies import barycenters, periodic_axes, unbalanced
from geonet.errors import InputError

PROVENANCE = Provenance("abc1234", "2026-01-31", {"cpu": "A Processor", "threads": 2})


def test_study_stores_each_section_and_keeps_the_others(tmp_path):
    table = Table("One", ("a", "b"), [["x", 1.5]])
    sections = {"one": lambda: table, "two": lambda: replace(table, title="Two")}
    run_study("name", sections, "", True, tmp_path)
    run_study("name", {**sections, "one": lambda: replace(table, rows=[])}, "one", True, tmp_path)
    found = read_tables(tmp_path / "name.json")
    assert list(found) == ["one", "two"] and found["one"].table.rows == []
    assert found["two"].quick and found["two"].table.to_markdown().endswith("| x | 1.50 |")
    with pytest.raises(InputError, match="three"):
        run_study("name", sections, "three", True, tmp_path)


def test_study_measures_the_other_sections_if_one_fails(tmp_path):
    def fail() -> Table:
        raise ValueError("reason")

    nan = Table("No number", ("a",), [[float("nan")]])
    sections = {"one": fail, "nan": lambda: nan, "two": lambda: Table("Two", ("a",), [["x"]])}
    with pytest.raises(InputError, match="one: ValueError: reason"):
        run_study("name", sections, "", True, tmp_path)
    assert list(read_tables(tmp_path / "name.json")) == ["two"]


def test_tables_become_sections_of_their_page(tmp_path):
    (tmp_path / "docs" / "images").mkdir(parents=True)
    text = "A\n<!-- periodic-seam -->\n<!-- /periodic-seam -->\n"
    (tmp_path / "docs" / "periodic.md").write_text(text.replace("-->\n<!-- /", "-->\n\n<!-- /"))
    (tmp_path / "periodic-seam.png").write_bytes(b"picture")
    stored = StoredTable(Table("Seam", ("a",), [["x"]]), PROVENANCE, False)
    save_tables(tmp_path / "periodic.json", {"seam": stored})
    page.write_study("periodic", tmp_path, tmp_path)
    written = (tmp_path / "docs" / "periodic.md").read_text()
    assert "| x |\n\nMeasured at commit abc1234 on 2026-01-31" in written
    assert (tmp_path / "docs" / "images" / "periodic-seam.png").exists()
    assert "\n\n![Seam](images/periodic-seam.png)\n<!-- /" in written
    save_tables(tmp_path / "periodic.json", {"seam": replace(stored, quick=True)})
    with pytest.raises(SystemExit, match="quick"):
        page.write_study("periodic", tmp_path, tmp_path)


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
    found = read_tables(tmp_path / f"{study}.json")
    modules = {"unbalanced": unbalanced, "periodic": periodic_axes, "barycenters": barycenters}
    measured = [name for name in vars(modules[study]) if name.startswith("measure_")]
    assert {f"measure_{name}" for name in found} == {*measured} - {"measure_median"}
    for stored in found.values():
        assert stored.quick and stored.provenance is not None
        assert all(len(row) == len(stored.table.columns) for row in stored.table.rows)
    assert (study != "barycenters") or (tmp_path / barycenters.PICTURE).exists()
    for (name, section, column), limit in LIMITS.items():
        if name == study:
            table = found[section].table
            errors = [row[list(table.columns).index(column)] for row in table.rows]
            assert max(map(abs, errors)) < limit, (section, errors)
