"""The same input and the same seed give the same bytes, in another process as well."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MAKE = """
import hashlib, sys
from pathlib import Path
import torch
import geonet
from geonet import Density, Grid
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet._toml import from_table
from geonet.solvers.neural.model import read_tensors
from geonet.training.config import TrainingConfig
from geonet.training.loop import train

folder = Path(sys.argv[1])

def report(name, content):
    print(name, hashlib.sha256(content).hexdigest())

def seeded():
    return torch.Generator().manual_seed(3)

for family in (mixtures_1d, mixtures_2d, mixtures_3d):
    report(family.__name__, family(4, seeded()).means.numpy().tobytes())
line = mixtures_1d(2, seeded()).to_density(BOX_1D.with_shape(32))
plane = mixtures_2d(2, seeded()).to_density(BOX_2D.with_shape(16))
for name, ends in {
    "quantile": line,
    "schrodinger": line,
    "linear-program": plane,
    "monge-ampere": plane,
    "transport-2d": plane,
    "geonet-2d": plane,
}.items():
    path = geonet.geodesic(ends[0], ends[1], name)
    report(name, path.save(folder / f"{name}.npz").read_bytes())
    if name in ("quantile", "transport-2d"):
        report(f"{name}.gif", path.animate(folder / f"{name}.gif", frames=5).read_bytes())
        path.plot().savefig(folder / f"{name}.png")
        report(f"{name}.png", (folder / f"{name}.png").read_bytes())
small = {"width": 8, "depth": 3}
for kind, model in {
    "geonet": {"sensors": 12, "rank": 6, "branch": small, "trunk": small},
    "transport": {"sensors": 12, "seen": 6, "modes": 8, "width": 6, "depth": 2},
}.items():
    table = {
        "name": kind,
        "problem": {"family": "mixtures-1d"},
        "steps": 4,
        "model": {"kind": kind, "dimension": 1, **model},
        "sampling": {"pairs": 4, "points": 6, "places": 5},
        "validation": {"pairs": 2},
    }
    outcome = train(from_table(TrainingConfig, table), folder / kind)
    tensors, _ = read_tensors(outcome.model, "a model")
    report(f"trained {kind}", b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))
"""


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(tmp_path):
    answers = []
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", MAKE, str(tmp_path / str(k))],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(k), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.splitlines())
    assert len(answers[0]) == 3 + 6 + 4 + 2
    assert answers[1] == answers[0]
