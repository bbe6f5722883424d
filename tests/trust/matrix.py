"""The tests with other versions of NumPy, SciPy, POT, xarray and Dask, and with other arithmetic.

Version rows: the oldest and the newest of these that geonet says it takes. Each is a virtual
environment in runs/matrix, laid over this one: only these are its own.

Variant rows: the same numbers from other instructions, summed in another order, by other loops, by
more threads, and from tensors that lie elsewhere in memory. What passes in all of them depends on
no one machine.

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
NAMES = (
    *("numpy", "scipy", "POT"),
    *("xarray", "pandas", "dask", "distributed", "zarr", "netCDF4"),
)
BESIDE_OLDEST = ("crc32c", "pytz")  # which the oldest Zarr and pandas import
# The oldest SciPy that takes NumPy 2 is newer than the oldest that geonet takes.
TURN = ("numpy==2.0.0", "scipy==1.13.0")
CORE = (
    *("tests/measures", "tests/solvers/exact", "tests/solvers/learned", "tests/test_api.py"),
    *("tests/solvers/entropic/test_schrodinger.py", "tests/solvers/entropic/test_barycenter.py"),
    *("tests/solvers/test_laws.py", "tests/solvers/test_auto.py", "tests/geodesics/test_base.py"),
    *("tests/xarray", "tests/cli/test_interp.py"),
)
# JAX, which OTT needs and POT imports where it finds it, takes no old NumPy.
LEFT_OUT, WITHOUT_JAX = ("-k", "not ott"), {"POT_BACKEND_DISABLE_JAX": "1"}
# Said by what was built for a newer NumPy; NumPy itself ignores it.
HARMLESS = ("-W", "ignore:numpy.ndarray size changed:RuntimeWarning")
# Where numbers are computed.
NUMBERS = tuple(
    f"tests/{part}"
    for part in (
        *("measures", "fields", "geodesics", "operators", "optimizers", "solvers", "training"),
        "export",
    )
)
VARIANTS = {
    "plain": {"ATEN_CPU_CAPABILITY": "default"},  # instructions that every x86-64 has
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "mkl": {"MKL_CBWR": "COMPATIBLE"},  # products by another path
    "uncompiled": {"GEONET_COMPILED": "0"},
    # Threads that sleep while they wait: the workers of pytest share the cores.
    "threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "misaligned": {"GEONET_MISALIGNED": "1"},  # tests/conftest.py
}


class Outcome(NamedTuple):
    """What came out of a row.

    Attributes:
        setting: versions, or variables.
        told: the last line of pytest, or why the row was skipped.
        passed: whether that is as it should be.
    """

    setting: str
    told: str
    passed: bool


def main() -> int:
    """Run the rows and print what came out; 1 if tests failed in one."""
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
        lines.append(f"{name:<10} {outcome.setting:<44} {minutes:4.1f} min  {outcome.told}")
        print(lines[-1], flush=True)
    print("\n".join(["", f"{'row':<10} {'setting':<44} {'time':<8}  outcome", *lines]))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _versions_to_install() -> dict[str, list[str]]:
    """What to install, by the name of the row."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["xarray"]
    parts = (line.partition(">=") for line in lines)
    bounds = {name.partition("[")[0]: bound for name, _, bound in parts}
    oldest = [f"{name}=={bounds[name]}" for name in NAMES]
    turn = [*TURN, f"POT=={bounds['POT']}"]
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
        return Outcome(_said(found), "skipped: these are what all other tests run with", True)
    told, passed = _tests(python, [*LEFT_OUT, *HARMLESS, *CORE, *more], WITHOUT_JAX)
    return Outcome(_said(found), told, passed)


def _variant_row(name: str, more: list[str]) -> Outcome:
    variables = VARIANTS[name]
    setting = " ".join(f"{key}={value}" for key, value in variables.items())
    if name == "avx2" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        return Outcome(setting, "skipped: this machine has no AVX2", True)
    told, passed = _tests(Path(sys.executable), [*NUMBERS, *more], variables)
    return Outcome(setting, told, passed)


def _tests(python: Path, arguments: list[str], variables: dict[str, str]) -> tuple[str, bool]:
    """The last line of pytest, and whether all passed; what failed is printed."""
    command = [str(python), "-m", "pytest", "-q", "--tb=short", *arguments]
    environment = _environment(variables | {"PYTHONPATH": "src"})
    tests = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if tests.returncode:
        print(tests.stdout[-6000:], tests.stderr[-2000:])
    lines = tests.stdout.strip().splitlines() or ["pytest said nothing"]
    return lines[-1], tests.returncode == 0


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """This process's, but for the pins of versions, with other variables."""
    free = {key: value for key, value in os.environ.items() if not key.endswith("_CONSTRAINT")}
    return free | variables


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
