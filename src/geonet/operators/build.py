"""From settings to a model."""

from __future__ import annotations

import torch

from geonet.operators.architecture import Architecture, Transport
from geonet.operators.deeponet import GeONet
from geonet.operators.transport import TransportNet

Model = GeONet | TransportNet


def untrained(settings: Architecture | Transport) -> Model:
    """The model that the settings describe, with weights from torch's stream."""
    return TransportNet(settings) if isinstance(settings, Transport) else GeONet(settings)


def build(settings: Architecture | Transport, seed: int) -> Model:
    """A model with random weights, the same for the same seed; torch's stream stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return untrained(settings)
