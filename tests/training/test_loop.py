"""The training loop: bitwise resume, stop requests, divergence, data from files."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet._progress import report_progress
from geonet.errors import ConfigError, FileError, TrainingError
from geonet.solvers.neural.geonet import GeONetLoss
from geonet.solvers.neural.model import load_model, read_tensors
from geonet.solvers.neural.transport.network import TransportLoss, TransportNet
from geonet.training import checkpoint as checkpoint_module
from geonet.training import loop
from geonet.training.config import read_config
from geonet.training.log import Validation
from geonet.training.loop import Processes, Run, StopMonitor, train

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

ADAM = {"name": "adam", "weight_decay": 0.1, "clip": 0.5}
SYMMETRIC, NONE = {"swap_symmetry": "density"}, {"pairs": 0}
GRADIENTS = {"continuity_gradient": 0.1, "hamilton_jacobi_gradient": 0.1}
VARIANTS = {
    "soap": ("tiny", {}),
    "soap, unaligned files": ("tiny", {}),
    "adam": ("tiny", {"optimizer": ADAM, "sampling": {"scheme": "triples"}}),
    "gradient-enhanced": ("tiny", {"loss": GRADIENTS, "optimizer": {"balance_every": 4}}),
    "entropic": ("tiny", {"loss": {"epsilon": 0.5}, "model": SYMMETRIC, "validation": NONE}),
    "transport": ("tiny_transport", {"optimizer": {"balance_every": 4}}),
    "supervised": ("tiny_supervised", {"model": SYMMETRIC}),
    "cascade": ("tiny_cascade", {}),
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
    if "unaligned" in variant:
        request.getfixturevalue("misaligned_files")
    form, changes = VARIANTS[variant]
    config = request.getfixturevalue(form)(**changes)
    _check_resume(config, tmp_path, assert_same_state, logged)
    assert read_config(tmp_path / "whole" / "config.toml") == config
    assert not list((tmp_path / "whole").glob(".*"))  # temporary files


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
WIDE_TRANSPORT = {"sensors": 20, "seen": 10, "modes": 16, "width": 16}
WIDER = {"sensors": 20, "rank": 16, "branch": {"width": 16}, "trunk": {"width": 16}}


@pytest.mark.parametrize(
    ("form", "model", "terms", "factor"),
    [
        ("tiny", WIDER, {"continuity", "hamilton_jacobi", "source", "target"}, 0.8),
        ("tiny_supervised", WIDER, {"error"}, 0.8),
        ("tiny_transport", WIDE_TRANSPORT, {"mismatch", "folds"}, 0.5),
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


def test_initial_weights_of_another_model(tiny, tiny_cascade, tmp_path):
    train(tiny_cascade(validation={"pairs": 0}), tmp_path / "first", stop_at=3)
    file = tmp_path / "first" / "model.safetensors"
    run = Run(tiny_cascade(start=str(file)), tmp_path / "second", Processes())
    given, taken = load_model(file)[0].state_dict(), run.model.state_dict()
    assert all(torch.equal(given[name], taken[name]) for name in given)
    with pytest.raises(ConfigError, match="of the kind 'cascade' with other layers"):
        train(tiny(start=str(file)), tmp_path / "third")


def test_the_model_to_start_from_may_be_the_best(tiny_cascade, tmp_path, logged):
    train(tiny_cascade(), tmp_path / "first")
    file = str(tmp_path / "first" / "model.safetensors")
    config = tiny_cascade(start=file, optimizer={"learning_rate": 0.5})
    outcome = train(config, tmp_path / "second", stop_at=2)
    entries = [entry for entry in logged(tmp_path / "second") if "validation" in entry]
    assert [entry["step"] for entry in entries] == [0, 2] and outcome.best_step == 0
    given, kept = (load_model(f)[0].state_dict() for f in (Path(file), outcome.model))
    assert all(torch.equal(given[name], kept[name]) for name in given)


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


# ---- files


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


def test_pairs_from_a_file(tiny_transport, tmp_path, monkeypatch, assert_same_state):
    monkeypatch.setattr(TransportNet, "n_calibration_densities", 20)  # a thousand take seconds
    source, target = _write_pairs(tmp_path / "pairs.npz", 3)
    problem, model = {"file": str(tmp_path / "pairs.npz")}, {"dimension": 3, "seen": 4, "modes": 4}
    config = tiny_transport(problem=problem, model=model, steps=4, validation={"pairs": 0})
    outcome = train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", stop_at=2)
    train(config, tmp_path / "parts", resume=True)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    path = geonet.geodesic(source, target, solver=str(outcome.model), max_iterations=0)
    assert path.density(0.5).tensor.shape == (5, *source.grid.shape)


def test_a_problem_of_another_dimension_is_rejected(tiny, tmp_path):
    _write_pairs(tmp_path / "pairs.npz", 2)
    for problem in ({"file": str(tmp_path / "pairs.npz")}, {"family": "mixtures-2d"}):
        with pytest.raises(ConfigError, match="model.dimension is 1, but .* is 2D"):
            train(tiny(problem=problem), tmp_path / "run")
    assert not (tmp_path / "run").exists()


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


def test_a_time_limit_saves_and_stops(tiny, tmp_path, monkeypatch, step_hook):
    now = [100.0]
    monkeypatch.setattr(loop, "perf_counter", lambda: now[0])
    step_hook(5, lambda _: now.__setitem__(0, 161.0))
    outcome = train(tiny(), tmp_path / "run", time_limit=60)
    assert (outcome.step, outcome.reason, _step(tmp_path / "run")) == (5, "time limit", 5)


@SIGNALS
def test_a_signal_finishes_the_step_and_saves(tiny, tmp_path, step_hook, number, reason):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    step_hook(5, _send(number))
    outcome = train(tiny(), tmp_path)
    assert (outcome.step, outcome.reason, _step(tmp_path)) == (5, reason, 5)
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_interrupt_stops_at_once(tiny, tmp_path, step_hook):
    step_hook(5, _send(signal.SIGINT, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path)
    assert _step(tmp_path) == 3


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


def test_the_time_limit_includes_the_validation(tiny, tmp_path, solve_hook, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(loop, "perf_counter", lambda: now[0])
    calls = solve_hook(lambda: now.__setitem__(0, 161.0), 2)
    outcome = train(tiny(validation=SIX_PAIRS), tmp_path, time_limit=60)
    assert (outcome.step, outcome.reason, len(calls)) == (0, "time limit", 2)


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


@pytest.mark.parametrize("fault", ["weights", "output"])
def test_weights_or_outputs_that_are_not_finite_are_never_saved(tiny, tmp_path, monkeypatch, fault):
    """Finite weights may still be too large."""
    config = tiny(checkpoint_every=1, validation={"every": 1})
    train(config, tmp_path, stop_at=3)
    before, original = _contents(tmp_path), Run.step

    def step(self):
        result = original(self)
        self.model.density.trunk.output.bias.data.fill_(float("nan"))
        return result

    if fault == "weights":
        monkeypatch.setattr(Run, "step", step)
    else:
        infinite = {"validation_l1_percent": [float("inf")] * 5}
        monkeypatch.setattr(Validation, "measure", lambda *_: infinite)
    with pytest.raises(TrainingError, match=f"At step 4 (the )?{fault}"):
        train(config, tmp_path, resume=True)
    assert _contents(tmp_path) == before
