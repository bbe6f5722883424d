"""Whatever goes wrong is one line on standard error and an exit code."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import geonet
from geonet.cli import main as app
from geonet.errors import ConvergenceError, GeonetError, SolverError, UnavailableError
from geonet.solvers import registry
from geonet.solvers.neural.transport import compiled as loops

COMMAND = [sys.executable, "-m", "geonet"]


@pytest.mark.parametrize("asked", ["1", "0", *loops.loadable()])
def test_version_says_which_loops_are_used(run, monkeypatch, asked):
    monkeypatch.setenv("GEONET_COMPILED", asked)
    used = {"1": loops.build(), "0": "none (torch)"}.get(asked, asked)
    assert run("--version") == (0, f"geonet {geonet.__version__}, compiled loops: {used}\n", "")


def test_a_build_that_is_not_there_is_one_line(refused, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", "avx1024")
    assert "GEONET_COMPILED is 'avx1024'; give 0, 1, default" in refused("--version")


def test_help(run):
    for arguments in ((), ("--help",)):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        for name in ("demo", "geodesic", "solvers"):
            assert name in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("geodesi",), "No such command 'geodesi'. Did you mean 'geodesic'?"),
        (("geodesic", "a.npy"), "A geodesic has two ends; give two files, or --pairs CSV"),
        (("geodesic", "a.npy", "b.npy", "--sover", "x"), "No such option: --sover"),
        (("geodesic", "a.npy", "b.npy", "--resolution", "many"), "--resolution"),
        (("geodesic", "a.npy", "b.npy", "--resolution", "1"), "--resolution"),
    ],
)
def test_wrong_usage(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (GeonetError("two\nlines"), 2, "error: two lines\n"),
        (SolverError("a\n  b"), 2, "error: a b\n"),
        (UnavailableError("none"), 2, "error: none\n"),
        (ConvergenceError("far", 1.0), 2, "error: far\n"),
        (MemoryError(), 2, "error: There is not enough memory; ask for fewer cells or times.\n"),
        (KeyboardInterrupt(), 130, "error: Interrupted; nothing was left half-written.\n"),
    ],
)
def test_errors_become_one_line(run, monkeypatch, error, code, line):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(registry, "solver_names", fail)
    assert run("solvers") == (code, "", line)


def test_what_is_a_bug_is_not_hidden(monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(registry, "solver_names", fail)
    with pytest.raises(ZeroDivisionError):
        app.main(["solvers"])


def test_module_runs_as_a_program():
    done = subprocess.run(
        [*COMMAND, "geodesic", "nowhere.png", "nowhere.png"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: There is no file nowhere.png; check the path.\n"


@pytest.mark.parametrize("arguments", [["--version"], ["solvers"]])
def test_closed_pipe_is_one_line(arguments):
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 2
    assert err == "error: The reader of the output went away before all was written.\n"


def test_interrupt_is_one_line():
    code = (
        "import signal, sys, time\n"
        "from geonet.solvers import registry\n"
        "from geonet.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs of a shell ignore it
        "def names():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "registry.solver_names = names\n"
        "sys.exit(main(['solvers']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "error: Interrupted; nothing was left half-written.\n"


def test_a_narrow_encoding_does_not_fail(monkeypatch):
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii", write_through=True) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert app.main(["solvers"]) == 0
        assert b"monge-ampere" in written.getvalue()


COMMANDS = [command.callback.__name__ for command in app.app.registered_commands]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(run, name):
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert f"geonet {name}" in " ".join(out.split()).replace("Usage: geonet", "")


def test_completion(tmp_path):
    """As a shell asks for it: the commands that begin with these letters."""
    asked = {"_GEONET_COMPLETE": "complete_bash", "COMP_WORDS": "geonet ge", "COMP_CWORD": "1"}
    answer = subprocess.run(
        [Path(sys.executable).with_name("geonet")],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["geodesic"]
