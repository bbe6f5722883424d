"""Training: a break changes nothing, a stop saves, what is not finite is refused."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet._toml import to_table, to_toml
from geonet.errors import ConfigError, FileError, TrainingError
from geonet.solvers.neural.geonet import GeONetLoss
from geonet.solvers.neural.model import load_model, read_tensors
from geonet.solvers.neural.transport.network import TransportNet, TransportLoss
from geonet.training import loop
from geonet.training import loop as stops
from geonet.training.config import read_config
from geonet.training.distributed import Processes
from geonet.training.log import Validation
from geonet.training.loop import Run, TrainingOutcome, train
from geonet.training.optim import learning_rate
from geonet.training.problems import exact_densities_1d, add_exact_densities

VARIANTS = {
    "soap": {},
    "adam": {"optimizer": {"name": "adam"}},
    "soap, balanced": {"optimizer": {"balance_every": 4}},
    "adam, balanced": {"optimizer": {"name": "adam", "balance_every": 4}},
    "soap, symmetric": {"model": {"swap_symmetry": "both"}},
    "adam, symmetric": {"optimizer": {"name": "adam"}, "model": {"swap_symmetry": "both"}},
    "soap, triples": {"sampling": {"scheme": "triples"}},
    "adam, triples, symmetric": {
        "optimizer": {"name": "adam"},
        "model": {"swap_symmetry": "both"},
        "sampling": {"scheme": "triples"},
    },
    "gradient-enhanced, balanced": {
        "loss": {"continuity_gradient": 0.1, "hamilton_jacobi_gradient": 0.1},
        "optimizer": {"balance_every": 4},
    },
    "entropic": {
        "loss": {"epsilon": 0.5},
        "model": {"swap_symmetry": "density"},
        "validation": {"pairs": 0},
    },
    "random features": {"model": {"trunk": {"width": 8, "depth": 3, "features": "fourier"}}},
}
TRANSPORT_VARIANTS = {
    "soap": {},
    "adam": {"optimizer": {"name": "adam"}},
    "balanced": {"optimizer": {"balance_every": 4}},
    "2D": {
        "problem": {"family": "mixtures-2d"},
        "model": {"dimension": 2},
        "validation": {"pairs": 0},
    },
}
SUPERVISED_VARIANTS = {
    "soap": {},
    "adam, symmetric": {"optimizer": {"name": "adam"}, "model": {"swap_symmetry": "density"}},
}


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "run" / "checkpoint.safetensors"


@pytest.fixture
def spoil(monkeypatch):
    """Make one term of the loss NaN at the n-th step from here on."""

    def at(step: int, name: str, loss: type = GeONetLoss) -> None:
        whole, calls = loss.forward, []

        def forward(self, batch):
            terms = whole(self, batch)
            calls.append(batch)
            return {**terms, name: terms[name] * float("nan")} if len(calls) == step else terms

        monkeypatch.setattr(loss, "forward", forward)

    return at


# ---- a break changes nothing


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by jvp
@pytest.mark.parametrize("variant", VARIANTS)
def test_half_and_half_is_the_whole(tiny, tmp_path, assert_same_state, logged, variant):
    """12 steps cross a refresh of SOAP's bases, and one of the weights after the break."""
    _check_half_and_half(tiny(**VARIANTS[variant]), tmp_path, assert_same_state, logged)


@pytest.mark.parametrize("variant", TRANSPORT_VARIANTS)
def test_half_and_half_is_the_whole_transport(
    tiny_transport, tmp_path, assert_same_state, logged, variant
):
    config = tiny_transport(**TRANSPORT_VARIANTS[variant])
    _check_half_and_half(config, tmp_path, assert_same_state, logged)


@pytest.mark.parametrize("variant", SUPERVISED_VARIANTS)
def test_half_and_half_is_the_whole_supervised(
    tiny_supervised, tmp_path, assert_same_state, logged, variant
):
    config = tiny_supervised(**SUPERVISED_VARIANTS[variant])
    _check_half_and_half(config, tmp_path, assert_same_state, logged)


@pytest.mark.parametrize("sensors", [16, 32])
def test_half_and_half_is_the_whole_cascade(
    tiny_cascade, tmp_path, assert_same_state, logged, sensors
):
    config = tiny_cascade(model={"sensors": sensors}, optimizer={"clip": 0.5})
    _check_half_and_half(config, tmp_path, assert_same_state, logged)


def test_a_training_begins_with_the_weights_of_another(tiny_cascade, tmp_path):
    first = tiny_cascade(validation={"pairs": 0})
    train(first, tmp_path / "first", stop_at=3)
    file = tmp_path / "first" / "model.safetensors"
    second = tiny_cascade(start=str(file), validation={"pairs": 0})
    run = Run(second, tmp_path / "second", Processes())
    given, taken = load_model(file)[0].state_dict(), run.model.state_dict()
    assert all(torch.equal(given[name], taken[name]) for name in given)


def test_a_start_with_other_layers_is_refused(tiny, tiny_cascade, tmp_path):
    train(tiny(validation={"pairs": 0}), tmp_path / "first", stop_at=1)
    config = tiny_cascade(start=str(tmp_path / "first" / "model.safetensors"))
    with pytest.raises(
        ConfigError, match=r"of the kind 'geonet' with other layers; give \[model\]"
    ):
        train(config, tmp_path / "second")


def test_a_long_gradient_is_shortened(tiny, tmp_path, monkeypatch):
    clipped = []
    monkeypatch.setattr(loop, "clip_grad_norm_", lambda weights, norm: clipped.append(norm))
    train(tiny(optimizer={"clip": 0.25}), tmp_path / "clipped", stop_at=2)
    train(tiny(), tmp_path / "not", stop_at=2)
    assert clipped == [0.25, 0.25]


def test_weight_decay_follows_the_learning_rate(tiny, tmp_path, monkeypatch):
    shares = []
    monkeypatch.setattr(loop, "decay_weights", lambda weights, share: shares.append(share))
    config = tiny(optimizer={"weight_decay": 0.5})
    train(config, tmp_path / "decayed", stop_at=3)
    rates = [learning_rate(config.optimizer, step, config.steps) for step in range(3)]
    assert shares == pytest.approx([0.5 * rate for rate in rates])


def _check_half_and_half(config, folder, assert_same_state, logged) -> None:
    whole, parts = folder / "whole", folder / "parts"
    finished = train(config, whole)
    assert train(config, parts, stop_at=6).reason == "stopped"
    resumed = train(config, parts, resume=True)
    assert (resumed.reason, resumed.step, resumed.best) == ("finished", 12, finished.best)
    assert_same_state(whole, parts)
    assert logged(whole) == logged(parts)
    ours, theirs = (load_model(f / "model.safetensors")[0].state_dict() for f in (whole, parts))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_break_changes_nothing_wherever_the_file_lies_in_memory(
    tiny, tmp_path, misaligned_files, assert_same_state, logged
):
    """The file's map may begin at any address; what is read is where torch puts its own tensors."""
    _check_half_and_half(tiny(), tmp_path, assert_same_state, logged)


@pytest.mark.slow
def test_a_break_changes_nothing_with_two_threads(tiny, tmp_path, assert_same_state, logged):
    """With as many of them before and after; large enough for torch to share the work out."""
    torch.set_num_threads(2)  # the fixture of all these tests sets it back
    wide = {"width": 64, "depth": 3}
    config = tiny(
        model={"sensors": 64, "rank": 64, "branch": wide, "trunk": wide},
        sampling={"pairs": 64, "points": 256, "places": 64},
    )
    _check_half_and_half(config, tmp_path, assert_same_state, logged)


def test_breaks_anywhere_change_no_weight(tiny, tmp_path, assert_same_state, logged):
    """StopMonitor between two checkpoints, where no validation is due either."""
    config = tiny(validation={"pairs": 0}, optimizer={"balance_every": 2})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", stop_at=1)
    for step in (4, 5, 11, 12):
        assert train(config, tmp_path / "parts", resume=True, stop_at=step).step == step
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    assert logged(tmp_path / "whole") == logged(tmp_path / "parts")


def test_the_comparison_can_fail(tiny, tmp_path, assert_same_state):
    """One step more, or another seed, is another state."""
    train(tiny(), tmp_path / "first", stop_at=4)
    train(tiny(), tmp_path / "longer", stop_at=5)
    train(tiny(seed=1), tmp_path / "other", stop_at=4)
    for name in ("longer", "other"):
        with pytest.raises(AssertionError):
            assert_same_state(tmp_path / "first", tmp_path / name)


def test_the_same_config_gives_the_same_training(tiny, tmp_path, assert_same_state):
    torch.manual_seed(1)
    train(tiny(), tmp_path / "first")
    torch.manual_seed(2)
    train(tiny(), tmp_path / "second")
    assert_same_state(tmp_path / "first", tmp_path / "second")


# Large enough to learn something in 150 steps.
LEARNS = {
    "steps": 150,
    "sampling": {"pairs": 32, "points": 32},
    "optimizer": {"learning_rate": 0.02},
    "validation": {"pairs": 8, "every": 150},
}
WIDER = {"sensors": 20, "rank": 16, "branch": {"width": 16}, "trunk": {"width": 16}}


def _learned(config, folder, logged) -> tuple[list[dict], list[float], list[float]]:
    """The log's entries of losses; errors on unseen pairs at the quarters, before and after."""
    run = Run(config, folder, Processes())
    before = run.validation.measure(run.model)["validation_l1_percent"]
    train(config, folder)
    entries = logged(folder)
    (after,) = [entry["validation"] for entry in entries if "validation" in entry]
    losses = [entry for entry in entries if "loss" in entry]
    # With six seeds the mean of ten losses falls to at most a quarter; half leaves room for luck.
    first, last = (sum(entry["loss"] for entry in part) for part in (losses[:10], losses[-10:]))
    assert last < 0.5 * first
    return losses, before, after


def test_training_lowers_the_loss_and_the_error(tiny, tmp_path, logged):
    """An untrained network is as good as none, 100 % off; six seeds come to at most two thirds."""
    sampling = {**LEARNS["sampling"], "places": 32}
    config = tiny(**LEARNS | {"model": WIDER, "sampling": sampling})
    losses, before, after = _learned(config, tmp_path, logged)
    assert set(losses[0]["terms"]) == {"continuity", "hamilton_jacobi", "source", "target"}
    assert all(last < 0.8 * first for first, last in zip(before, after, strict=True))


def test_training_lowers_the_error_of_transport(tiny_transport, tmp_path, logged):
    """Its ends are exact before; halfway four seeds come to at most a quarter."""
    config = tiny_transport(**LEARNS, model={"sensors": 20, "seen": 10, "modes": 16, "width": 16})
    _, before, after = _learned(config, tmp_path, logged)
    assert after[2] < 0.5 * before[2]


def test_supervised_training_lowers_the_error_everywhere(tiny_supervised, tmp_path, logged):
    """Six seeds come to at most 0.6 of the untrained network's error, at any time."""
    config = tiny_supervised(**LEARNS, model=WIDER)
    losses, before, after = _learned(config, tmp_path, logged)
    assert set(losses[0]["terms"]) == {"error"}
    assert all(last < 0.8 * first for first, last in zip(before, after, strict=True))


def test_transport_logs_its_two_terms(tiny_transport, tmp_path, logged):
    train(tiny_transport(steps=2), tmp_path)
    for entry in logged(tmp_path):
        if "loss" in entry:
            assert set(entry["terms"]) == {"mismatch", "folds"}
            assert entry["loss"] == pytest.approx(sum(entry["terms"].values()), rel=1e-5)


def test_a_step_of_transport_has_no_places(tiny_transport, tiny, tmp_path):
    """It compares no ends; a step of GeONet does."""
    assert len(Run(tiny_transport(), tmp_path, Processes()).draw_batch().endpoint_points) == 0
    assert len(Run(tiny(), tmp_path, Processes()).draw_batch().endpoint_points) == 5


def test_a_supervised_step_is_shown_exact_paths(tiny_supervised, tiny, tmp_path):
    """At its points, and without places; no other training is shown any."""
    batch = Run(tiny_supervised(), tmp_path, Processes()).draw_batch()
    assert torch.equal(batch.exact_density, exact_densities_1d(batch.ends, batch.points, batch.times))
    assert batch.exact_density.shape == (4, 6) and len(batch.endpoint_points) == 0
    assert Run(tiny(), tmp_path, Processes()).draw_batch().exact_density is None


def test_what_the_exact_paths_cost_is_kept(tiny_supervised, tiny, tmp_path, monkeypatch):
    """In the model's file, over all parts of a training; other models cost none."""

    def slow(batch):
        time.sleep(0.02)
        return add_exact_densities(batch)

    monkeypatch.setattr(loop, "add_exact_densities", slow)
    config = tiny_supervised(validation={"pairs": 0})
    train(config, tmp_path / "shown", stop_at=6)
    outcome = train(config, tmp_path / "shown", resume=True)
    header = load_model(outcome.model)[1]
    assert 0.2 <= header["data_seconds"] <= header["seconds"]
    plain = train(tiny(validation={"pairs": 0}), tmp_path / "plain")
    assert "data_seconds" not in load_model(plain.model)[1]


def test_a_supervised_model_is_a_solver(tiny_supervised, tmp_path, pair_1d):
    outcome = train(tiny_supervised(), tmp_path)
    path = geonet.geodesic(*pair_1d, solver=str(outcome.model))
    assert (path.solver, path.info) == ("deeponet", {"model": "tiny"})
    assert path.density([0.25, 0.5]).tensor.shape == (2, 100)


def test_every_step_sees_other_pairs_and_points(tiny, tmp_path):
    run = Run(tiny(), tmp_path, Processes())
    first, second = run.draw_batch(), run.draw_batch()
    for name in ("source", "target", "points", "times", "endpoint_points"):
        assert not torch.equal(getattr(first, name), getattr(second, name))


def test_resuming_a_finished_training_does_nothing(tiny, tmp_path, checkpoint):
    first = train(tiny(), tmp_path / "run")
    before = checkpoint.read_bytes()
    assert train(tiny(), tmp_path / "run", resume=True) == first
    assert checkpoint.read_bytes() == before


# ---- what is written, and where


def test_a_run_leaves_five_files(tiny, tmp_path):
    outcome = train(tiny(), tmp_path / "deep" / "run")
    names = {file.name for file in (tmp_path / "deep" / "run").iterdir()}
    assert names >= {"config.toml", "log.jsonl"} | {
        f"{name}.safetensors" for name in ("checkpoint", "model", "truths")
    }
    assert not [name for name in names if name.startswith(".")]
    assert read_config(tmp_path / "deep" / "run" / "config.toml") == tiny()
    assert outcome.model == tmp_path / "deep" / "run" / "model.safetensors"


def test_a_training_is_never_overwritten(tiny, tmp_path):
    train(tiny(), tmp_path, stop_at=2)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(FileError, match="holds a training already; go on with --resume"):
        train(tiny(), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_resuming_without_a_checkpoint(tiny, tmp_path):
    with pytest.raises(FileError, match="There is no file .*checkpoint.safetensors"):
        train(tiny(), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_resuming_with_another_config(tiny, tmp_path, checkpoint):
    train(tiny(), tmp_path / "run", stop_at=2)
    before = checkpoint.read_bytes()
    for changes, message in (
        ({"steps": 20}, "steps is 20, but .* was trained with 12"),
        ({"optimizer": {"name": "adam"}}, "optimizer.name is 'adam', but .* with 'soap'"),
        ({"model": {"branch": {"width": 9, "depth": 3}}}, "model.branch.width is 9, but .* 8"),
        ({"validation": {"every": 7}}, "validation.every is 7, but .* with 6"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(tiny(**changes), tmp_path / "run", resume=True)
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize("name", ["continuity", "hamilton_jacobi", "source", "target"])
def test_a_term_may_have_no_weight(tiny, tmp_path, name, logged):
    train(tiny(steps=2, loss={name: 0.0}), tmp_path)
    assert all(np.isfinite(entry["loss"]) for entry in logged(tmp_path) if "loss" in entry)


# ---- what a transport model takes to be usual


def test_modes_are_standardised_before_the_first_step(tiny_transport, tmp_path):
    """The same in every process, and for every seed nearly so."""
    first, second = (Run(tiny_transport(), tmp_path, Processes(rank, 1)) for rank in range(2))
    other = Run(tiny_transport(seed=1), tmp_path, Processes())
    for name in ("mean", "gain"):
        ours, theirs = (getattr(run.model, name) for run in (first, second))
        assert torch.equal(ours, theirs)
        assert torch.allclose(ours, getattr(other.model, name), atol=0.1)
        assert not torch.equal(ours, getattr(other.model, name))
    modes = first.model._modes(first._typical(1000))
    seen = (modes - first.model.mean) * first.model.gain
    assert len(modes) == 1000
    assert seen[:, ::2].mean(0).abs().max() < 1e-4
    assert first.model.mean[0] == pytest.approx(1, abs=0.01)  # their mass
    assert not first.model.mean[1::2].any()


def test_standardisation_survives_a_break(tiny_transport, tmp_path, monkeypatch):
    """It is that of the checkpoint, not made again from other densities."""
    config = tiny_transport()
    train(config, tmp_path, stop_at=6)
    before = Run(config, tmp_path, Processes()).model
    monkeypatch.setattr(Run, "_typical", lambda self, count: torch.rand(50, 12))
    run = Run(config, tmp_path, Processes())
    assert not torch.equal(run.model.gain, before.gain)
    run.load()
    train(config, tmp_path, resume=True)
    after, _ = load_model(tmp_path / "model.safetensors")
    tensors, _ = read_tensors(tmp_path / "checkpoint.safetensors", "a checkpoint")
    for name in ("mean", "gain"):
        assert torch.equal(getattr(run.model, name), getattr(before, name))
        assert torch.equal(getattr(after, name), getattr(before, name))
        assert torch.equal(tensors[f"model/{name}"], getattr(before, name))


def test_a_transport_model_is_a_solver(tiny_transport, tmp_path, pair_1d):
    outcome = train(tiny_transport(), tmp_path)
    solver = geonet.solver(str(outcome.model))
    assert solver.name == "transport"
    path = solver(*pair_1d)
    assert path.info["model"] == "tiny"
    for t, end in zip((0.0, 1.0), pair_1d, strict=True):
        assert torch.allclose(path.density(t).tensor, end.tensor, atol=1e-3)
    assert path.density([0.25, 0.5]).tensor.shape == (2, 100)
    _, header = load_model(outcome.model)
    assert (header["kind"], header["steps"], header["epsilon"]) in (
        ("transport", 6, 0.0),
        ("transport", 12, 0.0),
    )
    assert path.calibration._asdict() == header["measured"]["calibration"]


# ---- stops


def test_stop_at(tiny, tmp_path):
    outcome = train(tiny(), tmp_path, stop_at=4)
    assert (outcome.step, outcome.reason) == (4, "stopped")
    assert _step(tmp_path) == 4
    assert train(tiny(), tmp_path, resume=True, stop_at=99).reason == "finished"


def test_time_limit_saves_and_stops(tiny, tmp_path, monkeypatch, assert_same_state):
    """Its clock is turned on in the fifth step."""
    whole = Run.step

    def step(self):
        if self.progress.step == 4:
            now[0] += 61
        return whole(self)

    now = [100.0]
    monkeypatch.setattr(stops, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Run, "step", take_step)
    outcome = train(tiny(), tmp_path / "run", time_limit=60)
    assert (outcome.step, outcome.reason) == (5, "time limit")
    assert _step(tmp_path / "run") == 5
    assert train(tiny(), tmp_path / "run", resume=True, time_limit=3600).reason == "finished"
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_signal_lets_the_step_end_and_saves(tiny, tmp_path, monkeypatch, number, reason):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    _signal_during_step(monkeypatch, 5, [number])
    outcome = train(tiny(), tmp_path)
    assert (outcome.step, outcome.reason) == (5, reason)
    assert _step(tmp_path) == 5
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_interrupt_does_not_wait(tiny, tmp_path, monkeypatch, assert_same_state):
    _signal_during_step(monkeypatch, 5, [signal.SIGINT, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "run")
    assert _step(tmp_path / "run") == 3
    monkeypatch.undo()
    train(tiny(), tmp_path / "run", resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


def _signal_during_step(monkeypatch, step: int, numbers: list[signal.Signals]) -> None:
    whole = Run.step

    def step(self):
        if self.progress.step == step - 1:
            for number in numbers:
                os.kill(os.getpid(), number)
        return whole(self)

    monkeypatch.setattr(Run, "step", take_step)


def _step(folder) -> int:
    return read_tensors(folder / "checkpoint.safetensors", "a checkpoint")[1]["progress"]["step"]


# ---- what is no longer finite


@pytest.mark.parametrize("term", ["continuity", "hamilton_jacobi", "source", "target"])
def test_a_term_that_is_not_finite_is_named(tiny, tmp_path, checkpoint, spoil, term):
    train(tiny(), tmp_path / "run", stop_at=3)
    before = checkpoint.read_bytes()
    spoil(2, term)
    message = f"At step 5 the term {term} of the loss is no longer finite; the last good checkpoint"
    with pytest.raises(TrainingError, match=message):
        train(tiny(), tmp_path / "run", resume=True)
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize("term", ["mismatch", "folds"])
def test_a_transport_term_that_is_not_finite_is_named(
    tiny_transport, tmp_path, checkpoint, spoil, term
):
    train(tiny_transport(), tmp_path / "run", stop_at=3)
    before = checkpoint.read_bytes()
    spoil(2, term, TransportLoss)
    message = f"At step 5 the term {term} of the loss is no longer finite; the last good checkpoint"
    with pytest.raises(TrainingError, match=message):
        train(tiny_transport(), tmp_path / "run", resume=True)
    assert checkpoint.read_bytes() == before


def test_after_a_nan_training_goes_on_from_the_checkpoint(
    tiny, tmp_path, monkeypatch, spoil, assert_same_state, logged
):
    spoil(8, "source")
    with pytest.raises(TrainingError, match="At step 8 the term source"):
        train(tiny(), tmp_path / "run")
    assert _step(tmp_path / "run") == 6
    monkeypatch.undo()
    train(tiny(), tmp_path / "run", resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_a_nan_at_the_first_step_leaves_no_checkpoint(tiny, tmp_path, checkpoint, spoil):
    spoil(1, "target")
    with pytest.raises(TrainingError, match="At step 1 the term target .* finite; lower the"):
        train(tiny(), tmp_path / "run")
    assert not checkpoint.exists()


@pytest.mark.parametrize("name", ["soap", "adam"])
def test_a_huge_learning_rate_is_refused(tiny, tmp_path, name):
    config = tiny(optimizer={"name": name, "learning_rate": 1e20, "warmup": 0})
    with pytest.raises(TrainingError, match=r"At step \d the term .* lower the learning rate"):
        train(config, tmp_path)


@pytest.mark.parametrize("pairs", [0, 2])
def test_weights_that_are_not_finite_are_never_saved(
    tiny, tmp_path, monkeypatch, checkpoint, pairs
):
    """The loss was still finite, the step after it was not: model and checkpoint stay as they were.

    Without pairs to validate, the last model is kept, so it would be written at every validation.
    """
    config = tiny(checkpoint_every=1, validation={"pairs": pairs, "every": 1})
    train(config, tmp_path / "run", stop_at=3)
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.safetensors")}
    whole = Run.step

    def step(self):
        answer = whole(self)
        self.model.density.trunk.output.bias.data.fill_(float("nan"))
        return answer

    monkeypatch.setattr(Run, "step", take_step)
    with pytest.raises(TrainingError, match="At step 4 weights are no longer finite"):
        train(config, tmp_path / "run", resume=True)
    after = {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.safetensors")}
    assert [name for name in before if after[name] != before[name]] == []


def test_an_answer_that_is_not_finite_is_never_saved(tiny, tmp_path, monkeypatch):
    """Weights may be finite and still too large to answer with."""
    config = tiny(checkpoint_every=1, validation={"every": 1})
    train(config, tmp_path, stop_at=3)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    infinite = {"validation_l1_percent": [float("inf")] * 5}
    monkeypatch.setattr(Validation, "measure", lambda *_: infinite)
    with pytest.raises(TrainingError, match="At step 4 the answer on unseen pairs is no longer"):
        train(config, tmp_path, resume=True)
    for name in ("checkpoint.safetensors", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == before[name]


# ---- pairs from a file


def _write_pairs(file, d: int) -> tuple[Density, Density]:
    """Five pairs of bumps on [0, 3]^d."""
    grid = Grid((16,) * d, 0.0, 3.0)
    centres = torch.rand(2, 5, 1, d, generator=torch.Generator().manual_seed(0)).double() + 1
    source, target = (GaussianMixture.isotropic(ends, 0.4).to_density(grid) for ends in centres)
    arrays = {"source": source.numpy(), "target": target.numpy()}
    np.savez(file, **arrays, lower=grid.lower, upper=grid.upper)
    return source, target


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("scheme", ["cartesian", "triples"])
def test_pairs_from_a_file(tiny, tmp_path, logged, assert_same_state, d, scheme):
    source, target = _write_pairs(tmp_path / "pairs.npz", d)
    config = tiny(
        problem={"file": str(tmp_path / "pairs.npz")},
        steps=4,
        model={"dimension": d},
        sampling={"scheme": scheme},
        validation={"pairs": 2 if d == 1 else 0},
    )
    outcome = train(config, tmp_path / "whole")
    assert outcome.reason == "finished"
    assert [e["step"] for e in logged(tmp_path / "whole") if "loss" in e] == [1, 2, 3, 4]
    train(config, tmp_path / "parts", stop_at=2)
    train(config, tmp_path / "parts", resume=True)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    path = geonet.geodesic(source, target, solver=str(outcome.model))
    assert path.density(0.5).tensor.shape == (5, *source.grid.shape)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_transport_pairs_from_a_file(tiny_transport, tmp_path, monkeypatch, assert_same_state, d):
    monkeypatch.setattr(TransportNet, "n_calibration_densities", 20)  # in 3D a thousand take seconds
    source, target = _write_pairs(tmp_path / "pairs.npz", d)
    config = tiny_transport(
        problem={"file": str(tmp_path / "pairs.npz")},
        steps=4,
        model={"dimension": d, "seen": 4, "modes": 4},
        validation={"pairs": 2 if d == 1 else 0},
    )
    outcome = train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", stop_at=2)
    train(config, tmp_path / "parts", resume=True)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    path = geonet.geodesic(source, target, solver=str(outcome.model), max_iterations=0)
    assert path.density(0.5).tensor.shape == (5, *source.grid.shape)


def test_a_file_is_sought_beside_the_config(tiny, tmp_path, monkeypatch):
    """And the config that a run keeps still finds it."""
    monkeypatch.chdir(tmp_path)
    _write_pairs("pairs.npz", 1)
    table = to_table(tiny(steps=2)) | {"problem": {"file": "pairs.npz"}}
    (tmp_path / "tiny.toml").write_text(to_toml(table))
    (tmp_path / "elsewhere").mkdir()
    for place, config in (("elsewhere", "../tiny.toml"), (".", "tiny.toml")):
        monkeypatch.chdir(tmp_path / place)
        train(read_config(Path(config)), tmp_path / "run")
        kept = read_config(tmp_path / "run" / "config.toml")
        assert (tmp_path / kept.problem.file).resolve() == tmp_path / "pairs.npz"
        shutil.rmtree(tmp_path / "run")


def test_pairs_of_another_dimension_are_refused(tiny, tmp_path):
    _write_pairs(tmp_path / "pairs.npz", 2)
    config = tiny(problem={"file": str(tmp_path / "pairs.npz")})
    with pytest.raises(ConfigError, match=r"model.dimension is 1, but the pairs in .* are 2D"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_outcome_before_any_validation(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "after_step", lambda *arguments, **options: None)
    assert train(tiny(), tmp_path, stop_at=1) == TrainingOutcome(None, 1, "stopped", float("inf"))
