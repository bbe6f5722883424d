"""`geonet solvers` lists the registry, and options of one solver."""

from __future__ import annotations

import json

from geonet.solvers.neural.model import build_model, save_model
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.registry import find_info, list_solver_names


def test_table_has_one_line_per_solver(run):
    code, out, err = run("solvers")
    assert (code, err) == (0, "")
    heading, *lines = out.splitlines()
    assert heading.split() == ["solver", "takes", "W₂", "v", "u", "x", "for"]
    for name, line in zip(list_solver_names(), lines, strict=False):
        assert line.split()[0] == name and find_info(name).summary in line
        assert line.count("✓") == len(find_info(name).provides) - 1
    rows = {line.split()[0]: line for line in lines if line}
    assert " 1D " in rows["quantile"] and " any D " in rows["linear"] and " 1–3D " in rows["auto"]


def test_json(run):
    code, out, _ = run("solvers", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0 and list(entries) == list_solver_names()
    assert entries["quantile"]["dimensions"] == [1] and entries["linear"]["dimensions"] is None
    assert entries["linear"]["provides"] == ["density"]


def test_options_of_one_solver(run):
    code, out, err = run("solvers", "midpoint")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"midpoint: {find_info('midpoint').summary}"
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line}
    assert rows["takes"] == "takes 1–3D"
    assert rows["refine"].startswith("refine true true or false whether ")
    assert run("solvers", "linear").out.endswith("It takes no options.\n")


def test_options_of_one_solver_in_json(run):
    entry = json.loads(run("solvers", "linear-program", "--json").out)
    options = {option["name"]: option for option in entry["options"]}
    assert options["max_cells"]["default"] == 2304 and options["coarsen"]["default"] is False
    assert options["method"]["type"] == "a name"
    assert all(option["help"] for option in entry["options"])


def test_options_of_a_model_file(run, tmp_path):
    settings = TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1)
    file = save_model(tmp_path / "model.safetensors", build_model(settings, 0), {})
    entry = json.loads(run("solvers", file, "--json").out)
    assert "floor" in [option["name"] for option in entry["options"]]
    assert "file" not in [option["name"] for option in entry["options"]]


def test_an_unknown_solver(run_failing):
    assert "did you mean 'midpoint'?" in run_failing("solvers", "midpiont")
