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
    """Closed form between Gaussians: mixtures of one component, with or without a grid."""

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
