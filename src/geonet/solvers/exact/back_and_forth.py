"""Any densities: the back-and-forth method of Jacobs and Léger (2020).

Kantorovich's dual problem for c(x, y) = ½|x − y|² is that of one potential, either φ or ψ:

    J(φ) = ∫φ dμ_1 + ∫φ^c dμ_0,        I(ψ) = ∫ψ dμ_0 + ∫ψ^c dμ_1,        φ^c(x) = min_y c − φ(y).

The derivative of J is μ_1 − T#μ_0 with T(x) = x − ∇φ^c(x), and (−Δ)⁻¹ of that its gradient in H¹;
those of I likewise. The method climbs J and I by turns and takes c-transforms in between: where T
spreads mass out one of them is flat, where it gathers mass the other.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import fft
from torch import Tensor

from geonet.advice import argument
from geonet.errors import ConvergenceWarning, SolverError
from geonet.fields.compiled.transforms import centres, transform
from geonet.geodesics.pushed import PushedGeodesic, cell_masses, displacement, pushed
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.progress import tell
from geonet.quiet import callers_level
from geonet.solvers.base import Solver
from geonet.wording import number, percent

FIRST_STEP = 300.0  # over the largest density
# Steps change where they gain more, or less, than a share of what the gradient promises.
STEEP, FLAT, NONE = 0.6, 0.1, 1e-3
LONGER, SHORTER, HALF = 1.25, 0.8, 0.5
SETTLED = 3  # iterations over which the dual value may not change
LEAST = 1e-3  # of a cell squared: W2² that need not be told from zero
ROUNDING = 1e-7  # of dual values


@dataclass(frozen=True)
class BackAndForth(Solver):
    """The back-and-forth method (Jacobs and Léger, 2020): a quick W2 between any densities.

    It takes densities with holes, islands and jumps in 1D to 3D, on any box. Two potentials climb
    Kantorovich's dual problem by turns. Each step pushes one end along the current map, solves
    Poisson's equation for what is missing at the other, and takes two c-transforms, whose cost
    grows with the number of cells alone. Ten to twenty iterations are usual at any size.

    **Distance.** It is the dual value for densities that are constant in each cell. For atoms at
    the cell centres W2² would be larger by about h²/6 an axis, h being the cell's width. So one
    potential is transformed to places between the centres, and both are continued between their
    points such that they stay admissible: this is the lower bound in the report, which holds
    whether or not the method converged. The distance adds what continuing them so costs on average,
    (h² − δ²φ)/12 an axis with second differences δ²φ. It is usually too small, as dual values are:
    W2² by some tenths of h², and by what the method leaves where there is little mass, which a
    smaller tolerance need not change. The tests allow 0.2 % of W2 in 1D and 2D and 1 % in 3D.

    **Densities.** Both ends are pushed towards each other along straight lines, and weighed by
    1 − t and t, so mass and ends are exact. In between they carry the noise of the lattice, for
    maps are differences of potentials that are minima over cells; `report.mismatch` shows how far
    the two parts are apart halfway. The particles of `path.trajectories` follow the map that pushes
    the source.

    Atoms that fill single cells are hard for it: it then stops well below W2, and the densities in
    between are mere noise. `linear-program` is made for these.

    The rule of the steps is the authors': longer after a gain above a share of what the gradient
    promises, shorter below another. They are halved where nothing is gained. Where
    `max_iterations` end before the dual value settles, a `ConvergenceWarning` says so.

    Attributes:
        tolerance: the relative change of W2 over three iterations at which it stops; the error may
            be larger.
        max_iterations: the most iterations; each climbs twice.
    """

    name = "back-and-forth"
    summary = "1D to 3D, any densities, a quick W2 with a lower bound; noisy densities in between"
    dimensions = (1, 2, 3)
    gives = ("distance", "trajectories")

    tolerance: float = 1e-3
    max_iterations: int = 200

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )

    def _solve_pair(self, source: Density, target: Density) -> PushedGeodesic:
        ascent = _Ascent(cell_masses(source), cell_masses(target), unit_box(source.grid).cells)
        iterations, change = 0, math.inf
        while change > self.tolerance and iterations < self.max_iterations:
            ascent.climb()
            iterations, change = iterations + 1, ascent.relative_change()
            left = f", W2 still changes by {percent(change)}" if change < math.inf else ""
            tell(f"back-and-forth: iteration {iterations}{left}")
        converged = change <= self.tolerance
        if not converged:
            warnings.warn(
                f"back-and-forth stopped after {iterations} iterations while W2 still changed by "
                f"{number(change, 2)} (tolerance {self.tolerance:g}); give more "
                f"{argument('max_iterations')}.",
                ConvergenceWarning,
                stacklevel=callers_level(),
            )
        notes = {"iterations": iterations, "relative change": change, "converged": converged}
        return PushedGeodesic(source, target, self.name, notes, *ascent.best)


class _Ascent:
    """The two potentials on their way up, in the unit box.

    Attributes:
        best: ψ and φ at the largest dual value so far.
    """

    def __init__(self, source: Tensor, target: Tensor, cells: Grid):
        self._source, self._target, self._cells = source, target, cells
        self._inverse = _inverse_laplacian(cells)
        self._step = FIRST_STEP * cells.cell_volume / float(torch.maximum(source, target).max())
        self._psi = self._phi = torch.zeros_like(source)
        self._value = self._promised = 0.0
        self._values = deque([0.0], maxlen=SETTLED + 1)
        self._cell = sum(h**2 for h in cells.spacing)
        self._best_value, self.best = ROUNDING**2 * self._cell, (self._psi, self._phi)

    def climb(self) -> None:
        """One iteration: back and forth."""
        self._psi, self._phi = self._half(self._source, self._target, self._psi, self._phi)
        self._phi, self._psi = self._half(self._target, self._source, self._phi, self._psi)
        self._values.append(self._value)

    def relative_change(self) -> float:
        """Of W2 over the last iterations; infinite while they are too few.

        At least what a step that suits would gain now: the value stands still, too, while steps are
        so long that the map goes from wall to wall.
        """
        if len(self._values) <= SETTLED:
            return math.inf
        change = max(max(self._values) - min(self._values), FLAT * self._promised)
        return change / (2 * (abs(self._value) + LEAST * self._cell))

    def _half(
        self, first: Tensor, second: Tensor, psi: Tensor, phi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A step along φ's gradient, second − T#first, and the c-transforms: ψ and φ."""
        moved = pushed(first, displacement(psi, self._cells), self._cells, self._cells.shape)
        missing = (second - moved) / self._cells.cell_volume
        direction, slope = self._preconditioned(missing)
        psi = self._conjugate(phi + self._step * direction)
        phi = self._conjugate(psi)
        value = float((first * psi).sum() + (second * phi).sum())
        self._promised = self._step * slope
        self._adapt(value - self._value)
        self._value = value
        if value >= self._best_value * (1 - ROUNDING):  # the last of those that are the best
            self._best_value = max(value, self._best_value)
            self.best = (psi, phi) if first is self._source else (phi, psi)
        return psi, phi

    def _preconditioned(self, missing: Tensor) -> tuple[Tensor, float]:
        """(−Δ)⁻¹ of it with no flux through the faces, and the slope along that."""
        waves: Any = fft.dctn(missing.numpy(), norm="ortho")
        answer = waves * self._inverse
        slope = float((waves * answer).sum()) * self._cells.cell_volume
        return torch.from_numpy(fft.idctn(answer, norm="ortho", overwrite_x=True)), slope

    def _conjugate(self, potential: Tensor) -> Tensor:
        return transform(-potential, centres(self._cells), weight=0.5)

    def _adapt(self, gain: float) -> None:
        """The rule of Armijo and Goldstein."""
        if gain > STEEP * self._promised:
            self._step *= LONGER
        elif gain < NONE * self._promised:  # or a loss; on a plateau rounding decides between them
            self._step *= HALF
        elif gain < FLAT * self._promised:
            self._step *= SHORTER


def _inverse_laplacian(cells: Grid) -> np.ndarray:
    """One over the eigenvalues of −Δ for the cosines of the cells, as an array; zero for one."""
    total = torch.zeros(cells.shape, dtype=torch.float64)
    for axis, (h, n) in enumerate(zip(cells.spacing, cells.shape, strict=True)):
        angle = math.pi / n * torch.arange(n, dtype=torch.float64)
        along = (2 - 2 * angle.cos()) / h**2
        total += along.reshape(-1, *(1,) * (cells.dimension - 1 - axis))
    total.view(-1)[0] = math.inf
    return (1 / total).numpy()
