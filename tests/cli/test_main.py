"""Entry point: help, and one line on standard error with an exit code for every error."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest

import geonet
from geonet.cli.main import COMMANDS, main
from geonet.errors import GeonetError
from geonet.numerics import kernels

COMMAND = [sys.executable, "-m", "geonet"]


@pytest.mark.parametrize("setting", ["1", "0"])
def test_version_names_the_active_kernels(run, monkeypatch, setting):
    monkeypatch.setenv("GEONET_COMPILED", setting)
    build = kernels.active_build() or "none (torch)"
    assert run("--version") == (0, f"geonet {geonet.__version__}, compiled loops: {build}\n", "")


def test_help_lists_every_command_with_a_complete_sentence(run):
    for arguments in ((), ("--help",)):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        commands = out.partition("Commands:")[2]
        assert "..." not in commands
        assert all(re.search(rf"^  {name} ", commands, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(run, name):
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert f"geonet {name}" in " ".join(out.split()).replace("Usage: geonet", "")


def test_help_does_not_import_torch():
    code = (
        "import sys; from geonet.cli import main; main(['--help']); "
        "sys.exit(sorted({'torch', 'xarray', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("geodesi",), "Did you mean 'geodesic'?"),
        (("geodesic", "a.npy"), "two files, or --pairs CSV"),
        (("geodesic", "a.npy", "b.npy", "--sover", "x"), "No such option: --sover"),
        (("geodesic", "a.npy", "b.npy", "--resolution", "1"), "--resolution"),
    ],
)
def test_usage_errors(run_failing, arguments, message):
    assert message in run_failing(*arguments)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (GeonetError("two\nlines"), 2, "error: two lines\n"),
        (MemoryError(), 2, "error: There is not enough memory; choose fewer cells or times.\n"),
        (KeyboardInterrupt(), 130, "error: Interrupted; no partial output was left.\n"),
    ],
)
def test_errors_become_one_line(run, monkeypatch, error, code, line):
    monkeypatch.setattr("geonet.cli.solvers.solvers", raising(error))
    assert run("solvers") == (code, "", line)


def test_bugs_are_not_hidden(monkeypatch):
    monkeypatch.setattr("geonet.cli.solvers.solvers", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["solvers"])


def raising(error: BaseException):
    """Return a command that raises an error."""

    def command() -> None:
        raise error

    return command


def test_closed_pipe_is_one_line():
    with subprocess.Popen(
        [*COMMAND, "solvers"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 2
    assert err.startswith("error: The reader of the output closed it") and err.count("\n") == 1


def test_narrow_encoding_does_not_fail(monkeypatch):
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii", write_through=True) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["solvers"]) == 0
        assert b"monge-ampere" in written.getvalue()
