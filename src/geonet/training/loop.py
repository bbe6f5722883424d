"""The training loop, from top to bottom."""

from __future__ import annotations

import gc
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from geonet._files import atomic_write, ensure_dir
from geonet._progress import progress_callback, report_progress
from geonet._threads import passive_wait
from geonet._toml import to_table, to_toml
from geonet._utils import import_object
from geonet._validation import as_path, check_count, check_instance, is_number, short_repr
from geonet.errors import ConfigError, FileError, InputError, TrainingError
from geonet.solvers.neural.losses import Batch
from geonet.solvers.neural.model import (
    PRETRAINED,
    Model,
    build,
    load_model,
    read_tensors,
    save_model,
)
from geonet.training.checkpoint import (
    TRUTHS,
    KeptTruths,
    Progress,
    load_checkpoint,
    save_checkpoint,
)
from geonet.training.config import TrainingConfig
from geonet.training.distributed import Processes, joined_processes
from geonet.training.log import HALFWAY, Display, RunLog, Validation
from geonet.training.optim import learning_rate, make_optimizer, shrink
from geonet.training.problems import (
    FAMILIES,
    Problem,
    cartesian_batch,
    sensor_points,
    triples_batch,
    with_known_paths,
)
from geonet.training.synthetic import CUBE, SQUARE, Anything
from geonet.training.user_data import read_own

# ---- Who asks a training to stop: Ctrl-C, SIGTERM and the clock.


REASONS = ("interrupted", "terminated", "time limit")
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(BaseException):
    """Leaves work that was asked to stop; no solver takes it for an error that it may answer."""


class Stops:
    """Whether somebody asked to stop, and who.

    Args:
        time_limit: seconds from now on; None for no limit.
    """

    def __init__(self, time_limit: float | None = None):
        self._until = None if time_limit is None else perf_counter() + time_limit
        self._signalled: str | None = None

    @property
    def reason(self) -> str | None:
        """One of `REASONS`; None to go on."""
        late = self._until is not None and perf_counter() > self._until
        return self._signalled or ("time limit" if late else None)

    def check(self) -> None:
        """Raise `Stopped` if there is a reason to."""
        if self.reason is not None:
            raise Stopped

    @contextmanager
    def listening_to_signals(self) -> Iterator[Stops]:
        """Meanwhile Ctrl-C and SIGTERM are reasons, and cut no step; a second Ctrl-C interrupts."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # signals belong to the main thread
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self._signalled is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signalled = SIGNALS[signal.Signals(number)]


# ---- Weights of a trained model to begin another training with.


def begin_with(model: Model, name: str) -> None:
    """Give a model the weights of another one with the same layers.

    Args:
        model: whose weights are replaced.
        name: of a shipped model, or a file.
    """
    shipped = PRETRAINED / f"{name}.safetensors"
    other, _ = load_model(shipped if shipped.exists() else Path(name))
    theirs, ours = ({k: v.shape for k, v in m.state_dict().items()} for m in (other, model))
    if theirs != ours or other.settings.kind != model.settings.kind:
        raise ConfigError(
            f"start is {name!r}, a model of the kind {other.settings.kind!r} with other layers; "
            "give [model] its architecture, or another start."
        )
    model.load_state_dict(other.state_dict())


# ---- Weights of the terms by the norms of their gradients (Wang et al., 2023).


MEMORY = 0.9  # of the weights before
LEAST = 1e-3  # of the largest norm: a term that is solved is not blown up


def balanced_weights(
    terms: dict[str, Tensor],
    weights: dict[str, float],
    given: dict[str, float],
    parameters: Sequence[Tensor],
    processes: Processes,
) -> dict[str, float]:
    """Move the weights of the terms L_i towards equal gradients, w_i ∝ 1/|∇L_i|.

    Their scale is such that Σ w_i|∇L_i| is what it would be with the `given` weights.
    """
    norms = []
    for term in terms.values():
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        squares = [(g**2).sum() for g in gradients if g is not None]
        norms.append(torch.stack(squares).sum().sqrt())
    size = processes.mean(torch.stack(norms))
    size = size.clamp(min=float(LEAST * size.max()) or 1.0)
    total = sum(given[name] * float(n) for name, n in zip(terms, size, strict=True))
    return {
        name: MEMORY * weights[name] + (1 - MEMORY) * total / (len(terms) * float(n))
        for name, n in zip(terms, size, strict=True)
    }


# ---- The problems that a config can name.


CATALOGUE: dict[str, Callable[[], Problem]] = {
    **FAMILIES,
    "anything-2d": partial(Anything, SQUARE),
    "anything-3d": partial(Anything, CUBE),
}


def make_problem(config: TrainingConfig) -> Problem:
    """The family or the file that the config names."""
    settings = config.problem
    if settings.autoencoder is not None:
        return import_object("experiments.problems:digit_codes")(Path(settings.autoencoder))
    if settings.family is not None and ":" in settings.family:
        return import_object(settings.family)()
    if settings.family is not None:
        return CATALOGUE[settings.family]()
    assert settings.file is not None
    problem = read_own(Path(settings.file), settings.floor)
    if problem.box.dimension != config.model.dimension:
        raise ConfigError(
            f"model.dimension is {config.model.dimension}, but the pairs in {settings.file} are "
            f"{problem.box.dimension}D; make them agree."
        )
    return problem


CHECKPOINT, MODEL, CONFIG = "checkpoint.safetensors", "model.safetensors", "config.toml"
STREAMS_APART = 1_000_003  # between the seeds of two processes


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training ended.

    Attributes:
        model: the file of the model with the lowest validation error; None before the first.
        step: steps done in all.
        reason: "finished", "stopped" (`stop_at`), "interrupted" (Ctrl-C), "terminated" (SIGTERM) or
            "time limit".
        best: the lowest validation error in percent, by which the model was chosen: the mean over
            t = 0, ¼, ½, ¾, 1. The ends of some forms are exact whatever they learnt.
        halfway: the validation error of that model at t = ½ alone, in percent; None without one.
        linear: that of the linear mixture of the ends, on the same pairs; None if not known.
    """

    model: Path | None
    step: int
    reason: str
    best: float
    halfway: float | None = None
    linear: float | None = None


def train(
    config: TrainingConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    time_limit: float | None = None,
    stop_at: int | None = None,
) -> TrainingOutcome:
    """Train into `folder`: config.toml, log.jsonl, checkpoint.safetensors, model.safetensors.

    The exact paths of the validation pairs come first and are kept in truths.safetensors. A stop is
    heard then, too. It saves what there is.

    Args:
        config: what to train, and how.
        folder: made if need be.
        resume: go on from the checkpoint there, with weights and losses bit for bit as if there had
            been no break, on the same machine, with the same versions and number of threads. A stop
            adds a validation, so the model that is kept may be one that an unbroken training never
            validates.
        time_limit: seconds from now on after which to save and stop.
        stop_at: the step after which to save and stop.
    """
    check_instance(config, TrainingConfig, "config", "give a TrainingConfig, or read_config(file)")
    folder = as_path(folder, "folder")
    if stop_at is not None:
        check_count(stop_at, 1, "stop_at")
    if time_limit is not None and not is_number(time_limit):
        raise InputError(f"time_limit is {short_repr(time_limit)}; give a number of seconds.")
    stops = Stops(time_limit)
    _check_folder(folder, resume)
    with (
        passive_wait(),
        joined_processes() as processes,
        Display(config.steps, processes.writes) as display,
    ):
        with progress_callback(display.doing):
            run = Run(config, folder, processes)
        try:
            with stops.listening_to_signals():
                if resume:
                    run.load()
                elif processes.writes:
                    _prepare(folder, config)
                last = min(config.steps, stop_at or config.steps)
                reason = _steps(run, display, stops, last)
        finally:
            run.leave()
    return _outcome(run, reason)


def _steps(run: Run, display: Display, stops: Stops, last: int) -> str | None:
    """Step until `last`, or until there is a reason to stop before, which is what it gives."""
    progress, processes = run.progress, run.processes
    display.at(progress.step)
    log = RunLog(run.folder, display, progress.step) if processes.writes else None
    with log or nullcontext():
        if progress.step < last:
            run.solve_validation(display, stops)
        reason = processes.first(stops.reason, REASONS)
        if reason is not None and progress.step == 0:
            run.save()
        while progress.step < last and reason is None:
            loss, terms = run.take_step()
            display.at(progress.step)
            reason = processes.first(stops.reason, REASONS)
            if not math.isfinite(loss):
                raise _diverged(progress.step, terms, run.folder)
            run.after_step(log, loss, terms, final=reason is not None or progress.step == last)
    return reason


def _outcome(run: Run, reason: str | None) -> TrainingOutcome:
    """What is known of the model stands in its file, which an earlier part may have left."""
    step, best, model = run.progress.step, run.progress.best, run.folder / MODEL
    done = "finished" if step == run.config.steps else "stopped"
    if not model.exists():
        return TrainingOutcome(None, step, reason or done, best)
    measured = read_tensors(model, "a geonet model")[1].get("measured", {})
    errors = measured.get("validation_l1_percent")
    halfway = None if errors is None else errors[HALFWAY]
    linear = measured.get("halfway_l1_percent", {}).get("linear")
    return TrainingOutcome(model, step, reason or done, best, halfway, linear)


class Run:
    """The state of a training and what is done to it."""

    def __init__(self, config: TrainingConfig, folder: Path, processes: Processes):
        self.config, self.folder, self.processes = config, folder, processes
        report_progress("reading data")
        self.problem = make_problem(config)
        self.model = build(config.model, config.seed)
        if config.start is not None:
            begin_with(self.model, config.start)
        self.model.to(processes.device)
        self.sensors = sensor_points(config.model.sensors, config.model.dimension)
        if self.model.typical:
            report_progress("drawing typical densities")
            self.model.prepare(self._typical(self.model.typical).to(processes.device))
        self.objective = self.model.objective(config.loss, self.problem.box)
        self.shared = processes.shared(self.objective)
        if config.compile:
            self.shared = torch.compile(self.shared)
        self.optimizer = make_optimizer(config.optimizer, self.model.parameters())
        self.generator = torch.Generator().manual_seed(
            config.seed + STREAMS_APART * (processes.rank + 1)
        )
        self.progress = Progress(0, math.inf, 0.0, dict(self.objective.weights))

    @cached_property
    def validation(self) -> Validation | None:
        """Unseen pairs with their exact paths, solved when first asked for and not in the file."""
        if not self.config.validation.pairs:
            return None
        return Validation(self.config, self.problem, KeptTruths(self.folder / TRUTHS))

    def solve_validation(self, display: Display, stops: Stops) -> None:
        """Get the exact paths ready; a stop leaves the rest of them to the next start."""

        def hear(line: str) -> None:
            stops.check()
            display.doing("validating", line)

        if self.processes.writes:
            with suppress(Stopped), progress_callback(hear):
                _ = self.validation

    def load(self) -> None:
        """Go back to the checkpoint."""
        file = self.folder / CHECKPOINT
        self.progress, streams = load_checkpoint(file, self.config, self.model, self.optimizer)
        if len(streams) != self.processes.count:
            raise ConfigError(
                f"{file} was trained by {len(streams)} processes, here are "
                f"{self.processes.count}; resume with as many."
            )
        self.generator.set_state(streams[self.processes.rank])

    def take_step(self) -> tuple[float, dict[str, float]]:
        """One step; gives the loss and its weighted terms, before the step.

        Where the loss of any process, or its gradient, is not finite, nothing moves; all give NaN.
        """
        config, progress, began = self.config, self.progress, perf_counter()
        rate = learning_rate(config.optimizer, progress.step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        terms = self.shared(self.batch().to(self.processes.device))
        every = config.optimizer.balance_every
        if every and progress.step % every == 0:
            moving = [p for p in self.model.parameters() if p.requires_grad]
            progress.weights = balanced_weights(
                terms, progress.weights, self.objective.weights, moving, self.processes
            )
        loss = self.objective.total(terms, progress.weights)
        self.optimizer.zero_grad()
        loss.backward()
        value = float(loss.detach())
        if self.processes.any(not math.isfinite(value))[0] or not self._moved():
            value = math.nan
        progress.step += 1
        progress.seconds += perf_counter() - began
        weighted = {name: progress.weights[name] * float(t.detach()) for name, t in terms.items()}
        return value, weighted

    def _moved(self) -> bool:
        """Let the optimizer step; SOAP cannot where the gradient is not finite."""
        settings = self.config.optimizer
        if settings.clip:
            clip_grad_norm_(self.model.parameters(), settings.clip)
        try:
            self.optimizer.step()
        except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
            return False
        if settings.weight_decay:
            rate = self.optimizer.param_groups[0]["lr"]
            shrink(self.model.parameters(), rate * settings.weight_decay)
        return True

    def batch(self) -> Batch:
        """New pairs and points."""
        sampling = self.config.sampling
        if sampling.scheme == "triples":
            return triples_batch(self.problem, self.sensors, sampling.pairs, self.generator)
        places = sampling.places if self.model.compares_ends else 0
        counts = (sampling.pairs, sampling.points, places)
        means = self.config.model.sensors if self.model.sees_means else None
        batch = cartesian_batch(self.problem, self.sensors, *counts, self.generator, means)
        if not self.model.needs_exact_paths:
            return batch
        began = perf_counter()
        batch = with_known_paths(batch)
        self.progress.data_seconds += perf_counter() - began
        return batch

    def _typical(self, count: int) -> Tensor:
        """Densities of the problem at the sensors, (count, m), the same in every process."""
        generator = torch.Generator().manual_seed(self.config.seed)
        source, _ = self.problem.draw(count, generator)
        return self.problem.sensed(source, self.sensors)

    def after_step(
        self, log: RunLog | None, loss: float, terms: dict[str, float], final: bool
    ) -> None:
        """Log, validate and save, where it is time to; all of them after the last step."""
        config, step = self.config, self.progress.step
        if log is not None:
            if final or step % config.log_every == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                seconds = round(self.progress.seconds, 3)
                log.losses(step, loss, terms, learning_rate=rate, seconds=seconds)
            if final or step % config.validation.every == 0:
                self.validate(log)
        if final or step % config.checkpoint_every == 0:
            self.save()

    def validate(self, log: RunLog) -> None:
        """Measure the error on unseen pairs; keep the model if it is the best so far."""
        self._check_finite()
        if self.validation is None:  # no truth: the last model is kept
            self.save_model({})
            return
        measured = self.validation.measured(self.model)
        errors = measured["validation_l1_percent"]
        if not all(map(math.isfinite, errors)):
            raise _diverged(self.progress.step, {}, self.folder, "the answer on unseen pairs is")
        seconds = round(self.progress.seconds, 1)
        log.validation(self.progress.step, errors, self.validation.linear, seconds)
        mean = sum(errors) / len(errors)
        if mean < self.progress.best:
            self.progress.best = mean
            self.save_model(measured)

    def save_model(self, measured: dict[str, Any]) -> None:
        """Write the model file."""
        header = {
            "name": self.config.name,
            "epsilon": self.objective.epsilon,
            "floor": self.config.problem.floor,
            "training": to_table(self.config),
            "steps": self.progress.step,
            "seconds": round(self.progress.seconds, 1),
            "measured": measured,
        }
        if self.model.needs_exact_paths:
            header["data_seconds"] = round(self.progress.data_seconds, 1)
        save_model(self.folder / MODEL, self.model, header)

    def save(self) -> None:
        """Write the checkpoint."""
        self._check_finite()
        streams = self.processes.gathered(self.generator.get_state())
        if self.processes.writes:
            file = self.folder / CHECKPOINT
            save_checkpoint(file, self.config, self.progress, self.model, self.optimizer, streams)

    def leave(self) -> None:
        """Let go of the other processes: freed after their group, the wrapper hangs or aborts."""
        self.shared = self.objective
        if self.processes.count > 1:
            gc.collect()  # it is part of a cycle

    def _check_finite(self) -> None:
        """A step from a finite loss can still break the weights; such weights are never saved."""
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise _diverged(self.progress.step, {}, self.folder, "weights are")


def _check_folder(folder: Path, resume: bool) -> None:
    """A training that is there is never overwritten, and none that is not there goes on."""
    there = (folder / CHECKPOINT).exists()
    if there and not resume:
        raise FileError(
            f"{folder} holds a training already; go on with --resume, or give another --folder."
        )
    if resume and not there:
        raise FileError(f"There is no file {folder / CHECKPOINT}; start without --resume.")


def _prepare(folder: Path, config: TrainingConfig) -> None:
    """Make the folder, with the config in it."""
    ensure_dir(folder)
    with atomic_write(folder / CONFIG) as temporary:
        temporary.write_text(to_toml(to_table(config)), encoding="utf-8")


def _diverged(
    step: int,
    terms: dict[str, float],
    folder: Path,
    otherwise: str = "the gradient, or the loss of another process, is",
) -> TrainingError:
    bad = [name for name, value in terms.items() if not math.isfinite(value)]
    cause = f"the term {' and '.join(bad)} of the loss is" if bad else otherwise
    kept = "the last good checkpoint is kept; " if (folder / CHECKPOINT).exists() else ""
    return TrainingError(
        f"At step {step} {cause} no longer finite; {kept}lower the learning rate, or lengthen the "
        "warm-up."
    )
