"""`geonet report FILE`."""

from __future__ import annotations

import json

import geonet


def unwrap(panel: str) -> str:
    """Return the text of a panel without its frame and line breaks."""
    return " ".join(panel.replace("│", " ").split())


def test_reports_of_saved_paths(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    path = geonet.geodesic(*(geonet.read(name) for name in line_pair))
    path.save(file)
    code, out, err = run("report", file, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {str(file): path.report.to_dict()}
    other = path.save(tmp_path / "other.npz")
    code, out, err = run("report", file, other)
    assert (code, err) == (0, "")
    assert out.count("╭─ report") == 2 and unwrap(out).count(str(path.report.summary())) == 2


def test_other_files_raise(run_failing, line_pair, tmp_path):
    assert "not a saved geodesic, which is an .npz file" in run_failing("report", line_pair[0])
    assert "There is no file" in run_failing("report", tmp_path / "none.npz")
