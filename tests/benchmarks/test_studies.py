"""Studies run on small inputs, and publish tables with their provenance."""

from __future__ import annotations

import json
import re
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

import geonet
from benchmarks.__main__ import STUDIES, app
from benchmarks.pages import format_note, format_table, publish, replace_section
from benchmarks.results import Provenance, Spread, Table, format_cell, record_provenance
from geonet.metrics import l1_tensor
from geonet.paths import QUARTERS
from geonet.solvers.registry import list_options, list_solver_names, load_solver_class

PROVENANCE = Provenance("abc1234", "2026-01-31", {"cpu": "A Processor", "threads": 2})


def load_study(name: str):
    return import_module(f"benchmarks.studies.{name}")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_without_options(name):
    """Only `dotmark` and `fields` have a required option, their folder."""
    if name == "app-latency":
        pytest.importorskip("playwright")
    parameters = signature(load_study(STUDIES[name][0]).main).parameters.values()
    required = [given.name for given in parameters if given.default is given.empty]
    assert required == {"dotmark": ["data"], "fields": ["radar"]}.get(name, [])


def test_list_of_studies():
    result = CliRunner().invoke(app, ["study"])
    assert result.exit_code == 0 and "docs/midpoint.md" in result.output
    assert CliRunner().invoke(app, ["study", "nothing"]).exit_code == 2


# ---- pages


def test_publish_writes_sections_with_commit_date_and_machine(tmp_path):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("A\n<!-- one -->\nold\n<!-- /one -->\nB\n")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for _ in range(2):  # the second run replaces the text of the first
        publish("midpoint", PROVENANCE, {"docs/page.md": {"one": "new"}}, tmp_path)
    assert page.read_text() == (
        "A\n<!-- one -->\nnew\n\nMeasured at commit abc1234 on 2026-01-31 (A Processor, 2 threads) "
        "by `make benchmark NAME=midpoint`.\n<!-- /one -->\nB\n"
    )
    stored = json.loads((tmp_path / "benchmarks" / "results" / "midpoint.json").read_text())
    assert Provenance.from_json(stored["provenance"]) == PROVENANCE
    with pytest.raises(SystemExit, match="two"):
        replace_section(page, "two", "text")


def test_provenance_of_this_clone():
    provenance = record_provenance()
    assert provenance.machine["torch"] and provenance.machine["threads"] >= 1
    assert Provenance.from_json(provenance.to_json()) == provenance
    assert "unknown" in format_note(None, "make benchmark")


def test_tables():
    assert format_table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    table = Table("Errors", ("", "t = 0"), [["`geonet`", Spread(4.917, 0.5)], ["x", None]])
    assert table.format_rows() == [["`geonet`", "4.92 ± 0.500"], ["x", "–"]]
    assert table.to_markdown().startswith("**Errors**\n\n|  | t = 0 |")
    assert [format_cell(x) for x in (123.4, 12.34, 0.01234, 3)] == ["123", "12.3", "0.012", "3"]


# ---- studies on small inputs


def test_learned_solvers():
    errors = load_study("learned_solvers").errors_of(geonet.solver("linear"), 1)
    assert errors["mean"][0] == pytest.approx(0, abs=1e-6)
    assert errors["mean"][2] > 15


@pytest.mark.parametrize(("label", "limit"), [("1D random", 0.5), ("2D random", 0.4)])
def test_transport_accuracy(label, limit):
    """An order of magnitude below the paper's errors, on pairs that no page uses."""
    study = load_study("transport_accuracy")
    test_set = study.TEST_SETS[label]
    pairs = study.sample_pairs(test_set, 4, seed=9_000)
    path = study.solver_for(pairs)(pairs.source, pairs.target)
    errors = 100 * l1_tensor(path.density(QUARTERS), pairs.truth).mean(0)
    assert float(errors.max()) < limit


def test_solver_page_agrees_with_the_registry():
    study = load_study("solver_list")
    assert study.PAGE.read_text(encoding="utf-8") == study.format_page() + "\n", (
        "run make benchmark NAME=solvers"
    )


@pytest.mark.parametrize("name", ["api.md", "training.md", "adding-a-solver.md"])
def test_tables_of_the_reference_agree_with_the_docstrings(name):
    study = load_study("solver_list")
    text = (study.ROOT / "docs" / name).read_text(encoding="utf-8")
    assert study.format_reference(name) == text, "run make benchmark NAME=solvers"
    assert not re.search(r"^:::", text, re.MULTILINE)  # GitHub would show it
    assert text.count("| name |") == len(study.RUN.findall(text)) > 0
    assert not re.search(r"\|\s*\|$", text, re.MULTILINE), "a field has no text in its docstring"


@pytest.mark.parametrize("name", list_solver_names())
def test_every_option_of_a_solver_is_documented(name):
    for option in list_options(load_solver_class(name)):
        assert option.help, f"{name} does not document {option.name}"


def test_figures_on_pages_exist():
    pages = Path(__file__).parents[2] / "docs"
    for page in pages.glob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("![") and "](images/" in line:
                assert (pages / line.split("](")[1].rstrip(")")).exists(), line
