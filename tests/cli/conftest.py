"""Fixtures of the command line's tests."""

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
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys) -> Callable[..., Run]:
    """Function that runs a command in this process."""

    def call(*arguments: object) -> Run:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return call


@pytest.fixture
def run_failing(run) -> Callable[..., str]:
    """Function that runs a command that must fail, and returns its line on standard error."""

    def call(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert code == 2
        assert out == ""
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        return err

    return call


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, because waiting threads slow down small problems."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def quiet(monkeypatch) -> None:
    """Suppress progress lines, however busy the machine is."""
    monkeypatch.setattr(output, "PROGRESS_DELAY", math.inf)


@pytest.fixture
def line_pair(tmp_path):
    """Files of two 1D arrays."""
    x = np.linspace(0, 1, 40)
    files = tmp_path / "a.npy", tmp_path / "b.npy"
    for file, centre in zip(files, (0.3, 0.6), strict=True):
        np.save(file, np.exp(-(((x - centre) / 0.1) ** 2)))
    return files


@pytest.fixture
def image_pair(tmp_path):
    """Files of two 24×24 images, with a spot at the lower left and at the upper right."""
    y, x = np.mgrid[0:24, 0:24]
    files = tmp_path / "a.png", tmp_path / "b.png"
    for file, (column, row) in zip(files, ((8, 15), (15, 8)), strict=True):
        spot = 20 + 200 * np.exp(-((x - column) ** 2 + (y - row) ** 2) / 30)
        Image.fromarray(spot.astype(np.uint8)).save(file)
    return files


@pytest.fixture
def write(tmp_path):
    """Function that writes text, bytes, an array or several arrays to a file."""

    def write(name, content):
        file = tmp_path / name
        if isinstance(content, str | bytes):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif isinstance(content, dict):
            np.savez(file, **content)
        else:
            np.save(file, content)
        return file

    return write
