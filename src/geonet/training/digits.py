"""Pairs of handwritten digits: as images, and as codes of an autoencoder."""

from __future__ import annotations

from pathlib import Path

from geonet.measures.mnist import as_densities, mnist
from geonet.operators.autoencoder_file import SHIPPED, code_densities, load_autoencoder
from geonet.training.autoencoder import as_rows
from geonet.training.own import Pool

BLUR = 1.0  # pixels
FLOOR = 0.05  # share of the mass that is uniform: maps of densities with holes have jumps


def digit_images() -> Pool:
    """MNIST's training digits, slightly blurred, on the unit square."""
    return Pool(as_densities(mnist("train").images, BLUR, FLOOR))


def digit_codes(autoencoder: Path = SHIPPED) -> Pool:
    """The codes of MNIST's training digits, as densities on [0, 5]."""
    return Pool(
        code_densities(load_autoencoder(autoencoder).encode(as_rows(mnist("train").images)))
    )
