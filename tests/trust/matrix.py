"""The core tests with the oldest and the newest NumPy, SciPy and POT that geonet says it takes.

Each row is a virtual environment in runs/matrix, laid over this one: only the three are its own.
`python tests/trust/matrix.py` prints a table; `--rows oldest` runs one row, further arguments go to
pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "matrix"
NAMES = ("numpy", "scipy", "POT")
# The oldest SciPy that takes NumPy 2 is newer than the oldest that geonet takes.
TURN = ("numpy==2.0.0", "scipy==1.13.0")
TESTS = (
    *("tests/measures", "tests/solvers/exact", "tests/solvers/learned", "tests/test_api.py"),
    *("tests/solvers/entropic/test_schrodinger.py", "tests/solvers/entropic/test_barycenter.py"),
    *("tests/solvers/test_laws.py", "tests/solvers/test_auto.py", "tests/geodesics"),
)
# JAX, which OTT needs and POT imports where it finds it, takes no old NumPy.
LEFT_OUT, WITHOUT_JAX = ("-k", "not ott"), {"POT_BACKEND_DISABLE_JAX": "1"}


def main() -> int:
    """Run the rows and print what came out; 1 if tests failed in one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=[*_rows()], default=[*_rows()])
    options, more = parser.parse_known_args()
    lines, failed = [], False
    for name in options.rows:
        versions, outcome, passed = _row(name, _rows()[name], more)
        failed |= not passed
        lines.append(f"{name:<10} {versions:<44} {outcome}")
        print(lines[-1], flush=True)
    print("\n".join(["", f"{'row':<10} {'versions':<44} outcome", *lines]))
    return 1 if failed else 0


def _rows() -> dict[str, list[str]]:
    """What to install, by the name of the row."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = dict(line.split(">=") for line in project["dependencies"] if ">=" in line)
    oldest = [f"{name}=={bounds[name]}" for name in NAMES]
    return {"oldest": oldest, "numpy-2": [*TURN, oldest[-1]], "newest": [*NAMES]}


def _row(name: str, wanted: list[str], more: list[str]) -> tuple[str, str, bool]:
    """The versions of a row, what came out, and whether that is as it should be."""
    place = FOLDER / name
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    install = [*pip, "--upgrade", "--no-deps", "--only-binary", ":all:", *wanted]
    free = {key: value for key, value in os.environ.items() if not key.endswith("_CONSTRAINT")}
    done = subprocess.run(install, capture_output=True, text=True, env=free)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        return " ".join(wanted), f"skipped: {reason}", True
    _overlay(place)
    found = _versions(python)
    if found == [version(one) for one in NAMES]:
        return _said(found), "skipped: these are what all other tests run with", True
    command = [str(python), "-m", "pytest", "-q", "--tb=short", *LEFT_OUT, *TESTS, *more]
    tests = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=free | WITHOUT_JAX | {"PYTHONPATH": "src"},
    )
    if tests.returncode:
        print(tests.stdout[-6000:], tests.stderr[-2000:])
    return _said(found), tests.stdout.strip().splitlines()[-1], tests.returncode == 0


def _overlay(place: Path) -> None:
    """What the environment lacks it finds here."""
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _versions(python: Path) -> list[str]:
    code = f"from importlib.metadata import version as v; print(*map(v, {NAMES!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def _said(versions: list[str]) -> str:
    return ", ".join(f"{name} {one}" for name, one in zip(NAMES, versions, strict=True))


if __name__ == "__main__":
    sys.exit(main())
