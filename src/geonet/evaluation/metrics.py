"""How far a density, or a path, is from what it should be.

Density against density, per pair: tensors of shape (batch?, times?). `truth` is the reference.
"""

from __future__ import annotations

from torch import Tensor

from geonet.errors import InputError
from geonet.geodesics.base import Geodesic, check_path, check_times
from geonet.measures.density import Density, check_density
from geonet.measures.metrics import l1
from geonet.solvers.registry import make_solver


def w2(density: Density, truth: Density, solver: str = "auto") -> Tensor:
    """W2(μ, ν), (batch?), by an exact solver; negative values are cut off first."""
    return make_solver(solver)(_cut_off(density), _cut_off(truth, "truth")).distance


def end_point_errors(path: Geodesic) -> tuple[Tensor, Tensor]:
    """The L1 errors of the path at t = 0 and t = 1, each (batch?)."""
    check_path(path)
    return l1(path.density(0.0), path.source), l1(path.density(1.0), path.target)


def constant_speed_defect(path: Geodesic, s: float, t: float, solver: str = "auto") -> Tensor:
    """|W2(μ_s, μ_t) − |t − s|·W2(μ_0, μ_1)|, zero along a geodesic."""
    check_path(path)
    for time in (s, t):
        if not check_times(time)[1]:
            raise InputError(f"A time is {time!r}; give one number for s and one for t.")
    between = w2(path.density(s), path.density(t), solver)
    return (between - abs(t - s) * w2(path.source, path.target, solver)).abs()


def _cut_off(density: Density, name: str = "density") -> Density:
    check_density(density, name)
    return Density(density.values.clamp(min=0), density.grid)
