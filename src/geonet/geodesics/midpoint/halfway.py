"""What a geodesic given halfway proves about itself, without any reference.

At t = ½ the source brings ρ0 and the target sends back ρ1, both of mass one; they should be equal.
For any potential u whose map does not fold, whatever ρ0 and ρ1 are:

    W2² ≥ ½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0)                                    (lower)
    W2  ≤ (∫|∇u|²ρ0)^½ + Λ·W2(ρ0, ρ1)          Λ the largest eigenvalue of I + ½D²u    (upper)

The first is Kantorovich's dual value of the pair (−u_0, u_1), which is feasible: u_1 is the
c-transform of u_0, since x ↦ u_0(x) + ½|x − y|² is convex. The second is the triangle inequality
through (id + ∇u_0)#μ0, to which that map is optimal. W2(ρ0, ρ1) is bounded by Benamou and Brenier's
action of any flow from one to the other; here −∇Δ⁻¹(ρ0 − ρ1), along the straight mixture of both.
Integrals are sums over cells, of densities that are known at cells: both bounds allow `SLACK` for
that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.fields import packed
from geonet.fields.compiled import loops as compiled
from geonet.fields.cosines import cosine_transform, frequencies
from geonet.fields.lookup import Fields
from geonet.fields.matrices import along, series_matrices, unit_centres
from geonet.fields.potential import potential_on, steepest, steepness
from geonet.geodesics.midpoint.ends import Ends, compiled_ends, density_at
from geonet.geodesics.midpoint.pairs import Pairs

SLACK = 1e-3  # relative, of sums over cells
UNSEEN = 0.5  # share of the mass that the cells may miss
MOST = {1: 1024, 2: 128, 3: 32}  # cells per axis where it is looked at


@dataclass(frozen=True)
class Halfway:
    """Per pair, (B,), in the unit cube.

    Attributes:
        mismatch: ∫|ρ0 − ρ1|.
        distance: W2 as the dual value has it; it is off by the square of an error in u, while
            (½∫|∇u|²(ρ0 + ρ1))^½ is off by the error itself.
        lower: the lower bound on W2.
        upper: the upper bound on W2.
        determinant: the smallest of det(I ∓ ½D²u).
    """

    mismatch: Tensor
    distance: Tensor
    lower: Tensor
    upper: Tensor
    determinant: Tensor


def look_halfway(pairs: Pairs, coefficients: Tensor) -> Halfway:
    """Look at all pairs with their potentials at t = ½."""
    d, modes = pairs.grid.dimension, coefficients.shape[-1]
    across = max(pairs.grid.shape) / min(pairs.box.sides)
    cells = min(MOST[d], max(4 * modes, math.ceil(across)))
    found = [_look(coefficients[some], ends, cells) for some, ends in pairs.chunks(cells**d)]
    columns = zip(*(vars(part).values() for part in found), strict=True)
    return Halfway(*(torch.cat(column) for column in columns))


def _look(coefficients: Tensor, ends: Ends, cells: int) -> Halfway:
    sides = both_sides(coefficients, ends, cells)
    source, target = sides.source.double(), sides.target.double()
    squares = torch.stack([g.double() ** 2 for g in sides.gradient]).sum(0)
    energies = [(squares * side).mean(1) for side in (source, target)]
    gain = 2 * (sides.value.double() * (target - source)).mean(1)
    distance = ((energies[0] + energies[1]) / 2 + gain).clamp(min=0).sqrt()
    nearer = torch.minimum(energies[0], energies[1]).sqrt()
    apart = flow_bound(source, target, cells, coefficients.ndim - 1)
    steep = steepest(coefficients).double()
    # On cells too coarse for the densities the masses are not one; ∫uρ may be off by as much.
    height = sides.value.double().amax(1) - sides.value.double().amin(1)
    unsure = 2 * sides.missing.double() * height
    lower = (distance**2 - unsure).clamp(min=0).sqrt()
    return Halfway(
        mismatch=sides.mismatch().double(),
        distance=distance,
        lower=torch.where(steep < 1, (1 - SLACK) * lower, 0.0),
        upper=torch.where(steep < 1, (1 + SLACK) * (nearer + (1 + steep) * apart), torch.inf),
        determinant=sides.determinant.double(),
    )


@dataclass(frozen=True)
class Sides:
    """u, ∇u, D²u (packed), ρ0 and ρ1 of mean one at cells of the cube, each (B, cells).

    Attributes:
        determinant: the smallest of det(I ∓ ½D²u), (B,).
        steepness: the largest |eigenvalue| of ½D²u, (B,).
        missing: how far the sums of ρ0 and ρ1 were from one before they were scaled to it, (B,).
    """

    value: Tensor
    gradient: Fields
    hessian: Fields
    source: Tensor
    target: Tensor
    determinant: Tensor
    steepness: Tensor
    missing: Tensor

    def mismatch(self) -> Tensor:
        """∫|ρ0 − ρ1|, (B,); two, as for disjoint densities, where hardly any of them is seen."""
        apart = (self.source - self.target).abs().mean(1)
        return torch.where(self.missing < UNSEEN, apart, 2.0)


def both_sides(coefficients: Tensor, ends: Ends, cells: int) -> Sides:
    """What both ends bring to t = ½, at cells^d cells of the unit cube."""
    if (splines := compiled_ends(ends)) is not None:
        planes, (source, target), (smallest, steepest) = compiled.halfway(
            coefficients, *splines, cells
        )
        value, gradient, hessian = planes[0], list(planes[1:3]), list(planes[3:])
    else:
        value, gradient, hessian = potential_on(coefficients, cells)
        source, target, smallest = _brought(gradient, hessian, ends, cells)
        steepest = steepness(hessian)
    sums = torch.stack([source, target]).mean(2)
    missing = (sums - 1).abs().amax(0)
    scale = 1 / sums.clamp_(min=torch.finfo(sums.dtype).tiny)[..., None]
    source, target = source * scale[0], target * scale[1]
    return Sides(value, gradient, hessian, source, target, smallest, steepest, missing)


def _brought(
    gradient: Fields, hessian: Fields, ends: Ends, cells: int
) -> tuple[Tensor, Tensor, Tensor]:
    """ρ0 and ρ1, (B, cells^d), and the smallest determinant, (B,)."""
    spread, velocity = packed.invariants(hessian), [g[:, None] for g in gradient]
    before, after = (packed.characteristic(spread, s) for s in (-0.5, 0.5))
    points = unit_centres(len(gradient), cells)
    source, target = (
        (density_at(end, points, velocity, s)[:, 0] * determinant).clamp(min=0)
        for end, s, determinant in zip(ends, (0.5, -0.5), (before, after), strict=True)
    )
    return source, target, torch.minimum(before, after).amin(1)


def flow_bound(source: Tensor, target: Tensor, cells: int, d: int) -> Tensor:
    """An upper bound on W2 between densities (B, cells^d) of mean one on the unit cube, (B,).

    ∫∫|w|²/ρ_s dx ds with ρ_s = (1 − s)ρ0 + sρ1 and div w = ρ1 − ρ0, so at most
    ∫½(1/ρ0 + 1/ρ1)|w|² dx; or, where that is worse, what is not shared goes across the cube.
    """
    difference = (source - target).reshape(-1, *(cells,) * d)
    series = along([cosine_transform(cells)] * d, difference)
    squares = torch.stack(torch.meshgrid(*[frequencies(cells) ** 2] * d, indexing="ij")).sum(0)
    squares.view(-1)[0] = torch.inf  # the mean, which is zero
    plain, slope, _ = series_matrices(cells, cells).double()
    flow = [
        along([slope if i == axis else plain for axis in range(d)], series / squares)
        for i in range(d)
    ]
    action = sum(w.flatten(1) ** 2 for w in flow) * 0.5 * (1 / source + 1 / target)
    not_shared = 0.5 * (source - target).abs().mean(1)
    return torch.minimum(action.mean(1).nan_to_num(torch.inf), d * not_shared).sqrt()
