"""`geonet demo` prints a table and writes a figure and an animation."""

from __future__ import annotations

import numpy as np
from PIL import Image


def test_the_demo_writes_two_files(run, tmp_path):
    folder = tmp_path / "new" / "folder"
    code, out, err = run("demo", "-o", folder)
    assert (code, err) == (0, "")
    heading, *rows = out.splitlines()[:4]
    assert heading.split()[:4] == ["pair", "solver", "W₂", "seconds"]
    for row, solver in zip(rows, ("midpoint", "midpoint", "quantile"), strict=True):
        assert solver in row.split()
    assert all(row.rstrip().endswith("%") for row in rows)
    for name in ("geodesics.png", "spiral-to-heart.gif"):
        assert f"written: {folder / name}" in out
    assert len(list(folder.iterdir())) == 2
    with Image.open(folder / "geodesics.png") as picture:
        assert min(picture.size) > 900
        assert np.asarray(picture.convert("L")).std() > 30
    with Image.open(folder / "spiral-to-heart.gif") as animation:
        assert (animation.n_frames, animation.size) == (60, (256, 256))


def test_a_bad_folder_raises(run_failing, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    assert f"{file}: File exists" in run_failing("demo", "-o", file)
