"""From settings to a model."""

from __future__ import annotations

from geonet.operators.architecture import Architecture, DensityOnly, Transport
from geonet.operators.deeponet import DensityNet, GeONet
from geonet.operators.transport import TransportNet
from geonet.randomness import seeded

Model = GeONet | TransportNet | DensityNet
Settings = Architecture | Transport | DensityOnly


def untrained(settings: Settings) -> Model:
    """The model that the settings describe, with weights from torch's stream."""
    if isinstance(settings, Transport):
        return TransportNet(settings)
    return DensityNet(settings) if isinstance(settings, DensityOnly) else GeONet(settings)


def build(settings: Settings, seed: int) -> Model:
    """A model with random weights, the same for the same seed; torch's stream stays as it was."""
    with seeded(seed):
        return untrained(settings)
