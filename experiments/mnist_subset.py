"""Write the digits that come with geonet: the first 100 of each class in MNIST's test set.

Run `python -m experiments.mnist_subset` with `GEONET_DATA` set to the folder of MNIST's files, or
with a network connection. A second run writes the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.pages import ROOT
from experiments.mnist import SAMPLE, Digits, mnist
from geonet._files import atomic_write

PER_CLASS = 100


def subset(digits: Digits) -> Digits:
    """Return the first digits of each class in their original order."""
    firsts = [np.flatnonzero(digits.labels == label)[:PER_CLASS] for label in range(10)]
    chosen = np.sort(np.concatenate(firsts))
    return Digits(digits.images[chosen], digits.labels[chosen])


def write(digits: Digits, file: Path) -> None:
    """Write an npz archive; NumPy dates its members 1980, so equal digits give equal bytes."""
    with atomic_write(file) as temporary:
        np.savez_compressed(temporary, images=digits.images, labels=digits.labels)


if __name__ == "__main__":
    write(subset(mnist("test")), ROOT / "src" / "geonet" / "demo_data" / SAMPLE)
