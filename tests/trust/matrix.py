"""Run the tests with other versions of dependencies and with other arithmetic.

Version rows: the oldest and newest supported versions of NumPy, SciPy, POT, xarray and Dask, each
in a virtual environment in runs/matrix on top of this one.

Variant rows: other instruction sets, summation orders, kernels, numbers of threads and alignments.

`python tests/trust/matrix.py` prints a table; `--rows oldest avx2` runs two rows, further arguments
go to pytest.
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
from time import perf_counter
from typing import NamedTuple

import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "matrix"
NAMES = "numpy scipy POT xarray pandas dask distributed zarr netCDF4".split()  # noqa: SIM905
BESIDE_OLDEST = ("crc32c", "pytz")  # imported by the oldest Zarr and by older pandas
# The oldest SciPy with NumPy 2 is newer than the oldest supported one; newer pandas need more.
TURN = ("numpy==2.0.0", "scipy==1.13.0", "pandas==2.2.2")
CORE = ["tests/test_api.py", "tests/test_density.py", "tests/test_io.py", "tests/test_paths.py"]
CORE += ["tests/solvers", "tests/xarray", "tests/cli/test_interp.py"]
# JAX, which OTT needs and POT imports, does not support old NumPy.
LEFT_OUT, WITHOUT_JAX = ("-k", "not ott"), {"POT_BACKEND_DISABLE_JAX": "1"}
# A warning of packages that were built for a newer NumPy.
HARMLESS = ("-W", "ignore:numpy.ndarray size changed:RuntimeWarning")
NUMERICAL = [
    *CORE[:4],
    "tests/test_gradients.py",
    "tests/numerics",
    "tests/solvers",
    "tests/training",
]
VARIANTS = {
    "plain": {"ATEN_CPU_CAPABILITY": "default"},  # baseline x86-64
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "mkl": {"MKL_CBWR": "COMPATIBLE"},  # another code path for products
    "uncompiled": {"GEONET_COMPILED": "0"},
    "threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "misaligned": {"GEONET_MISALIGNED": "1"},  # tests/conftest.py
}


class Outcome(NamedTuple):
    """The outcome of a row.

    Attributes:
        setting: versions or environment variables.
        summary: the last line of pytest, or the reason for a skip.
        passed: whether the tests passed or were skipped.
    """

    setting: str
    summary: str
    passed: bool


def main() -> int:
    """Run the rows and print the outcomes; return 1 if tests failed."""
    names = [*_versions_to_install(), *VARIANTS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW")
    options, more = parser.parse_known_args()
    lines, failed = [], []
    for name in options.rows:
        began = perf_counter()
        row = _variant_row if name in VARIANTS else _version_row
        outcome = row(name, more)
        failed += [] if outcome.passed else [name]
        minutes = (perf_counter() - began) / 60
        lines.append(f"{name:<10} {outcome.setting:<44} {minutes:4.1f} min  {outcome.summary}")
        print(lines[-1], flush=True)
    print("\n".join(["", f"{'row':<10} {'setting':<44} {'time':<8}  outcome", *lines]))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _versions_to_install() -> dict[str, list[str]]:
    """Return the packages to install by the name of the row."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["xarray"]
    parts = (line.partition(">=") for line in lines)
    bounds = {name.partition("[")[0]: bound for name, _, bound in parts}
    oldest = [f"{name}=={bounds[name]}" for name in NAMES]
    turn = [*TURN, f"POT=={bounds['POT']}", *BESIDE_OLDEST]
    return {"oldest": [*oldest, *BESIDE_OLDEST], "numpy-2": turn, "newest": [*NAMES]}


def _version_row(name: str, more: list[str]) -> Outcome:
    place, wanted = FOLDER / name, _versions_to_install()[name]
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    install = [*pip, "--upgrade", "--no-deps", "--only-binary", ":all:", *wanted]
    done = subprocess.run(install, capture_output=True, text=True, env=_environment({}))
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        return Outcome(" ".join(wanted), f"skipped: {reason}", True)
    _overlay(place)
    found = _versions(python)
    if found == [version(one) for one in NAMES]:
        return Outcome(_format_versions(found), "skipped: the versions of this environment", True)
    summary, passed = _tests(python, [*LEFT_OUT, *HARMLESS, *CORE, *more], WITHOUT_JAX)
    return Outcome(_format_versions(found), summary, passed)


def _variant_row(name: str, more: list[str]) -> Outcome:
    variables = VARIANTS[name]
    setting = " ".join(f"{key}={value}" for key, value in variables.items())
    if name == "avx2" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        return Outcome(setting, "skipped: this machine has no AVX2", True)
    summary, passed = _tests(Path(sys.executable), [*NUMERICAL, *more], variables)
    return Outcome(setting, summary, passed)


def _tests(python: Path, arguments: list[str], variables: dict[str, str]) -> tuple[str, bool]:
    """Run pytest; return its last line and whether all tests passed, and print failures."""
    command = [str(python), "-m", "pytest", "-q", "--tb=short", *arguments]
    environment = _environment(variables | {"PYTHONPATH": "src"})
    tests = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if tests.returncode:
        print(tests.stdout[-6000:], tests.stderr[-2000:])
    lines = tests.stdout.strip().splitlines() or ["no output of pytest"]
    return lines[-1], tests.returncode == 0


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """Return the environment of this process without version pins, with other variables."""
    free = {key: value for key, value in os.environ.items() if not key.endswith("_CONSTRAINT")}
    return free | variables


def _overlay(place: Path) -> None:
    """Make the packages of this environment visible to the new one."""
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _versions(python: Path) -> list[str]:
    code = f"from importlib.metadata import version as v; print(*map(v, {NAMES!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def _format_versions(versions: list[str]) -> str:
    return ", ".join(f"{name} {one}" for name, one in zip(NAMES, versions, strict=True))


if __name__ == "__main__":
    sys.exit(main())
