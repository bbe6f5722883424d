"""Run the tests of the C kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

`python tests/sanitize.py` compiles the kernels with both sanitizers into a temporary directory and
runs their tests in a process that loads these builds. An error of either sanitizer aborts it.

In that process this file is a pytest plugin: it redirects the loader of the kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src/geonet/numerics/kernels"
TESTS = (
    "tests/numerics/test_c_transform.py",
    "tests/solvers/newton/test_compiled.py",
    "tests/solvers/newton/test_lattices.py",
    "tests/solvers/newton/test_plans.py",
    "tests/solvers/newton/test_repairs.py",
    "tests/solvers/neural/test_unet.py",
    "tests/solvers/neural/transport/test_compiled.py",
)
FLAGS = (
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=undefined,float-cast-overflow",
    *("-O1", "-g", "-shared", "-fPIC", "-fno-omit-frame-pointer", "-Wno-psabi"),
)
MACHINES = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
}


def main(arguments: list[str]) -> int:
    """Compile the kernels, run the tests and return their exit code."""
    with tempfile.TemporaryDirectory() as directory:
        compile_kernels(Path(directory))
        runtime = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
        environment = os.environ | {
            "GEONET_SANITIZED": directory,
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch never free everything
            "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }
        tests = arguments or [path for path in TESTS if (ROOT / path).exists()]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "sanitize", *tests]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


def compile_kernels(directory: Path) -> None:
    """Compile the default build and the one for this processor with both sanitizers."""
    native = torch.backends.cpu.get_cpu_capability().lower()
    kernels = ["bounds.c", "cosine_paths.c", "multigrid.c", "newton_residual.c", "unet.c"]
    # As in pyproject.toml: with -ffast-math, and with the OpenMP of torch.
    fast = ["-fopenmp", "-ffast-math", "-fno-finite-math-only"]
    machines = {"default": (), native: MACHINES.get(native, ())}
    builds = {f"_kernels_{name}": (kernels, [*fast, *own]) for name, own in machines.items()}
    builds["_c_transform"] = (["c_transform.c"], ["-fopenmp"])
    running = [
        subprocess.Popen(
            ["gcc", *FLAGS, *flags, "-o", str(directory / f"{name}.so"), *sources], cwd=SOURCES
        )
        for name, (sources, flags) in builds.items()
    ]
    if any([process.wait() for process in running]):
        raise SystemExit("The kernels do not compile with sanitizers.")


def pytest_configure() -> None:
    """Make the loader find the sanitized builds."""
    from geonet.numerics import kernels

    directory = Path(os.environ["GEONET_SANITIZED"])

    def find_sanitized(name: str) -> ModuleSpec | None:
        file = directory / f"{name.rpartition('.')[2]}.so"
        return ModuleSpec(name, None, origin=str(file)) if file.exists() else find_spec(name)

    kernels.find_spec = find_sanitized
    kernels._load_build.cache_clear()
    kernels._native_build.cache_clear()
    library = kernels.load_extension("_c_transform")
    assert library is not None and library._name.startswith(str(directory))
    assert kernels.is_available()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
