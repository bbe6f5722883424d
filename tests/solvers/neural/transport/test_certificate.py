"""Mismatch, bounds on the distance and calibration."""

from __future__ import annotations

import math

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.solvers.neural.transport.certificate import (
    CONFIG,
    Calibration,
    benamou_brenier_bound,
    fit_calibration,
    pull_to_midpoint,
)
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import scale_to_injective
from geonet.solvers.neural.transport.splines import Splines

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


@DIMENSIONS
def test_sharp_bounds(known_pair, potentials, d):
    """For the exact potential; nearly so, and of second order, for one that is slightly wrong."""
    known = known_pair(d)
    ends = known.source, known.target
    exact = certify_path(ends, known.coefficients)
    wrong = certify_path(ends, known.coefficients + potentials(d, radius=0.05, seed=9))
    for result in (exact, wrong):
        assert float(result.lower) <= known.distance <= float(result.upper)
    assert float(exact.mismatch) < 1e-3
    assert float(exact.upper - exact.lower) < 5e-3 * known.distance
    assert float(exact.distance) == pytest.approx(known.distance, rel=1e-3)
    assert float(wrong.mismatch) > 0.01
    assert 0.9 * known.distance < float(wrong.lower)
    assert float(wrong.upper) < 1.2 * known.distance
    assert float(wrong.distance) == pytest.approx(known.distance, rel=0.01)


def test_determinants_and_folds(known_pair, potentials):
    """In 1D the smallest determinant is 1 − ½ max|u″|; maps that fold have no bounds."""
    ends = [Density(torch.ones(64), Grid(64))] * 2
    result = certify_path(ends, potentials(1, radius=1.5))
    assert float(result.determinant) == pytest.approx(0.25, abs=0.01)
    assert float(certify_path(ends, torch.zeros(1, 4)).determinant) == 1
    known = known_pair(1, radius=1.9, cells=400)
    result = certify_path((known.source, known.target), 1.1 * known.coefficients)
    assert float(result.distance) > 0.1 and float(result.determinant) < 0
    assert float(result.lower) == 0 and math.isinf(float(result.upper))


def fit_splines(source, target, grid):
    return Splines.through(source, grid), Splines.through(target, grid)


def certify_path(ends, coefficients):
    return CosineGeodesic(*ends, "by hand", {}, coefficients).certificate


@DIMENSIONS
def test_bounds_hold_for_any_potential(known_pair, potentials, d):
    """From zero to the steepest injective ones."""
    known = known_pair(d, cells=24 if d > 1 else None)
    parts = [
        potentials(d, 4 - d, radius=radius, modes=8, seed=seed)
        for seed, radius in enumerate((0.0, 0.1, 0.5, 1.0, 1.9, 4.0))
    ]
    coefficients = scale_to_injective(torch.cat(parts))
    ends = [
        Density(end.tensor.expand(len(coefficients), *end.tensor.shape), end.grid)
        for end in (known.source, known.target)
    ]
    result = certify_path(ends, coefficients)
    assert float(result.lower.max()) <= known.distance <= float(result.upper.min())
    assert float(result.mismatch.min()) > 0.01


@pytest.mark.parametrize(
    ("d", "cells", "start", "shift", "width"), [(2, 64, 2, 8, 52), (1, 100, 5, 10, 80)]
)
def test_bounds_hold_for_densities_with_jumps(d, cells, start, shift, width):
    """A block and its translate, with potentials from none to nearly the right one."""
    grid = Grid((cells,) * d)
    values = torch.zeros(2, *grid.shape, dtype=torch.float64)
    for k, first in enumerate((start, start + shift)):
        values[(k, *(slice(first, first + width),) * d)] = 1.0
    ends = [Density(v, grid) for v in values]
    truth = math.sqrt(d) * shift / cells
    guess, right = torch.zeros(2, 1, *(8,) * d)
    for axis in range(d):
        for k in range(1, 8, 2):  # the series of x, whose slope is one except at the faces
            place = [0] * (d + 1)
            place[axis + 1] = k
            right[tuple(place)] = -4 / (math.pi * k) ** 2 * shift / cells
            if k == 1:
                guess[tuple(place)] = -0.45 * shift / cells
    for own in (0 * guess, guess, scale_to_injective(right)):
        result = certify_path(ends, own)
        assert float(result.lower) <= truth <= float(result.upper)


def test_flow_bound_in_1d(generator):
    """It holds for random pairs and is sharp for small differences."""
    grid = Grid(200)
    x = grid.points()[:, 0]
    k = torch.arange(1, 7, dtype=torch.float64)
    waves = torch.cos(math.pi * k[:, None] * x)
    draws = torch.randn(2, 20, 6, dtype=torch.float64, generator=generator) / k
    first, second = (values / values.mean(1, keepdim=True) for values in (draws @ waves).exp())
    truth = geonet.geodesic(Density(first, grid), Density(second, grid), "quantile").distance
    bound = benamou_brenier_bound(first, second, 200, 1)
    assert bool((truth <= 1.001 * bound).all())
    assert float((bound / truth).median()) < 2.5
    bound = benamou_brenier_bound(torch.ones_like(waves), 1 + 0.01 * waves, 200, 1)
    assert torch.allclose(bound, 0.01 / math.sqrt(2) / (k * math.pi), rtol=0.02)


def test_calibration():
    mismatch = torch.tensor([0.0, 1e-4, 0.1, 2.0], dtype=torch.float64)
    error = Calibration(0.2, 0.01).estimate_error(mismatch)
    assert float(error[0]) == 0
    assert float(error[1]) == pytest.approx(0.2e-4, rel=0.01)
    assert bool((error.diff() > 0).all()) and float(error[2]) > 0.2 * 0.1
    assert float(Calibration(5.0, 0.01).estimate_error(mismatch)[-1]) == 2
    mismatch = torch.tensor([0.01, 0.02, 0.04], dtype=torch.float64)
    errors = torch.tensor([[0.0, 0.001, 0.0], [0.0, 0.003, 0.006], [0.04, 0.0, 0.0]])
    fitted = fit_calibration(mismatch, errors)
    assert fitted.slope == pytest.approx(0.3)  # the median of 0.1, 0.3 and 1
    spread = math.log(2) * math.sqrt(2 / 3)
    assert fitted.limit == pytest.approx(0.02 * math.exp(CONFIG.deviations * spread))


def test_missing_mass_counts_as_mismatch():
    """Two needles between the cells where both sides are compared."""
    values = torch.zeros(2, 4000)
    values[0, 1010:1013] = values[1, 3010:3013] = 1.0
    source, target = values[:, None] * 4000 / 3
    sides = pull_to_midpoint(torch.zeros(1, 4), fit_splines(source, target, Grid(4000)), 20)
    assert float(sides.missing) > 0.5
    assert sides.mismatch().tolist() == [2.0]
