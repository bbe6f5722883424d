"""Check an installed wheel: models, kernels, the command, and one OpenMP library in the process.

Runs without pytest, in the environments of cibuildwheel and of `make release-check`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import geonet
from geonet.numerics import kernels
from geonet.solvers.neural.model import PRETRAINED, load_model


def check_contents(source: Path | None) -> None:
    """Check that the package is not that of the source tree, and that its models load."""
    root = Path(geonet.__file__).parent
    assert source is None or not root.is_relative_to(source), f"{root} is the source tree"
    assert importlib.metadata.version("geonet-ot") == geonet.__version__
    files = sorted(PRETRAINED.glob("*.safetensors"))
    assert files, f"there are no models in {PRETRAINED}"
    for file in files:
        load_model(file)
    assert (root / "py.typed").exists()


def check_kernels() -> None:
    """Check that the kernels are there, on machines for which they are built."""
    found = kernels.available_builds()
    assert found or sys.platform == "win32", "the wheel has no compiled kernels"
    print(f"kernels: {', '.join(found) or 'none'}")


def check_solution() -> None:
    """Check the distance of a shifted spot, whose exact value is the shift."""
    y, x = np.mgrid[0:32, 0:32] / 32
    ends = [np.exp(-((x - c) ** 2 + (y - 0.5) ** 2) / 0.005) for c in (0.375, 0.625)]
    result = geonet.pairwise_distances(geonet.Density(np.stack(ends), geonet.Grid((32, 32))))
    assert result.lower_bounds[0, 1] <= 0.25 <= result.upper_bounds[0, 1], result


def check_one_openmp() -> None:
    """Check on Linux that the process has loaded no second OpenMP library beside torch's."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        words = {line.split()[-1] for line in maps.read_text().splitlines()}
        loaded = sorted(w for w in words if any(n in w for n in ("libgomp", "libomp", "libiomp")))
        assert len(loaded) <= 1, f"several OpenMP libraries are loaded: {loaded}"


def check_commands() -> None:
    """Check that every command shows its help, and that one computes a path."""
    from geonet.cli.main import COMMANDS

    with tempfile.TemporaryDirectory() as folder:
        for name, shift in (("a", 8), ("b", 20)):
            values = np.zeros((32, 32))
            values[8:16, shift : shift + 8] = 1
            np.save(Path(folder) / f"{name}.npy", values)
        calls = [[name, "--help"] for name in COMMANDS]
        calls += [["--version"], ["solvers"], ["geodesic", "a.npy", "b.npy", "-o", "path.npz"]]
        calls += [["distances", "a.npy", "b.npy", "-o", "matrix.csv"]]
        for call in calls:
            command = [sys.executable, "-m", "geonet", *call]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, f"geonet {' '.join(call)}: {done.stderr}"
            text = done.stdout
            for name in ("benchmarks", "experiments", "geonet reproduce", "geonet benchmark"):
                assert name not in text, f"geonet {' '.join(call)} names {name}"
        assert (Path(folder) / "matrix.csv").stat().st_size > 10


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="source tree that must not be imported")
    source = parser.parse_args().source
    check_contents(source and source.resolve())
    check_kernels()
    check_solution()
    check_one_openmp()
    check_commands()
    print("the installed package works")


if __name__ == "__main__":
    main()
