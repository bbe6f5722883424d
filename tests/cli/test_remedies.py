"""Errors at the command line advise its options; help and numbers are for people."""

from __future__ import annotations

import re

import numpy as np
import pytest

import geonet
from geonet._format import format_seconds
from geonet.cli import main as app
from geonet.errors import GeonetError

PYTHON = re.compile(r"geonet\.\w+\(|\w+='|=(True|False|None)\b|density\.\w+\(|path\.\w+\(")


@pytest.fixture
def files(tmp_path):
    """Named arrays: a line, planes with and without zeros, and a plane on another box."""
    x = np.linspace(0, 1, 16)
    plane = 1 + np.outer(x, x)
    arrays = {
        "line": 1 + x,
        "plane": plane,
        "fine": 1 + np.random.default_rng(0).random((64, 64)),
        "zeros": np.where(plane > 1.5, plane, 0),
        "wide": plane[:, :8],
        "nan": np.where(plane > 1.9, np.nan, plane),
        "negative": plane - 1.5,
        "nothing": 0 * plane,
    }
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    np.savez(tmp_path / "box.npz", values=plane, lower=[0, 0], upper=[2, 2])
    path = geonet.geodesic(*[geonet.Density(plane, geonet.Grid((16, 16)))] * 2, solver="linear")
    path.save(tmp_path / "path.npz", times=[0.0])
    return tmp_path


@pytest.mark.parametrize(
    ("ends", "arguments", "remedy"),
    [
        (("line", "line"), ("--solver", "midpiont"), "did you mean 'midpoint'?"),
        (("plane", "plane"), ("--solver", "quantile"), "(geonet solvers lists them) or --solver a"),
        (("plane", "plane"), ("--solver", "transport-1d"), "--solver auto"),
        (("plane", "box.npz"), (), "give files with one box: lower and upper"),
        (("line", "line"), ("--solver", "bures"), "use --solver auto"),
        (("zeros", "zeros"), ("--solver", "monge-ampere"), "give --option floor=0.01"),
        (("fine", "fine"), ("--solver", "linear-program"), "give --option coarsen=true"),
        (
            ("plane", "plane"),
            ("--solver", "schrodinger", "--option", "epsilon=1e-5"),
            "give --option epsilon of at least 0.001954",
        ),
        (
            ("plane", "plane"),
            ("--solver", "linear-program", "--option", "method=emd_1d"),
            "give --option method=emd",
        ),
        (("plane", "plane"), ("--option", "tolerence=1"), "did you mean 'tolerance'? It takes"),
        (("wide", "wide"), ("--solver", "barycenter"), "pad the files to squares"),
        (("path.npz", "plane"), (), "is a saved geodesic; see geonet report"),
        (("nan", "plane"), (), "NaN; "),
        (("negative", "plane"), (), "negative; "),
        (("nothing", "plane"), (), "zero everywhere"),
    ],
)
def test_remedies_are_options(refused, files, ends, arguments, remedy):
    named = [files / (end if "." in end else f"{end}.npy") for end in ends]
    line = refused("geodesic", *named, *arguments)
    assert remedy in line
    assert not PYTHON.search(line), line


def test_in_python_they_are_arguments():
    grid = geonet.Grid((8, 8))
    plane = geonet.Density(np.ones(grid.shape), grid)
    with pytest.raises(GeonetError, match=r"geonet.list_solvers\(\) lists them.* solver='auto'"):
        geonet.geodesic(plane, plane, "quantile")


def test_an_epsilon_that_was_advised_is_taken(run, files):
    plane = files / "plane.npy"
    arguments = ("--solver", "schrodinger", "--option", "epsilon=0.001954")
    assert run("geodesic", plane, plane, *arguments).code == 0


COMMANDS = [command.callback.__name__ for command in app.app.registered_commands]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_no_types_of_python(run, name):
    out = run(name, "--help").out
    assert not re.search(r"<\w[^>]*>|BOOLEAN|INTEGER|FLOAT|list\[", out)


def test_every_command_has_a_whole_line_in_the_list(run):
    out = run("--help").out
    assert "..." not in out.partition("Commands:")[2]
    assert all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in COMMANDS)


def test_seconds_are_written_for_people(run, files, monkeypatch):
    from geonet.cli import job as recipe

    clock = iter([0.0, 200.0])
    monkeypatch.setattr(recipe, "perf_counter", lambda: next(clock))
    plane = files / "plane.npy"
    out = run("geodesic", plane, plane, "--solver", "linear").out
    assert f"solved in     {format_seconds(200)}" in out and format_seconds(200) == "3 min 20 s"
