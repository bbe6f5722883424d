"""Validation: errors against exact solutions, and which model is kept for them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr

import geonet
from geonet.errors import TrainingError
from geonet.evaluation import reference_frames
from geonet.metrics import l1
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import load_model, save_model
from geonet.training.distributed import Processes
from geonet.training.log import Validation, read_log
from geonet.training.loop import Run, train


@pytest.fixture
def run(tiny, tmp_path):
    return Run(tiny(), tmp_path, Processes())


@pytest.fixture
def measured(monkeypatch):
    """Let validation find these errors, one after the other."""

    def let(*errors: float) -> None:
        answers = map(_found, errors)
        monkeypatch.setattr(Validation, "measure", lambda *_: next(answers))

    return let


def _found(error: float) -> dict:
    """What validation finds where all quarters have one error."""
    halfway = {"model": error, "linear": 30.0}
    return {"validation_l1_percent": [error] * 5, "halfway_l1_percent": halfway}


@pytest.fixture
def transport_run(tiny_transport, tmp_path):
    return Run(tiny_transport(validation={"pairs": 3}), tmp_path, Processes())


def test_errors_are_those_of_the_solver_against_the_exact_path(run, tmp_path):
    measured = run.validation.measure(run.model)
    assert set(measured) == {"validation_l1_percent", "halfway_l1_percent", "calibration"}
    errors = measured["validation_l1_percent"]
    file = save_model(tmp_path / "model.safetensors", run.model, {})
    source, target = run.validation.source, run.validation.target
    learned = geonet.geodesic(source, target, solver=str(file)).density(QUARTERS)
    exact = reference_frames(source, target, 0.0)
    assert errors == pytest.approx((100 * l1(learned, exact).mean(0)).tolist(), rel=1e-5, abs=1e-4)
    assert len(errors) == 5 and min(errors) > 1


@pytest.mark.parametrize("symmetry", ["none", "density"])
def test_supervised_errors_are_those_of_the_solver(tiny_supervised, tmp_path, symmetry):
    run = Run(tiny_supervised(model={"swap_symmetry": symmetry}), tmp_path, Processes())
    measured = run.validation.measure(run.model)
    assert set(measured) == {"validation_l1_percent", "halfway_l1_percent"}
    file = save_model(tmp_path / "model.safetensors", run.model, {})
    path = geonet.geodesic(run.validation.source, run.validation.target, solver=str(file))
    errors = 100 * l1(path.density(QUARTERS), run.validation.reference).mean(0)
    assert measured["validation_l1_percent"] == pytest.approx(errors.tolist(), rel=1e-5, abs=1e-4)


def test_transport_errors_are_those_of_the_uncorrected_solver(transport_run, tmp_path):
    run = transport_run
    measured = run.validation.measure(run.model)
    file = save_model(tmp_path / "model.safetensors", run.model, {})
    source, target = run.validation.source, run.validation.target
    path = geonet.geodesic(source, target, solver=str(file), max_iterations=0)
    errors = 100 * l1(path.density(QUARTERS), reference_frames(source, target, 0.0)).mean(0)
    assert measured["validation_l1_percent"] == pytest.approx(errors.tolist(), rel=1e-5, abs=1e-4)
    assert errors[0] < 0.1 and errors[2] > 1 and errors[4] < 0.1


def test_the_error_halfway_stands_beside_that_of_the_linear_mixture(transport_run, tmp_path):
    """The mean over the quarters counts two ends that are exact whatever was learnt."""
    validation = transport_run.validation
    measured = validation.measure(transport_run.model)
    source, target = validation.source.tensor, validation.target.tensor
    off = ((source + target) / 2 - validation.reference.tensor[:, 2]).abs().sum(1)
    linear = 100 * (off / validation.reference.tensor[:, 2].sum(1)).mean()
    assert measured["halfway_l1_percent"] == {
        "model": measured["validation_l1_percent"][2],
        "linear": pytest.approx(linear.item(), abs=1e-4),
    }
    assert linear > 10


def test_the_outcome_tells_the_error_halfway_of_the_model_that_is_kept(
    tiny_transport, tmp_path, logged
):
    config = tiny_transport(validation={"every": 3})
    outcome = train(config, tmp_path)
    found = [entry for entry in logged(tmp_path) if "validation" in entry]
    kept = min(found, key=lambda entry: sum(entry["validation"]))
    assert outcome.halfway == kept["validation"][2] > 1.5 * outcome.best
    assert outcome.linear == kept["linear_halfway"]
    assert train(config, tmp_path, resume=True) == outcome


def test_models_without_an_error_halfway_still_load(tiny_transport, tmp_path):
    """As those that are shipped, and those of earlier trainings."""
    config = tiny_transport()
    outcome = train(config, tmp_path)
    model, header = load_model(outcome.model)
    del header["measured"]["halfway_l1_percent"]
    save_model(outcome.model, model, header)
    assert train(config, tmp_path, resume=True) == replace(outcome, linear=None)


def test_transport_models_are_calibrated(transport_run, tmp_path):
    """For half of the validation pairs the largest error is at most slope times mismatch."""
    run = transport_run
    measured = run.validation.measure(run.model)
    assert set(measured) == {"validation_l1_percent", "halfway_l1_percent", "calibration"}
    assert set(measured["calibration"]) == {"slope", "limit"}
    file = save_model(tmp_path / "model.safetensors", run.model, {"measured": measured})
    source, target = run.validation.source, run.validation.target
    path = geonet.geodesic(source, target, solver=str(file), max_iterations=0)
    largest = l1(path.density(QUARTERS), run.validation.reference).amax(1)
    ratios = largest / path.certificate.mismatch
    assert measured["calibration"]["slope"] == pytest.approx(ratios.median().item(), rel=1e-4)
    assert path.calibration._asdict() == measured["calibration"]


def test_the_truth_in_1d_is_the_density_at_the_centres(generator):
    """As the monotone map between the distribution functions has it, on many points."""
    mixtures = [mixtures_1d(2, generator) for _ in range(2)]
    source, target = (mixture.to_density(BOX_1D) for mixture in mixtures)
    truth = reference_frames(source, target, 0.0)
    assert truth.grid == BOX_1D and truth.tensor.shape == (2, 5, 100)
    means = geonet.geodesic(source, target, solver="quantile").density(QUARTERS)
    for n in range(2):
        expected = np.stack([between(mixtures[0][n], mixtures[1][n], t) for t in QUARTERS])
        off, coarse = (np.abs(path.numpy()[n] - expected).max(1) for path in (truth, means))
        assert max(off[0], off[-1]) < 1e-6
        assert off.max() < 2e-4 < 1e-3 < coarse.max()


@pytest.mark.parametrize("d", [2, 3])
def test_the_truth_in_2d_and_3d_is_never_a_learned_one(d, monkeypatch):
    """`monge-ampere`, and `midpoint` on finer cells where there are zeros."""
    asked = []

    def recorded(name, **options):
        solver = geonet.solver(name, **options)
        return lambda *ends: (asked.append((name, ends[0].grid)), solver(*ends))[1]

    monkeypatch.setattr("geonet.evaluation.make_solver", recorded)
    grid = geonet.Grid((8,) * d)
    ends = [geonet.GaussianMixture.isotropic([[m] * d], 0.5).to_density(grid) for m in (0.48, 0.52)]
    assert reference_frames(*ends, 0.0).tensor.shape == (5, *grid.shape)
    assert asked == [("monge-ampere", grid)]
    values = torch.zeros(2, *grid.shape, dtype=torch.float64)
    values[0, :4] = values[1, 4:] = 1
    asked.clear()
    middle = reference_frames(*(geonet.Density(own, grid) for own in values), 0.0).tensor[2]
    assert asked == [("monge-ampere", grid), ("midpoint", grid.with_shape(24))]
    expected = torch.zeros_like(middle)
    expected[2:6] = 2
    assert torch.allclose(middle, expected, atol=0.02)


def between(source, target, t):
    """The density at time t at the centres of BOX_1D, from 1D mixtures cut to the box."""
    x = np.linspace(0.0, 10.0, 200_001)
    (f0, F0), (f1, F1) = (distribution(mixture, x) for mixture in (source, target))
    image = np.interp(F0, F1, x)  # the optimal map
    density = f0 / (1 - t + t * f0 / np.interp(image, x, f1))
    return np.interp(BOX_1D.axes()[0].numpy(), (1 - t) * x + t * image, density)


def distribution(mixture, x):
    """The density of a mixture in [0, 10] and its integral from 0 on."""
    std = mixture.covariances[:, 0, 0].sqrt().numpy()
    z = (x[:, None] - mixture.means[:, 0].numpy()) / std
    low, high = ((edge - mixture.means[:, 0].numpy()) / std for edge in (0.0, 10.0))
    weights = mixture.weights.numpy()
    mass = (ndtr(high) - ndtr(low)) @ weights
    density = np.exp(-0.5 * z**2) @ (weights / std) / math.sqrt(math.tau)
    return density / mass, (ndtr(z) - ndtr(low)) @ weights / mass


def test_the_truth_has_the_given_ends(run):
    truth, pair = run.validation.reference, (run.validation.source, run.validation.target)
    for k, end in zip((0, -1), pair, strict=True):
        assert torch.allclose(truth.tensor[:, k], end.tensor, atol=1e-6)


def test_with_entropy_the_truth_is_the_bridge(run):
    source, target = run.validation.source, run.validation.target
    bridge = geonet.geodesic(source, target, solver="schrodinger", epsilon=0.5).density(QUARTERS)
    truth = reference_frames(source, target, 0.5)
    assert torch.allclose(truth.tensor, bridge.tensor)
    plain = reference_frames(source, target, 0.0)
    assert not torch.allclose(truth.tensor[:, 2], plain.tensor[:, 2], atol=1e-3)


def test_pairs_are_the_same_every_time_and_not_those_of_training(tiny, tmp_path, run):
    again = Run(tiny(seed=7), tmp_path, Processes()).validation
    other = Run(tiny(validation={"seed": 3}), tmp_path, Processes()).validation
    assert torch.equal(run.validation.source.tensor, again.source.tensor)
    assert not torch.equal(run.validation.source.tensor, other.source.tensor)
    drawn = [run.draw_batch().source for _ in range(3)]
    sensed = run.validation.source.at(10 * run.sensors.double()).float() * 10
    assert float((torch.cat(drawn)[:, None] - sensed).abs().amax(-1).min()) > 0.01


def test_the_best_model_is_kept(tiny, tmp_path, measured):
    measured(5.0, 3.0, 4.0, 3.0)
    outcome = train(tiny(validation={"every": 3}), tmp_path)
    _, header = load_model(tmp_path / "model.safetensors")
    assert header["steps"] == 6
    assert header["measured"] == _found(3.0)
    assert (outcome.best, outcome.halfway, outcome.linear) == (3.0, 3.0, 30.0)
    found = [e["validation"][0] for e in read_log(tmp_path / "log.jsonl") if "validation" in e]
    assert found == [5.0, 3.0, 4.0, 3.0]


def test_the_best_so_far_survives_a_break(tiny, tmp_path, measured):
    config = tiny(validation={"every": 3})
    measured(5.0, 3.0)
    train(config, tmp_path, stop_at=6)
    measured(4.0, 3.5)
    assert train(config, tmp_path, resume=True).best == 3.0
    assert load_model(tmp_path / "model.safetensors")[1]["steps"] == 6


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_errors_that_are_not_finite_are_never_the_best(tiny, tmp_path, measured, error):
    measured(3.0, error)
    with pytest.raises(TrainingError, match="At step 6 the answer on unseen pairs is no longer"):
        train(tiny(validation={"every": 3}), tmp_path)
    assert load_model(tmp_path / "model.safetensors")[1]["steps"] == 3


def test_without_pairs_the_last_model_is_kept(tiny, tmp_path):
    outcome = train(tiny(validation={"pairs": 0}), tmp_path)
    assert outcome.model == tmp_path / "model.safetensors"
    assert load_model(outcome.model)[1]["steps"] == 12
    assert all("validation" not in entry for entry in read_log(tmp_path / "log.jsonl"))


def test_validation_does_not_change_the_training(tiny, tmp_path):
    """No random number of training is spent on it, no weight moved."""
    train(tiny(validation={"every": 1}), tmp_path / "often")
    train(tiny(validation={"pairs": 0}), tmp_path / "never")
    often, never = (
        [e["loss"] for e in read_log(tmp_path / name / "log.jsonl") if "loss" in e]
        for name in ("often", "never")
    )
    assert often == never
