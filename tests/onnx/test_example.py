"""The example that runs a model without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import geonet

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_without_torch.py"
DRIVER = """
import runpy, sys
import numpy as np
found = runpy.run_path(sys.argv[1])
frames = [found["density"](t) for t in (0.3, 1)]
np.savez(sys.argv[2], distance=found["distance"], potential=found["u"], frames=frames)
assert not {name for name in sys.modules if name.split(".")[0] in ("torch", "geonet", "onnx")}
"""


def test_example_agrees_without_torch(transport_2d, tmp_path):
    """Its splines go on beyond the faces in another way, so it agrees to some 1e-3."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, EXAMPLE, tmp_path / "found.npz"],
        cwd=transport_2d.files[0].parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    grid = geonet.Grid((64, 64))
    source, target = (
        geonet.GaussianMixture.isotropic(means, 0.16).on(grid)
        for means in ([[0.32, 0.32], [0.68, 0.60]], [[0.36, 0.68], [0.68, 0.36]])
    )
    path = geonet.geodesic(source, target, solver="transport-2d")
    found = np.load(tmp_path / "found.npz")
    assert done.stdout == f"W2 = {float(path.distance):.4f}, mass at t = 0.3: 1.0000\n"
    assert abs(found["distance"] / float(path.distance) - 1) < 5e-4
    potential = path.potential(0.5, grid.points().reshape(-1, 2)).numpy()
    assert abs(found["potential"] - potential).max() < 2e-3 * abs(potential).max()
    errors = abs(found["frames"] - path.density([0.3, 1]).numpy()).mean((1, 2))  # L1
    assert errors.max() < 1e-3
