"""The training loop, and requests to stop it."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from geonet._files import atomic_write, ensure_dir
from geonet._progress import progress_callback, report_progress
from geonet._threads import passive_wait
from geonet._toml import to_table, to_toml
from geonet._validation import as_path, check_count, check_instance, is_number, short_repr
from geonet.errors import ConfigError, FileError, InputError, TrainingError
from geonet.solvers.neural.losses import Batch
from geonet.solvers.neural.model import (
    PRETRAINED,
    Model,
    build_model,
    load_model,
    read_tensors,
    save_model,
)
from geonet.training.checkpoint import Progress, ReferenceCache, load_checkpoint, save_checkpoint
from geonet.training.config import TrainingConfig
from geonet.training.log import HALFWAY, Display, RunLog, Validation
from geonet.training.optim import decay_weights, learning_rate, make_optimizer
from geonet.training.problems import (
    Problem,
    add_exact_densities,
    cartesian_batch,
    make_problem,
    sensor_points,
    triples_batch,
)
from geonet.training.user_data import read_dataset

CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"


@dataclass(frozen=True)
class TrainingOutcome:
    """Result of a training run.

    Attributes:
        model: file of the model with the lowest validation error; None before the first.
        step: number of steps done.
        reason: "finished", "stopped" (`stop_at`), "interrupted" (Ctrl-C), "terminated" (SIGTERM) or
            "time limit".
        best: lowest validation error in percent, by which the model was chosen: the mean over
            t = 0, ¼, ½, ¾, 1. Some models are exact at the ends by construction.
        halfway: validation error of this model at t = ½ alone, in percent; None without one.
        linear: error of the linear blend of the ends at t = ½ on the same pairs; None if unknown.
        best_step: steps after which this model was validated; 0 for the model to start from.
    """

    model: Path | None
    step: int
    reason: str
    best: float
    halfway: float | None = None
    linear: float | None = None
    best_step: int | None = None


def train(
    config: TrainingConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    time_limit: float | None = None,
    stop_at: int | None = None,
) -> TrainingOutcome:
    """Train a model.

    The folder receives config.toml, log.jsonl, checkpoint.safetensors, model.safetensors, and in
    references.safetensors the exact paths of the validation pairs, which are solved first. Ctrl-C,
    SIGTERM and the time limit save a checkpoint and stop, also during the first phase.

    Args:
        config: the settings.
        folder: created if it does not exist.
        resume: continue from the checkpoint in the folder. Weights and losses are then bitwise the
            same as in an uninterrupted run on the same machine, with the same versions and number
            of threads. A stop adds a validation, so the best model may be one that an uninterrupted
            run does not validate.
        time_limit: seconds from now after which to save and stop.
        stop_at: step after which to save and stop.
    """
    check_instance(config, TrainingConfig, "config", "give a TrainingConfig, or read_config(file)")
    folder = as_path(folder, "folder")
    if stop_at is not None:
        check_count(stop_at, 1, "stop_at")
    if time_limit is not None and not is_number(time_limit):
        raise InputError(f"time_limit is {short_repr(time_limit)}; give a number of seconds.")
    monitor = StopMonitor(time_limit)
    _check_folder(folder, resume)
    with (
        passive_wait(),
        join_processes() as processes,
        Display(config.steps, processes.is_main) as display,
    ):
        with progress_callback(display.status):
            run = Run(config, folder, processes)
        try:
            with monitor.install_handlers():
                if resume:
                    run.load()
                elif processes.is_main:
                    _write_config(folder, config)
                last = min(config.steps, stop_at or config.steps)
                reason = _run_steps(run, display, monitor, last)
        finally:
            run.close()
    return _summarise_run(run, reason)


def _check_folder(folder: Path, resume: bool) -> None:
    """Raise FileError if a run would be overwritten, or if there is none to resume."""
    exists = (folder / CHECKPOINT).exists()
    if exists and not resume:
        raise FileError(
            f"{folder} already contains a training run; add --resume, or choose another --folder."
        )
    if resume and not exists:
        raise FileError(f"There is no file {folder / CHECKPOINT}; start without --resume.")


def _write_config(folder: Path, config: TrainingConfig) -> None:
    ensure_dir(folder)
    with atomic_write(folder / "config.toml") as temporary:
        temporary.write_text(to_toml(to_table(config)), encoding="utf-8")


def _run_steps(run: Run, display: Display, monitor: StopMonitor, last: int) -> str | None:
    """Step until `last` or a stop request; return the reason of the request."""
    progress, processes = run.progress, run.processes
    display.set_step(progress.step)
    log = RunLog(run.folder, display, progress.step) if processes.is_main else None
    with log or nullcontext():
        if progress.step < last:
            run.solve_validation(display, monitor)
        reason = processes.broadcast_first(monitor.reason, StopMonitor.reasons)
        if reason is not None and progress.step == 0:
            run.save()
        elif progress.step == 0 and log is not None and run.config.start is not None:
            run.validate(log)  # the model to start from may be better than all later ones
        while progress.step < last and reason is None:
            loss, terms = run.step()
            display.set_step(progress.step)
            reason = processes.broadcast_first(monitor.reason, StopMonitor.reasons)
            if not math.isfinite(loss):
                raise _divergence_error(progress.step, terms, run.folder)
            run.after_step(log, loss, terms, is_last=reason is not None or progress.step == last)
    return reason


def _summarise_run(run: Run, reason: str | None) -> TrainingOutcome:
    """Read the errors from the model file, which may be older than this part of the run."""
    step, best, model = run.progress.step, run.progress.best, run.folder / MODEL
    reason = reason or ("finished" if step == run.config.steps else "stopped")
    if not model.exists():
        return TrainingOutcome(None, step, reason, best)
    header = read_tensors(model, "a geonet model")[1]
    measured = header.get("measured", {})
    errors = measured.get("validation_l1_percent")
    halfway = None if errors is None else errors[HALFWAY]
    linear = measured.get("halfway_l1_percent", {}).get("linear")
    return TrainingOutcome(model, step, reason, best, halfway, linear, header["steps"])


class Run:
    """The state of a training run: problem, model, optimizer, random numbers and progress."""

    def __init__(self, config: TrainingConfig, folder: Path, processes: Processes):
        self.config, self.folder, self.processes = config, folder, processes
        report_progress("reading data")
        self.problem = load_problem(config)
        self.model = build_model(config.model, config.seed)
        if config.start is not None:
            load_initial_weights(self.model, config.start)
        self.model.to(processes.device)
        self.sensors = sensor_points(config.model.sensors, config.model.dimension)
        if self.model.n_calibration_densities:
            report_progress("drawing calibration densities")
            densities = self._calibration_densities(self.model.n_calibration_densities)
            self.model.prepare(densities.to(processes.device))
        self.objective = self.model.build_loss(config.loss, self.problem.box)
        self.parallel = processes.parallelize(self.objective)
        if config.compile:
            self.parallel = torch.compile(self.parallel)
        self.optimizer = make_optimizer(config.optimizer, self.model.parameters())
        # The seeds of different processes are far apart.
        seed = config.seed + 1_000_003 * (processes.rank + 1)
        self.generator = torch.Generator().manual_seed(seed)
        self.progress = Progress(0, math.inf, 0.0, dict(self.objective.weights))

    @cached_property
    def validation(self) -> Validation | None:
        """Validation pairs with their exact paths, which are solved on first access."""
        if not self.config.validation.pairs:
            return None
        cache = ReferenceCache(self.folder / ReferenceCache.file_name)
        return Validation(self.config, self.problem, cache)

    def solve_validation(self, display: Display, monitor: StopMonitor) -> None:
        """Solve the validation pairs; after a stop request, the next start solves the rest."""

        def on_progress(line: str) -> None:
            monitor.check()
            display.status("validating", line)

        if self.processes.is_main:
            with suppress(StopRequested), progress_callback(on_progress):
                _ = self.validation

    def load(self) -> None:
        """Restore the checkpoint."""
        file = self.folder / CHECKPOINT
        self.progress, states = load_checkpoint(file, self.config, self.model, self.optimizer)
        if len(states) != self.processes.count:
            raise ConfigError(
                f"{file} was written by {len(states)} processes, now there are "
                f"{self.processes.count}; resume with the same number."
            )
        self.generator.set_state(states[self.processes.rank])

    def step(self) -> tuple[float, dict[str, float]]:
        """Do one step; return the loss and its weighted terms before the step.

        If the loss of any process, or its gradient, is not finite, no weight changes and all
        processes return NaN.
        """
        config, progress, start = self.config, self.progress, perf_counter()
        rate = learning_rate(config.optimizer, progress.step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        terms = self.parallel(self.draw_batch().to(self.processes.device))
        every = config.optimizer.balance_every
        if every and progress.step % every == 0:
            trainable = [p for p in self.model.parameters() if p.requires_grad]
            progress.weights = balance_weights(
                terms, progress.weights, self.objective.weights, trainable, self.processes
            )
        loss = self.objective.total(terms, progress.weights)
        self.optimizer.zero_grad()
        loss.backward()
        value = float(loss.detach())
        if self.processes.any(not math.isfinite(value)) or not self._optimizer_step():
            value = math.nan
        progress.step += 1
        progress.seconds += perf_counter() - start
        weighted = {name: progress.weights[name] * float(t.detach()) for name, t in terms.items()}
        return value, weighted

    def _optimizer_step(self) -> bool:
        """Update the weights; return False if the gradient is not finite, which SOAP rejects."""
        settings = self.config.optimizer
        if settings.clip:
            clip_grad_norm_(self.model.parameters(), settings.clip)
        try:
            self.optimizer.step()
        except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
            return False
        if settings.weight_decay:
            rate = self.optimizer.param_groups[0]["lr"]
            decay_weights(self.model.parameters(), rate * settings.weight_decay)
        return True

    def draw_batch(self) -> Batch:
        """Draw new pairs and points."""
        sampling = self.config.sampling
        if sampling.scheme == "triples":
            return triples_batch(self.problem, self.sensors, sampling.pairs, self.generator)
        batch = cartesian_batch(
            self.problem,
            self.sensors,
            sampling.pairs,
            sampling.points,
            sampling.places if self.model.needs_endpoint_loss else 0,
            self.generator,
            self.config.model.sensors if self.model.uses_cell_means else None,
        )
        if not self.model.needs_exact_paths:
            return batch
        start = perf_counter()
        batch = add_exact_densities(batch)
        self.progress.data_seconds += perf_counter() - start
        return batch

    def _calibration_densities(self, count: int) -> Tensor:
        """Return densities of the problem at the sensors, (count, m), equal in all processes."""
        generator = torch.Generator().manual_seed(self.config.seed)
        source, _ = self.problem.draw(count, generator)
        return self.problem.read_sensors(source, self.sensors)

    def after_step(
        self, log: RunLog | None, loss: float, terms: dict[str, float], is_last: bool
    ) -> None:
        """Log, validate and save if they are due; all of them after the last step."""
        config, step = self.config, self.progress.step
        if log is not None:
            if is_last or step % config.log_every == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                seconds = round(self.progress.seconds, 3)
                log.log_loss(step, loss, terms, learning_rate=rate, seconds=seconds)
            if is_last or step % config.validation.every == 0:
                self.validate(log)
        if is_last or step % config.checkpoint_every == 0:
            self.save()

    def validate(self, log: RunLog) -> None:
        """Measure the error on validation pairs; save the model if it is the best so far."""
        self._check_finite()
        if self.validation is None:  # the last model is the one to keep
            self.save_model({})
            return
        measured = self.validation.measure(self.model)
        errors = measured["validation_l1_percent"]
        if not all(map(math.isfinite, errors)):
            cause = "the output on validation pairs is"
            raise _divergence_error(self.progress.step, {}, self.folder, cause)
        seconds = round(self.progress.seconds, 1)
        log.log_validation(self.progress.step, errors, self.validation.linear, seconds)
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
        states = self.processes.gather(self.generator.get_state())
        if self.processes.is_main:
            file = self.folder / CHECKPOINT
            save_checkpoint(file, self.config, self.progress, self.model, self.optimizer, states)

    def close(self) -> None:
        """Free the parallel wrapper before its process group, because it hangs or aborts later."""
        self.parallel = self.objective
        if self.processes.count > 1:
            gc.collect()  # it is part of a reference cycle

    def _check_finite(self) -> None:
        """Raise TrainingError if a weight is not finite, so that such weights are never saved."""
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise _divergence_error(self.progress.step, {}, self.folder, "weights are")


def load_problem(config: TrainingConfig) -> Problem:
    """Return the problem of a config; raise ConfigError if its dimension is not the model's."""
    settings = config.problem
    if settings.family is not None:
        problem = make_problem(settings.family, settings.file)
    else:
        assert settings.file is not None
        problem = read_dataset(Path(settings.file), settings.floor)
    if problem.box.dimension != config.model.dimension:
        raise ConfigError(
            f"model.dimension is {config.model.dimension}, but {settings.family or settings.file} "
            f"is {problem.box.dimension}D; use the same dimension for both."
        )
    return problem


def load_initial_weights(model: Model, name: str) -> None:
    """Copy the weights of another model with the same layers.

    Args:
        model: the model to change.
        name: a pretrained model or a model file.
    """
    pretrained = PRETRAINED / f"{name}.safetensors"
    other, _ = load_model(pretrained if pretrained.exists() else Path(name))
    old, new = ({k: v.shape for k, v in m.state_dict().items()} for m in (model, other))
    if old != new or other.settings.kind != model.settings.kind:
        raise ConfigError(
            f"start is {name!r}, a model of the kind {other.settings.kind!r} with other layers; "
            "copy its architecture to [model], or choose another start."
        )
    model.load_state_dict(other.state_dict())


def balance_weights(
    terms: dict[str, Tensor],
    weights: dict[str, float],
    initial: dict[str, float],
    parameters: Sequence[Tensor],
    processes: Processes,
    momentum: float = 0.9,
) -> dict[str, float]:
    """Move the weights of the terms L_i towards equal gradients, w_i ∝ 1/|∇L_i|.

    Their scale keeps Σ w_i|∇L_i| at its value for the initial weights (Wang et al., 2023). The
    norm of a term counts as at least a thousandth of the largest, so that the weight of a term
    that is nearly zero stays bounded.
    """
    norms = []
    for term in terms.values():
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        squares = [(g**2).sum() for g in gradients if g is not None]
        norms.append(torch.stack(squares).sum().sqrt())
    size = processes.mean(torch.stack(norms))
    size = size.clamp(min=float(1e-3 * size.max()) or 1.0).tolist()
    total = sum(initial[name] * norm for name, norm in zip(terms, size, strict=True))
    return {
        name: momentum * weights[name] + (1 - momentum) * total / (len(terms) * norm)
        for name, norm in zip(terms, size, strict=True)
    }


def _divergence_error(
    step: int,
    terms: dict[str, float],
    folder: Path,
    cause: str = "the gradient, or the loss of another process, is",
) -> TrainingError:
    bad = [name for name, value in terms.items() if not math.isfinite(value)]
    if bad:
        cause = f"the term {' and '.join(bad)} of the loss is"
    kept = "the last good checkpoint is kept; " if (folder / CHECKPOINT).exists() else ""
    return TrainingError(
        f"At step {step} {cause} no longer finite; {kept}lower the learning rate, or lengthen the "
        "warm-up."
    )


# ---- Stop requests


class StopRequested(BaseException):
    """Raised to leave a long computation; not an Exception, so that solvers do not catch it."""


class StopMonitor:
    """Tracks stop requests: Ctrl-C, SIGTERM and the time limit.

    Args:
        time_limit: seconds from now; None for no limit.
    """

    reasons = ("interrupted", "terminated", "time limit")
    _signals: ClassVar = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

    def __init__(self, time_limit: float | None = None):
        self._deadline = None if time_limit is None else perf_counter() + time_limit
        self._signal: str | None = None

    @property
    def reason(self) -> str | None:
        """One of `reasons`; None without a request."""
        is_late = self._deadline is not None and perf_counter() > self._deadline
        return self._signal or ("time limit" if is_late else None)

    def check(self) -> None:
        """Raise StopRequested after a request."""
        if self.reason is not None:
            raise StopRequested

    @contextmanager
    def install_handlers(self) -> Iterator[StopMonitor]:
        """Record Ctrl-C and SIGTERM instead of raising; a second Ctrl-C interrupts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # only the main thread may handle signals
            return
        previous = {number: signal.signal(number, self._handle) for number in self._signals}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = self._signals[signal.Signals(number)]


# ---- data-parallel training in several processes, which `torchrun` starts


@dataclass(frozen=True)
class Processes:
    """Rank of this process, number of processes, and device."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """True for the process that logs, displays and saves."""
        return self.rank == 0

    def parallelize(self, module: Module) -> Module:
        """Return a module whose gradients are averaged over all processes."""
        return module if self.count == 1 else DistributedDataParallel(module)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true in any process."""
        return self._reduce_flags([flag])[0]

    def broadcast_first(self, value: str | None, values: Sequence[str]) -> str | None:
        """Return the first of `values` that is the `value` of any process, or None."""
        flags = self._reduce_flags([value == option for option in values])
        return next((option for option, flag in zip(values, flags, strict=True) if flag), None)

    def mean(self, values: Tensor) -> Tensor:
        """Return the average over processes."""
        if self.count > 1:
            dist.all_reduce(values)
            values /= self.count
        return values

    def gather(self, state: Tensor) -> list[Tensor]:
        """Return the tensors of all processes in the order of ranks."""
        if self.count == 1:
            return [state]
        state = state.to(self.device)
        states = [torch.empty_like(state) for _ in range(self.count)]
        dist.all_gather(states, state)
        return [s.cpu() for s in states]

    def _reduce_flags(self, flags: list[bool]) -> list[bool]:
        if self.count == 1:
            return flags
        tensor = torch.tensor(flags, dtype=torch.uint8, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.bool().tolist()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the group that `torchrun` started: gloo on CPUs, NCCL on GPUs; otherwise run alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    has_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if has_gpu else "cpu"
    if count == 1:
        yield Processes(device=device)
        return
    # The others wait while the main process solves the validation pairs.
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=timedelta(days=1))
    try:
        yield Processes(dist.get_rank(), count, device)
    finally:
        dist.destroy_process_group()
