"""The training loop: bitwise resume, stop requests, divergence, data from files."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet._progress import report_progress
from geonet.errors import ConfigError, FileError, TrainingError
from geonet.solvers.neural import model as model_file
from geonet.solvers.neural.geonet import GeONetLoss
from geonet.solvers.neural.model import load_model, read_tensors
from geonet.solvers.neural.transport.network import TransportLoss, TransportNet
from geonet.training import checkpoint as checkpoint_module
from geonet.training import loop
from geonet.training.config import read_config
from geonet.training.distributed import Processes
from geonet.training.log import Validation
from geonet.training.loop import Run, StopMonitor, StopRequested, TrainingOutcome, train
from geonet.training.optim import learning_rate
from geonet.training.problems import add_exact_densities, exact_densities_1d

SIGNALS = pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
SIX_PAIRS = {"pairs": 6, "every": 6}
CHECKPOINT = "checkpoint.safetensors"


def _step(folder: Path) -> int:
    return read_tensors(folder / CHECKPOINT, "a checkpoint")[1]["progress"]["step"]


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


# ---- resume

VARIANTS = {
    "soap": ("tiny", {}),
    "adam, symmetric": (
        "tiny",
        {"optimizer": {"name": "adam"}, "model": {"swap_symmetry": "both"}},
    ),
    "soap, balanced": ("tiny", {"optimizer": {"balance_every": 4}}),
    "adam, triples": (
        "tiny",
        {"optimizer": {"name": "adam"}, "sampling": {"scheme": "triples"}},
    ),
    "gradient-enhanced": (
        "tiny",
        {
            "loss": {"continuity_gradient": 0.1, "hamilton_jacobi_gradient": 0.1},
            "optimizer": {"balance_every": 4},
        },
    ),
    "entropic": (
        "tiny",
        {
            "loss": {"epsilon": 0.5},
            "model": {"swap_symmetry": "density"},
            "validation": {"pairs": 0},
        },
    ),
    "random features": (
        "tiny",
        {"model": {"trunk": {"width": 8, "depth": 3, "features": "fourier"}}},
    ),
    "transport": ("tiny_transport", {"optimizer": {"balance_every": 4}}),
    "transport 2D": (
        "tiny_transport",
        {
            "problem": {"family": "mixtures-2d"},
            "model": {"dimension": 2},
            "validation": {"pairs": 0},
        },
    ),
    "supervised": ("tiny_supervised", {"model": {"swap_symmetry": "density"}}),
    "cascade": ("tiny_cascade", {"optimizer": {"clip": 0.5}}),
}


def _check_resume(config, folder, assert_same_state, logged) -> None:
    """Train in one part and in two; 12 steps cross a refresh of SOAP's bases after the break."""
    whole, parts = folder / "whole", folder / "parts"
    finished = train(config, whole)
    assert train(config, parts, stop_at=6).reason == "stopped"
    resumed = train(config, parts, resume=True)
    assert (resumed.reason, resumed.step, resumed.best) == ("finished", 12, finished.best)
    assert_same_state(whole, parts)
    assert logged(whole) == logged(parts)
    ours, theirs = (load_model(f / "model.safetensors")[0].state_dict() for f in (whole, parts))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by jvp
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_bitwise_the_same(request, tmp_path, assert_same_state, logged, variant):
    form, changes = VARIANTS[variant]
    config = request.getfixturevalue(form)(**changes)
    _check_resume(config, tmp_path, assert_same_state, logged)


def test_a_resumed_run_is_the_same_for_unaligned_files(
    tiny, tmp_path, misaligned_files, assert_same_state, logged
):
    _check_resume(tiny(), tmp_path, assert_same_state, logged)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_with_two_threads(tiny, tmp_path, assert_same_state, logged):
    """Large enough for torch to use both threads."""
    torch.set_num_threads(2)  # the fixture of all these tests resets it
    wide = {"width": 64, "depth": 3}
    config = tiny(
        model={"sensors": 64, "rank": 64, "branch": wide, "trunk": wide},
        sampling={"pairs": 64, "points": 256, "places": 64},
    )
    _check_resume(config, tmp_path, assert_same_state, logged)


def test_stops_at_any_step_change_no_weight(tiny, tmp_path, assert_same_state, logged):
    """Also between two checkpoints and validations."""
    config = tiny(validation={"pairs": 0}, optimizer={"balance_every": 2})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", stop_at=1)
    for step in (4, 5, 11, 12):
        assert train(config, tmp_path / "parts", resume=True, stop_at=step).step == step
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    assert logged(tmp_path / "whole") == logged(tmp_path / "parts")


def test_the_state_depends_on_config_and_step_only(tiny, tmp_path, assert_same_state):
    torch.manual_seed(1)
    train(tiny(), tmp_path / "first", stop_at=4)
    torch.manual_seed(2)
    train(tiny(), tmp_path / "second", stop_at=4)
    assert_same_state(tmp_path / "first", tmp_path / "second")
    train(tiny(), tmp_path / "longer", stop_at=5)
    train(tiny(seed=1), tmp_path / "other", stop_at=4)
    for name in ("longer", "other"):
        with pytest.raises(AssertionError):
            assert_same_state(tmp_path / "first", tmp_path / name)


def test_resuming_a_finished_run_does_nothing(tiny, tmp_path, solve_hook):
    first = train(tiny(), tmp_path)
    (tmp_path / "references.safetensors").unlink()
    before, calls = _contents(tmp_path), solve_hook(None, 0)
    assert train(tiny(), tmp_path, resume=True) == first
    assert _contents(tmp_path) == before and not calls


# ---- learning

# Large enough to learn in 150 steps.
LEARNING = {
    "steps": 150,
    "sampling": {"pairs": 32, "points": 32, "places": 32},
    "optimizer": {"learning_rate": 0.02},
    "validation": {"pairs": 8, "every": 150},
}
WIDER = {"sensors": 20, "rank": 16, "branch": {"width": 16}, "trunk": {"width": 16}}


@pytest.mark.parametrize(
    ("form", "model", "terms", "factor"),
    [
        ("tiny", WIDER, {"continuity", "hamilton_jacobi", "source", "target"}, 0.8),
        ("tiny_supervised", WIDER, {"error"}, 0.8),
        (
            "tiny_transport",
            {"sensors": 20, "seen": 10, "modes": 16, "width": 16},
            {"mismatch", "folds"},
            0.5,
        ),
    ],
)
def test_training_lowers_loss_and_error(request, tmp_path, logged, form, model, terms, factor):
    """With six seeds, the loss falls to a quarter and errors to two thirds, transport's to ¼."""
    config = request.getfixturevalue(form)(**LEARNING, model=model)
    run = Run(config, tmp_path, Processes())
    before = run.validation.measure(run.model)["validation_l1_percent"]
    train(config, tmp_path)
    entries = logged(tmp_path)
    (after,) = [entry["validation"] for entry in entries if "validation" in entry]
    losses = [entry for entry in entries if "loss" in entry]
    first, last = (sum(entry["loss"] for entry in part) for part in (losses[:10], losses[-10:]))
    assert last < 0.5 * first and set(losses[0]["terms"]) == terms
    assert losses[0]["loss"] == pytest.approx(sum(losses[0]["terms"].values()), rel=1e-5)
    times = (2,) if form == "tiny_transport" else range(5)  # its ends are exact
    assert all(after[t] < factor * before[t] for t in times)


def test_every_step_has_new_pairs_and_points(tiny, tmp_path):
    run = Run(tiny(), tmp_path, Processes())
    first, second = run.draw_batch(), run.draw_batch()
    for name in ("source", "target", "points", "times", "endpoint_points"):
        assert not torch.equal(getattr(first, name), getattr(second, name))


def test_only_some_models_compare_ends_or_need_exact_densities(
    tiny, tiny_transport, tiny_supervised, tmp_path
):
    batches = [
        Run(config(), tmp_path, Processes()).draw_batch()
        for config in (tiny, tiny_transport, tiny_supervised)
    ]
    assert [len(batch.endpoint_points) for batch in batches] == [5, 0, 0]
    assert [batch.exact_density is None for batch in batches] == [True, True, False]
    last = batches[-1]
    expected = exact_densities_1d(last.ends, last.points, last.times)
    assert torch.equal(last.exact_density, expected)


def test_the_time_for_exact_densities_is_recorded(tiny_supervised, tiny, tmp_path, monkeypatch):
    def slow(batch):
        time.sleep(0.02)
        return add_exact_densities(batch)

    monkeypatch.setattr(loop, "add_exact_densities", slow)
    config = tiny_supervised(validation={"pairs": 0})
    train(config, tmp_path / "supervised", stop_at=6)
    outcome = train(config, tmp_path / "supervised", resume=True)
    header = load_model(outcome.model)[1]
    assert 0.2 <= header["data_seconds"] <= header["seconds"]
    plain = train(tiny(validation={"pairs": 0}), tmp_path / "plain")
    assert "data_seconds" not in load_model(plain.model)[1]


def test_clipping_and_weight_decay(tiny, tmp_path, monkeypatch):
    norms, shares = [], []
    monkeypatch.setattr(loop, "clip_grad_norm_", lambda weights, norm: norms.append(norm))
    monkeypatch.setattr(loop, "decay_weights", lambda weights, share: shares.append(share))
    config = tiny(optimizer={"weight_decay": 0.5, "clip": 0.25})
    train(config, tmp_path / "both", stop_at=3)
    train(tiny(), tmp_path / "none", stop_at=3)
    rates = [learning_rate(config.optimizer, step, config.steps) for step in range(3)]
    assert norms == [0.25] * 3 and shares == pytest.approx([0.5 * rate for rate in rates])


@pytest.mark.parametrize("name", ["continuity", "hamilton_jacobi", "source", "target"])
def test_a_term_may_have_no_weight(tiny, tmp_path, name, logged):
    train(tiny(steps=2, loss={name: 0.0}), tmp_path)
    assert all(np.isfinite(entry["loss"]) for entry in logged(tmp_path) if "loss" in entry)


def test_initial_weights_of_another_model(tiny, tiny_cascade, tmp_path):
    train(tiny_cascade(validation={"pairs": 0}), tmp_path / "first", stop_at=3)
    file = tmp_path / "first" / "model.safetensors"
    run = Run(tiny_cascade(start=str(file)), tmp_path / "second", Processes())
    given, taken = load_model(file)[0].state_dict(), run.model.state_dict()
    assert all(torch.equal(given[name], taken[name]) for name in given)
    with pytest.raises(ConfigError, match="of the kind 'cascade' with other layers"):
        train(tiny(start=str(file)), tmp_path / "third")


def test_input_scaling_is_the_same_in_all_processes_and_stored(
    tiny_transport, tmp_path, monkeypatch
):
    """It is restored from the checkpoint, not fitted to other densities."""
    config = tiny_transport()
    first, second = (Run(config, tmp_path, Processes(rank, 1)) for rank in range(2))
    modes = first.model._modes(first._calibration_densities(1000))
    scaled = (modes - first.model.mean) * first.model.gain
    assert scaled[:, ::2].mean(0).abs().max() < 1e-4
    train(config, tmp_path, stop_at=6)
    monkeypatch.setattr(Run, "_calibration_densities", lambda self, count: torch.rand(50, 12))
    train(config, tmp_path, resume=True)
    after, _ = load_model(tmp_path / "model.safetensors")
    for name in ("mean", "gain"):
        expected = getattr(first.model, name)
        assert torch.equal(getattr(second.model, name), expected)
        assert torch.equal(getattr(after, name), expected)


@pytest.mark.parametrize("form", ["tiny_transport", "tiny_supervised"])
def test_a_trained_model_is_a_solver(request, tmp_path, pair_1d, form):
    outcome = train(request.getfixturevalue(form)(), tmp_path)
    path = geonet.geodesic(*pair_1d, solver=str(outcome.model))
    _, header = load_model(outcome.model)
    assert path.solver == header["kind"] and path.info["model"] == "tiny"
    assert header["steps"] in (6, 12) and header["epsilon"] == 0
    assert path.density([0.25, 0.5]).tensor.shape == (2, 100)
    if form == "tiny_transport":
        assert torch.allclose(path.density(0.0).tensor, pair_1d[0].tensor, atol=1e-3)
        assert path.calibration._asdict() == header["measured"]["calibration"]


# ---- files


def test_files_of_a_run(tiny, tmp_path):
    folder = tmp_path / "deep" / "run"
    outcome = train(tiny(), folder)
    names = {file.name for file in folder.iterdir()}
    assert names >= {"config.toml", "log.jsonl"} | {
        f"{name}.safetensors" for name in ("checkpoint", "model", "references")
    }
    assert not [name for name in names if name.startswith(".")]
    assert read_config(folder / "config.toml") == tiny()
    assert outcome.model == folder / "model.safetensors"


def test_runs_are_not_overwritten_and_need_a_checkpoint_to_resume(tiny, tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*checkpoint.safetensors"):
        train(tiny(), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    train(tiny(), tmp_path / "run", stop_at=2)
    before = _contents(tmp_path / "run")
    with pytest.raises(FileError, match="already contains a training run"):
        train(tiny(), tmp_path / "run")
    for changes, message in (
        ({"steps": 20}, "steps is 20, but .* was trained with 12"),
        ({"model": {"branch": {"width": 9, "depth": 3}}}, "model.branch.width is 9, but .* 8"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(tiny(**changes), tmp_path / "run", resume=True)
    assert _contents(tmp_path / "run") == before


def _write_pairs(file: Path, d: int) -> tuple[Density, Density]:
    """Write five pairs of bumps on [0, 3]^d."""
    grid = Grid((16,) * d, 0.0, 3.0)
    centres = torch.rand(2, 5, 1, d, generator=torch.Generator().manual_seed(0)).double() + 1
    source, target = (GaussianMixture.isotropic(ends, 0.4).to_density(grid) for ends in centres)
    arrays = {"source": source.numpy(), "target": target.numpy()}
    np.savez(file, **arrays, lower=grid.lower, upper=grid.upper)
    return source, target


@pytest.mark.parametrize(
    ("form", "d", "changes"),
    [
        ("tiny", 1, {"sampling": {"scheme": "triples"}}),
        ("tiny", 2, {"model": {"dimension": 2}, "validation": {"pairs": 0}}),
        ("tiny_transport", 1, {}),
        (
            "tiny_transport",
            3,
            {"model": {"dimension": 3, "seen": 4, "modes": 4}, "validation": {"pairs": 0}},
        ),
    ],
)
def test_pairs_from_a_file(request, tmp_path, monkeypatch, assert_same_state, form, d, changes):
    monkeypatch.setattr(TransportNet, "n_calibration_densities", 20)  # a thousand take seconds
    source, target = _write_pairs(tmp_path / "pairs.npz", d)
    problem = {"file": str(tmp_path / "pairs.npz")}
    config = request.getfixturevalue(form)(problem=problem, steps=4, **changes)
    outcome = train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", stop_at=2)
    train(config, tmp_path / "parts", resume=True)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    options = {"max_iterations": 0} if form == "tiny_transport" else {}
    path = geonet.geodesic(source, target, solver=str(outcome.model), **options)
    assert path.density(0.5).tensor.shape == (5, *source.grid.shape)


def test_a_problem_of_another_dimension_is_rejected(tiny, tmp_path):
    _write_pairs(tmp_path / "pairs.npz", 2)
    for problem in ({"file": str(tmp_path / "pairs.npz")}, {"family": "mixtures-2d"}):
        with pytest.raises(ConfigError, match="model.dimension is 1, but .* is 2D"):
            train(tiny(problem=problem), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_outcome_before_any_validation(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "after_step", lambda *arguments, **options: None)
    assert train(tiny(), tmp_path, stop_at=1) == TrainingOutcome(None, 1, "stopped", float("inf"))


# ---- stop requests during steps


@pytest.fixture
def step_hook(monkeypatch):
    """Call a function within the n-th step."""

    def install(n: int, function) -> None:
        original = Run.step

        def step(self):
            if self.progress.step == n - 1:
                function(self)
            return original(self)

        monkeypatch.setattr(Run, "step", step)

    return install


def _send(*numbers: int):
    return lambda *_: [os.kill(os.getpid(), number) for number in numbers]


def test_a_time_limit_saves_and_stops(tiny, tmp_path, monkeypatch, step_hook, assert_same_state):
    now = [100.0]
    monkeypatch.setattr(loop, "perf_counter", lambda: now[0])
    step_hook(5, lambda _: now.__setitem__(0, 161.0))
    outcome = train(tiny(), tmp_path / "run", time_limit=60)
    assert (outcome.step, outcome.reason, _step(tmp_path / "run")) == (5, "time limit", 5)
    monkeypatch.undo()
    assert train(tiny(), tmp_path / "run", resume=True, time_limit=3600).reason == "finished"
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


@SIGNALS
def test_a_signal_finishes_the_step_and_saves(tiny, tmp_path, step_hook, number, reason):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    step_hook(5, _send(number))
    outcome = train(tiny(), tmp_path)
    assert (outcome.step, outcome.reason, _step(tmp_path)) == (5, reason, 5)
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_interrupt_stops_at_once(
    tiny, tmp_path, monkeypatch, step_hook, assert_same_state
):
    step_hook(5, _send(signal.SIGINT, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "run")
    assert _step(tmp_path / "run") == 3
    monkeypatch.undo()
    train(tiny(), tmp_path / "run", resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


def test_a_second_interrupt_while_saving_leaves_complete_files(
    tiny, tmp_path, monkeypatch, step_hook
):
    save = model_file.save

    def interrupted(tensors, metadata):
        if '"kind": "checkpoint"' in metadata["geonet"] and '"step": 5' in metadata["geonet"]:
            os.kill(os.getpid(), signal.SIGINT)
        return save(tensors, metadata)

    step_hook(5, _send(signal.SIGINT))
    monkeypatch.setattr(model_file, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path)
    assert _step(tmp_path) == 3 and not list(tmp_path.glob(".*"))


# ---- stop requests while validation pairs are solved


@pytest.fixture
def solve_hook(monkeypatch):
    """Call a function before the n-th pair is solved; returns the list of solved pairs."""
    original = checkpoint_module.reference_for_pair

    def install(function, n: int) -> list:
        calls = []

        def solve(*pair):
            calls.append(pair)
            if len(calls) == n:
                function()
            return original(*pair)

        monkeypatch.setattr(checkpoint_module, "reference_for_pair", solve)
        return calls

    return install


def _cached(folder: Path) -> int:
    _, header = read_tensors(folder / "references.safetensors", "exact paths")
    return len(header["solvers"])


@SIGNALS
def test_a_signal_between_two_pairs(
    tiny, tmp_path, solve_hook, assert_same_state, logged, number, reason
):
    """The current pair is finished and stored; a resume solves only the others."""
    config = tiny(validation=SIX_PAIRS)
    calls = solve_hook(_send(number), 4)
    outcome = train(config, tmp_path / "run")
    assert (outcome.step, outcome.reason, outcome.model) == (0, reason, None)
    assert (_step(tmp_path / "run"), len(calls), _cached(tmp_path / "run")) == (0, 4, 4)
    calls = solve_hook(None, 0)
    resumed = train(config, tmp_path / "run", resume=True)
    assert (resumed.reason, len(calls), _cached(tmp_path / "run")) == ("finished", 2, 6)
    whole = train(config, tmp_path / "whole")
    assert (resumed.best, resumed.halfway) == (whole.best, whole.halfway)
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_a_signal_within_a_pair(tiny, tmp_path, solve_hook):
    """A solver that reports progress is left at once."""

    def endless() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            report_progress("residual 3 %")

    calls = solve_hook(endless, 3)
    outcome = train(tiny(validation=SIX_PAIRS), tmp_path)
    assert (outcome.step, outcome.reason) == (0, "terminated")
    assert (_step(tmp_path), len(calls), _cached(tmp_path)) == (0, 3, 2)


def test_the_time_limit_includes_the_validation(
    tiny, tmp_path, solve_hook, monkeypatch, assert_same_state
):
    now = [100.0]
    monkeypatch.setattr(loop, "perf_counter", lambda: now[0])
    calls = solve_hook(lambda: now.__setitem__(0, 161.0), 2)
    outcome = train(tiny(validation=SIX_PAIRS), tmp_path / "run", time_limit=60)
    assert (outcome.step, outcome.reason, len(calls)) == (0, "time limit", 2)
    monkeypatch.undo()
    assert train(tiny(validation=SIX_PAIRS), tmp_path / "run", resume=True, time_limit=-1).step == 0
    train(tiny(validation=SIX_PAIRS), tmp_path / "run", resume=True)
    train(tiny(validation=SIX_PAIRS), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")


def test_a_second_interrupt_keeps_the_solved_pairs(tiny, tmp_path, solve_hook):
    solve_hook(_send(signal.SIGINT, signal.SIGINT), 3)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(validation=SIX_PAIRS), tmp_path)
    assert _cached(tmp_path) == 2 and not (tmp_path / CHECKPOINT).exists()


def test_a_stop_on_resume_keeps_the_checkpoint(tiny, tmp_path, solve_hook):
    """References that are lost are solved again, and this is interrupted."""
    config = tiny(validation=SIX_PAIRS)
    train(config, tmp_path, stop_at=4)
    (tmp_path / "references.safetensors").unlink()
    before = _contents(tmp_path)
    solve_hook(_send(signal.SIGTERM), 1)
    outcome = train(config, tmp_path, resume=True)
    assert (outcome.step, outcome.reason) == (4, "terminated")
    assert {name: _contents(tmp_path)[name] for name in before} == before


def test_status_lines_appear_before_the_work(tiny_transport, tmp_path, solve_hook, capsys):
    lines = []
    solve_hook(lambda: lines.append(capsys.readouterr().err), 1)
    train(tiny_transport(), tmp_path)
    assert lines == ["reading data\ndrawing calibration densities\nvalidating: exact path 1/2\n"]


@SIGNALS
def test_signals_are_handled_only_within_the_context(number, reason):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    monitor = StopMonitor(time_limit=60)
    with monitor.install_handlers():
        assert monitor.reason is None
        monitor.check()
        os.kill(os.getpid(), number)
        assert monitor.reason == reason
        with pytest.raises(StopRequested):
            monitor.check()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_observe_the_time_limit_only():
    reasons = []

    def work() -> None:
        with StopMonitor(-1).install_handlers() as monitor:
            reasons.append(monitor.reason)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reasons == ["time limit"]


# ---- divergence


@pytest.fixture
def spoil(monkeypatch):
    """Make one term of the loss NaN at the n-th step from now."""

    def install(step: int, name: str, loss: type = GeONetLoss) -> None:
        original, calls = loss.forward, []

        def forward(self, batch):
            terms = original(self, batch)
            calls.append(batch)
            return {**terms, name: terms[name] * float("nan")} if len(calls) == step else terms

        monkeypatch.setattr(loss, "forward", forward)

    return install


@pytest.mark.parametrize(
    ("form", "term", "loss"),
    [("tiny", "hamilton_jacobi", GeONetLoss), ("tiny_transport", "folds", TransportLoss)],
)
def test_a_term_that_is_not_finite_is_named(request, tmp_path, spoil, form, term, loss):
    config = request.getfixturevalue(form)()
    train(config, tmp_path, stop_at=3)
    before = (tmp_path / CHECKPOINT).read_bytes()
    spoil(2, term, loss)
    with pytest.raises(TrainingError, match=f"At step 5 the term {term} .* good checkpoint"):
        train(config, tmp_path, resume=True)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_run_resumes_after_a_nan(tiny, tmp_path, monkeypatch, spoil, assert_same_state, logged):
    spoil(8, "source")
    with pytest.raises(TrainingError, match="At step 8 the term source"):
        train(tiny(), tmp_path / "run")
    assert _step(tmp_path / "run") == 6
    monkeypatch.undo()
    train(tiny(), tmp_path / "run", resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


@pytest.mark.parametrize("name", ["soap", "adam"])
def test_a_huge_learning_rate_is_reported(tiny, tmp_path, name):
    config = tiny(optimizer={"name": name, "learning_rate": 1e20, "warmup": 0})
    with pytest.raises(TrainingError, match=r"At step \d the term .* lower the learning rate"):
        train(config, tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize("pairs", [0, 2])
def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path, monkeypatch, pairs):
    config = tiny(checkpoint_every=1, validation={"pairs": pairs, "every": 1})
    train(config, tmp_path, stop_at=3)
    before, original = _contents(tmp_path), Run.step

    def step(self):
        result = original(self)
        self.model.density.trunk.output.bias.data.fill_(float("nan"))
        return result

    monkeypatch.setattr(Run, "step", step)
    with pytest.raises(TrainingError, match="At step 4 weights are no longer finite"):
        train(config, tmp_path, resume=True)
    assert _contents(tmp_path) == before


def test_a_model_with_infinite_output_is_never_saved(tiny, tmp_path, monkeypatch):
    """Finite weights may still be too large."""
    config = tiny(checkpoint_every=1, validation={"every": 1})
    train(config, tmp_path, stop_at=3)
    before = _contents(tmp_path)
    infinite = {"validation_l1_percent": [float("inf")] * 5}
    monkeypatch.setattr(Validation, "measure", lambda *_: infinite)
    with pytest.raises(TrainingError, match="At step 4 the output on validation pairs"):
        train(config, tmp_path, resume=True)
    assert _contents(tmp_path) == before
