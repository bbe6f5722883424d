"""The model forms by name. A form is one file; adding it is adding a line here."""

from __future__ import annotations

from geonet.locations import located
from geonet.operators.architecture import ModelSettings
from geonet.operators.model import Model
from geonet.randomness import seeded

FORMS = {
    "geonet": "geonet.operators.geonet:GeONet",
    "transport": "geonet.operators.transport:TransportNet",
    "deeponet": "geonet.operators.deeponet:DensityNet",
    "cascade": "geonet.operators.cascade:CascadeNet",
}


def form_of(kind: str) -> type[Model]:
    """The class of all models of a kind."""
    return located(FORMS[kind])


def untrained(settings: ModelSettings) -> Model:
    """The model that the settings describe, with weights from torch's global generator."""
    return form_of(settings.kind)(settings)


def build(settings: ModelSettings, seed: int) -> Model:
    """A model with random weights, the same for the same seed; torch's stream stays as it was."""
    with seeded(seed):
        return untrained(settings)
