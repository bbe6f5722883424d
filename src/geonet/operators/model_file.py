"""Trained models in files: safetensors with a JSON header, no pickle, and a checksum over both."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from geonet.errors import ConfigError, FileError
from geonet.files import reading, written_atomically
from geonet.operators.architecture import ModelSettings
from geonet.operators.forms import FORMS, untrained
from geonet.operators.model import Header, Model
from geonet.settings import from_table, to_table

FORMAT = 1
SUFFIX = ".safetensors"
MOST_LACKING = 1 << 24  # numbers that are filled in: a header alone cannot ask for much memory
M = TypeVar("M", bound=torch.nn.Module)


def save_model(file: Path, model: Model, header: Header) -> Path:
    """Write the weights, and beside them the architecture and whatever `header` has to say."""
    header = {
        "format": FORMAT,
        "kind": model.settings.kind,
        "architecture": to_table(model.settings),
        **header,
    }
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return write_tensors(file, tensors, header)


def load_model(file: Path) -> tuple[Model, Header]:
    """The model that `save_model` wrote, and its header."""
    tensors, header = read_tensors(file, "a geonet model")
    if header.get("format") != FORMAT or str(header.get("kind")) not in FORMS:
        raise FileError(
            f"{file} has format {header.get('format')!r} and kind {header.get('kind')!r}, which "
            "this version does not know; load it with the version that wrote it."
        )
    try:
        settings = from_table(ModelSettings, _architecture(header))
    except ConfigError as error:
        raise FileError(f"{file} describes no model: {error}") from error
    epsilon = header.setdefault("epsilon", 0.0)
    if not isinstance(epsilon, int | float) or not 0 <= epsilon <= sys.float_info.max:
        raise FileError(f"{file} has epsilon = {epsilon!r}, which is no length²; get it again.")
    with torch.device("meta"):  # shapes only: a header cannot ask for more memory than its file has
        model = untrained(settings)
    header["file"] = str(file)
    return filled(model, tensors, file, model.later), header


def _architecture(header: Header) -> object:
    """The table of a model's settings; the kind stands beside it as well."""
    table = header.get("architecture")
    return {"kind": header["kind"], **table} if isinstance(table, dict) else table


def filled(model: M, tensors: dict[str, Tensor], file: Path, later: tuple[str, ...] = ()) -> M:
    """A model with the weights that are in a file, for good; those that do not fit are refused.

    Weights whose names begin as one of `later` may be missing, and are zero then.
    """
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    lacking = {n: s for n, s in expected.items() if n.startswith(later) and n not in tensors}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    room = sum(math.prod(shape) for shape in lacking.values())
    if expected != found | lacking or room > MOST_LACKING:
        raise FileError(f"The weights in {file} do not fit its architecture; get the file again.")
    tensors = tensors | {name: torch.zeros(shape) for name, shape in lacking.items()}
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise FileError(f"The weights {name} in {file} are not finite; get the file again.")
    model.load_state_dict({k: v.float() for k, v in tensors.items()}, assign=True)
    return model.eval().requires_grad_(False)


def kind_of(file: Path) -> str:
    """The kind of model in a file, from its header alone, unchecked."""
    with reading(file, "a geonet model"), safe_open(file, "pt") as archive:
        header = json.loads((archive.metadata() or {}).get("geonet", "{}"))
    return str(header.get("kind")) if isinstance(header, dict) else "unknown"


def write_tensors(file: Path, tensors: dict[str, Tensor], header: Header) -> Path:
    """Tensors and a header with their checksum, whole or not at all."""
    tensors = {name: value.contiguous().cpu() for name, value in tensors.items()}
    text = json.dumps(header, ensure_ascii=False)
    with written_atomically(file) as temporary:
        temporary.write_bytes(save(tensors, {"geonet": text, "sha256": _digest(tensors, text)}))
    return file


def read_tensors(file: Path, what: str) -> tuple[dict[str, Tensor], Header]:
    """What `write_tensors` wrote; anything else is refused.

    The tensors are copies, row by row at addresses that torch chose, as those that were written:
    a product rounds otherwise where its factors lie otherwise, and a file may lie anywhere.
    """
    with reading(file, what), safe_open(file, "pt") as archive:
        metadata = archive.metadata() or {}
        if not {"geonet", "sha256"} <= set(metadata):
            raise FileError(f"{file} holds tensors but is not {what}; `geonet train` writes one.")
        tensors = {name: archive.get_tensor(name).clone() for name in archive.keys()}  # noqa: SIM118
        if _digest(tensors, metadata["geonet"]) != metadata["sha256"]:
            raise FileError(f"{file} was changed after it was written; get the file again.")
        header = json.loads(metadata["geonet"])
    if not isinstance(header, dict):
        raise FileError(f"The header of {file} is no table; get the file again.")
    return tensors, header


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
