"""Printing, progress and interruptible work, shared by all commands."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import typer
from rich.box import ROUNDED
from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from geonet._format import format_seconds
from geonet._progress import progress_callback
from geonet.errors import FileError, InputError, SolverError

if TYPE_CHECKING:
    from geonet.barycenter_report import BarycenterReport
    from geonet.report import Report

ALL_AXES = "all"  # value of --periodic without axes
NAMED_OPTIONS = {  # options by the words for them in messages of the library
    "with nodata": "with --nodata VALUE",
    "motion=None": "--motion none",
    "a reach=...": "--reach LENGTH",
    "reach=...": "--reach LENGTH",
}
PERIODIC_REMEDY = "give axes such as 0 or 0,1, or no value for all of them"
PROGRESS_DELAY = 2.0  # seconds until work reports its progress

Show = Callable[[str], None]
T = TypeVar("T")

# Options of several commands
SolverOption = Annotated[
    str, typer.Option(metavar="SOLVER", help="A name from `geonet solvers`, or a model file.")
]
SolverOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="An option of the solver, e.g. tolerance=0.01; may be repeated."
    ),
]
InvertFileOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Like --invert, for one of the images only; may be repeated."
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="Columns of csv tables with a header that hold the coordinates of points, such as "
        "lon,lat; by default x, y and z, or all but weight.",
    ),
]
MissingOption = Annotated[
    str,
    typer.Option(
        metavar="raise|exclude|VALUE",
        help="Cells that are missing: raise an error, exclude them, or fill them with a number.",
    ),
]
PeriodicOption = Annotated[
    str | None,
    typer.Option(
        metavar="[AXES]",
        help="Axes whose two ends are joined, such as 0 or 0,1; all axes if no number follows.",
    ),
]
ReachOption = Annotated[
    float | None,
    typer.Option(
        metavar="LENGTH",
        help="For unequal masses: the longest distance over which mass moves; other mass grows or "
        "fades in place.",
    ),
]
GrowthOption = Annotated[
    str | None,
    typer.Option(
        metavar="hellinger|wfr",
        help="With --reach: Gaussian-Hellinger transport, or Wasserstein-Fisher-Rao.",
    ),
]
ResolutionOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="CELLS",
        help="Cells along the longest side; finer files are resampled first, by default to 1024, "
        "in 3D to 128.",
    ),
]
InvertOption = Annotated[
    bool, typer.Option("--invert", help="For images: dark pixels hold the mass, not bright ones.")
]
PointsOption = Annotated[
    bool,
    typer.Option(
        "--points",
        help="Tables without header hold points: a row for each, a column for each coordinate.",
    ),
]
GridOption = Annotated[
    bool, typer.Option("--grid", help="Tables without header hold values on a grid.")
]
NodataOption = Annotated[
    float | None,
    typer.Option(
        metavar="VALUE", help="A value that marks missing cells in addition to NaN, such as 255."
    ),
]
OutsideOption = Annotated[
    str,
    typer.Option(
        metavar="raise|drop",
        help="Points outside the box of the other files: raise an error, or drop them.",
    ),
]
BlurOption = Annotated[
    float,
    typer.Option(min=0.0, metavar="CELLS", help="Blur the densities first, for counts and noise."),
]
MassOption = Annotated[
    str | None,
    typer.Option(
        metavar="one|given",
        help="Mass of the written or drawn densities: one, or given in the units of the files, "
        "which then apply to --vmin and --vmax, too. Default: one; with --reach: given.",
    ),
]
NormOption = Annotated[
    str | None, typer.Option(metavar="NORM", help="Scale of colours: linear, sqrt or log.")
]
VminOption = Annotated[
    float | None, typer.Option(metavar="VALUE", help="Value of the first colour.")
]
VmaxOption = Annotated[
    float | None, typer.Option(metavar="VALUE", help="Value of the last colour.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class GeonetCommand(TyperCommand):
    """A command whose help names no types, and whose --periodic may stand without a value."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        for parameter in self.params:
            if parameter.param_type_name == "argument" and parameter.metavar is not None:
                # Newer versions of typer add the type to the metavar: FILE <path>.
                parameter.display_type_rich = lambda ctx: None  # pyright: ignore

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a bare --periodic becomes "--periodic all"."""
        completed, is_option = [], True
        for word, following in pairwise([*args, ""]):
            completed.append(word)
            is_option = is_option and word != "--"
            if is_option and word == "--periodic" and not _is_axes(following):
                if re.match(r"-?\d+,", following) and not Path(following).exists():
                    raise InputError(f"--periodic is {following!r}; {PERIODIC_REMEDY}.")
                completed.append(ALL_AXES)
        return super().parse_args(ctx, completed)


def _is_axes(text: str) -> bool:
    return text == ALL_AXES or re.fullmatch(r"-?\d+(,-?\d+)*", text) is not None


def parse_periodic(text: str | None) -> tuple[int, ...] | Literal["all"] | None:
    """Parse --periodic: indices of axes, "all" or None."""
    if text is None or text == ALL_AXES:
        return text  # pyright: ignore[reportReturnType]
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise InputError(f"--periodic is {text!r}; {PERIODIC_REMEDY}.") from error


# ---- Exit codes and printing


def choose_exit_code(is_complete: bool) -> int:
    """Return 0, or 1 if pairs failed or did not converge, which counts after all is written."""
    return 0 if is_complete else 1


def name_options(message: str) -> str:
    """Return a message of the library with options in place of arguments: --missing exclude.

    Options of solvers become `--option floor=0.01`. If a message names both the argument and the
    option, the option remains: "columns, on the command line --columns", "solver='auto' for W2, on
    the command line --solver auto", "motion=None for the geodesic (--motion none on the command
    line)" or "density.gaussian_blur(1) or --blur 1".
    """
    message = re.sub(r"\S+\(\d*\) or (?=--)", "", message)
    with_purpose = r"\w+='?[\w-]+'?(?: with \w+=\w+)?( for [^,.]+), on the command line (--[^,.]+)"
    message = re.sub(with_purpose, r"\2\1", message)
    message = re.sub(r"\S+, on the command line (?=--)", "", message)
    both = r"\b\w+=(?:\([^)]*\)|'?\w+'?)([^=()]*) \((--[^)]+) on the command line\)"
    message = re.sub(both, r"\2\1", message)
    for argument, option in NAMED_OPTIONS.items():
        message = re.sub(rf"\b{re.escape(argument)}(?!\w)", option, message)
    tuned = r"\b(raise|larger|longer|smaller) (max_iterations|max_cells|time_limit|epsilon)\b"
    message = re.sub(tuned, r"\1 --option \2=…", message)
    message = re.sub(r"geonet\.list_solvers\(\),? or (?:the command )?", "", message)
    names = "missing|solver|outside|growth|motion"
    message = re.sub(rf"(?<!-)\b({names})=('?)([\w.-]*\w)\2", r"--\1 \3", message)
    return re.sub(
        r"(?<!--option )\b(coarsen|floor)=([\w.]*\w)",
        lambda match: f"--option {match[1]}={match[2].lower()}",
        message,
    )


def print_json(value: Any) -> None:
    """Print strict JSON: numbers that are not finite become null."""
    typer.echo(json.dumps(_to_strict(value), indent=2, ensure_ascii=False, allow_nan=False))


def _to_strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print rows in columns, under headings if there are any."""
    console = _console()
    if console.is_terminal:
        console.print(_build_table(rows, headings))
        return
    console.width = 1000  # a pipe or a file gets one line per row, for grep
    with console.capture() as captured:
        console.print(_build_table(rows, headings))
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_report(report: Report | BarycenterReport, rows: Iterable[tuple[str, str]] = ()) -> None:
    """Print a report as a panel: the summary, `rows`, then every entry."""
    console = _console()
    console.width = min(console.width, 100)
    summary = Text(format_summary(report), style="bold")
    content = Group(summary, Text(), _build_table([*rows, *report.rows()]))
    console.print(Panel(content, title="report", title_align="left", box=ROUNDED, padding=(1, 2)))


def format_summary(report: Report | BarycenterReport) -> str:
    """Return the summary of a report with the options of the command line."""
    return name_options(str(report.summary()))


def format_count(number: int, noun: str) -> str:
    """Return a text such as "1 pair" or "2 pairs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _console() -> Console:
    """Return a console that prints [brackets] in file names instead of taking them as markup."""
    return Console(markup=False, highlight=False)


def _build_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> Table:
    table = Table(box=None, show_header=bool(headings), pad_edge=False, padding=(0, 3, 0, 0))
    for heading in headings:
        table.add_column(heading, header_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `--option NAME=VALUE` into keyword arguments of a solver, which checks them."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not name or not text:
            raise SolverError(f"--option {pair!r} is not NAME=VALUE; write e.g. floor=0.01.")
        options[name] = _parse_value(text)
    return options


def parse_solver_options(
    pairs: Sequence[str] | None, reach: float | None, growth: str | None
) -> dict[str, Any]:
    """Parse `--option NAME=VALUE`, and add --reach and --growth."""
    options = parse_options(pairs or [])
    if growth is not None and reach is None:
        raise InputError("--growth is for unequal masses; give --reach LENGTH, too.")
    for name, value in (("reach", reach), ("growth", growth)):
        if value is None:
            continue
        if name in options:
            raise InputError(f"--{name} and --option {name}=… are the same; give one of them.")
        options[name] = value
    return options


def _parse_value(text: str) -> int | float | bool | str | None:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def parse_missing(missing: str) -> str | float:
    """Parse --missing: a word or a number."""
    if missing in ("raise", "exclude"):
        return missing
    try:
        return float(missing)
    except ValueError:
        raise InputError(
            f"--missing is {missing!r}; give raise, exclude or a number to fill cells with."
        ) from None


def parse_columns(text: str | None) -> tuple[str, ...] | None:
    """Parse --columns: names in lower case."""
    if text is None:
        return None
    names = tuple(name.strip().lower() for name in text.split(","))
    if not all(names) or not 1 <= len(set(names)) == len(names) <= 3 or "weight" in names:
        raise InputError(
            f"--columns is {text!r}; give one to three names of coordinates, such as lon,lat. A "
            "column named weight has the weights."
        )
    return names


def parse_files(files: Sequence[Path] | None) -> tuple[str, ...]:
    """Return absolute names of files."""
    return tuple(str(_resolve(file)) for file in files or ())


def check_inverted(names: Sequence[str], files: Sequence[Path]) -> None:
    """Raise InputError if --invert-file names a file that is not among the files."""
    known = {str(_resolve(file)) for file in files}
    for name in names:
        if name not in known:
            raise InputError(
                f"--invert-file names {name}, which is not among the files; give one of them."
            )


def _resolve(file: Path) -> Path:
    try:
        return file.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, which the reader reports
        return file.absolute()


def describe_file(file: Path) -> str:
    """Return the name of a written file with its size: "morph.gif (1.2 MB)"."""
    size = file.stat().st_size
    text = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"
    return f"{file} ({text})"


def check_output_file(output: Path, inputs: Sequence[Path], suffixes: Iterable[str]) -> None:
    """Raise FileError if a file cannot be written, or is one of the inputs."""
    if _resolve(output) in map(_resolve, inputs):  # also through links
        raise FileError(f"{output} is one of the input files; give another name.")
    if output.suffix.lower() not in suffixes:
        raise FileError(f"Cannot write {output}: give a name that ends in {', '.join(suffixes)}.")
    if output.suffix.lower() == ".mp4":
        from geonet.plotting.animation import check_ffmpeg

        check_ffmpeg(output)
    try:
        if not output.parent.is_dir():
            raise FileError(f"The folder {output.parent} does not exist; create it first.")
        if output.is_dir():
            raise FileError(f"{output} is a folder; give the name of a file.")
    except OSError as error:  # a name that is too long
        raise FileError(f"Cannot write {output}: {error.strerror}; give another name.") from error


def parse_duration(text: str, name: str) -> float:
    """Return the seconds in "300", "90s", "5min" or "2h"; `name` is the option, for errors."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(s|min|h)?\s*", text)
    if match is None:
        raise InputError(f"{name} is {text!r}; give seconds or a unit, such as 300, 5min or 2h.")
    return float(match[1]) * {None: 1, "s": 1, "min": 60, "h": 3600}[match[2]]


# ---- Progress on standard error


@contextmanager
def show_status(name: str) -> Iterator[Show]:
    """Show a status line on standard error while work runs; yields a function that updates it."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        show = _throttle()
        yield lambda line: show(f"{name}: {line}" if line else name)
        return
    start = monotonic()

    def update(line: str) -> None:
        elapsed = monotonic() - start
        text = f"{name}: {line}" if line else name
        slow = f", {format_seconds(int(elapsed))}" if elapsed > PROGRESS_DELAY else ""
        status.update(f"{text}{slow} …")

    with console.status(f"{name} …") as status:
        yield update


@dataclass(frozen=True)
class Bar:
    """Progress through many items.

    Attributes:
        advance: counts more items, one by default.
        show: shows a line about the current item.
        skip: counts items that need no work; they do not enter the estimate of the time left.
    """

    advance: Callable[..., None]
    show: Show
    skip: Callable[[int], None]


@contextmanager
def show_progress(noun: str, total: int) -> Iterator[Bar]:
    """Show a bar on a terminal's standard error, elsewhere an occasional line."""
    columns = (
        TextColumn(noun),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True, markup=False)
    say = _throttle()
    start, skipped = monotonic(), 0
    progress = Progress(
        *columns, console=console, disable=not console.is_terminal, speed_estimate_period=600
    )
    with progress as bar:
        task = bar.add_task("", total=total)

        def show(line: str) -> None:
            bar.update(task, description=line)
            if not console.is_terminal:
                done = int(bar.tasks[task].completed)
                left = _estimate_left(monotonic() - start, done - skipped, total - done)
                say(f"{done:,} of {total:,} {noun} done{left}{': ' if line else ''}{line}")

        def advance(count: int = 1) -> None:
            bar.advance(task, count)
            show("")

        def skip(count: int) -> None:
            nonlocal start, skipped
            skipped += count
            start = monotonic()
            bar.reset(task, completed=int(bar.tasks[task].completed) + count)

        yield Bar(advance, show, skip)


def _estimate_left(elapsed: float, done: int, left: int) -> str:
    """Return a text such as ", about 3 min left", or nothing before the first item is done."""
    if not done or not left:
        return ""
    return f", about {format_seconds(elapsed / done * left)} left"


def _throttle(interval: float = 10.0) -> Show:
    """Return a function that prints at most one line per interval, after the initial delay."""
    start, last = monotonic(), -math.inf

    def show(line: str) -> None:
        nonlocal last
        now = monotonic()
        if now - start >= PROGRESS_DELAY and now - last >= interval:
            last = now
            print(f"{line}, {format_seconds(now - start)}", file=sys.stderr, flush=True)

    return show


# ---- Long work in its own thread, while the main thread shows progress and handles Ctrl-C


class InterruptedWorkError(Exception):
    """Ctrl-C, with a message about the work done so far; typer drops the message of its own."""


class CommandStop(BaseException):
    """End of a command that was stopped by a signal and has printed its message.

    Attributes:
        code: the exit code, 130 for SIGINT and 143 for SIGTERM.
    """

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


def run_interruptibly(work: Callable[[], T], show: Show, poll: float = 0.1) -> T:
    """Return the result of `work`; meanwhile call `show` with its last progress line.

    Python delivers Ctrl-C between two instructions of the main thread, and a compiled loop is one
    instruction. Here the main thread only waits, so it can react at once. A thread cannot be
    stopped, so the work then continues in the background: see `has_orphans`.
    """
    task = _Task(work)
    _Task.unfinished.add(task)
    task.start()
    while not task.is_done.wait(poll):
        show(task.line)
    _Task.unfinished.discard(task)
    return task.result()


def has_orphans() -> bool:
    """Return whether interrupted work still runs in the background."""
    return any(not task.is_done.is_set() for task in _Task.unfinished)


class _Task(Thread, Generic[T]):
    """Work in a thread with the context variables of the thread that starts it.

    Attributes:
        line: last progress line.
        is_done: event that is set at the end.
    """

    unfinished: set[_Task] = set()  # noqa: RUF012

    def __init__(self, work: Callable[[], T]):
        super().__init__(daemon=True)
        self._work, self._context = work, copy_context()
        self._result: T
        self._error: BaseException | None = None
        self.line, self.is_done = "", Event()

    def run(self) -> None:
        """Run the work; called by the thread."""
        try:
            self._context.run(self._run_with_progress)
        except BaseException as error:
            self._error = error
        finally:
            self.is_done.set()

    def result(self) -> T:
        """Return the result of the work, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result

    def _run_with_progress(self) -> None:
        def hear(line: str) -> None:
            self.line = line

        with progress_callback(hear):
            self._result = self._work()


@contextmanager
def connect_dask(address: str | None, timeout: float = 10) -> Iterator[Any]:
    """Yield Dask's client for the scheduler at this address; None without an address."""
    if address is None:
        yield None
        return
    try:
        from distributed import CancelledError, Client, KilledWorker
    except ModuleNotFoundError as error:
        raise InputError(
            "--scheduler needs distributed, which is not installed; "
            "install it: pip install 'geonet-ot[xarray]'."
        ) from error
    try:
        client = Client(address, timeout=timeout)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"No scheduler answers at {address}; start one, `dask scheduler`, and workers, "
            f"`dask worker {address}`."
        ) from error
    with client:
        if not client.nthreads():
            raise InputError(
                f"The scheduler at {address} has no workers; start some: dask worker {address}."
            )
        try:
            yield client
        except (ImportError, KilledWorker, CancelledError) as error:
            cause = " ".join(str(error).split())[:200].rstrip(".")
            raise InputError(
                f"The cluster failed: {cause}; check that its workers have the same geonet and "
                "enough memory, and run the same command to resume."
            ) from error
