"""Equation for the potential at t = ½ and the linear system of a Newton step.

With maps y ∓ ½∇u from the midpoint to source and target, the pulled-back densities are

    ρ0(y) = μ0(y − ½∇u)·det(I − ½D²u)        ρ1(y) = μ1(y + ½∇u)·det(I + ½D²u),

and u is the Kantorovich potential at t = ½ if ρ0 = ρ1. Tested with quadratic B-splines B_i the
equation is r_i = ∫B_i(ρ1 − ρ0) = 0. Its linearisation is the elliptic operator div(A∇·), so that a
Newton step solves K δ = r with

    K_ij = ∫∇B_i·A∇B_j    A = ½[μ0·cof(I − ½D²u) + μ1·cof(I + ½D²u)] + λI.

λ is a Levenberg–Marquardt damping, larger if the residual nearby is large: if A is small, D²δ is
about r/λ, and a step with |D²δ| above one folds the maps. In 3D A is replaced by its mean in each
cell: steps are as good, and take an eighth of the memory. If a map folds, its determinant counts as
negative, which keeps the mass of ρ at one and pushes the fold apart; cofactors are those of
|eigenvalues|.

A barycenter with weights w_i has one potential ψ_i for each density, at y + ∇ψ_i, with
Σ w_i ψ_i = 0. Its pulled-back densities ρ_i must agree: r_i = w_i∫B(ρ_i − Σ w_k ρ_k) = 0. A Newton
step solves K_i δ_i + w_i p = r_i for all i, with Σ w_i δ_i = 0 and a multiplier p (`multigrid`).
DT_i may be as large as 1/w_i, so that images of half-cells are wider than a cell; means over these
boxes come from accumulated sums.

With a reach, densities are weighted by exp(−φ/λ), where φ is the potential at their end, and K gets
the mass matrix of (ρ0 + ρ1)/λ, which is lumped. The constant in u is then determined. For
Wasserstein–Fisher–Rao the displacement is ∓½G∇u, where G has the eigenvalue 1/(1 + q²) along ∇u
and atan(q)/q across it, q = |∇u|/reach, and I ∓ ½D²u becomes G⁻¹ ∓ ½D²u, times det G.

Densities are relative to the Lebesgue measure on a box with corner zero, and have mass one, or a
mean mass of one with a reach.
`reference.TorchNewtonSystem` is the reference, `compiled.CompiledNewtonSystem` the fast one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from geonet.solvers.newton import compiled
from geonet.solvers.newton.compiled import BALANCED_PAIR, Formulation
from geonet.solvers.newton.reference import TorchHierarchy


class NewtonSystem(Protocol):
    """The discrete equation on one grid.

    Potentials, residuals and steps have the shape of the grid; those of a barycenter have one
    more axis, for the densities.

    Attributes:
        shape: cells of the grid.
        step: side lengths of a cell.
        formulation: boundary, growth and weights.
        iterations: conjugate gradient iterations of the last solve.
    """

    shape: tuple[int, ...]
    step: tuple[float, ...]
    formulation: Formulation
    iterations: int

    def set_densities(self, densities: Sequence[Tensor], min_width: float) -> None:
        """Set the densities, (*shape) each, averaged over at least `min_width` cells."""
        ...

    def scale_densities(self, factors: Sequence[float]) -> None:
        """Multiply each density by a number."""
        ...

    def evaluate(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        """Return the residual r and, for each potential, `ResidualIntegrals`; keep A."""
        ...

    def mean_density(self, coefficients: Tensor) -> tuple[Tensor, float]:
        """Return the density of a barycenter, (*shape), and its mismatch Σ w_i∫|ρ_i − ρ|."""
        ...

    def compute_step(
        self,
        residual: Tensor,
        damping: float,
        tolerance: float,
        max_iterations: int,
        local_damping: float = 0.0,
    ) -> Tensor:
        """Return the Newton step δ at the potential of the last `evaluate`.

        λ is `damping` plus `local_damping` times the largest |residual| per volume in a cell and
        its neighbours. It is added to the stored weights: call `evaluate` again before the next
        step.
        """
        ...

    def solve(self, right: Tensor, tolerance: float, max_iterations: int) -> Tensor:
        """Return x with K x = right, for the K of the last step."""
        ...


class Hierarchy(Protocol):
    """Newton systems on a grid and on all coarser grids of its box, the finest first."""

    shapes: list[tuple[int, ...]]

    def __getitem__(self, level: int) -> NewtonSystem: ...


class ResidualIntegrals(NamedTuple):
    """Integrals over the box at t = ½; for a density of a barycenter ρ0 = 0, and ρ1 is its own.

    Attributes:
        mismatch: ∫|ρ1 − ρ0|.
        source_mass: ∫ρ0.
        target_mass: ∫ρ1.
        kinetic_energy: ∫|∇u|²(ρ0 + ρ1).
        dual_term: ∫u(ρ1 − ρ0).
        folded_mass: mass of both densities at points at which the map to them folds.
        source_growth: ∫ρ0(1/w − 1) with the weight w = exp(−φ/λ), the mass that the source loses by
            its weight; zero without a reach.
        target_growth: likewise.
    """

    mismatch: float
    source_mass: float
    target_mass: float
    kinetic_energy: float
    dual_term: float
    folded_mass: float
    source_growth: float
    target_growth: float

    @property
    def distance(self) -> float:
        """W2 = (½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0))^½, from the Kantorovich dual value of u."""
        return math.sqrt(max(0.0, self.kinetic_energy / 2 + 2 * self.dual_term))


def unmatched_mass(
    given: float, matched: float, growth: float, largest_error: float = 0.05
) -> float:
    """Return ∫(1 − w)dμ, the part of a density that its weight removes.

    It is the given mass less the matched one, but for a long reach both are nearly equal and their
    errors of quadrature would dominate. So the result is relative to their sum by quadrature,
    unless the pulled-back density does not have all of the mass.

    Args:
        given: ∫μ.
        matched: ∫ρ, the integral of the weighted density.
        growth: ∫ρ(1/w − 1).
        largest_error: relative error of ∫ρ/w that quadrature may have.
    """
    total = matched + growth
    if abs(total - given) > largest_error * given:
        return given - matched
    return given * growth / total


def build_hierarchy(
    shape: Sequence[int],
    sides: Sequence[float],
    threads: int,
    formulation: Formulation = BALANCED_PAIR,
) -> Hierarchy:
    """Return the Newton systems on a grid and all coarser ones, compiled if possible."""
    if compiled.is_available():
        return compiled.CompiledHierarchy(shape, sides, threads, formulation)
    return TorchHierarchy(shape, sides, formulation)


def bound_rebalancing(excess: Tensor, step: Sequence[float]) -> float:
    """Return an upper bound of the cost of moving surplus to deficits, up to their total.

    Both are matched in blocks of 2, 4, 8, … cells. A small mass that must move far costs as much as
    a large one that is matched in its neighbourhood.

    Args:
        excess: surplus of each cell, negative for deficits, (*shape).
        step: side lengths of a cell.
    """
    surplus, deficit = excess.clamp(min=0), (-excess).clamp(min=0)
    cost, sides = 0.0, list(step)
    lengths = [n * h for n, h in zip(excess.shape, step, strict=True)]
    while surplus.numel() > 1:
        sides = [min(2 * side, length) for side, length in zip(sides, lengths, strict=True)]
        surplus, deficit = (sum_blocks(one, excess.ndim) for one in (surplus, deficit))
        moved = torch.minimum(surplus, deficit)
        cost += float(moved.sum()) * sum(side**2 for side in sides)
        surplus, deficit = surplus - moved, deficit - moved
    return cost


def sum_blocks(values: Tensor, d: int) -> Tensor:
    """Sum over blocks of two cells along each of the last d axes."""
    for axis in range(values.ndim - d, values.ndim):
        if values.shape[axis] % 2:
            values = torch.cat([values, torch.zeros_like(values.narrow(axis, 0, 1))], axis)
        values = values.unflatten(axis, (-1, 2)).sum(axis + 1)
    return values


# ---- Residuals of batches, in the units of networks


class ResidualState(NamedTuple):
    """The equation at a batch of potentials; lengths in cells, densities relative to uniform.

    Attributes:
        residual: ∫B_i(ρ1 − ρ0) by cell, (B, *cells).
        weight: trace A/d, (B, *cells).
        integrals: `ResidualIntegrals`, (B, 8).
        potentials: potentials in the unit cube, (B, *cells).
    """

    residual: Tensor
    weight: Tensor
    integrals: Tensor
    potentials: Tensor

    @property
    def dual(self) -> Tensor:
        """Kantorovich dual value of the potentials, (B,): at most W2² if no map folds.

        Quadrature gives source and target slightly different masses, so that a constant in the
        potential would change the value without bound. Potentials are therefore centred with
        respect to the mass.
        """
        integrals = ResidualIntegrals(*self.integrals.unbind(1))  # pyright: ignore
        mass = self.weight.flatten(1).double()
        mean = (self.potentials.flatten(1) * mass).sum(1) / mass.sum(1).clamp(min=1e-6)
        excess = integrals.target_mass - integrals.source_mass
        return integrals.kinetic_energy / 2 + 2 * (integrals.dual_term - mean * excess)  # pyright: ignore

    @property
    def gradient(self) -> Tensor:
        """Half the derivative of `dual` with respect to the potentials, (B, *cells), of mean zero.

        The difference of the masses is subtracted in proportion to the mass; its dependence on
        the potentials is neglected.
        """
        cells = tuple(range(1, self.residual.ndim))
        mass = self.weight.mean(cells, keepdim=True).clamp(min=1e-6)
        return self.residual - self.residual.mean(cells, keepdim=True) / mass * self.weight


@torch.no_grad()
def evaluate_residual(
    coefficients: Tensor, source: Tensor, target: Tensor, threads: int
) -> ResidualState:
    """Evaluate the equation at a batch of potentials on the unit cube.

    Args:
        coefficients: spline coefficients in squared cells, (B, *cells).
        source: densities of mean one, (B, *cells).
        target: likewise.
        threads: number of threads, each with its own pairs; a single pair takes all of them.
    """
    shape = coefficients.shape[1:]
    potentials = coefficients.double() / max(shape) ** 2
    sides = [n / max(shape) for n in shape]
    evaluate = compiled.evaluate_pairs if compiled.is_available() else _evaluate_pairs_torch
    residual, weight, integrals = evaluate(potentials, source, target, sides, threads)
    return ResidualState(residual * math.prod(shape), weight, integrals, potentials)


def _evaluate_pairs_torch(
    potentials: Tensor, source: Tensor, target: Tensor, sides: Sequence[float], threads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate pair by pair in torch."""
    residual, weight = torch.empty_like(source), torch.empty_like(source)
    integrals = potentials.new_empty(len(source), len(ResidualIntegrals._fields))
    system = TorchHierarchy(source.shape[1:], sides)[0]
    for k, densities in enumerate(zip(source, target, strict=True)):
        system.set_densities(densities, 0.0)
        residual[k], sums = system.evaluate(potentials[k])
        weight[k], integrals[k] = system.mean_weight(), potentials.new_tensor(sums)
    return residual, weight, integrals
