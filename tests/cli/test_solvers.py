"""`geonet solvers` lists the registry."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from geonet.solvers.neural.model import build, save_model
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.registry import solver_class, solver_names

SLOW = ("torch", "scipy", "matplotlib", "ot")


def test_table_has_one_line_per_solver(run):
    code, out, err = run("solvers")
    assert (code, err) == (0, "")
    heading, *lines = out.splitlines()
    assert heading.split() == ["solver", "takes", "W₂", "v", "u", "x", "for"]
    for name, line in zip(solver_names(), lines, strict=False):
        cls = solver_class(name)
        assert line.split()[0] == name
        assert cls.summary in line
        assert line.count("✓") == len(cls.gives)


def test_dimensions_are_named(run):
    lines = {line.split()[0]: line for line in run("solvers").out.splitlines()[1:] if line}
    assert " 1D " in lines["quantile"]
    assert " any D " in lines["linear"]
    assert " 1–3D " in lines["auto"]


def test_json(run):
    code, out, _ = run("solvers", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0
    assert list(entries) == solver_names()
    assert entries["quantile"]["dimensions"] == [1]
    assert entries["linear"]["dimensions"] is None
    assert entries["linear"]["gives"] == ["density"]
    assert "distance" in entries["quantile"]["gives"]


@pytest.mark.parametrize(
    "arguments",
    [("solvers",), ("solvers", "--json"), ("solvers", "midpoint"), ("reproduce", "--list")],
)
def test_a_list_waits_for_no_library(arguments):
    """Importing these takes seconds, which is what made the lists slow."""
    code = (
        "import sys\n"
        "from geonet.cli import main\n"
        f"assert main({list(arguments)}) == 0\n"
        f"sys.exit(', '.join(name for name in {SLOW} if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_options_of_one(run):
    code, out, err = run("solvers", "midpoint")
    assert (code, err) == (0, "")
    first, *_ = out.splitlines()
    assert first == f"midpoint: {solver_class('midpoint').summary}"
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line}
    assert rows["takes"] == "takes 1–3D"
    assert rows["tolerance"].startswith("tolerance 0.002 a number ")
    assert rows["refine"].startswith("refine true true or false whether ")


def test_one_without_options(run):
    assert run("solvers", "linear").out.endswith("It takes no options.\n")


def test_options_of_one_in_json(run):
    entry = json.loads(run("solvers", "linear-program", "--json").out)
    options = {option["name"]: option for option in entry["options"]}
    assert entry["name"] == "linear-program"
    assert options["max_cells"]["default"] == 2304
    assert options["coarsen"]["default"] is False
    assert options["method"]["takes"] == "a name"
    assert all(option["meaning"] for option in entry["options"])


def test_options_of_a_models_file(run, tmp_path):
    settings = TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1)
    file = save_model(tmp_path / "model.safetensors", build(settings, 0), {})
    entry = json.loads(run("solvers", file, "--json").out)
    assert [option["name"] for option in entry["options"]] == ["corrections", "floor"]
    assert "corrections" in run("solvers", file).out


def test_an_unknown_one(refused):
    assert "There is no solver 'midpiont'; did you mean 'midpoint'?" in refused(
        "solvers", "midpiont"
    )
