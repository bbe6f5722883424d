"""What the page offers: solvers, cells and noise, with limits that keep every answer quick."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from geonet.plotting.look import DENSITY_MAP
from geonet.version import VERSION

PATIENCE = 5.0  # seconds after which a solver answers with what it has
MOST_CELLS = {1: 1024, 2: 256}  # an axis
LEAST_CELLS = 2
CELLS = {1: (128, 256, 512), 2: (32, 64, 128)}
USUAL_CELLS = {1: 256, 2: 64}
LEAST_EPSILON, MOST_EPSILON, USUAL_EPSILON = 5e-4, 0.05, 2e-3  # 64² cells: well below a second


@dataclass(frozen=True)
class Offer:
    """A solver on the page.

    Attributes:
        name: in the registry.
        label: what people read.
        options: that it always gets.
        epsilon: whether people choose its noise.
        most: cells an axis, where it is slower than others.
    """

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    epsilon: bool = False
    most: int | None = None


BRIDGE = "With noise: the Schrödinger bridge"
FADE = "No transport: one fades into the other"
SOLVERS: dict[int, tuple[Offer, ...]] = {
    1: (
        Offer("auto", "Automatic: exact"),
        Offer("transport-1d", "Neural network with corrections"),
        Offer("geonet-1d", "Neural network of the paper, for smooth lumps"),
        Offer("schrodinger", BRIDGE, epsilon=True),
        Offer("linear", FADE),
    ),
    2: (
        Offer("auto", "Automatic: the fastest to be trusted", {"time_limit": PATIENCE}),
        Offer("universal-2d", "Neural network for any drawing, three corrections"),
        Offer("midpoint", "Newton's method, without a network", {"time_limit": PATIENCE}),
        Offer("transport-2d", "Neural network for smooth lumps, corrected", most=128),
        Offer("geonet-2d", "Neural network of the paper, for smooth lumps (slow)", most=64),
        Offer("back-and-forth", "Back-and-forth method"),
        Offer("schrodinger", BRIDGE, epsilon=True, most=128),
        Offer("linear", FADE),
    ),
}


def offer_of(name: str, dimension: int) -> Offer | None:
    """The offer of this name in so many dimensions."""
    return next((offer for offer in SOLVERS[dimension] if offer.name == name), None)


def settings() -> dict[str, Any]:
    """All that the page has to know, as plain data."""
    colours = DENSITY_MAP(range(256), bytes=True)[:, :3]
    return {
        "solvers": {
            str(dimension): [
                {"name": offer.name, "label": offer.label, "epsilon": offer.epsilon}
                for offer in offers
            ]
            for dimension, offers in SOLVERS.items()
        },
        "epsilon": {"least": LEAST_EPSILON, "most": MOST_EPSILON, "usual": USUAL_EPSILON},
        "cells": {str(dimension): list(cells) for dimension, cells in CELLS.items()},
        "usual": {str(dimension): cells for dimension, cells in USUAL_CELLS.items()},
        "colours": base64.b64encode(colours.tobytes()).decode(),
        "version": VERSION,
    }
