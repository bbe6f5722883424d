"""docs/benchmark.md has the results, and what it says follows from them."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.figures import make_figures
from benchmarks.records import Benchmark

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies" / "pages"))
    return import_module("benchmark_page")


def between_markers(text, name):
    """What a page has in a place."""
    found = re.findall(f"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
    assert len(found) == 1, f"{name} has {len(found)} places"
    return found[0]


def test_the_page_has_the_results(page, made_up):
    """Those of the last full run; before the first one there is nothing in their places."""
    text = page.PAGE.read_text(encoding="utf-8")
    if (page.RESULTS / "benchmark.json").exists():
        found = page.read()
        alone = import_module("published").without_note
        for name, section in page.sections(found).items():
            assert alone(between_markers(text, name)).strip() == section
        readme = page.README.read_text(encoding="utf-8")
        assert alone(between_markers(readme, "benchmark")) == page.readme(found)
        assert alone(between_markers(readme, "any")).strip() == page.readme_any(found)
    else:
        assert {between_markers(text, name) for name in page.sections(made_up)} == {""}


def test_results_are_put_between_their_markers(page, made_up, monkeypatch, tmp_path):
    results, images = tmp_path / "results", tmp_path / "images"
    results.mkdir()
    images.mkdir()
    made_up.save(results)
    for name in page.PICTURES:
        (results / f"benchmark-{name}.png").write_bytes(name.encode())
    (tmp_path / "benchmark.md").write_text(page.PAGE.read_text(encoding="utf-8"))
    places = (f"<!-- {name} -->\n\n<!-- /{name} -->\n" for name in ("any", "benchmark"))
    (tmp_path / "README.md").write_text("A\n".join(places))
    read = page.read
    for name, value in {
        "RESULTS": results,
        "IMAGES": images,
        "PAGE": tmp_path / "benchmark.md",
        "README": tmp_path / "README.md",
        "read": lambda: read(results),
        "write_notes": lambda figures: None,
    }.items():
        monkeypatch.setattr(page, name, value)
    page.main()
    text = (tmp_path / "benchmark.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\(images/(.*?)\)", text)
    assert sorted(pictures) == sorted(file.name for file in images.iterdir())
    assert len(pictures) == 6
    for name, section in page.sections(made_up).items():
        assert section and between_markers(text, name) == section
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert between_markers(readme, "benchmark") == page.readme(made_up)
    assert between_markers(readme, "any") == page.readme_any(made_up)


def test_the_page_has_all_pictures(page, made_up):
    assert list(make_figures(made_up)) == list(page.PICTURES)


def test_results_that_do_not_belong_on_the_page(page, made_up, tmp_path):
    Benchmark({}, True, made_up.settings, [], made_up.scaling).save(tmp_path)
    with pytest.raises(SystemExit, match="is of a quick run; run geonet benchmark."):
        page.read(tmp_path)
    lines = [row for row in made_up.settings if row.suite == "1d"]
    Benchmark({}, False, lines, [], made_up.scaling).save(tmp_path)
    with pytest.raises(SystemExit, match="has not all suites; run geonet benchmark."):
        page.read(tmp_path)


def test_any_pair_has_empty_places_before_it_is_measured(page, made_up):
    without = replace(made_up, any=None)
    assert page.readme_any(without) == "" and set(page.any_sections(without).values()) == {""}
    assert tuple(page.any_sections(made_up)) == page.ANY_PLACES


def test_the_remark_names_the_winner(page, row):
    net = row(
        label="transport-2d", kind="learned", seconds=0.01, l1_percent=0.1, training_seconds=99.0
    )
    exact = row(label="exact", seconds=1.0, l1_percent=0.05)
    rough = row(label="rough", seconds=0.001, l1_percent=5.0)
    assert page.remark([net, exact, rough], "2d") == (
        "The fastest 2D solver with an error below 1 % is `transport-2d` (10.0 ms, 0.100 %). The "
        "fastest classical one is `exact` (1000 ms, 0.050 %); it takes 100 times as long. The "
        "fastest classical solver that is as accurate as `transport-2d` is `exact`; it takes 100 "
        "times as long. Training `transport-2d` pays after 100 pairs."
    )
    quick = row(label="quick", seconds=0.001, l1_percent=0.1)
    text = page.remark([net, quick], "2d")
    start = "The fastest 2D solver with an error below 1 % is `quick` (1.00 ms, 0.100 %)."
    assert text.startswith(start)
    assert "The fastest learned one is `transport-2d`" in text
    assert text.endswith("it takes 0.100 times as long. Training `transport-2d` never pays.")
    none = "No classical solver is as accurate as `transport-2d`."
    assert page.remark([net], "2d").endswith(none)


def test_the_readmes_table(page, row):
    net = {"label": "transport-2d", "solver": "transport-2d", "kind": "learned"}
    rows = [
        row(**net, seconds=0.01, l1_percent=0.1),
        row(**net, pairs=64, seconds=0.002, l1_percent=0.1),
        row(label="pot, well", solver="pot", seconds=2.0, l1_percent=1.0),
        row(label="pot, early", solver="pot", seconds=0.1, l1_percent=5.0),
        row(label="auto", solver="auto", seconds=0.01, l1_percent=0.1),
    ]
    title, _, header, _, first, second = page.readme(Benchmark({}, False, rows)).splitlines()
    assert title == "**Error and time in 2D: 64² cells, densities at 5 times**"
    assert header.startswith("| solver and setting | kind | L1 error, % | one pair, ms |")
    assert first == "| `transport-2d` | learned | 0.100 | 10.0 | 1.00 | 2.00 | 1.00 |"
    assert second == "| `pot, well` | classical | 1.00 | 2000 | 200 | 2000 | 1000 |"
