"""Potentials in the unit cube as cosine series, a batch of them: u(x) = Σ_k c_k Π_i cos(k_i π x_i).

Coefficients are (B, modes, …, modes); matrices of second derivatives are packed.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields import packed
from geonet.fields.compiled import loops as compiled
from geonet.fields.lookup import Fields
from geonet.fields.matrices import derivatives, series_matrices

NODES = {1: 512, 2: compiled.NODES, 3: 48}  # of the tables of ∇u and D²u, along each axis
STEEPEST = 0.999  # eigenvalue of ½D²u: below 1 particles neither meet nor cross


def potential_on(
    coefficients: Tensor, cells: int, centred: bool = True
) -> tuple[Tensor, Fields, Fields]:
    """u, ∇u and D²u, packed, at cells^d cells of the unit cube: each (B, cells^d).

    At their centres, or else at their faces: (B, (cells + 1)^d).
    """
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    found = derivatives([series_matrices(cells, modes, centred)] * d, coefficients, most=2)

    def field(*directions: int) -> Tensor:
        return found[tuple(directions.count(axis) for axis in range(d))].flatten(1)

    hessian = [field(i, j) for i in range(d) for j in range(i, d)]
    return field(), [field(i) for i in range(d)], hessian


def potential_table(coefficients: Tensor) -> Tensor:
    """∇u − ½D²u·x and D²u at nodes of the unit cube, (B, channels, *nodes).

    Looked up at x, the first plus ½D²u·x is ∇u(x) = Σ_j w_j (∇u_j + ½D²u_j (x − x_j)) over the
    nodes around x with linear weights w, which is exact for quadratic fields; linear interpolation
    alone is exact for linear ones.
    """
    d = coefficients.ndim - 1
    nodes = NODES[d]
    _, gradient, hessian = potential_on(coefficients, nodes, centred=False)
    bent = packed.product(hessian, _nodes(d))
    rest = [torch.sub(g, b, alpha=0.5) for g, b in zip(gradient, bent, strict=True)]
    return torch.stack([*rest, *hessian], dim=1).unflatten(-1, (nodes + 1,) * d)


@lru_cache(maxsize=3)
@torch.inference_mode(False)
def _nodes(d: int) -> Tensor:
    """The places of the table's nodes, (d, nodes)."""
    axis = torch.arange(NODES[d] + 1, dtype=torch.float32, device="cpu") / NODES[d]
    return torch.stack(torch.meshgrid(*[axis] * d, indexing="ij")).flatten(1)


def steepness(hessian: Fields) -> Tensor:
    """The largest |eigenvalue| of ½D²u over all points, (B,), from D²u packed, each (B, points)."""
    return 0.5 * packed.spectral_radius(torch.stack(list(hessian))).amax(1)


def steepest(coefficients: Tensor) -> Tensor:
    """The steepness on a fine grid with the faces, where D²u tends to be largest, (B,)."""
    _, _, hessian = potential_on(coefficients, 4 * coefficients.shape[-1], centred=False)
    return steepness(hessian)


def unfolded(coefficients: Tensor) -> Tensor:
    """Potentials whose maps would fold, scaled down until they do not."""
    steep = steepest(coefficients.detach())
    if coefficients.requires_grad and bool((steep > STEEPEST).any()):
        steep = _steepest_traced(coefficients)
    scale = STEEPEST / steep.clamp(min=STEEPEST)
    return coefficients * scale.reshape(-1, *(1,) * (coefficients.ndim - 1))


def _steepest_traced(coefficients: Tensor) -> Tensor:
    """`steepest` with its gradient: that of an eigenvalue at the steepest point alone.

    The roots of `steepness` have infinite ones where eigenvalues coincide, which may be elsewhere.
    """
    d = coefficients.ndim - 1
    _, _, hessian = potential_on(coefficients, 4 * coefficients.shape[-1], centred=False)
    place = packed.spectral_radius(torch.stack(list(hessian)).detach()).argmax(1)
    there = [entry.gather(1, place[:, None])[:, 0] for entry in hessian]
    return 0.5 * torch.linalg.eigvalsh(packed.unpacked(there, d)).abs().amax(-1)
