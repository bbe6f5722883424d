"""Exported models: a shipped one, and small untrained ones of the other kinds."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import scipy.sparse
import scipy.special
import torch

from geonet.onnx import export_onnx
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import PRETRAINED, Branch, Trunk, build, save_model
from geonet.solvers.neural.transport import network as symmetric
from geonet.solvers.neural.transport import network as transport
from geonet.solvers.neural.transport.network import TransportSettings

KEPT = (symmetric.hadamard, transport.analysis, transport.classes, transport.decay)
SMALL = {
    "transport": TransportSettings(dimension=2, sensors=6, seen=4, modes=4, width=3, depth=1),
    "geonet": GeONetSettings(
        dimension=2,
        sensors=5,
        rank=7,
        swap_symmetry="both",
        branch=Branch("mlp", width=6, depth=2),
        trunk=Trunk("separable", width=6, depth=3, features="fourier", modes=3),
    ),
    "deeponet": DeepONetSettings(
        sensors=9,
        rank=5,
        branch=Branch(width=6, depth=3),
        trunk=Trunk(width=4, depth=3, features="cosines", modes=3),
    ),
}


def small_model(kind: str, folder: Path) -> Path:
    """A model of a kind in half precision, as some of the shipped ones are."""
    model = build(SMALL[kind], seed=1)
    for weight in model.parameters():  # also those that start at zero
        weight.data += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    return save_model(folder / "model.safetensors", model.half(), {"name": f"small-{kind}"})


class Exported(NamedTuple):
    """A model's file, the files made of it, and what the export changed in the process."""

    model: Path
    files: list[Path]
    changed: list[str]


def export(model: Path, folder: Path) -> Exported:
    """Export a model as a process does that has used none before."""
    for function in KEPT:
        function.cache_clear()
    assert scipy.sparse and scipy.special  # which add filters of warnings when first imported
    before = _state()
    files = export_onnx(model, folder)
    after = _state()
    return Exported(model, files, [name for name in before if before[name] != after[name]])


def _state() -> dict[str, object]:
    """What an export might leave changed."""
    return {
        "random numbers": torch.random.get_rng_state().tolist(),
        "gradients": torch.is_grad_enabled(),
        "warnings": list(warnings.filters),
        "loggers": [logging.getLogger(name).level for name in ("", "onnx_ir", "torch.onnx")],
    }


@pytest.fixture(scope="session")
def transport_2d(tmp_path_factory) -> Exported:
    """The shipped model."""
    return export(PRETRAINED / "transport-2d.safetensors", tmp_path_factory.mktemp("transport"))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Threads of torch that wait for each other make these small problems slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
