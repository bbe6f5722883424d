"""Every reader meets damaged files: an answer or one typed error, and nothing else.

`fuzz.py` makes the files and reads them, in a process of its own with little memory.
"""

from __future__ import annotations

import json
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
def test_a_damaged_file_is_an_answer_or_a_typed_error(cases, seed):
    command = [sys.executable, str(FUZZ), "--cases", str(cases), "--seed", str(seed), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert len(counts) == READERS
    for name, found in counts.items():
        assert set(found) <= {"answer", "typed error"}
        assert sum(found.values()) == cases // READERS
        assert found["typed error"] > 0, name
    assert sum(found.get("answer", 0) for found in counts.values()) > cases / 10


def test_the_fuzzer_finds_what_it_is_made_for(tmp_path):
    """A reader that raises, warns, hangs or takes too much is told from one that does not."""
    code = """
import sys, time, warnings
sys.argv = ["fuzz", "--cases", "4"]
import fuzz
from specimens import Reader
from geonet.errors import FileError

def memory(file):
    try:
        bytearray(2**40)
    except MemoryError as error:
        raise FileError("It is too large.") from error

fuzz.SECONDS = 1
bad = {
    "untyped": lambda file: 1 / 0,
    "warning": lambda file: warnings.warn("odd"),
    "hang": lambda file: time.sleep(5),
    "memory": memory,
}
fuzz.readers = lambda folder: [Reader(name, read, {"a": b"abc"}) for name, read in bad.items()]
fuzz._warm_up = lambda *_: None
sys.exit(fuzz.main())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FUZZ.parent)
    assert done.returncode == 1, done.stderr
    for k, name in enumerate(("untyped", "warning", "hang", "memory")):
        assert f"case {k} of {name}: {name}: " in done.stderr
