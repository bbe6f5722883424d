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


def test_options_of_one_solver(run):
    code, out, err = run("solvers", "midpoint")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"midpoint: {find_info('midpoint').summary}"
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line}
    assert rows["takes"] == "takes 1–3D"
    assert rows["refine"].startswith("refine true true or false whether ")
    assert run("solvers", "linear").out.endswith("It takes no options.\n")


def test_json(run, tmp_path):
    entries = {entry["name"]: entry for entry in json.loads(run("solvers", "--json").out)}
    assert list(entries) == list_solver_names()
    assert entries["quantile"]["dimensions"] == [1]
    assert entries["linear"]["dimensions"] is None and entries["linear"]["provides"] == ["density"]
    entry = json.loads(run("solvers", "linear-program", "--json").out)
    options = {option["name"]: option for option in entry["options"]}
    assert options["max_cells"]["default"] == 2304 and options["method"]["type"] == "a name"
    settings = TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1)
    file = save_model(tmp_path / "model.safetensors", build_model(settings, 0), {})
    names = [option["name"] for option in json.loads(run("solvers", file, "--json").out)["options"]]
    assert "floor" in names and "file" not in names
    assert json.loads(run("solvers", file, "--json").out)["dimensions"] == [1]
