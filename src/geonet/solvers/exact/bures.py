"""Gaussians, any dimension, closed form (Bures–Wasserstein geometry)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from geonet.errors import SolverError
from geonet.geodesics.gaussian import BuresGeodesic, GridlessBuresGeodesic, gaussian_of
from geonet.measures.density import Density
from geonet.measures.gaussian_mixture import End, GaussianMixture
from geonet.solvers.base import EVERY_ANSWER, MixtureSolver


@dataclass(frozen=True)
class Bures(MixtureSolver):
    """Closed form between Gaussians: mixtures of one component, with or without a grid.

    The optimal map between N(m0, S0) and N(m1, S1) is x ↦ m1 + A(x − m0) with A·S0·A = S1. μ_t is
    the Gaussian with mean (1 − t)·m0 + t·m1 and covariance M_t·S0·M_t, M_t = (1 − t)·I + t·A.
    Batches are solved at once.

    It refuses everything that is not a single Gaussian. On a grid the Gaussians are renormalised to
    the box, while the distance is that of the Gaussians on all of R^d; leave some room in the box.
    """

    name = "bures"
    summary = "any dimension, Gaussians only, closed form"
    dimensions = None
    differentiable = EVERY_ANSWER  # in the Gaussians' parameters

    def _check(self, source: Density, target: Density) -> None:
        _check_gaussians(source, target)
        super()._check(source, target)

    def _solve(self, source: Density, target: Density) -> BuresGeodesic:
        # The path is that on R^d, so say what the box cuts off.
        cut = 1 - torch.minimum(source.mass, target.mass)
        notes = {"mass outside the box": cut.clamp(min=0).tolist()}
        return BuresGeodesic(source, target, self.name, notes)

    _solve_pair = _solve

    def _solve_mixtures(
        self, source: GaussianMixture, target: GaussianMixture
    ) -> GridlessBuresGeodesic:
        _check_gaussians(source, target)
        return GridlessBuresGeodesic(source, target, self.name)


def _check_gaussians(source: End, target: End) -> None:
    first, second = gaussian_of(source), gaussian_of(target)
    if first.means.shape != second.means.shape:
        raise SolverError(
            f"Source {first} and target {second} differ in dimension or batch; "
            "give two Gaussians, or two batches of the same length, of one dimension."
        )
