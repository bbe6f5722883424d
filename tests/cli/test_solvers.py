"""`geonet solvers` lists the registry."""

from __future__ import annotations

import json

from geonet.solvers.registry import solver_class, solver_names


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
