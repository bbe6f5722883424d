"""Damaged files give a result or a typed error in every reader.

`fuzz.py` creates and reads the files in a process with limited memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
READERS = 24


@pytest.mark.parametrize(
    ("cases", "seed"),
    [pytest.param(480, 1, id="some"), pytest.param(12_000, 2, marks=pytest.mark.slow, id="all")],
)
def test_damaged_files(cases, seed):
    command = [sys.executable, str(FUZZ), "--cases", str(cases), "--seed", str(seed), "--json"]
    environment = os.environ | {"PYTHONPATH": str(FUZZ.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert len(counts) == READERS
    for name, found in counts.items():
        assert set(found) <= {"answer", "typed error"}
        assert sum(found.values()) == cases // READERS
        assert found["typed error"] > 0, name
    assert sum(found.get("answer", 0) for found in counts.values()) > cases / 10
