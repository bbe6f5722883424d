"""Shared fixtures: random generators, pairs of the paper, and pairs with a known solution."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import experiments  # noqa: F401  registers the models that only the experiments use
from geonet import _files as files
from geonet.density import Density
from geonet.evaluation import random_potential
from geonet.grid import Grid
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.solvers.neural import model as model_file

CELLS = {1: 128, 2: 48, 3: 24}


def potentials(d: int, count: int = 1, radius: float = 1.0, modes: int = 4, seed: int = 0):
    """Return random low modes on the unit cube with |λ(D²u)| ≤ `radius`, (B, modes, …)."""
    generator = torch.Generator().manual_seed(100 * d + seed)
    series = [
        random_potential(Grid((4,) * d), generator, modes, strength=0.5).coefficients
        for _ in range(count)
    ]
    return (torch.stack(series) * radius / 0.5).float()


@dataclass(frozen=True)
class KnownPair:
    """A pair constructed from its potential and its density at t = ½, with the exact solution."""

    source: Density
    target: Density
    coefficients: Tensor  # (1, modes, …)
    distance: float
    density: Callable[[float, Grid], Tensor]


def known_pair(
    d: int, radius: float = 1.0, cells: int | None = None, length: float = 1.0, **options
) -> KnownPair:
    """Push a smooth positive density at t = ½ along ±½∇u to both ends, on a cube."""
    grid = Grid((cells or CELLS[d],) * d, 0.0, length)
    coefficients = potentials(d, radius=radius, **options)
    series = CosineSeries(coefficients[0].double() * length**2, grid)
    lines = Characteristics(series)

    def halfway(points: Tensor) -> Tensor:
        wave = torch.cos(torch.pi / length * points)
        bump = torch.cos(2 * torch.pi / length * points[:, 0])
        return (0.6 * wave.sum(-1) - 0.4 * bump).exp()

    fine = grid.with_shape({1: 2000, 2: 200, 3: 50}[d])
    everywhere = fine.points().reshape(-1, d)
    middle = halfway(everywhere)
    mass = float(middle.sum()) * fine.cell_volume
    speed = (series.derivatives_on(fine)[0] ** 2).sum(0).flatten()

    def density(t: float, grid: Grid) -> Tensor:
        s = torch.tensor([t - 0.5], dtype=torch.float64)
        (origin,) = lines.trace_back(s, grid.points().reshape(-1, d))
        values = halfway(origin.point) / origin.determinant(t - 0.5) / mass
        return values.reshape(grid.shape)

    source, target = (Density(density(t, grid), grid) for t in (0.0, 1.0))
    distance = float((speed * middle).sum() / middle.sum()) ** 0.5
    return KnownPair(source, target, coefficients, distance, density)


@pytest.fixture(name="potentials", scope="session")
def _potentials():
    return potentials


@pytest.fixture(name="known_pair", scope="session")
def _known_pair():
    return known_pair


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20261115)


@pytest.fixture
def pair_1d(generator):
    return tuple(mixtures_1d(1, generator)[0].to_density(BOX_1D) for _ in range(2))


@pytest.fixture
def pair_2d(generator):
    return tuple(mixtures_2d(1, generator)[0].to_density(BOX_2D.with_shape(32)) for _ in range(2))


@pytest.fixture
def double_precision():
    """Make float64 the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# ---- Files with misaligned tensors


def misalign(tensor: Tensor) -> Tensor:
    """Return a copy at an address that is not a multiple of 64 bytes."""
    buffer = tensor.new_empty(tensor.numel() + 1)
    return buffer[1:].view(tensor.shape).copy_(tensor)


class MisalignedTensors:
    """`safe_open` with misaligned tensors, as a memory map may have."""

    def __init__(self, *arguments):
        self._archive = safe_open(*arguments)

    def __enter__(self) -> MisalignedTensors:
        self._archive.__enter__()
        return self

    def __exit__(self, *raised) -> None:
        self._archive.__exit__(*raised)

    def __getattr__(self, name: str):
        return getattr(self._archive, name)

    def get_tensor(self, name: str) -> Tensor:
        return misalign(self._archive.get_tensor(name))


class MisalignedArrays(files.SafeNpz):
    """An npz with misaligned arrays."""

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        buffer = np.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
        buffer[...] = array
        return buffer


def _misalign_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_file, "safe_open", MisalignedTensors)
    patch.setattr(files, "SafeNpz", MisalignedArrays)


@pytest.fixture
def misaligned_files(monkeypatch) -> None:
    """Misalign all tensors of model files, checkpoints and saved paths."""
    _misalign_files(monkeypatch)


if os.environ.get("GEONET_MISALIGNED") == "1":  # set by tests/trust/matrix.py
    _misalign_files(pytest.MonkeyPatch())
