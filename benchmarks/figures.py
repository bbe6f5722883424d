"""Measure every figure of README and docs at one commit, step by step.

    make figures DATA=folder RADAR=folder
    python -m benchmarks figures --data folder --radar folder --only dotmark,midpoint

Each step runs in its own process and stores results; the last step writes the pages. The folder
runs/figures keeps the output of each step, and its commit, date and seconds. A step that is
complete at this commit is skipped when the command starts again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.pages import ROOT
from benchmarks.results import CHANGED, Provenance, record_provenance
from experiments.paper.experiments import EXPERIMENTS
from geonet._files import atomic_write, ensure_dir
from geonet._format import format_seconds
from geonet.errors import InputError

FOLDER = ROOT / "runs" / "figures"
PAGES = "pages"  # name of the last step, which always runs
Log = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One process of a run.

    Attributes:
        name: name on the command line.
        arguments: arguments of Python.
        result: file of results that it writes; None if it measures nothing.
        data: True if it needs the folder of DOTmark.
        radar: True if it needs the folder of radar images.
    """

    name: str
    arguments: tuple[str, ...]
    result: str | None
    data: bool = False
    radar: bool = False


@dataclass(frozen=True)
class Run:
    """A completed step: its commit, date and seconds, and the file of its output."""

    commit: str | None
    date: str
    seconds: float
    log: str


def _study(name: str, **needs: bool) -> Step:
    arguments = ("-m", "benchmarks", "study", name)
    return Step(name, arguments, f"benchmarks/results/{name}.json", **needs)


def _compare(name: str, *suites: str) -> Step:
    chosen = [word for suite in suites for word in ("--suite", suite)]
    arguments = ("-m", "benchmarks", "compare", "--update", "--out", "benchmarks/results")
    return Step(name, (*arguments, *chosen), "benchmarks/results/benchmark.json")


def _experiment(name: str) -> Step:
    arguments = ("-m", "experiments", name, "--out", "experiments/results")
    return Step(name, arguments, f"experiments/results/{name}.json")


STEPS = (  # the most important first
    _study("dotmark", data=True, radar=True),
    _study("barycenters", data=True),
    _study("unbalanced", data=True, radar=True),
    _study("periodic"),
    _study("fields", radar=True),
    _compare("compare-any", "any"),
    _compare("compare", "1d", "2d"),
    _study("midpoint"),
    _study("accuracy"),
    _study("universal"),
    _study("universal-3d"),
    _study("models"),
    _study("transport"),
    _study("transport-failures"),
    _study("gradients"),
    _study("start-up"),
    _study("app-latency"),
    _study("field-cluster"),
    *(_experiment(name) for name in EXPERIMENTS),
    _study("own-training"),
    Step("gallery", ("-m", "benchmarks.gallery"), None, radar=True),
    Step(PAGES, ("-m", "benchmarks.page"), None),
)


def select_steps(only: str = "") -> list[Step]:
    """Return the steps with these names, separated by commas; all if empty."""
    names = [name for name in only.split(",") if name]
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"There is no step {unknown[0]!r}; choose from {', '.join(known)}.")
    return [step for step in STEPS if not names or step.name in names]


def run_steps(
    steps: Sequence[Step],
    data: Path | None,
    radar: Path | None,
    log: Log,
    folder: Path = FOLDER,
) -> list[str]:
    """Run steps that are not complete at this commit; return the names of those that failed.

    `log` receives a line before and after every step, and the failures with their files at the end.
    """
    provenance, start, failed = record_provenance(), perf_counter(), []
    for number, step in enumerate(steps, 1):
        head = f"[{number}/{len(steps)}, {format_seconds(perf_counter() - start)}] {step.name}"
        before = read_run(step, folder)
        if _is_complete(step, before, provenance.commit):
            log(f"{head}: complete, {format_seconds(before.seconds if before else 0)}")
            continue
        log(f"{head} …" + (f" last time {format_seconds(before.seconds)}" if before else ""))
        began = perf_counter()
        code = _run_step(step, _list_folders(step, data, radar), folder)
        seconds = perf_counter() - began
        if code == 0:
            _save_run(step, provenance, seconds, folder)
            log(f"{head}: done in {format_seconds(seconds)}")
        else:
            failed.append(step.name)
            log(f"{head}: failed after {format_seconds(seconds)}")
    for name in failed:
        log(f"{name} failed: {folder / f'{name}.log'}")
    return failed


def _is_complete(step: Step, before: Run | None, commit: str | None) -> bool:
    """Return True for a measured step of this commit; the pages are always written."""
    if before is None or commit is None or commit.endswith(CHANGED):
        return False
    return step.name != PAGES and before.commit == commit


def _list_folders(step: Step, data: Path | None, radar: Path | None) -> list[str]:
    """Return the options with the folders of data that a step reads."""
    options = []
    for name, folder, is_read in (("data", data, step.data), ("radar", radar, step.radar)):
        if is_read and folder is not None:
            options += [f"--{name}", str(folder.resolve())]
    return options


def _run_step(step: Step, options: Sequence[str], folder: Path) -> int:
    """Run a step in a process with its output in a file; return the exit code."""
    command = [sys.executable, *step.arguments, *options]
    with (ensure_dir(folder) / f"{step.name}.log").open("w", encoding="utf-8") as output:
        output.write(f"{' '.join(command)}\n")
        output.flush()
        return subprocess.run(command, cwd=ROOT, stdout=output, stderr=output).returncode


def _save_run(step: Step, provenance: Provenance, seconds: float, folder: Path) -> None:
    run = Run(provenance.commit, provenance.date, seconds, str(folder / f"{step.name}.log"))
    with atomic_write(folder / f"{step.name}.json") as temporary:
        temporary.write_text(json.dumps(asdict(run), indent=1) + "\n", encoding="utf-8")


def read_run(step: Step, folder: Path = FOLDER) -> Run | None:
    """Return the last completed run of a step; None if there is none."""
    file = folder / f"{step.name}.json"
    return Run(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def list_steps(folder: Path = FOLDER) -> list[tuple[str, str, str]]:
    """Return name, seconds and commit of the last run of every step."""
    rows = []
    for step in STEPS:
        run = read_run(step, folder)
        rows.append((step.name, *(("–", "–") if run is None else _describe_run(run))))
    return rows


def _describe_run(run: Run) -> tuple[str, str]:
    return f"{run.seconds:.0f} s", f"{run.commit or 'unknown'}, {run.date}"
