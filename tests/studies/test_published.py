"""Figures on pages say when they are older than their sources."""

import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_MEASURED = {("docs/accuracy.md", "machine"), ("docs/benchmark.md", "machine")}


@pytest.fixture
def published(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies" / "pages"))
    return import_module("published")


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository, but for weights and pictures, in which anything may be written."""
    leave = shutil.ignore_patterns("__pycache__", "*.so", "pretrained", "images")
    for folder in ("src", "docs", "studies"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave)
    shutil.copy(ROOT / "README.md", tmp_path)
    weights = "src/geonet/operators/pretrained"
    (tmp_path / weights).symlink_to(ROOT / weights)
    return tmp_path


def wrong_notes(published, root, *names):
    """Places whose note is not what their figures' stamp and sources call for; of all figures."""
    between = import_module("pages").between
    return [
        (page, section)
        for figures in map(published.FIGURES.get, names or published.FIGURES)
        for page, sections in figures.places.items()
        for section in sections
        if not between(root / page, section).endswith(f"\n\n{figures.note(root)}")
    ]


# ---- the pages as they are


def test_every_figure_on_a_page_has_the_note_it_needs(published):
    """Stale figures say so, fresh ones do not; `make stale` renews the notes."""
    assert wrong_notes(published, ROOT) == [], "run make stale"


def test_every_marked_place_has_figures_with_a_stamp(published):
    marked = {
        (file.relative_to(ROOT).as_posix(), name)
        for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for name in re.findall("^<!-- ([^/].*?) -->$", file.read_text(encoding="utf-8"), re.M)
    }
    places = [
        (page, section)
        for figures in published.FIGURES.values()
        for page, sections in figures.places.items()
        for section in sections
    ]
    assert len(places) == len(set(places))
    assert set(places) == marked - NOT_MEASURED


def test_every_command_is_a_target(published):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for figures in published.FIGURES.values():
        target = figures.command.split()[1]
        assert re.search(f"^{target}: ", makefile, re.M), figures.command


@pytest.mark.parametrize("name", ["accuracy", "benchmark", "command-line", "table-1", "mnist"])
def test_sources_have_what_is_measured(published, name):
    figures = published.FIGURES[name]
    files = import_module("geonet.evaluation.sources").source_files(
        figures.modules, published.folders()
    )
    assert "geonet/measures/density.py" in files and "geonet/solvers/registry.py" in files
    assert "published.py" not in files and "pages.py" not in files


# ---- in a copy


def publish_gradients(published, clone):
    stamped = published.begun("gradients", clone)
    sections = {"docs/gradients.md": {"gradients": "| a table |"}}
    published.publish("gradients", stamped, sections, clone)
    return published.FIGURES["gradients"]


def test_what_was_just_measured_is_fresh(published, clone):
    figures = publish_gradients(published, clone)
    assert figures.is_fresh(clone) and wrong_notes(published, clone, "gradients") == []
    stored = figures.stored(clone)
    text = import_module("pages").between(clone / "docs" / "gradients.md", "gradients")
    assert text == f"| a table |\n\nMeasured outside a clone on {place(stored)}."
    assert published.without_note(text) == "| a table |"


def place(stamp):
    threads = stamp.machine["threads"]
    return f"{stamp.machine['cpu']}, " + ("1 thread" if threads == 1 else f"{threads} threads")


def test_a_changed_source_shows(published, clone):
    """The test above fails then, until the note says it; a change back makes the figures fresh."""
    figures = publish_gradients(published, clone)
    source = clone / "src" / "geonet" / "fields" / "cosine_series.py"
    before = source.read_text(encoding="utf-8")
    source.write_text(f"{before}\nCHANGED = 1\n", encoding="utf-8")
    assert not figures.is_fresh(clone)
    assert wrong_notes(published, clone, "gradients") == [("docs/gradients.md", "gradients")]
    published.write_notes(figures, clone)
    assert wrong_notes(published, clone, "gradients") == []
    text = (clone / "docs" / "gradients.md").read_text(encoding="utf-8")
    where = place(figures.stored(clone))
    assert (
        f"| a table |\n\n*Measured before its sources changed (commit unknown, on {where}); "
        "`make gradients` measures it again.*\n<!-- /gradients -->"
    ) in text
    source.write_text(before, encoding="utf-8")
    assert wrong_notes(published, clone, "gradients") == [("docs/gradients.md", "gradients")]


def test_words_and_pictures_do_not_show(published, clone):
    figures = publish_gradients(published, clone)
    source = clone / "src" / "geonet" / "fields" / "cosine_series.py"
    source.write_text("# A comment.\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    for part in ("plotting/look.py", "cli/output.py", "training/loop.py"):
        with (clone / "src" / "geonet" / part).open("a", encoding="utf-8") as file:
            file.write("\nCHANGED = 1\n")
    assert figures.is_fresh(clone) and wrong_notes(published, clone, "gradients") == []


def test_a_result_from_before_there_were_stamps_is_stale(published, clone):
    (clone / "studies" / "results" / "pages.json").unlink(missing_ok=True)
    figures = published.FIGURES["gradients"]
    assert figures.stored(clone) is None and not figures.is_fresh(clone)
    assert figures.note(clone) == (
        "*Measured at an unknown commit, before sources were noted; "
        "`make gradients` measures it again.*"
    )


def test_results_have_their_stamps_in_their_own_files(published, clone):
    from geonet.evaluation.results import Result
    from geonet.evaluation.stamp import stamp

    figures = published.FIGURES["ood"]
    stamped = stamp(figures.modules, published.folders(clone))
    Result("ood", "Title", False, [], stamp=stamped).save(clone / "studies" / "results")
    assert figures.stored(clone) == stamped and figures.is_fresh(clone)
    published.write_notes(figures, clone)
    text = (clone / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert f"\n\nMeasured outside a clone on {place(stamped)}.\n<!-- /ood -->" in text


def test_figures_are_put_where_they_are_listed(published, clone):
    stamped = published.begun("gradients", clone)
    for sections in ({}, {"docs/gradients.md": {"other": ""}}, {"README.md": {"gradients": ""}}):
        with pytest.raises(SystemExit, match="places of gradients are others"):
            published.publish("gradients", stamped, sections, clone)


def test_the_list_names_all_and_renews_the_notes(published, clone, capsys):
    figures = publish_gradients(published, clone)
    (clone / "studies" / "pages" / "gradient_accuracy.py").write_text("A = 1\n")
    import_module("stale").main(clone)
    lines = capsys.readouterr().out.splitlines()
    assert "| gradients | stale | none | make gradients |" in lines
    assert "| table-1 | stale | unknown | make reproduce NAME=table-1 |" in lines
    assert len([line for line in lines if "| make " in line]) == len(published.FIGURES)
    assert lines[-1].endswith(f"of {len(published.FIGURES)} are stale; the pages say which.")
    assert wrong_notes(published, clone, "gradients") == [] and not figures.is_fresh(clone)
