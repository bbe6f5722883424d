"""A network's potential at t = ½ as quadratic splines: where `midpoint` may begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from geonet.fields.levels import level_shapes
from geonet.fields.potential import unfolded
from geonet.fields.quadratic import interpolated
from geonet.geodesics.midpoint.newton import Start
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.operators.cascade import CascadeNet
from geonet.operators.cascade_path import guesses_of
from geonet.operators.opened import PRETRAINED, opened
from geonet.operators.transport import TransportNet, potential_of
from geonet.progress import tell

Form = TypeVar("Form", CascadeNet, TransportNet)
CELLS = 32  # along the longest axis: networks have no finer detail


@torch.no_grad()
def network_potentials(source: Density, target: Density) -> Sequence[Start]:
    """Where Newton's method may begin, for one pair or for every pair of a batch."""
    d = source.grid.dimension
    if d == 1:
        return transport_potentials(source, target)
    return guesses_of(_asked(f"universal-{d}d", d, CascadeNet), source, target)


@torch.no_grad()
def transport_potentials(source: Density, target: Density) -> list[Start]:
    """The same by the networks of the paper's mixtures."""
    d = source.grid.dimension
    model = _asked(f"transport-{d}d", d, TransportNet)
    modes = unfolded(potential_of(model, source, target)).double()
    shape, sides = start_shape(source.grid), unit_box(source.grid).sides
    return [Start(splined(own, shape, sides)) for own in modes]


def _asked(name: str, dimension: int, form: type[Form]) -> Form:
    tell(f"asking {name}")
    model, _ = opened(PRETRAINED / f"{name}.safetensors", dimension)
    assert isinstance(model, form)
    return model


def start_shape(grid: Grid) -> tuple[int, ...]:
    """The cells on which a network's potential is handed to Newton's method."""
    shapes = level_shapes(grid.shape, unit_box(grid).sides)
    return next((shape for shape in shapes if max(shape) <= CELLS), shapes[-1])


def splined(modes: Tensor, shape: tuple[int, ...], sides: tuple[float, ...]) -> Tensor:
    """A cosine series on the unit cube as quadratic splines on the cells of a box in it."""
    values = modes
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True)):
        centres = side * (torch.arange(n, dtype=torch.float64) + 0.5) / n
        waves = torch.cos(math.pi * centres[:, None] * torch.arange(modes.shape[axis]))
        values = (values.movedim(axis, -1) @ waves.T).movedim(-1, axis)
    return interpolated(values)
