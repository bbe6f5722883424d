"""Every experiment runs, with models that can be trained, and measures what it says."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.results import Spread, Table
from experiments.autoencoder import as_rows, load_autoencoder
from experiments.mnist import sample_digits
from experiments.paper import (
    clouds,
    digits,
    mixtures,
    runtime,
)
from experiments.paper import (
    experiments as paper,
)
from experiments.paper import (
    loss_curves as losses,
)
from experiments.paper import (
    table_1 as kinds,
)
from experiments.paper.experiments import EXPERIMENTS, Conditions
from geonet import Density
from geonet import evaluation as suites
from geonet._toml import to_table
from geonet.cli import main
from geonet.evaluation import TEST_SETS, TIME_LABELS, sample_pairs
from geonet.mixture import BOX_CLOUDS
from geonet.mixture import cloud_mixtures as cloud_mixtures
from geonet.paths import QUARTERS
from geonet.samples import histogram
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, write_tensors
from geonet.solvers.registry import make_solver, list_solver_names
from geonet.training.config import (
    ProblemSettings,
    SamplingSettings,
    TrainingConfig,
    ValidationSettings,
    read_config,
)
from geonet.training.loop import train

ROOT = Path(__file__).parents[3]
NAMES = [
    "table-1",
    "table-2",
    "table-3",
    "mnist",
    "metrics",
    "runtime",
    "super-resolution",
    "geodesics-1d",
    "geodesics-2d",
    "point-clouds",
    "mnist-figure",
    "ood",
    "loss-curves",
    "potentials",
]
WITHOUT_FIGURE = ["table-1", "table-2", "table-3", "mnist", "metrics"]
LEARNED = ("geonet-", "transport-", "deeponet-", "mnist-autoencoder")
QUICK = Conditions(quick=True)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def numbers(cells):
    """All numbers in cells as JSON has them."""
    for cell in cells:
        if isinstance(cell, dict):
            yield from cell.values()
        elif isinstance(cell, int | float):
            yield cell


def assert_sound(content):
    """A result, read from its file: whole rows of finite figures."""
    assert content["tables"]
    for table in content["tables"]:
        assert table["rows"] and table["title"]
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert all(math.isfinite(number) and number >= 0 for number in numbers(row))


# ---- the list


def test_the_papers_experiments_are_there():
    assert list(EXPERIMENTS) == NAMES
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.title and "\n" not in experiment.title


@pytest.mark.parametrize("name", NAMES)
def test_every_model_can_be_trained(name):
    configs = {read_config(file).name for file in (ROOT / "studies" / "configs").glob("*.toml")}
    models = EXPERIMENTS[name].models
    assert models and len(set(models)) == len(models)
    assert set(models) <= configs | {"mnist-autoencoder"}
    assert set(models) - {"mnist-autoencoder"} <= set(list_solver_names())


@pytest.mark.parametrize("name", NAMES)
def test_codes_are_learned_after_their_autoencoder(name):
    models = EXPERIMENTS[name].models
    if "mnist-autoencoder" in models:
        assert models.index("mnist-autoencoder") < models.index("geonet-mnist")


def test_the_papers_tables_have_five_times():
    assert paper.TABLE_2.keys() == TEST_SETS.keys()
    assert paper.TABLE_3.keys() == {"GeONet", *clouds.FLOWS}
    for row in (*paper.TABLE_2.values(), *paper.TABLE_3.values()):
        assert len(row) == len(TIME_LABELS) and all(isinstance(cell, Spread) for cell in row)
    for row in (*paper.MNIST.values(), *paper.METRICS.values()):
        assert len(row) == len(TIME_LABELS) and all(cell > 0 for cell in row)
    kinds_of_pairs = ("identity", "random")
    assert paper.MNIST.keys() == {f"{a}, {b}" for a in ("codes", "images") for b in kinds_of_pairs}
    assert paper.FINAL_LOSS.keys() == paper.HOURS_ON_A_GPU.keys() == set(losses.MODELS)


@pytest.mark.parametrize(
    ("found", "printed"),
    [
        (paper.TABLE_2["1D random"][2], Spread(5.76, 3.56)),
        (paper.TABLE_2["2D OOD"][4], Spread(7.14, 0.882)),
        (paper.TABLE_3["GeONet"][2], Spread(30.0, 1.10)),
        (paper.TABLE_3["RF"][0], Spread(0.0, 0.0)),
    ],
)
def test_means_and_deviations_are_not_mixed_up(found, printed):
    assert found == printed


# ---- cheap ones are run here


def test_geodesics_in_1d(monkeypatch, tmp_path):
    """With a plain fade in the place of POT's barycenters, which take half a minute."""
    in_its_place = {"barycenter": "linear"}
    monkeypatch.setattr(
        suites, "make_solver", lambda name: make_solver(in_its_place.get(name, name))
    )
    result = mixtures.geodesics_1d(QUICK)
    assert (result.name, result.quick) == ("geodesics-1d", True)
    (table,) = result.tables
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == ["`geonet-1d`", "`transport-1d`", "`POT`"]
    assert table.title.startswith("2 pairs")
    for errors in rows.values():
        assert len(errors) == 5 and all(0 <= error < 100 for error in errors)
    assert max(rows["`transport-1d`"]) < 1 < max(rows["`geonet-1d`"]) < 15 < rows["`POT`"][2]
    assert len(result.figure.axes) == 4 * 2  # methods × pairs
    files = result.save(tmp_path)
    assert files[2].stat().st_size > 10_000
    assert_sound(json.loads(files[0].read_text()))


def test_loss_curves(tmp_path):
    result = losses.loss_curves(QUICK)
    content = json.loads(result.save(tmp_path)[0].read_text())
    assert_sound(content)
    (table,) = content["tables"]
    assert [row[0] for row in table["rows"]] == [f"`{name}`" for name in losses.MODELS]
    for row in table["rows"]:
        loss, *terms = (float(cell) for cell in row[2:9] if cell != "–")
        assert 0 < loss == pytest.approx(sum(terms), rel=0.2)
        assert all(term > 0 for term in terms)
    assert len(result.figure.axes) == 2 * len(losses.MODELS)


# ---- the others too


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs(name, tmp_path, capsys, monkeypatch):
    """And asks its conditions for no other models than those that --train trains."""
    asked, solver = set(), Conditions.solver
    monkeypatch.setattr(
        Conditions, "solver", lambda self, name: asked.add(name) or solver(self, name)
    )
    code = main(["reproduce", name, "--quick", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    assert captured.out.startswith(f"\n{name}: ")
    content = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert (content["name"], content["quick"]) == (name, True)
    assert_sound(content)
    kinds = ["json", "md"] if name in WITHOUT_FIGURE else ["json", "md", "png"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.{k}" for k in kinds]
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    for table in content["tables"]:
        assert f"**{table['title']}**" in page and table["title"] in captured.out
    learned = {name for name in asked if name.startswith(LEARNED)}
    assert learned <= set(EXPERIMENTS[name].models)


# ---- losses


@pytest.fixture
def logged(tmp_path, monkeypatch):
    """Writes the file of a model on a family with a loss of 8, 4 and 2 after 10, 20 and 40."""

    def write(name, family, dimension):
        config = TrainingConfig(
            name, ProblemSettings(family), 40, model=GeONetSettings(dimension=dimension, sensors=8)
        )
        terms = ("continuity", "hamilton_jacobi", "source", "target")
        lines = [
            {"step": step, "loss": loss, "terms": dict.fromkeys(terms, loss / 4)}
            for step, loss in ((10, 8.0), (20, 4.0), (40, 2.0))
        ]
        header = {"training": to_table(config), "history": lines, "steps": 40, "seconds": 120.0}
        return write_tensors(tmp_path / f"{name}.safetensors", {"w": torch.zeros(1)}, header)

    monkeypatch.setattr("geonet.solvers.neural.model.PRETRAINED", tmp_path)
    return write


@pytest.mark.parametrize(
    ("family", "dimension", "scale"),
    [("mixtures-1d", 1, 10**2), ("mixtures-2d", 2, 5**4), ("clouds", 2, 5**4)],
)
def test_losses_are_in_the_units_of_the_papers_box(logged, family, dimension, scale):
    logged("some", family, dimension)
    steps, curves, header = losses.history(Conditions(), "some")
    assert steps == [10, 20, 40]
    assert curves["loss"] == pytest.approx([8 / scale, 4 / scale, 2 / scale])
    for term in ("continuity", "hamilton_jacobi", "source", "target"):
        assert curves[term] == pytest.approx([2 / scale, 1 / scale, 0.5 / scale])
    assert header["seconds"] == 120


def test_the_box_of_codes_needs_no_data(logged, monkeypatch):
    def refuses(part):
        raise AssertionError("MNIST was asked for")

    monkeypatch.setattr("experiments.problems.mnist", refuses)
    logged("some", "digit-codes", 1)
    assert losses.history(Conditions(), "some")[1]["loss"][0] == pytest.approx(8 / 5**2)


def test_the_table_has_the_last_losses_and_the_time(logged, monkeypatch):
    monkeypatch.setattr(losses, "MODELS", ("geonet-1d", "geonet-2d"))
    logged("geonet-1d", "mixtures-1d", 1)
    logged("geonet-2d", "mixtures-2d", 2)
    first, second = losses.loss_curves(Conditions()).tables[0].rows
    share = ["5.0e-03", "–", "5.0e-03", "–", "5.0e-03", "5.0e-03"]
    assert first == ["`geonet-1d`", "1.5e-04", "2.0e-02", *share, 40, 2.0, 120]
    assert second[:3] == ["`geonet-2d`", "1.8e-05", "3.2e-03"]


def test_losses_are_those_of_models_trained_anew(tmp_path):
    model = GeONetSettings(sensors=8, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2))
    config = TrainingConfig(
        "geonet-1d",
        ProblemSettings("mixtures-1d"),
        3,
        log_every=1,
        model=model,
        sampling=SamplingSettings(pairs=2, points=2, places=2),
        validation=ValidationSettings(pairs=0),
    )
    file = train(config, tmp_path).model
    steps, curves, header = losses.history(
        Conditions(trained=(("geonet-1d", str(file)),)), "geonet-1d"
    )
    assert steps == [1, 2, 3] and header["steps"] == 3
    assert [len(values) for values in curves.values()] == [3] * 5


# ---- mixtures


@pytest.mark.parametrize(
    ("ours", "under"),
    [((2.0, 3.0, 4.0, 3.0, 2.0), True), ((2.0, 3.0, 4.0, 3.0, 2.1), False), ((0.0,) * 5, True)],
)
def test_under_the_paper_is_at_every_time(ours, under):
    theirs = ["paper", *(Spread(m, 0.1) for m in (2.0, 3.0, 4.0, 3.0, 2.0))]
    table = Table("", TIME_LABELS, [theirs, ["ours", *(Spread(m, 9.0) for m in ours)]])
    assert mixtures._under_paper(table) is under


@pytest.mark.parametrize("factor", [1.0, 1.1, 0.5])
def test_errors_of_velocities_are_relative(factor):
    """To a velocity that is off by a factor everywhere."""
    pairs = sample_pairs(TEST_SETS["1D random"], 2)
    exact = pairs.solve("quantile")
    off = SimpleNamespace(
        grid=exact.grid, velocity=lambda times, points: factor * exact.velocity(times, points)
    )
    errors = mixtures._potential_errors(off, exact)
    assert errors == pytest.approx([100 * abs(factor - 1)] * 5, abs=1e-6)


# ---- kinds


def test_every_kind_has_its_properties():
    assert list(kinds.KINDS) == list(kinds.PROPERTIES)
    assert set(kinds.KINDS) <= set(list_solver_names())
    assert all(len(has) == 4 for has in kinds.PROPERTIES.values())


def test_seconds_of_training_are_those_of_the_file(tmp_path):
    file = write_tensors(tmp_path / "a.safetensors", {"w": torch.zeros(1)}, {"seconds": 7.5})
    assert kinds._header("geonet-1d", Conditions(trained=(("geonet-1d", str(file)),)))[0] == 7.5
    assert kinds._header("geonet-1d", Conditions())[0] > 60
    assert kinds._header("quantile", Conditions()) == (None, {})


# ---- runtime


def test_times_are_milliseconds_per_pair(monkeypatch):
    """The first pair is solved once more before, so that imports and caches do not count."""
    clock = iter([0.0, 0.010, 1.0, 1.030])
    monkeypatch.setattr(runtime, "perf_counter", lambda: next(clock))
    solved = []

    def solver(source, target):
        def density(times):
            assert torch.equal(times, torch.linspace(0, 1, 20, dtype=torch.float64))

        solved.append((source, target))
        return SimpleNamespace(density=density)

    spread = runtime._milliseconds(solver, [("a", "b"), ("c", "d")], 20)
    assert solved == [("a", "b"), ("a", "b"), ("c", "d")]
    assert spread.mean == pytest.approx(20) and spread.sd == pytest.approx(200**0.5)


def test_ratios_are_against_pot():
    race = runtime.RACES[0]
    found = {
        "POT": {50: Spread(100.0, 1.0)},
        "POT, stopped": {50: Spread(30.0, 1.0)},
        "quantile": {50: Spread(1.0, 1.0)},
        "geonet-1d": {50: Spread(4.0, 1.0)},
        "transport-1d": {50: Spread(20.0, 1.0)},
    }
    assert runtime._ratios(found, race, ("", "50")).rows == [
        ["POT / geonet-1d", "25.0"],
        ["POT, stopped / geonet-1d", "7.50"],
        ["POT / transport-1d", "5.00"],
        ["POT, stopped / transport-1d", "1.50"],
    ]


def test_all_in_a_race_are_given_cells_alone():
    for race in runtime.RACES:
        pairs = runtime._pairs(race, 20, 2)
        assert len(pairs) == 2
        values = torch.stack([end.tensor for pair in pairs for end in pair])
        assert len(values.unique(dim=0)) == 4
        for end in (end for pair in pairs for end in pair):
            assert end.mixture is None and end.grid == race.box.with_shape(20)


# ---- clouds


@pytest.fixture
def few(monkeypatch):
    """Clouds of 200 particles."""
    monkeypatch.setattr(clouds, "PARTICLES", 200)


def test_clouds_are_of_their_mixtures():
    """3,000 particles each, put on the face where they are outside, two samples of each."""
    pairs = clouds.cloud_pairs(3)
    mixture = cloud_mixtures(6, torch.Generator().manual_seed(suites.SEED))
    for k, pair in enumerate(pairs):
        samples = ((pair.source, pair.again[0], k), (pair.target, pair.again[1], 3 + k))
        for first, second, which in samples:
            for sample in (first, second):
                assert sample.shape == (3000, 2) and sample.dtype == torch.float64
                assert float(sample.min()) >= 0 and float(sample.max()) <= 5
                off = sample.mean(0) - mixture.means[which].mean(0)
                assert float(off.abs().max()) < 5 * float(sample.std(0).max()) / 3000**0.5
                inner = mixture.covariances[which, :, 0, 0].mean()
                outer = mixture.means[which].var(0, unbiased=False)
                assert torch.allclose(sample.var(0), inner + outer, rtol=0.15)
            assert not torch.equal(first, second)
    again = clouds.cloud_pairs(3)
    assert all(torch.equal(a.target, b.target) for a, b in zip(pairs, again, strict=True))
    assert not torch.equal(pairs[0].source, clouds.cloud_pairs(3, seed=1)[0].source)


def test_particles_move_straight_and_at_the_least_cost(few):
    pair = clouds.cloud_pairs(1)[0]
    moved = clouds._move_particles(pair.source, pair.target)
    assert moved.shape == (5, 200, 2)
    assert torch.equal(moved[0], pair.source)
    assert torch.equal(moved[4].sort(0).values, pair.target.sort(0).values)
    for k, t in enumerate(QUARTERS):
        assert torch.allclose(moved[k], (1 - t) * moved[0] + t * moved[4])
    cost = torch.cdist(pair.source, pair.target) ** 2
    rows, columns = linear_sum_assignment(cost.numpy())
    least = float(cost[rows, columns].sum())
    assert float(((moved[4] - moved[0]) ** 2).sum()) == pytest.approx(least, rel=1e-6)


def test_the_truth_of_clouds_is_their_histogram_on_the_way(few):
    pair = clouds.cloud_pairs(1)[0]
    source, target = pair.ends
    assert torch.equal(source.tensor, histogram(pair.source, BOX_CLOUDS).tensor)
    assert torch.equal(pair.truth.tensor[0], source.tensor)
    assert torch.equal(pair.truth.tensor[4], target.tensor)
    assert pair.truth.tensor.shape == (5, 25, 25)
    middle = clouds._move_particles(pair.source, pair.target)[2]
    assert torch.equal(pair.truth.tensor[2], histogram(middle, BOX_CLOUDS).tensor)


def test_the_noise_is_that_of_a_second_sample(few):
    pair = clouds.cloud_pairs(1)[0]
    noise = pair.noise
    assert noise.shape == (5,) and float(noise.min()) > 0.3 and float(noise.max()) < 1.2
    same = replace(pair, again=(pair.source, pair.target))
    assert float(same.noise.max()) == 0


def standing_still(source, target):
    """A path on which particles never move."""

    def trajectories(times, points):
        assert torch.equal(histogram(points, BOX_CLOUDS).tensor, source.tensor)
        return points.expand(len(times), *points.shape)

    return SimpleNamespace(trajectories=trajectories)


def test_particles_of_both_ends_count_by_the_time(few, monkeypatch):
    """Where nothing moves, they fade; those of the source alone stay."""
    monkeypatch.setattr(clouds, "make_solver", lambda name: standing_still)
    pair = clouds.cloud_pairs(1)[0]
    alone, both = (clouds._push_particles(pair, "some", both=both).tensor for both in (False, True))
    source, target = (end.tensor for end in pair.ends)
    for k, t in enumerate(QUARTERS):
        assert torch.allclose(alone[k], source)
        assert torch.allclose(both[k], (1 - t) * source + t * target)


def test_particles_of_the_target_go_back(few, monkeypatch):
    """Along the path from target to source, whose time runs the other way."""
    pair = clouds.cloud_pairs(1)[0]
    there, back = (clouds._move_particles(*ends) for ends in ((pair.source, pair.target), _reverse(pair)))

    def solver(source, target):
        forth = torch.equal(source.tensor, pair.ends[0].tensor)
        return SimpleNamespace(trajectories=lambda points, times: there if forth else back)

    monkeypatch.setattr(clouds, "make_solver", lambda name: solver)
    both = clouds._push_particles(pair, "some", both=True)
    off = (both.tensor - pair.truth.tensor).abs().sum((-2, -1)) * BOX_CLOUDS.cell_volume
    assert float(off.max()) < 0.02  # but for particles on the edges of cells


def _reverse(pair):
    return pair.target, pair.source


def test_flows_have_their_budget():
    for method in clouds.FLOWS.values():
        full, quick = (clouds._flow(method, Conditions(quick)) for quick in (False, True))
        assert full == make_solver(method)
        assert quick.steps == clouds.QUICK_STEPS < full.steps


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((50.0, 14.4, 15.0, 14.8, 50.0), "at most half of the paper's"),
        ((0.0, 14.4, 15.1, 14.8, 0.0), "not at half of the paper's"),
    ],
)
def test_the_aim_is_judged_in_the_middle(ours, said):
    def row(label, means):
        return [label, *(Spread(mean, 1.0) for mean in means)]

    rows = [
        row("paper: GeONet", (22.9, 28.8, 30.0, 29.6, 22.6)),
        row("truth of a second sample", (20.0, 25.0, 26.0, 27.0, 20.0)),
        row("`transport-cloud`, density", ours),
    ]
    (remark,) = clouds._write_goal_remark(rows)
    assert remark.startswith(
        "In between, `transport-cloud` has 14.4 (paper 28.8, noise 25.0), "
        f"{ours[2]} (paper 30.0, noise 26.0), 14.8 (paper 29.6, noise 27.0): {said}, "
    )


# ---- digits


def test_digits_are_of_the_test_set_and_none_twice():
    first, second = digits.digit_pairs(50)
    assert first.shape == second.shape == (50, 28, 28)
    both = np.concatenate([first, second]).reshape(100, -1)
    assert len(np.unique(both, axis=0)) == 100
    sample = {image.tobytes() for image in sample_digits().images}
    assert all(row.tobytes() in sample for row in both)
    assert np.array_equal(first, digits.digit_pairs(50)[0])
    assert not np.array_equal(first, digits.digit_pairs(50, seed=1)[0])


def test_codes_and_their_paths():
    autoencoder = load_autoencoder()
    images = digits.digit_pairs(3)
    pairs = digits.code_pairs(images, autoencoder)
    assert pairs.truth.tensor.shape == (3, 5, 32)
    decoded = pairs.images(pairs.truth)
    assert decoded.shape == (3, 5, 784)
    for q, ends in ((0, images[0]), (4, images[1])):
        expected = autoencoder.decode(autoencoder.encode(as_rows(ends)))
        error = digits._picture_errors(decoded[:, q], expected)
        assert float(error.max()) < 0.1  # of their ink; the truth has been through a spline
    still = digits.code_pairs((images[0], images[0]), autoencoder)
    frames = Density(still.source.tensor[:, None].expand(3, 5, 32), still.source.grid)
    expected = autoencoder.decode(autoencoder.encode(as_rows(images[0])))
    assert torch.allclose(still.images(frames), expected[:, None], atol=1e-4)


def test_codes_on_the_way_have_the_mass_between_that_of_the_ends():
    autoencoder = load_autoencoder()
    pairs = digits.code_pairs(digits.digit_pairs(2), autoencoder)
    uniform = Density(torch.ones(2, 5, 32, dtype=torch.float64), pairs.source.grid)
    mass = torch.stack([(1 - t) * pairs.source.mass + t * pairs.target.mass for t in QUARTERS], 1)
    level = mass[..., None] / 5 - 10
    expected = autoencoder.decode(level.expand(2, 5, 32).float())
    assert torch.allclose(pairs.images(uniform), expected, atol=1e-5)


def test_errors_of_pictures_are_shares_of_their_ink():
    truth = torch.tensor([[[0.0, 1.0, 1.0]], [[0.5, 0.5, 0.0]]])
    found = truth + torch.tensor([[[0.5, -0.5, 0.0]], [[0.0, 0.0, 0.25]]])
    assert digits._picture_errors(found, truth).tolist() == [[0.5], [0.25]]


@pytest.mark.parametrize("experiment", [digits.mnist, digits.mnist_figure])
def test_digits_are_encoded_by_the_autoencoder_trained_anew(experiment, monkeypatch):
    def asked(file):
        raise InterruptedError(str(file))

    monkeypatch.setattr(digits, "load_autoencoder", asked)
    conditions = Conditions(quick=True, trained=(("mnist-autoencoder", "new.safetensors"),))
    with pytest.raises(InterruptedError) as opened:
        experiment(conditions)
    assert str(opened.value) == "new.safetensors"
