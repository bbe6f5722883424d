"""The settings of networks: what has to be known to build them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from geonet.settings import require

LARGEST = 1 << 20  # of any width or count; a larger value is probably a typing error


@dataclass(frozen=True)
class Branch:
    """A branch: sensor values of one density to `rank` numbers.

    Attributes:
        modes: the cosine modes along each axis that it reads of the sensors; 0 for the sensors
            themselves.
    """

    network: Literal["mlp", "modified-mlp"] = "modified-mlp"
    width: int = 150
    depth: int = 7
    modes: int = 0

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)


@dataclass(frozen=True)
class Trunk:
    """A trunk: (x, t) in the unit box to `rank` numbers.

    Attributes:
        network: "mlp" and "modified-mlp" see x and t together; "separable" multiplies a stack for
            x with a stack for t (the paper's Fourier-feature trunk).
        features: what the network is given: "coordinates"; "cosines" cos(kπx_i), k ≤ `modes`, even
            at every face of the box; "fourier": cos and sin of `modes` random frequencies with
            standard deviation `sigma`, in periods per box, frozen.
    """

    network: Literal["mlp", "modified-mlp", "separable"] = "modified-mlp"
    width: int = 100
    depth: int = 7
    features: Literal["coordinates", "cosines", "fourier"] = "coordinates"
    modes: int = 8
    sigma: float = 2.5

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)
        require(0 < self.modes <= LARGEST, f"modes is {self.modes}; give 1 to {LARGEST}.")
        require(self.sigma > 0, f"sigma is {self.sigma}; give a positive number.")


@dataclass(frozen=True)
class ModelSettings:
    """What the settings of every model form share.

    A table in a file names its form by `kind`; `geonet.settings.from_table` asks `of_kind` for it.

    Attributes:
        kind: the name of the form.
        dimension: d.
        sensors: cells along each axis where the densities are read.
    """

    kind: str
    dimension: int
    sensors: int

    def __post_init__(self) -> None:
        require(self.dimension in (1, 2, 3), f"dimension is {self.dimension}; give 1, 2 or 3.")
        require(2 <= self.sensors <= 4096, f"sensors is {self.sensors}; give 2 to 4096.")

    @classmethod
    def of_kind(cls) -> dict[str, type[Any]]:
        """The settings of every form by its kind; the first is the default."""
        from geonet.operators.forms import FORMS, form_of

        return {kind: form_of(kind).Settings for kind in FORMS}


def _check_size(network: str, width: int, depth: int) -> None:
    least = 2 if network == "mlp" else 3  # below, gates or stacks would be empty
    require(0 < width <= LARGEST, f"width is {width}; give 1 to {LARGEST}.")
    require(least <= depth <= 100, f"depth is {depth}; give {least} to 100 layers to {network}.")
