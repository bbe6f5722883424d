"""Mismatch, bounds on the distance and calibration."""

from __future__ import annotations

import math

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_1D, mixtures_1d
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


def fit_splines(source, target, grid):
    return Splines.through(source, grid), Splines.through(target, grid)


DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def certify_path(ends, coefficients):
    return CosineGeodesic(*ends, "by hand", {}, coefficients).certificate


@DIMENSIONS
def test_exact_potential_has_sharp_bounds(known_pair, d):
    known = known_pair(d)
    found = certify_path((known.source, known.target), known.coefficients)
    assert float(found.mismatch) < 1e-3
    assert float(found.lower) <= known.distance <= float(found.upper)
    assert float(found.upper - found.lower) < 5e-3 * known.distance
    assert float(found.distance) == pytest.approx(known.distance, rel=1e-3)


@DIMENSIONS
def test_midpoint_densities(known_pair, d):
    known, cells = known_pair(d), 20
    ends = fit_splines(known.source.tensor[None], known.target.tensor[None], known.source.grid)
    sides = pull_to_midpoint(known.coefficients, ends, cells)
    expected = known.density(0.5, Grid((cells,) * d)).flatten()
    for side in (sides.source, sides.target):
        assert float(side.mean()) == pytest.approx(1, abs=1e-5)
        assert float((side[0] - expected).abs().mean()) < 5e-3


def test_smallest_determinant(potentials):
    """In 1D it is 1 − ½ max|u″|."""
    ends = [Density(torch.ones(64), Grid(64))] * 2
    found = certify_path(ends, potentials(1, radius=1.5))
    assert float(found.determinant) == pytest.approx(0.25, abs=0.01)
    assert float(certify_path(ends, torch.zeros(1, 4)).determinant) == 1


def wrong_potentials(potentials, d, count):
    """Return potentials from zero to the steepest injective ones."""
    parts = [
        potentials(d, count, radius=radius, modes=8, seed=seed)
        for seed, radius in enumerate((0.0, 0.1, 0.5, 1.0, 1.9, 4.0))
    ]
    return scale_to_injective(torch.cat(parts)), len(parts)


def test_bounds_hold_for_any_potential_in_1d(potentials):
    mixture = mixtures_1d(8, torch.Generator().manual_seed(3)).to_density(BOX_1D)
    coefficients, repeats = wrong_potentials(potentials, 1, 4)
    source, target = (Density(part.repeat(repeats, 1), BOX_1D) for part in mixture.tensor.split(4))
    truth = geonet.geodesic(source, target, "quantile").distance / 10
    found = certify_path((source, target), coefficients)
    assert bool((found.lower <= truth).all()) and bool((truth <= found.upper).all())
    assert bool((found.mismatch > 0.01).all())
    assert float((found.upper / truth).median()) < 8


@pytest.mark.parametrize("d", [2, 3])
def test_bounds_hold_for_any_potential(known_pair, potentials, d):
    known = known_pair(d, cells=24)
    coefficients, _ = wrong_potentials(potentials, d, 4 - d)
    count = len(coefficients)
    ends = [
        Density(end.tensor.expand(count, *end.tensor.shape), end.grid)
        for end in (known.source, known.target)
    ]
    found = certify_path(ends, coefficients)
    assert float(found.lower.max()) <= known.distance <= float(found.upper.min())
    assert float(found.mismatch.min()) > 0.01


def test_slightly_wrong_potential_has_nearly_sharp_bounds(known_pair, potentials):
    known = known_pair(2)
    wrong = known.coefficients + potentials(2, radius=0.05, seed=9)
    found = certify_path((known.source, known.target), wrong)
    assert float(found.lower) <= known.distance <= float(found.upper)
    assert 0.9 * known.distance < float(found.lower)
    assert float(found.upper) < 1.2 * known.distance
    assert float(found.mismatch) > 0.01
    assert float(found.distance) == pytest.approx(known.distance, rel=0.005)  # of second order


@pytest.mark.parametrize(
    ("d", "cells", "start", "shift", "width"),
    [(2, 60, 5, 3, 50), (2, 64, 2, 8, 52), (1, 100, 5, 10, 80), (3, 24, 2, 2, 19)],
)
def test_bounds_hold_for_densities_with_jumps(potentials, d, cells, start, shift, width):
    """A block and its translate, with potentials from none to nearly the right one."""
    grid = Grid((cells,) * d)
    values = torch.zeros(2, *grid.shape, dtype=torch.float64)
    for k, first in enumerate((start, start + shift)):
        values[(k, *(slice(first, first + width),) * d)] = 1.0
    ends = [Density(v, grid) for v in values]
    truth = math.sqrt(d) * shift / cells
    guess, right = torch.zeros(2, 1, *(8,) * d)
    for axis in range(d):
        for k in range(1, 8, 2):  # the waves of x, whose slope is one but at the faces
            place = [0] * (d + 1)
            place[axis + 1] = k
            right[tuple(place)] = -4 / (math.pi * k) ** 2 * shift / cells
            if k == 1:
                guess[tuple(place)] = -0.45 * shift / cells
    for own in (0 * guess, guess, scale_to_injective(right)):
        found = certify_path(ends, own)
        assert float(found.lower) <= truth <= float(found.upper)


def test_missing_mass_counts_as_mismatch():
    """Two needles between the cells where both sides are compared."""
    values = torch.zeros(2, 4000)
    values[0, 1010:1013] = values[1, 3010:3013] = 1.0
    source, target = values[:, None] * 4000 / 3
    sides = pull_to_midpoint(torch.zeros(1, 4), fit_splines(source, target, Grid(4000)), 20)
    assert float(sides.missing) > 0.5
    assert sides.mismatch().tolist() == [2.0]


def test_folding_maps_have_no_bounds(known_pair):
    known = known_pair(1, radius=1.9, cells=400)
    found = certify_path((known.source, known.target), 1.1 * known.coefficients)
    assert float(found.distance) > 0.1 and float(found.determinant) < 0
    assert float(found.lower) == 0 and math.isinf(float(found.upper))


def relative(values):
    """Densities (B, cells) of mean one."""
    return values / values.mean(1, keepdim=True)


def exact_on_a_line(first, second):
    grid = Grid(first.shape[1])
    return geonet.geodesic(Density(first, grid), Density(second, grid), "quantile").distance


def test_flow_bound_holds_in_1d(generator):
    k = torch.arange(1, 7, dtype=torch.float64)
    x = Grid(200).points()[:, 0]
    waves = torch.cos(math.pi * k[:, None] * x)
    draws = torch.randn(2, 20, 6, dtype=torch.float64, generator=generator) / k
    first, second = (relative((draw @ waves).exp()) for draw in draws)
    bound, truth = benamou_brenier_bound(first, second, 200, 1), exact_on_a_line(first, second)
    assert bool((truth <= 1.001 * bound).all())
    assert float((bound / truth).median()) < 2.5


@pytest.mark.parametrize("k", [1, 3])
def test_flow_bound_is_sharp_for_small_differences(k):
    x = Grid(200).points()[None, :, 0]
    first = torch.ones_like(x)
    second = 1 + 0.01 * torch.cos(math.pi * k * x)
    bound = float(benamou_brenier_bound(first, second, 200, 1))
    assert bound == pytest.approx(0.01 / math.sqrt(2) / (k * math.pi), rel=0.02)
    assert bound == pytest.approx(float(exact_on_a_line(first, second)), rel=0.02)


def test_error_estimate():
    mismatch = torch.tensor([0.0, 1e-4, 0.1, 2.0], dtype=torch.float64)
    error = Calibration(0.2, 0.01).estimate_error(mismatch)
    assert float(error[0]) == 0
    assert float(error[1]) == pytest.approx(0.2e-4, rel=0.01)
    assert bool((error.diff() > 0).all()) and float(error[2]) > 0.2 * 0.1
    assert float(Calibration(5.0, 0.01).estimate_error(mismatch)[-1]) == 2


def test_fit_calibration():
    mismatch = torch.tensor([0.01, 0.02, 0.04], dtype=torch.float64)
    errors = torch.tensor([[0.0, 0.001, 0.0], [0.0, 0.003, 0.006], [0.04, 0.0, 0.0]])
    found = fit_calibration(mismatch, errors)
    assert found.slope == pytest.approx(0.3)  # of 0.1, 0.3 and 1 the middle one
    spread = math.log(2) * math.sqrt(2 / 3)
    assert found.limit == pytest.approx(0.02 * math.exp(CONFIG.deviations * spread))
