"""Long work shows its progress and reacts to Ctrl-C at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextvars import ContextVar
from threading import Event, current_thread, main_thread

import numpy as np
import pytest

from geonet._progress import report_progress
from geonet.cli import output
from geonet.cli.output import has_orphans, name_options, run_interruptibly

SLOW = 120  # seconds that the work would take


def test_work_runs_beside_the_main_thread_with_its_context():
    name = ContextVar("name", default="default")

    def work():
        assert current_thread() is not main_thread()
        return name.get()

    name.set("set by the caller")
    assert run_interruptibly(work, lambda line: None) == "set by the caller"
    assert not has_orphans()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("give missing='exclude', or missing=0 to", "give --missing exclude, or --missing 0 to"),
        ("choose solver='back-and-forth'.", "choose --solver back-and-forth."),
        ("missing=0.5.", "--missing 0.5."),
        ("or outside='drop' to", "or --outside drop to"),
        ("set growth='hellinger'.", "set --growth hellinger."),
        ("or motion=None.", "or --motion none."),
        ("or reach=..., too", "or --reach LENGTH, too"),
        (
            "give motion=None for it (--motion none on the command line),",
            "give --motion none for it,",
        ),
        ("name it: dim='time' (--time on the command line).", "name it: --time."),
        ("space=('row', 'column') (--space row,column on the command line)", "--space row,column"),
        ("or set coarsen=True.", "or set --option coarsen=true."),
        ("write e.g. --option floor=0.01.", "write e.g. --option floor=0.01."),
        ("mark cells with nodata", "mark cells with --nodata VALUE"),
        ("with columns, on the command line --columns, such", "with --columns, such"),
        ("There is no file missing.png.", "There is no file missing.png."),
        ("invert=True (--invert on the command line) makes dark", "--invert makes dark"),
        ("or give a reach=... of 10 to 25 cells.", "or give --reach LENGTH of 10 to 25 cells."),
        ("use a larger max_iterations.", "use a larger --option max_iterations=…."),
        (
            "Give a larger time_limit, on the command line --option time_limit=….",
            "Give a larger --option time_limit=….",
        ),
        ("Choose solver='bures', on the command line --solver bures.", "Choose --solver bures."),
        (
            "Choose solver='auto' for the geodesic, on the command line --solver auto.",
            "Choose --solver auto for the geodesic.",
        ),
        (
            "Choose solver='linear-program' with coarsen=True for W2, on the command line "
            "--solver linear-program --option coarsen=true.",
            "Choose --solver linear-program --option coarsen=true for W2.",
        ),
        ("one cell: density.gaussian_blur(1) or --blur 1.", "one cell: --blur 1."),
        ("(see geonet.list_solvers(), or the command geonet solvers)", "(see geonet solvers)"),
    ],
)
def test_arguments_are_named_as_options(message, expected):
    assert name_options(message) == expected


def test_progress_is_shown_while_work_runs():
    shown, is_shown = [], Event()

    def work():
        report_progress("step 7")
        assert is_shown.wait(60)

    def show(line):
        shown.append(line)
        if line:
            is_shown.set()

    run_interruptibly(work, show)
    assert shown[-1] == "step 7"


def test_progress_lines_without_a_terminal(monkeypatch, capsys):
    """None in the first two seconds, then at most one every ten."""
    now = 0.0
    monkeypatch.setattr(output, "PROGRESS_DELAY", 2.0)
    monkeypatch.setattr(output, "monotonic", lambda: now)
    with output.show_status("solving") as show:
        for now in (0.5, 1.9, 2.1, 5.0, 12.0, 12.2, 250.0):
            show(f"step {now}" if now > 1 else "")
    assert capsys.readouterr() == (
        "",
        "solving: step 2.1, 2.1 s\nsolving: step 12.2, 12 s\nsolving: step 250.0, 4 min 10 s\n",
    )


def test_progress_lines_of_many_pairs(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(output, "PROGRESS_DELAY", 2.0)
    monkeypatch.setattr(output, "monotonic", lambda: now)
    with output.show_progress("pairs", 30) as bar:
        bar.advance()
        now = 3.0
        bar.show("solving with transport-2d")
    line = "1 of 30 pairs done, about 1 min 27 s left: solving with transport-2d, 3 s\n"
    assert capsys.readouterr().err == line


def test_time_left_does_not_count_items_that_existed(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(output, "PROGRESS_DELAY", 2.0)
    monkeypatch.setattr(output, "monotonic", lambda: now)
    with output.show_progress("frames", 30) as bar:
        now = 1.0
        bar.skip(20)
        now = 5.0
        bar.advance(2)
    assert capsys.readouterr().err == "22 of 30 frames done, about 16 s left, 5 s\n"


def test_ctrl_c_ends_a_solve_at_once(tmp_path):
    """Interrupt a compiled call that blocks its thread for minutes without the GIL."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones(8))
    code = (
        "import ctypes, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs of a shell ignore it
        "from geonet.cli import main, output\n"
        "from geonet._progress import report_progress\n"
        "from geonet.solvers.linear import Linear\n"
        "output.PROGRESS_DELAY = 0.0\n"
        "def slow(self, source, target):\n"
        "    report_progress('in a loop')\n"
        f"    ctypes.CDLL(None).usleep({SLOW}000000)\n"
        "Linear._solve = slow\n"
        "sys.argv = ['geonet', 'geodesic', 'a.npy', 'b.npy', '--solver', 'linear',\n"
        "            '-o', 'path.npz', '--json']\n"
        "sys.exit(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("solving"), line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SLOW / 2)
    assert process.returncode == 130
    assert out == ""  # only JSON may be printed
    assert err.endswith("error: Interrupted; no partial output was left.\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "b.npy"]
