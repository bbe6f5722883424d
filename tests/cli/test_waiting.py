"""Long work shows how it goes and answers Ctrl-C at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from threading import Event, current_thread, main_thread

import numpy as np
import pytest

from geonet._advice import at_the_command_line, either
from geonet._progress import report_progress
from geonet.cli import output
from geonet.cli.output import left_behind, waited_for
from geonet.errors import SolverError

SLOW = 120  # seconds that the work would take


def test_work_is_done_beside_the_main_thread_with_its_settings():
    def work():
        assert current_thread() is not main_thread()
        return either("python", "command line")

    with at_the_command_line():
        assert waited_for(work, lambda line: None) == "command line"
    assert not left_behind()


def test_what_it_tells_is_shown_while_it_works():
    shown, seen = [], Event()

    def work():
        report_progress("step 7")
        assert seen.wait(60)

    def show(line):
        shown.append(line)
        if line:
            seen.set()

    waited_for(work, show)
    assert shown[-1] == "step 7"


@pytest.mark.parametrize("error", [SolverError("no"), KeyboardInterrupt()])
def test_what_it_raises_is_raised(error):
    def work():
        raise error

    with pytest.raises(type(error)):
        waited_for(work, lambda line: None)


def test_lines_where_there_is_no_terminal(monkeypatch, capsys):
    """None in the first two seconds, then one every ten."""
    now = 0.0
    monkeypatch.setattr(output, "PATIENCE", 2.0)
    monkeypatch.setattr(output, "monotonic", lambda: now)
    with output.working("solving") as show:
        for now in (0.5, 1.9, 2.1, 5.0, 12.0, 12.2, 250.0):
            show(f"step {now}" if now > 1 else "")
    assert capsys.readouterr() == (
        "",
        "solving: step 2.1, 2.1 s\nsolving: step 12.2, 12 s\nsolving: step 250.0, 4 min 10 s\n",
    )


def test_lines_of_many_pairs(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(output, "PATIENCE", 2.0)
    monkeypatch.setattr(output, "monotonic", lambda: now)
    with output.progress("pairs", 30) as bar:
        bar.tick()
        now = 3.0
        bar.show("asking transport-2d")
    assert capsys.readouterr().err == "1 of 30 pairs done: asking transport-2d, 3 s\n"


def test_ctrl_c_ends_a_solve_at_once(tmp_path):
    """A compiled call that holds its thread for minutes; the GIL is free meanwhile, as in ours."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones(8))
    code = (
        "import ctypes, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs of a shell ignore it
        "from geonet.cli import main, output\n"
        "from geonet._progress import tell\n"
        "from geonet.solvers.linear import Linear\n"
        "output.PATIENCE = 0.0\n"
        "def slow(self, source, target):\n"
        "    tell('in a loop')\n"
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
    assert out == ""  # nothing but JSON may stand there
    assert err.endswith("error: Interrupted; nothing was left half-written.\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "b.npy"]
