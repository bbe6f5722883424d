"""`geonet report FILE`."""

from __future__ import annotations

import json

import geonet


def unwrapped(panel: str) -> str:
    """The text in a panel, whose lines are broken at its width."""
    return " ".join(panel.replace("│", " ").split())


def test_saved_paths_say_what_they_said_before(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    path = geonet.geodesic(*(geonet.read(name) for name in line_pair))
    path.save(file)
    code, out, err = run("report", file, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {str(file): path.report.to_dict()}
    other = path.save(tmp_path / "other.npz")
    code, out, err = run("report", file, other)
    assert (code, err) == (0, "")
    assert out.count("╭─ report") == 2 and unwrapped(out).count(str(path.report.summary())) == 2


def test_what_is_no_path_is_refused(refused, line_pair, tmp_path):
    assert "Cannot read" in refused("report", line_pair[0])
    assert "There is no file" in refused("report", tmp_path / "none.npz")
