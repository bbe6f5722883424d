"""The benchmarks still run, and the cost of a step is what is said of it."""

import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.results import Result
from experiments.paper.experiments import EXPERIMENTS
from geonet.solvers.registry import load_solver_class, list_solver_names

PAGES = Path(__file__).resolve().parents[2] / "studies" / "pages"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(PAGES))
    return import_module


def test_training_step(benchmark):
    rows = benchmark("training_step").measure(1, repetitions=1)
    assert rows[0][0].startswith("paper")
    assert all(step > 0 and residual > 0 for _, step, residual in rows)


@pytest.mark.slow
def test_a_residual_costs_a_fifth_of_the_papers(benchmark):
    for dimension in (1, 2):
        rows = benchmark("training_step").measure(dimension, repetitions=5)
        paper, ours = rows[0][2], rows[-1][2]
        assert ours <= paper / 5


def test_training_variants(benchmark):
    module = benchmark("training_variants")
    variants = module.variants()
    assert len({str(config) for config in variants.values()}) == len(variants)
    config = next(iter(variants.values()))
    model = replace(
        config.model,
        rank=4,
        branch=replace(config.model.branch, width=4),
        trunk=replace(config.model.trunk, width=4),
    )
    cases = {name: module.sample_pairs(module.TEST_SETS[name], 2) for name in ("1D random", "1D OOD")}
    found = module.measure(replace(config, model=model), 0.1, cases)
    assert found.steps > 0
    assert len(found.inside) == len(found.outside) == 5
    assert found.inside[0] < 0.01  # the ends are given
    assert -100 <= found.distance < 100 and found.created > 0 and found.bent > 0


def test_learned_solvers(benchmark):
    import geonet

    errors = benchmark("learned_solvers").errors_of(geonet.solver("linear"), 1)
    assert errors["mean"][0] == pytest.approx(0, abs=1e-6)
    assert errors["mean"][2] > 15


LIMITS = {  # L1 in % at t = 0, ¼, ½, ¾, 1: an order of magnitude below the paper's
    "1D identity": (0.1, 0.2, 0.2, 0.2, 0.1),
    "1D random": (0.1, 0.5, 0.5, 0.5, 0.1),
    "1D high-res": (0.1, 0.5, 0.5, 0.5, 0.1),
    "1D OOD": (0.2, 2.5, 2.5, 2.5, 0.2),
    "2D identity": (0.3, 0.3, 0.3, 0.3, 0.3),
    "2D random": (0.2, 0.4, 0.4, 0.4, 0.2),
    "2D high-res": (0.2, 0.4, 0.4, 0.4, 0.2),
    "2D OOD": (0.2, 1.0, 1.0, 1.0, 0.2),
}


@pytest.mark.parametrize("label", LIMITS)
def test_transport_accuracy(benchmark, label):
    """On other pairs than those of the documentation, fewer in 2D, where the truth takes time."""
    module = benchmark("transport_accuracy")
    case = module.TEST_SETS[label]
    pairs = module.sample_pairs(case, 20 if case.grid.dimension == 1 else 4, seed=9_000)
    path = module.solver_for(pairs)(pairs.source, pairs.target)
    errors = 100 * module.l1(path.density(module.QUARTERS), pairs.truth).mean(0)
    assert all(e <= limit for e, limit in zip(errors.tolist(), LIMITS[label], strict=True))
    if not case.identity:
        off = (path.distance / pairs.distance - 1).abs()
        assert float(off.mean()) < 5e-3
        report = path.report
        for k, exact in enumerate(pairs.distance.tolist()):
            assert report.distance_lower_bound[k] <= exact <= report.distance_upper_bound[k]
        assert max(report.mass_error) < 5e-3 and max(report.negativity) == 0


def test_transport_in_3d_against_known_maps(benchmark):
    module = benchmark("transport_accuracy")
    pairs = module.known_map_pairs(2, seed=9_000)
    path = module.solver_for(pairs)(pairs.source, pairs.target)
    errors = 100 * module.l1(path.density(module.QUARTERS), pairs.truth).mean(0)
    assert float(errors.max()) < 0.3


def test_the_report_tells_failures(benchmark):
    """Of torn mass, not of what is mild; Newton's method solves all of them."""
    import geonet

    for name, pair in benchmark("transport_failures").cases().items():
        alone = geonet.geodesic(*pair, "transport-2d", corrections=0).report
        assert alone.in_distribution is False
        assert (alone.error_estimate > 0.5) is ("chequer" not in name)
        report = geonet.geodesic(*pair, "transport-2d").report
        assert report.in_distribution is False and report.info["converged"] is True
        assert report.error_estimate < 0.05
        assert report.distance_upper_bound < 1.02 * report.distance_lower_bound


def test_densities_of_anything_are_drawn(benchmark, tmp_path):
    """A row for each kind and two of pairs, small enough for a page."""
    module = benchmark("anything_pictures")
    rows = module.rows()
    assert [name.strip() for name in rows] == [*module.SQUARE.kinds, "pairs", "pairs"]
    assert {tuple(densities.shape) for densities in rows.values()} == {(10, 64, 64)}
    module.write(module.drawn(rows), tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size < 400_000


LEAST_RATIOS = {"`monge-ampere`, cold": (25, 120), "`barycenter`, cold": (70, 340)}


@pytest.mark.slow
def test_transport_is_far_faster_than_classical_solvers(benchmark):
    """A tenth of what `make transport-speed` finds on an idle machine; here others may be at work.

    All is timed in one run: what slows one of them down slows the others too, if not at once.
    """
    header, *rows = benchmark("transport_speed").speed_rows()
    assert "one pair" in header[0]
    ratios = {name: (one, of_batch) for name, _, one, of_batch in rows[1:]}
    assert set(ratios) == {"the same in torch", "`monge-ampere`, cold", "`barycenter`, cold"}
    for name, (least, least_of_batch) in LEAST_RATIOS.items():
        one, of_batch = map(float, ratios[name])
        assert one > least and of_batch > least_of_batch


def test_hot_paths_are_collected_and_run(tmp_path):
    """All are imported, the quickest is run, as `make hot-paths` does but for the timing."""
    pytest.importorskip("pytest_benchmark")
    command = [sys.executable, "-m", "pytest", "-p", "benchmark", "-p", "no:cacheprovider"]
    options = ["-k", "quantile", "--benchmark-disable", f"--benchmark-storage={tmp_path}"]
    run = subprocess.run(
        [*command, "studies/hot_paths", *options],
        cwd=PAGES.parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed, " in run.stdout


# ---- the page of the solvers


def test_the_page_of_solvers_agrees_with_the_registry(benchmark):
    """As `make solvers` writes it."""
    module = benchmark("solver_list")
    assert module.PAGE.read_text(encoding="utf-8") == module.page() + "\n", "run make solvers"


@pytest.mark.parametrize("name", list_solver_names())
def test_every_option_of_a_solver_is_explained(benchmark, name):
    for option, _, meaning in benchmark("solver_list").options_of(load_solver_class(name)):
        assert meaning, f"{name} says nothing about {option}"


# ---- the page of the reproduction


def between_markers(page, name):
    """What a page has for an experiment."""
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    text, end, after = rest.partition(f"\n<!-- /{name} -->")
    assert begin and end, f"{name} has no place"
    assert begin not in before + after, f"{name} has two places"
    return text


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_reproduction_page_has_the_results(benchmark, name):
    """Of every experiment, in full, with its picture, as `make reproduction` puts them there."""
    module = benchmark("reproduction_page")
    page = (module.ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    text = benchmark("published").without_note(between_markers(page, name))
    assert (module.RESULTS / f"{name}.json").exists(), f"run geonet reproduce {name}"
    assert text == module.section(name)
    drawn, picture = module.RESULTS / f"{name}.png", module.IMAGES / f"reproduction-{name}.png"
    assert (f"](images/{picture.name})" in text) == picture.exists()
    if drawn.exists():  # it is kept in docs/images only
        assert picture.read_bytes() == drawn.read_bytes()


@pytest.fixture
def reproduced(benchmark, monkeypatch, tmp_path):
    """The page's module, in a repository with two results, the second with a picture."""
    module = benchmark("reproduction_page")
    results, images = tmp_path / "results", tmp_path / "docs" / "images"
    images.mkdir(parents=True)
    for name in ("one", "two"):
        figure = Figure(figsize=(1, 1)) if name == "two" else None
        Result(name, f"Title {name}", False, [], [f"Remark on {name}."], figure).save(results)
    section = module.section
    changes = {
        "ROOT": tmp_path,
        "RESULTS": results,
        "IMAGES": images,
        "EXPERIMENTS": ("one", "two"),
        "section": lambda name: section(name, results),
        "FIGURES": {"one": "one", "two": "two"},
        "write_notes": lambda figures: None,
    }
    for attribute, value in changes.items():
        monkeypatch.setattr(module, attribute, value)
    return module


def test_results_are_put_between_their_markers(reproduced, tmp_path):
    page = tmp_path / "docs" / "reproduction.md"
    page.write_text("# A\n<!-- one -->\nold\n<!-- /one -->\nB\n<!-- two -->\n\n<!-- /two -->\nC\n")
    for _ in range(2):  # the second time replaces what the first wrote
        reproduced.main()
        assert page.read_text() == (
            "# A\n<!-- one -->\nRemark on one.\n<!-- /one -->\nB\n"
            "<!-- two -->\nRemark on two.\n\n"
            "![Title two](images/reproduction-two.png)\n<!-- /two -->\nC\n"
        )
    pictures = list((tmp_path / "docs" / "images").iterdir())
    assert [file.name for file in pictures] == ["reproduction-two.png"]
    assert pictures[0].read_bytes() == (tmp_path / "results" / "two.png").read_bytes()


def test_quick_results_are_not_put_on_the_page(reproduced, tmp_path):
    Result("one", "Title one", True, []).save(tmp_path / "results")
    with pytest.raises(
        SystemExit, match="studies/results/one is of a quick run; run geonet reproduce one"
    ):
        reproduced.section("one")
