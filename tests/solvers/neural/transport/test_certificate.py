"""What a path proves about itself: the mismatch and both bounds on the distance."""

import math

import pytest
import torch

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural.transport.certificate import both_sides, ends_of, flow_bound
from geonet.solvers.neural.transport.path import MidpointGeodesic
from geonet.solvers.neural.transport.potential import unfolded

DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def halfway_of(ends, coefficients):
    return MidpointGeodesic(*ends, "by hand", {}, coefficients).halfway


# ---- a potential that is right


@DIMENSIONS
def test_a_right_potential_has_no_mismatch_and_sharp_bounds(known_pair, d):
    known = known_pair(d)
    found = halfway_of((known.source, known.target), known.coefficients)
    assert float(found.mismatch) < 1e-3
    assert float(found.lower) <= known.distance <= float(found.upper)
    assert float(found.upper - found.lower) < 5e-3 * known.distance
    assert float(found.distance) == pytest.approx(known.distance, rel=1e-3)


@DIMENSIONS
def test_both_sides_are_the_density_halfway(known_pair, d):
    known, cells = known_pair(d), 20
    ends = ends_of(known.source.tensor[None], known.target.tensor[None], known.source.grid)
    sides = both_sides(known.coefficients, ends, cells)
    expected = known.density(0.5, Grid((cells,) * d)).flatten()
    for side in (sides.source, sides.target):
        assert float(side.mean()) == pytest.approx(1, abs=1e-5)
        assert float((side[0] - expected).abs().mean()) < 5e-3


def test_the_smallest_determinant(potentials):
    """In 1D it is 1 − ½ max|u″|."""
    ends = [Density(torch.ones(64), Grid(64))] * 2
    found = halfway_of(ends, potentials(1, radius=1.5))
    assert float(found.determinant) == pytest.approx(0.25, abs=0.01)
    assert float(halfway_of(ends, torch.zeros(1, 4)).determinant) == 1


# ---- potentials that are wrong


def wrong_potentials(potentials, d, count):
    """From none at all to the steepest, with few modes and with many."""
    parts = [
        potentials(d, count, radius=radius, modes=8, seed=seed)
        for seed, radius in enumerate((0.0, 0.1, 0.5, 1.0, 1.9, 4.0))
    ]
    return unfolded(torch.cat(parts)), len(parts)


def test_bounds_hold_for_any_potential_on_a_line(potentials):
    mixture = mixtures_1d(8, torch.Generator().manual_seed(3)).on(BOX_1D)
    coefficients, repeats = wrong_potentials(potentials, 1, 4)
    source, target = (Density(part.repeat(repeats, 1), BOX_1D) for part in mixture.tensor.split(4))
    truth = geonet.geodesic(source, target, "quantile").distance / 10
    found = halfway_of((source, target), coefficients)
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
    found = halfway_of(ends, coefficients)
    assert float(found.lower.max()) <= known.distance <= float(found.upper.min())
    assert float(found.mismatch.min()) > 0.01


def test_bounds_hold_for_unrelated_densities_of_a_plane(potentials):
    grid = Grid((32, 32), 0.0, 4.0)
    wave = torch.cos(torch.pi / 4 * grid.points())
    source = Density((0.7 * wave.sum(-1)).exp(), grid)
    target = Density((0.5 * wave[..., 0] - 0.8 * wave.prod(-1)).exp(), grid)
    truth = float(geonet.geodesic(source, target, "monge-ampere").distance) / 4
    coefficients, _ = wrong_potentials(potentials, 2, 1)
    for own in coefficients:
        found = halfway_of((source, target), own[None])
        assert float(found.lower) <= truth <= float(found.upper)


def test_a_slightly_wrong_potential_has_bounds_that_are_nearly_sharp(known_pair, potentials):
    known = known_pair(2)
    wrong = known.coefficients + potentials(2, radius=0.05, seed=9)
    found = halfway_of((known.source, known.target), wrong)
    assert float(found.lower) <= known.distance <= float(found.upper)
    assert 0.9 * known.distance < float(found.lower)
    assert float(found.upper) < 1.2 * known.distance
    assert float(found.mismatch) > 0.01
    assert float(found.distance) == pytest.approx(known.distance, rel=0.005)  # of second order


def test_without_a_potential_nothing_is_known_from_below(known_pair):
    known = known_pair(1)
    found = halfway_of((known.source, known.target), torch.zeros(1, 4))
    assert float(found.lower) == 0 and float(found.distance) == 0
    apart = (known.source.tensor - known.target.tensor).abs().mean()
    assert float(found.mismatch) == pytest.approx(float(apart), rel=1e-2)
    assert known.distance <= float(found.upper)


def test_bounds_hold_in_a_box_that_is_no_cube(potentials):
    """Both densities lie in the left half of it, so nothing comes near its faces."""
    grid = Grid((64, 32), 0.0, (2.0, 1.0))
    ends = [geonet.GaussianMixture.isotropic([[c, 0.5]], 0.1).on(grid) for c in (0.45, 0.6)]
    truth = 0.15 / 2  # a translation, relative to the cube's side
    coefficients, _ = wrong_potentials(potentials, 2, 1)
    for own in coefficients:
        found = halfway_of(ends, own[None])
        assert float(found.lower) <= truth <= float(found.upper)


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
    for own in (0 * guess, guess, unfolded(right)):
        found = halfway_of(ends, own)
        assert float(found.lower) <= truth <= float(found.upper)


def test_what_the_cells_do_not_see_counts_as_a_mismatch():
    """Two needles between the cells where both sides are compared."""
    values = torch.zeros(2, 4000)
    values[0, 1010:1013] = values[1, 3010:3013] = 1.0
    source, target = values[:, None] * 4000 / 3
    sides = both_sides(torch.zeros(1, 4), ends_of(source, target, Grid(4000)), 20)
    assert float(sides.missing) > 0.5
    assert sides.mismatch().tolist() == [2.0]


def test_a_map_that_folds_proves_nothing(known_pair):
    known = known_pair(1, radius=1.9, cells=400)
    found = halfway_of((known.source, known.target), 1.1 * known.coefficients)
    assert float(found.distance) > 0.1 and float(found.determinant) < 0
    assert float(found.lower) == 0 and math.isinf(float(found.upper))


# ---- the bound by a flow


def relative(values):
    """Densities (B, cells) of mean one."""
    return values / values.mean(1, keepdim=True)


def exact_on_a_line(first, second):
    grid = Grid(first.shape[1])
    return geonet.geodesic(Density(first, grid), Density(second, grid), "quantile").distance


def test_the_flow_bound_holds_on_a_line(generator):
    k = torch.arange(1, 7, dtype=torch.float64)
    x = Grid(200).points()[:, 0]
    waves = torch.cos(math.pi * k[:, None] * x)
    draws = torch.randn(2, 20, 6, dtype=torch.float64, generator=generator) / k
    first, second = (relative((draw @ waves).exp()) for draw in draws)
    bound, truth = flow_bound(first, second, 200, 1), exact_on_a_line(first, second)
    assert bool((truth <= 1.001 * bound).all())
    assert float((bound / truth).median()) < 2.5


@pytest.mark.parametrize("k", [1, 3])
def test_the_flow_bound_is_sharp_for_small_differences(k):
    x = Grid(200).points()[None, :, 0]
    first = torch.ones_like(x)
    second = 1 + 0.01 * torch.cos(math.pi * k * x)
    bound = float(flow_bound(first, second, 200, 1))
    assert bound == pytest.approx(0.01 / math.sqrt(2) / (k * math.pi), rel=0.02)
    assert bound == pytest.approx(float(exact_on_a_line(first, second)), rel=0.02)


@pytest.mark.parametrize("d", [2, 3])
def test_the_flow_bound_along_one_axis_is_that_of_a_line(d):
    x = Grid(20).points()[:, 0]
    line = (1 + 0.3 * torch.cos(math.pi * x), 1 - 0.2 * torch.cos(2 * math.pi * x))
    filled = [
        relative(v.reshape(20, *(1,) * (d - 1)).expand((20,) * d).reshape(1, -1)) for v in line
    ]
    expected = flow_bound(*(relative(v[None]) for v in line), 20, 1)
    assert torch.allclose(flow_bound(*filled, 20, d), expected, rtol=1e-5)


def test_the_flow_bound_where_there_is_no_mass():
    """What is not shared goes across the whole cube, at most."""
    first, second = torch.zeros(2, 1, 10, dtype=torch.float64)
    first[0, :5] = second[0, 5:] = 2.0
    assert float(flow_bound(first, second, 10, 1)) == pytest.approx(1.0)
    assert float(exact_on_a_line(first, second)) == pytest.approx(0.5)
    assert float(flow_bound(first, first, 10, 1)) == 0
    second = (first + torch.ones_like(first)) / 2
    bound = float(flow_bound(first, second, 10, 1))
    assert float(exact_on_a_line(first, second)) <= bound <= 0.5**0.5 + 1e-9
