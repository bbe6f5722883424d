"""What all tests of the command line share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from geonet.cli import main, output


class Run(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys) -> Callable[..., Run]:
    """Call the command line in this process."""

    def call(*arguments: object) -> Run:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return call


@pytest.fixture
def refused(run) -> Callable[..., str]:
    """Call the command line, which must fail with one line on standard error; gives the line."""

    def call(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert code == 2
        assert out == ""
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        return err

    return call


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for each other make these small problems slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def quiet(monkeypatch) -> None:
    """No lines about the time that work takes, however busy the machine is."""
    monkeypatch.setattr(output, "PATIENCE", math.inf)


@pytest.fixture
def line_pair(tmp_path):
    """Two 1D arrays."""
    x = np.linspace(0, 1, 40)
    files = tmp_path / "a.npy", tmp_path / "b.npy"
    for file, centre in zip(files, (0.3, 0.6), strict=True):
        np.save(file, np.exp(-(((x - centre) / 0.1) ** 2)))
    return files


@pytest.fixture
def image_pair(tmp_path):
    """Two 24×24 images: a bright spot at the lower left and one at the upper right."""
    y, x = np.mgrid[0:24, 0:24]
    files = tmp_path / "a.png", tmp_path / "b.png"
    for file, (column, row) in zip(files, ((8, 15), (15, 8)), strict=True):
        spot = 20 + 200 * np.exp(-((x - column) ** 2 + (y - row) ** 2) / 30)
        Image.fromarray(spot.astype(np.uint8)).save(file)
    return files
