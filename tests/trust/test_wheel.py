"""The wheel, installed where there is no source tree, does what the sources do."""

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

from geonet.app.requests import settings
from geonet.app.routes import page_files
from geonet.solvers.neural.model import PRETRAINED
from geonet.solvers.neural.transport import compiled

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).parents[2]
LOOK = """
import importlib.metadata, json
from pathlib import Path
import geonet
from geonet.app.requests import settings
from geonet.app.routes import page_files
from experiments.mnist import sample_digits
from experiments.autoencoder import load_autoencoder
from geonet.solvers.neural.model import load_model
from geonet.solvers.neural.model import PRETRAINED
from geonet.fields.compiled import loops as compiled

files = sorted(PRETRAINED.glob("*.safetensors"))
for file in files:
    load_autoencoder(file) if "autoencoder" in file.name else load_model(file)
root = Path(geonet.__file__).parent
print(json.dumps({
    "root": str(root),
    "version": importlib.metadata.version("geonet"),
    "models": [file.name for file in files],
    "digits": len(sample_digits()),
    "typed": (root / "py.typed").exists(),
    "page": sorted(page_files(settings())),
    "compiled": compiled.build(),
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A new environment with the wheel; all else that it needs is that of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, place = _build(folder), folder / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    _run("-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel))
    # A path file within another's folder is not read: the editable install does not come along.
    ours = sysconfig.get_path("purelib")
    theirs = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (theirs / "dependencies.pth").write_text(ours + "\n")
    return place


@pytest.fixture
def run(installed, tmp_path):
    """Runs a program of the new environment, away from the sources."""
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
    """The wheel of a copy of the sources: building leaves files, and compiled ones may be old."""
    copy = folder / "sources"
    shutil.copytree(
        SOURCES / "src",
        copy / "src",
        ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-*"),
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(SOURCES / name, copy)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(copy)]
    _run("-m", "pip", *build)
    (wheel,) = folder.glob("geonet-*.whl")
    return wheel


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_is_in_the_wheel(run, installed):
    found = json.loads(run("python", "-W", "error", "-c", LOOK))
    assert Path(found["root"]).is_relative_to(installed)
    assert found["models"] == sorted(file.name for file in PRETRAINED.glob("*.safetensors"))
    assert found["digits"] == 1000 and found["typed"]
    assert found["compiled"] == compiled.build()
    assert found["page"] == sorted(page_files(settings()))
    told = f"geonet {found['version']}, compiled loops: {found['compiled'] or 'none (torch)'}\n"
    assert run("geonet", "--version") == told


def test_the_command_line_works(run, tmp_path):
    assert "transport-2d" in run("geonet", "solvers")
    x, y = np.meshgrid(np.linspace(0, 1, 20), np.linspace(0, 1, 20), indexing="ij")
    for name, centre in (("a", 0.4), ("b", 0.6)):
        np.save(tmp_path / f"{name}.npy", np.exp(-20 * ((x - centre) ** 2 + (y - centre) ** 2)))
    for name in ("path.npz", "path.gif", "path.html"):
        run("geonet", "geodesic", "a.npy", "b.npy", "-o", name)
        assert (tmp_path / name).stat().st_size > 1000
