"""Weights of a trained model to begin another training with."""

from __future__ import annotations

from pathlib import Path

from geonet.errors import ConfigError
from geonet.operators.model import Model
from geonet.operators.model_file import load_model
from geonet.operators.opened import PRETRAINED


def begin_with(model: Model, name: str) -> None:
    """Give a model the weights of another one with the same layers.

    Args:
        model: whose weights are replaced.
        name: of a shipped model, or a file.
    """
    shipped = PRETRAINED / f"{name}.safetensors"
    other, _ = load_model(shipped if shipped.exists() else Path(name))
    theirs, ours = ({k: v.shape for k, v in m.state_dict().items()} for m in (other, model))
    if theirs != ours or other.settings.kind != model.settings.kind:
        raise ConfigError(
            f"start is {name!r}, a model of the kind {other.settings.kind!r} with other layers; "
            "give [model] its architecture, or another start."
        )
    model.load_state_dict(other.state_dict())
