"""Every experiment of the paper runs; its data, errors and remarks are correct."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from typer.testing import CliRunner

from benchmarks.results import Spread, Table
from experiments import MODELS
from experiments.__main__ import app
from experiments.autoencoder import as_rows, load_autoencoder
from experiments.mnist import sample_digits
from experiments.paper import clouds, digits, mixtures, runtime, table_1
from experiments.paper import published_values as paper
from experiments.paper.experiments import CONFIGS, EXPERIMENTS, Conditions
from experiments.point_clouds import BOX_CLOUDS, histogram
from geonet import Density
from geonet.evaluation import TEST_SETS, TIME_LABELS
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import write_tensors
from geonet.solvers.neural.pretrained import pretrained_file
from geonet.solvers.registry import list_solver_names, make_solver
from geonet.training.config import read_config

QUICK = {
    "table-1": False,  # has a figure
    "mnist": False,
    "geodesics-2d": True,
    "mnist-figure": True,
}
SLOW = {
    **{"table-2": False, "table-3": False, "runtime": True},
    **{"super-resolution": True, "geodesics-1d": True, "point-clouds": True},
}
LEARNED = ("geonet-", "transport-", "deeponet-", "mnist-autoencoder")


@pytest.mark.parametrize(
    ("name", "has_figure"),
    [*QUICK.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in SLOW.items())],
)
def test_experiment_runs(name, has_figure, tmp_path, monkeypatch):
    """The files are complete, and no models are used but those that --train trains."""
    used, solver = set(), Conditions.solver
    monkeypatch.setattr(Conditions, "solver", lambda self, n: used.add(n) or solver(self, n))
    result = CliRunner().invoke(app, [name, "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"\n{name}: ")
    endings = ["json", "md", "png"] if has_figure else ["json", "md"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.{e}" for e in endings]
    content = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert (content["name"], content["quick"]) == (name, True) and content["tables"]
    for table in content["tables"]:
        assert f"**{table['title']}**" in page and table["title"] in result.output
        assert table["rows"]
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert all(math.isfinite(number) and number >= 0 for number in list_numbers(row))
    assert {n for n in used if n.startswith(LEARNED)} <= set(EXPERIMENTS[name].models)
    if name == "table-1":
        check_table_1(content["tables"])


def list_numbers(cells):
    for cell in cells:
        if isinstance(cell, dict):
            yield from cell.values()
        elif isinstance(cell, int | float):
            yield cell


def check_table_1(tables):
    """All kinds of method are measured, and the exact and the learned ones are ranked correctly."""
    properties, costs = (
        {row[-len(t["columns"]) :][k]: row for row in t["rows"]}
        for t, k in zip(tables, (1, 0), strict=True)
    )
    assert list(properties) == list(costs) == [f"`{name}`" for name in table_1.KINDS]
    half = {name: row[4]["mean"] for name, row in costs.items()}
    assert half["`transport-1d`"] < half["`geonet-1d`"] < half["`barycenter`"] < 15
    assert half["`quantile`"] < 1 and half["`deeponet-1d`"] < 5 and half["`pinn`"] < 30


def test_experiments_and_their_models():
    assert set(EXPERIMENTS) == {*QUICK, *SLOW}
    configs = {read_config(file).name for file in CONFIGS.glob("*.toml")}
    for name, experiment in EXPERIMENTS.items():
        models = experiment.models
        assert experiment.name == name and experiment.title and models
        assert set(models) <= configs | {"mnist-autoencoder"}
        assert set(models) - {"mnist-autoencoder"} <= set(list_solver_names())
        if "mnist-autoencoder" in models:  # its codes are needed by the next training
            assert models.index("mnist-autoencoder") < models.index("geonet-mnist")


def test_conditions():
    conditions = Conditions(trained=(("geonet-1d", "runs/new.safetensors"),))
    assert conditions.count(50, 3) == 50 and Conditions(quick=True).count(50, 3) == 3
    assert conditions.solver("geonet-1d") == "runs/new.safetensors"
    assert conditions.file("geonet-1d") == Path("runs/new.safetensors")
    assert conditions.solver("geonet-2d") == "geonet-2d"
    assert conditions.file("geonet-2d") == pretrained_file("geonet-2d")
    assert conditions.file("geonet-cloud") == MODELS / "geonet-cloud.safetensors"


def test_published_tables():
    assert paper.TABLE_2.keys() == TEST_SETS.keys()
    assert paper.TABLE_3.keys() == {"GeONet", *clouds.FLOWS}
    tables = (paper.TABLE_2, paper.TABLE_3, paper.MNIST)
    assert all(len(row) == len(TIME_LABELS) for table in tables for row in table.values())
    assert paper.TABLE_2["1D random"][2] == Spread(5.76, 3.56)
    assert paper.TABLE_3["GeONet"][2] == Spread(30.0, 1.10)


# ---- Table 1, mixtures and times


def test_training_seconds_are_read_from_the_file(tmp_path):
    file = write_tensors(tmp_path / "a.safetensors", {"w": torch.zeros(1)}, {"seconds": 7.5})
    assert table_1._header("geonet-1d", Conditions(trained=(("geonet-1d", str(file)),)))[0] == 7.5
    assert table_1._header("quantile", Conditions()) == (None, {})


@pytest.mark.parametrize(("last", "is_under"), [(2.0, True), (2.1, False)])
def test_errors_are_compared_with_the_paper_at_every_time(last, is_under):
    theirs = ["paper", *(Spread(mean, 0.1) for mean in (2.0, 3.0, 4.0, 3.0, 2.0))]
    ours = ["ours", *(Spread(mean, 9.0) for mean in (2.0, 3.0, 4.0, 3.0, last))]
    assert mixtures._under_paper(Table("", TIME_LABELS, [theirs, ours])) is is_under


def test_times_are_milliseconds_per_pair(monkeypatch):
    """The first pair is solved once more before, so that imports and caches do not count."""
    clock = iter([0.0, 0.010, 1.0, 1.030])
    monkeypatch.setattr(runtime, "perf_counter", lambda: next(clock))
    solved = []

    def solver(source, target):
        solved.append((source, target))
        return SimpleNamespace(density=lambda times: None)

    spread = runtime._milliseconds(solver, [("a", "b"), ("c", "d")], 20)
    assert solved == [("a", "b"), ("a", "b"), ("c", "d")]
    assert spread.mean == pytest.approx(20) and spread.sd == pytest.approx(200**0.5)


def test_speed_is_relative_to_pot():
    milliseconds = {"POT": 100.0, "POT, stopped": 30.0, "geonet-1d": 4.0, "transport-1d": 20.0}
    found = {name: {50: Spread(value, 1.0)} for name, value in milliseconds.items()}
    rows = runtime._ratios(found, runtime.RACES[0], ("", "50")).rows
    assert [row[1] for row in rows] == ["25.0", "7.50", "5.00", "1.50"]
    for race in runtime.RACES:  # all solvers get the cells without the formula of the mixture
        ends = [end for pair in runtime._pairs(race, 20, 2) for end in pair]
        assert all(end.mixture is None and end.grid == race.box.with_shape(20) for end in ends)


# ---- Clouds


@pytest.fixture
def pair(monkeypatch):
    """Return a pair of clouds of 200 particles."""
    monkeypatch.setattr(clouds, "PARTICLES", 200)
    return clouds.cloud_pairs(1)[0]


def test_clouds_are_reproducible_samples_in_the_box():
    pairs, again = clouds.cloud_pairs(3), clouds.cloud_pairs(3)
    for first, second in zip(pairs, again, strict=True):
        assert first.source.shape == (3000, 2) and first.source.dtype == torch.float64
        assert float(first.source.min()) >= 0 and float(first.source.max()) <= 5
        assert torch.equal(first.target, second.target)
        assert not torch.equal(first.source, first.again[0])
        offset = first.source.mean(0) - first.again[0].mean(0)  # a sample of the same mixture
        assert float(offset.abs().max()) < 7 * float(first.source.std(0).max()) / 3000**0.5
    assert not torch.equal(pairs[0].source, clouds.cloud_pairs(3, seed=1)[0].source)


def test_reference_of_clouds_is_the_optimal_matching(pair):
    positions = clouds._move_particles(pair.source, pair.target)
    assert torch.equal(positions[0], pair.source)
    assert torch.equal(positions[4].sort(0).values, pair.target.sort(0).values)
    for k, t in enumerate(QUARTERS):
        assert torch.allclose(positions[k], (1 - t) * positions[0] + t * positions[4])
    cost = torch.cdist(pair.source, pair.target) ** 2
    minimum = float(cost[linear_sum_assignment(cost.numpy())].sum())
    assert float(((positions[4] - positions[0]) ** 2).sum()) == pytest.approx(minimum, rel=1e-6)
    assert torch.equal(pair.truth.tensor, histogram(positions, BOX_CLOUDS).tensor)
    assert torch.equal(pair.truth.tensor[0], pair.ends[0].tensor)
    assert float(pair.noise.min()) > 0.3 and float(pair.noise.max()) < 1.2
    same = replace(pair, again=(pair.source, pair.target))
    assert float(same.noise.max()) == 0


def test_particles_of_both_ends_are_weighted_by_time(pair, monkeypatch):
    """Particles of the target follow the reverse path, with reversed time."""
    forth = clouds._move_particles(pair.source, pair.target)
    back = clouds._move_particles(pair.target, pair.source)

    def solver(source, target):
        is_forth = torch.equal(source.tensor, pair.ends[0].tensor)
        return SimpleNamespace(trajectories=lambda times, points: forth if is_forth else back)

    monkeypatch.setattr(clouds, "make_solver", lambda name: solver)
    both = clouds._push_particles(pair, "some", both=True)
    error = (both.tensor - pair.truth.tensor).abs().sum((-2, -1)) * BOX_CLOUDS.cell_volume
    assert float(error.max()) < 0.02  # particles on the edges of cells
    still = pair.source.expand(5, -1, -1)
    monkeypatch.setattr(
        clouds,
        "make_solver",
        lambda name: lambda *_: SimpleNamespace(trajectories=lambda *_: still),
    )
    frames = clouds._push_particles(pair, "some", both=False).tensor
    assert torch.allclose(frames, pair.ends[0].tensor.expand(5, -1, -1))


def test_flows_have_their_default_budget_unless_quick():
    for method in clouds.FLOWS.values():
        full, quick = (clouds._flow(method, Conditions(quick)) for quick in (False, True))
        assert full == make_solver(method) and quick.steps == clouds.QUICK_STEPS < full.steps


@pytest.mark.parametrize(("half", "word"), [(15.0, "at most half"), (15.1, "not at half")])
def test_remark_compares_interior_times_with_half_the_papers_error(half, word):
    rows = [
        [label, *(Spread(mean, 1.0) for mean in means)]
        for label, means in (
            ("paper: GeONet", (22.9, 28.8, 30.0, 29.6, 22.6)),
            ("truth of a second sample", (20.0, 25.0, 26.0, 27.0, 20.0)),
            ("`transport-cloud`, density", (50.0, 14.4, half, 14.8, 50.0)),
        )
    ]
    (remark,) = clouds._write_goal_remark(rows)
    assert word in remark


# ---- Digits


def test_pairs_of_digits_are_distinct_and_reproducible():
    first, second = digits.digit_pairs(50)
    both = np.concatenate([first, second]).reshape(100, -1)
    assert len(np.unique(both, axis=0)) == 100
    sample = {image.tobytes() for image in sample_digits().images}
    assert all(row.tobytes() in sample for row in both)
    assert np.array_equal(first, digits.digit_pairs(50)[0])
    assert not np.array_equal(first, digits.digit_pairs(50, seed=1)[0])


def test_decoded_paths_of_codes():
    autoencoder, images = load_autoencoder(), digits.digit_pairs(3)
    pairs = digits.code_pairs(images, autoencoder)
    decoded = pairs.images(pairs.truth)
    assert decoded.shape == (3, 5, 784)
    for k, ends in ((0, images[0]), (4, images[1])):
        expected = autoencoder.decode(autoencoder.encode(as_rows(ends)))
        assert float(digits._picture_errors(decoded[:, k], expected).max()) < 0.1
    uniform = Density(torch.ones(3, 5, 32, dtype=torch.float64), pairs.source.grid)
    mass = torch.stack([(1 - t) * pairs.source.mass + t * pairs.target.mass for t in QUARTERS], 1)
    codes = (mass[..., None] / 5 - 10).expand(3, 5, 32)
    assert torch.allclose(pairs.images(uniform), autoencoder.decode(codes.float()), atol=1e-5)


def test_image_errors_are_relative():
    exact = torch.tensor([[[0.0, 1.0, 1.0]], [[0.5, 0.5, 0.0]]])
    computed = exact + torch.tensor([[[0.5, -0.5, 0.0]], [[0.0, 0.0, 0.25]]])
    assert digits._picture_errors(computed, exact).tolist() == [[0.5], [0.25]]
