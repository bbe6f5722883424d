"""The installed wheel works without the source tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from geonet.numerics import kernels
from geonet.solvers.neural.model import PRETRAINED

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).parents[2]
INSPECT = """
import importlib.metadata, json
from pathlib import Path
import geonet
from geonet.solvers.neural.model import PRETRAINED, load_model
from geonet.numerics import kernels

files = sorted(PRETRAINED.glob("*.safetensors"))
for file in files:
    load_model(file)
root = Path(geonet.__file__).parent
print(json.dumps({
    "root": str(root),
    "version": importlib.metadata.version("geonet-ot"),
    "models": [file.name for file in files],
    "typed": (root / "py.typed").exists(),
    "kernels": kernels.active_build(),
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Create an environment with the wheel on top of the packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, place = _build(folder), folder / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    _run("-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel))
    # A .pth file in this folder is not processed again, so the editable install is not visible.
    ours = sysconfig.get_path("purelib")
    theirs = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (theirs / "dependencies.pth").write_text(ours + "\n")
    return place


@pytest.fixture
def run(installed, tmp_path):
    """Run a program of the new environment, outside the source tree."""
    hidden = ("PYTHONPATH", "GEONET_COMPILED")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}

    def run(program: str, *arguments: str) -> str:
        command = [str(installed / "bin" / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _build(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, without old build files."""
    copy = folder / "sources"
    shutil.copytree(
        SOURCES / "src",
        copy / "src",
        ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-*"),
    )
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(SOURCES / name, copy)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(copy)]
    _run("-m", "pip", *build)
    (wheel,) = folder.glob("geonet_ot-*.whl")
    return wheel


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_is_in_the_wheel(run, installed):
    found = json.loads(run("python", "-W", "error", "-c", INSPECT))
    assert Path(found["root"]).is_relative_to(installed)
    assert found["models"] == sorted(file.name for file in PRETRAINED.glob("*.safetensors"))
    assert found["typed"]
    assert found["kernels"] == kernels.active_build()
    assert run("geonet", "--version").startswith(f"geonet {found['version']}, ")


def test_the_installed_package_works(run):
    """The checks of every wheel of a release."""
    check = str(Path(__file__).with_name("wheel_check.py"))
    assert "works" in run("python", "-W", "error", check, "--source", str(SOURCES))


def test_the_wheel_is_small(installed):
    (wheel,) = installed.parent.glob("geonet_ot-*.whl")
    assert wheel.stat().st_size < 15e6  # a limit for the release: installation takes seconds


def test_the_command_line_works(run, tmp_path):
    assert "transport-2d" in run("geonet", "solvers")
    x, y = np.meshgrid(np.linspace(0, 1, 20), np.linspace(0, 1, 20), indexing="ij")
    for name, centre in (("a", 0.4), ("b", 0.6)):
        np.save(tmp_path / f"{name}.npy", np.exp(-20 * ((x - centre) ** 2 + (y - centre) ** 2)))
    for name in ("path.npz", "path.gif", "path.html"):
        run("geonet", "geodesic", "a.npy", "b.npy", "-o", name)
        assert (tmp_path / name).stat().st_size > 1000
