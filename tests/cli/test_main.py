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


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_metavars_instead_of_types(run, name):
    assert not re.search(r"<[a-z]|\b(TEXT|INTEGER|FLOAT|PATH)\b", run(name, "--help").out)


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
        (("geodesic", "a.npy"), "two or more files, or --pairs CSV"),
        (("geodesic", "a.npy", "b.npy", "--sover", "x"), "No such option: --sover"),
        (("geodesic", "a", "b", "--resolution", "1"), "--resolution is '1'; give 2 or more."),
        (("geodesic", "a", "b", "--reach=abc"), "--reach is 'abc'; give a number. See geonet geo"),
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
    assert err.startswith("error: The output was closed before") and err.count("\n") == 1


def test_narrow_encoding_does_not_fail(monkeypatch):
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii", write_through=True) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["solvers"]) == 0
        assert b"monge-ampere" in written.getvalue()


EXTRAS = {  # a module, a command that needs it, and the extra
    "xarray": (("interp", "a.nc", "--every", "1min", "-o", "b.nc"), "xarray"),
    "pandas": (("interp", "a.nc", "--every", "1min", "-o", "b.nc"), "xarray"),
    "dask": (("interp", "a.nc", "--every", "1min", "-o", "b.nc"), "xarray"),
    "zarr": (("interp", "a.nc", "--every", "1min", "-o", "b.zarr"), "xarray"),
    "netCDF4": (("interp", "a.nc", "--every", "1min", "-o", "b.nc"), "xarray"),
    "h5py": (("interp", "a.h5", "--every", "1min", "-o", "b.nc"), "xarray"),
    "distributed": (
        ("geodesic", "--pairs", "a.csv", "-o", "folder", "--scheduler", "tcp://127.0.0.1:1"),
        "xarray",
    ),
    "starlette": (("app", "--no-browser"), "app"),
    "uvicorn": (("app", "--no-browser"), "app"),
    "onnx": (("export", "transport-2d", "-o", "folder"), "onnx"),
    "onnxscript": (("export", "transport-2d", "-o", "folder"), "onnx"),
    "onnxruntime": (("export", "transport-2d", "-o", "folder"), "onnx"),
}


@pytest.mark.parametrize("module", EXTRAS)
def test_commands_name_the_extra_that_they_lack(run_failing, monkeypatch, tmp_path, module):
    command, extra = EXTRAS[module]
    monkeypatch.chdir(tmp_path)
    for name in ("a.nc", "a.h5"):
        (tmp_path / name).touch()
    (tmp_path / "a.csv").write_text("source,target\na.png,b.png\n")
    # The page imports its libraries once, and their submodules can be imported without the parent.
    for name in [name for name in sys.modules if name.startswith(("geonet.app", f"{module}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    message = run_failing(*command)
    assert module in message and "]'." in message and f"[{extra}" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.h5", "a.nc"]
