"""Potentials in the unit cube as cosine series, a batch of them: u(x) = Σ_k c_k Π_i cos(k_i π x_i).

Coefficients are (B, modes, …, modes); matrices of second derivatives are packed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from geonet.operators import packed
from geonet.solvers.midpoint.lookup import Fields
from geonet.solvers.midpoint.matrices import along, series_matrix

NODES = {1: 512, 2: 64, 3: 48}  # of the tables of ∇u and D²u, along each axis
STEEPEST = 0.999  # eigenvalue of ½D²u: below 1 particles neither meet nor cross


def potential_on(coefficients: Tensor, cells: int) -> tuple[Tensor, Fields, Fields]:
    """u, ∇u and D²u at the centres of cells^d cells of the unit cube, each (B, cells^d)."""
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    gradient, hessian = derivatives(coefficients, lambda k: series_matrix(cells, modes, k))
    value = along([series_matrix(cells, modes, 0)] * d, coefficients)
    return value.flatten(1), [g.flatten(1) for g in gradient], [h.flatten(1) for h in hessian]


def derivatives(coefficients: Tensor, matrix: Callable[[int], Tensor]) -> tuple[Fields, Fields]:
    """∇u, d of (B, *n), and D²u, packed, where matrix(k) has the k-th derivatives of cosines."""
    d = coefficients.ndim - 1

    def derivative(*directions: int) -> Tensor:
        return along([matrix(directions.count(axis)) for axis in range(d)], coefficients)

    gradient = [derivative(i) for i in range(d)]
    hessian = [derivative(i, j) for i in range(d) for j in range(i, d)]
    return gradient, hessian


def potential_table(coefficients: Tensor) -> Tensor:
    """∇u, D²u·x and D²u at nodes of the unit cube, (B, channels, *nodes).

    With them ∇u(x) = Σ_j w_j (∇u_j + ½D²u_j (x − x_j)) over the nodes around x with linear weights
    w, which is exact for quadratic fields; linear interpolation alone is exact for linear ones.
    """
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    nodes = NODES[d]
    gradient, hessian = derivatives(
        coefficients, lambda k: series_matrix(nodes, modes, k, centred=False)
    )
    axis = torch.arange(nodes + 1, dtype=coefficients.dtype) / nodes
    x = torch.meshgrid(*[axis] * d, indexing="ij")
    return torch.stack([*gradient, *packed.product(hessian, x), *hessian], dim=1)


def steepness(hessian: Fields) -> Tensor:
    """The largest |eigenvalue| of ½D²u over all points, (B,), from D²u packed, each (B, points)."""
    return 0.5 * packed.spectral_radius(torch.stack(list(hessian))).amax(1)


def steepest(coefficients: Tensor) -> Tensor:
    """The steepness on a fine grid with the faces, where D²u tends to be largest, (B,)."""
    modes = coefficients.shape[-1]
    _, hessian = derivatives(
        coefficients, lambda k: series_matrix(4 * modes, modes, k, centred=False)
    )
    return steepness([h.flatten(1) for h in hessian])


def unfolded(coefficients: Tensor) -> Tensor:
    """Potentials whose maps would fold, scaled down until they do not."""
    scale = STEEPEST / steepest(coefficients).clamp(min=STEEPEST)
    return coefficients * scale.reshape(-1, *(1,) * (coefficients.ndim - 1))
