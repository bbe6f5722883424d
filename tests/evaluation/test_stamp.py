"""Stamps: the commit, the day, the machine and the sources of a measurement."""

import json
import subprocess
from datetime import date

import pytest

from geonet.evaluation.machine import machine
from geonet.evaluation.stamp import Stamp, stamp


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path):
    """A repository with a script that is a measurement, and another one."""
    for name in ("script", "other"):
        (tmp_path / f"{name}.py").write_text("A = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_stamp_knows_its_measurement(clone):
    found = stamp(["script"], (clone,))
    assert found.commit == git(clone, "rev-parse", "--short", "HEAD")
    assert abs((date.fromisoformat(found.date) - date.today()).days) <= 1
    assert found.machine == machine()
    assert found.is_fresh(["script"], (clone,))


def test_changed_sources_are_marked(clone):
    commit = git(clone, "rev-parse", "--short", "HEAD")
    before = stamp(["script"], (clone,))
    (clone / "other.py").write_text("A = 2\n")
    assert stamp(["script"], (clone,)).commit == commit  # it is no source
    (clone / "script.py").write_text("A = 2\n")
    assert stamp(["script"], (clone,)).commit == f"{commit}+"
    assert not before.is_fresh(["script"], (clone,))
    assert stamp(["script"], (clone,)).is_fresh(["script"], (clone,))


def test_outside_a_clone(tmp_path, clone):
    """Also below somebody else's repository, which does not have the files."""
    below = clone / "site-packages"
    below.mkdir()
    (below / "script.py").write_text("A = 1\n")
    assert stamp(["script"], (below,)).commit is None
    assert stamp(["nothing"], (clone,)).commit is None


def test_without_git(clone, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert stamp(["script"], (clone,)).commit is None


def test_stamps_are_stored(clone):
    found = stamp(["script"], (clone,))
    assert Stamp.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Stamp.from_json(None) is None
