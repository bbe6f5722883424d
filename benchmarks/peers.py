"""Other libraries on barycenters of many densities and on unequal masses: POT and OTT-JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import ot

from benchmarks.baselines.ott_barycenter import import_library
from geonet import Density, Grid
from geonet.errors import ConvergenceError

# ---- barycenters


@dataclass(frozen=True)
class BarycenterConfig:
    """Settings of POT; reg is for cell centres of which the outer ones are one apart."""

    regs: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    tolerance: float = 1e-4  # POT's stopThr
    max_iterations: int = 2000  # of Sinkhorn
    max_support_iterations: int = 20  # of the free support, each of N linear programs
    max_support: int = 600  # number of its atoms


@dataclass(frozen=True)
class Centre:
    """The answer of a method: the barycenter, its time, and False if it stopped early."""

    density: Density
    seconds: float
    converged: bool


def solve_entropic(
    densities: Sequence[Density],
    weights: np.ndarray,
    reg: float,
    config: BarycenterConfig,
    function: str = "convolutional_barycenter2d",
    method: str = "sinkhorn",
) -> Centre:
    """Return POT's entropic barycenter; raise `ConvergenceError` if its kernel underflows.

    Args:
        densities: N densities on one square grid.
        weights: (N,), positive.
        reg: weight of the entropy.
        config: stopping criteria.
        function: name in ot.bregman.
        method: "sinkhorn", or "sinkhorn_log" in the log domain.
    """
    grid = densities[0].grid
    masses = np.stack([_list_masses(density) for density in densities])
    start = perf_counter()
    with np.errstate(all="ignore"):
        found, log = getattr(ot.bregman, function)(
            *(masses, reg),
            weights=weights,
            method=method,
            numItermax=config.max_iterations,
            stopThr=config.tolerance,
            log=True,
            warn=False,
        )
    seconds = perf_counter() - start
    if not (np.isfinite(found).all() and found.sum() > 0 and log["err"]):
        raise ConvergenceError(f"POT's kernel underflows at reg = {reg:g}.", math.inf)
    converged = bool(log["err"][-1] < config.tolerance)
    return Centre(Density(np.maximum(found, 0), grid), seconds, converged)


def solve_free_support(
    densities: Sequence[Density], weights: np.ndarray, config: BarycenterConfig
) -> Centre:
    """Return POT's barycenter of atoms with free positions, deposited on the grid bilinearly.

    The first positions are random points of the mean of the densities.
    """
    grid = densities[0].grid
    centres = grid.points().reshape(-1, grid.dimension).double().numpy()
    masses = [_list_masses(density).ravel() for density in densities]
    atoms = [centres[mass > 0] for mass in masses]
    count = min(config.max_support, max(map(len, atoms)))
    rng, mean = np.random.default_rng(0), np.einsum("k,kn->n", weights, np.stack(masses))
    first = centres[rng.choice(len(centres), count, p=mean / mean.sum())]
    first = first + rng.uniform(-0.5, 0.5, first.shape) * np.array(grid.spacing)
    start = perf_counter()
    found, log = ot.lp.free_support_barycenter(
        atoms,
        [mass[mass > 0] for mass in masses],
        first,
        weights=weights,
        numItermax=config.max_support_iterations,
        log=True,
    )
    seconds = perf_counter() - start
    changes = log["displacement_square_norms"]
    return Centre(deposit(found, grid), seconds, len(changes) < config.max_support_iterations)


def deposit(points: np.ndarray, grid: Grid) -> Density:
    """Return atoms (k, 2) of equal mass on the cells of a grid, by bilinear weights."""
    values, shape = np.zeros(grid.shape), np.array(grid.shape)
    place = (points - np.array(grid.lower)) / np.array(grid.spacing) - 0.5
    place = np.clip(place, 0, shape - 1)
    base = np.minimum(place.astype(int), shape - 2)
    part = place - base
    for corner in np.ndindex(2, 2):
        share = np.where(corner, part, 1 - part).prod(-1)
        np.add.at(values, tuple((base + corner).T), share)
    return Density(values, grid)


ENTROPIC = {  # label: function of ot.bregman and method
    "convolutional (POT)": ("convolutional_barycenter2d", "sinkhorn"),
    "debiased (POT)": ("convolutional_barycenter2d_debiased", "sinkhorn"),
    "debiased (POT), log domain": ("convolutional_barycenter2d_debiased", "sinkhorn_log"),
}
FREE_SUPPORT = "free support (POT)"


# ---- unequal masses


@dataclass(frozen=True)
class UnbalancedConfig:
    """Settings of POT and OTT for the cost ½|x − z|² on the unit square."""

    epsilons: tuple[float, ...] = (1e-3, 3e-4, 1e-4)  # weights of the entropy to try
    tolerance: float = 1e-6  # change of the scalings in POT, error of the potentials in OTT
    max_iterations: int = 5000  # of Sinkhorn
    max_mm_iterations: int = 200  # of the majorisation–minimisation, which has no entropy


@dataclass(frozen=True)
class Cost:
    """The cost of a method's plan without entropy, its time, and False if it stopped early."""

    cost: float
    seconds: float
    converged: bool


def solve_pot_sinkhorn(
    source: Density, target: Density, reach: float, epsilon: float, config: UnbalancedConfig
) -> Cost:
    """Return the cost of POT's entropic unbalanced plan.

    POT's method "sinkhorn_stabilized" stops at a wrong plan for small ε (POT 0.9.7).
    """
    costs, masses = compute_costs(source.grid.shape[0]), _list_given(source, target)
    start = perf_counter()
    plan, log = ot.unbalanced.sinkhorn_unbalanced(
        *(*masses, costs, epsilon, reach**2 / 2),
        method="sinkhorn_translation_invariant",
        numItermax=config.max_iterations,
        stopThr=config.tolerance,
        log=True,
    )
    seconds = perf_counter() - start
    converged = bool(log["err"][-1] <= config.tolerance)  # False also if it is not finite
    return Cost(_evaluate_plan(plan, costs, masses, reach), seconds, converged)


def solve_pot_mm(
    source: Density, target: Density, reach: float, epsilon: float, config: UnbalancedConfig
) -> Cost:
    """Return the cost of POT's unbalanced plan by majorisation–minimisation; ε may be zero."""
    costs, masses = compute_costs(source.grid.shape[0]), _list_given(source, target)
    start = perf_counter()
    plan, log = ot.unbalanced.mm_unbalanced(
        *(*masses, costs, reach**2 / 2),
        reg=epsilon,
        numItermax=config.max_mm_iterations,
        stopThr=config.tolerance,
        log=True,
    )
    seconds = perf_counter() - start
    converged = len(log["err"]) < config.max_mm_iterations
    return Cost(_evaluate_plan(plan, costs, masses, reach), seconds, converged)


def solve_ott_sinkhorn(
    source: Density, target: Density, reach: float, epsilon: float, config: UnbalancedConfig
) -> Cost:
    """Return the cost of OTT's entropic unbalanced plan on its grid geometry."""
    cells, masses = source.grid.shape[0], _list_given(source, target)
    axis = (np.arange(cells) + 0.5) / cells
    with import_library("jax").enable_x64(True):  # this call only: the setting is global
        solve = _compile_ott(reach, epsilon, config)
        start = perf_counter()
        moved, first, second, converged = solve(axis, *masses)
        marginals, moved = (np.asarray(first), np.asarray(second)), float(moved) / 2
        seconds = perf_counter() - start
    cost = moved + reach**2 / 2 * sum(map(_relative_entropy, marginals, masses))
    return Cost(cost, seconds, bool(converged))


@cache
def _compile_ott(reach: float, epsilon: float, config: UnbalancedConfig) -> Callable[..., Any]:
    """Return OTT's unbalanced Sinkhorn: axis and masses to ⟨π, c⟩, marginals and convergence.

    OTT's cost is |x − z|², twice ours: so are λ, ε and the value.
    """
    geometry = import_library("ott.geometry.grid")
    linear = import_library("ott.solvers.linear")

    epsilon, scale = 2 * epsilon, reach**2

    def solve(axis: Any, source: Any, target: Any) -> tuple[Any, ...]:
        found = linear.solve(
            geometry.Grid(x=[axis, axis], epsilon=epsilon),
            *(source, target),
            tau_a=scale / (scale + epsilon),
            tau_b=scale / (scale + epsilon),
            threshold=config.tolerance,
            max_iterations=config.max_iterations,
        )
        return found.primal_cost, found.marginal(1), found.marginal(0), found.converged

    return import_library("jax").jit(solve)


@cache
def compute_costs(cells: int) -> np.ndarray:
    """Return ½|x − z|² between all cell centres, (cells², cells²); it is not timed."""
    axis = (np.arange(cells) + 0.5) / cells
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    return ot.dist(points) / 2


ENTROPIC_COSTS = {
    "Sinkhorn (POT)": solve_pot_sinkhorn,
    "Sinkhorn (OTT)": solve_ott_sinkhorn,
}
EXACT_COST = "majorisation–minimisation (POT)"  # `solve_pot_mm` without entropy


def _evaluate_plan(
    plan: np.ndarray, costs: np.ndarray, masses: Sequence[np.ndarray], reach: float
) -> float:
    moved = float(np.vdot(plan, costs))
    marginals = plan.sum(1), plan.sum(0)
    return moved + reach**2 / 2 * sum(map(_relative_entropy, marginals, masses))


def _relative_entropy(marginal: np.ndarray, mass: np.ndarray) -> float:
    """Return KL(marginal|mass) of measures."""
    known = (marginal > 0) & (mass > 0)
    logs = np.log(marginal[known] / mass[known])
    return float(marginal[known] @ logs - marginal.sum() + mass.sum())


def _list_masses(density: Density) -> np.ndarray:
    """Return the masses of the cells, of sum one, (*grid.shape)."""
    values = density.numpy().astype(np.float64)
    return values / values.sum()


def _list_given(source: Density, target: Density) -> list[np.ndarray]:
    """Return the masses of the cells of both ends, of the given sums, (cells²,) each."""
    return [_list_masses(end).ravel() * float(end.mass) for end in (source, target)]
