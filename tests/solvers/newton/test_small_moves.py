"""Bounds of W2 for nearly equal densities, against exact distances of products."""

import sys
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch

from geonet import Density, Grid, geodesic
from geonet.solvers.newton.small_moves import bound_above, bound_below, logarithmic_mean

sys.path.insert(0, str(Path(__file__).parents[2] / "trust"))
from test_product_densities import squared_circle_distance, squared_distance

RNG = np.random.default_rng(3)


def make_pair(shape, change, with_zeros=False):
    """Return marginals of a density and of a changed one."""
    first = [RNG.random(n) + 0.2 for n in shape]
    if with_zeros:
        for values in first:
            values[RNG.random(len(values)) < 0.3] = 0
            values[RNG.integers(len(values))] = 1
    return first, [values * np.exp(change * RNG.standard_normal(len(values))) for values in first]


def masses(marginals):
    values = torch.from_numpy(reduce(np.multiply.outer, marginals))
    return values / values.sum()


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
@pytest.mark.parametrize("is_periodic", [False, True])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_bounds_hold(dimension, is_periodic):
    """They hold for potentials and densities of any kind."""
    distance = squared_circle_distance if is_periodic else squared_distance
    for k in range(6):
        shape = [int(n) for n in RNG.integers(2, 9, dimension)]
        sides = RNG.choice([0.1, 1.0, 3.0], dimension).tolist()
        marginals = make_pair(shape, 10.0 ** RNG.uniform(-4, 0.3), with_zeros=k % 3 == 0)
        axes = zip(*marginals, sides, strict=True)
        square = sum(side**2 * distance(a, b) for a, b, side in axes)
        source, target = map(masses, marginals)
        wraps = [is_periodic] * dimension
        rounding = 1e-13 * sum(side**2 for side in sides)
        assert bound_above(source, target, sides, wraps) ** 2 >= square * (1 - 1e-9) - rounding
        grid = Grid(shape, 0.0, sides, periodic=is_periodic)
        path = geodesic(Density(source, grid), Density(target, grid), "midpoint")
        c = path.coefficients * path.box.length**2
        noise = torch.from_numpy(RNG.standard_normal(c.shape)) * min(sides) ** 2
        for potential in (c, 3 * c, c + 0.01 * noise, c + c.std() * noise, noise):
            lower = bound_below(potential, source, target, sides, wraps)
            assert lower <= square * (1 + 1e-9) + rounding


@pytest.mark.parametrize("change", [1e-2, 1e-4])
@pytest.mark.parametrize("shape", [(60,), (24, 20), (10, 9, 8)])
def test_bounds_are_close_for_small_changes(shape, change):
    """The relative error of W2 is about the change.

    The bounds allow for a rounding error of 1e-13·d in W2² = 0.05·d·change².
    """
    error = change + 1e-12 / change**2
    waves = [1 + change * np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in shape]
    ends = [np.ones(n) for n in shape], waves
    source, target = (Density(masses(one), Grid(shape)) for one in ends)
    report = geodesic(source, target, "midpoint").report
    exact = sum(squared_distance(*pair) for pair in zip(*ends, strict=True)) ** 0.5
    assert report.info["converged"]
    assert report.distance_lower_bound == pytest.approx(exact, rel=error)
    assert report.distance_upper_bound == pytest.approx(exact, rel=error)
    assert report.distance == pytest.approx(exact, rel=error)


def test_densities_with_zeros():
    """The flux stays in the support."""
    first, second = make_pair((40, 30), 1e-3, with_zeros=True)
    second[1] = first[1]
    exact = squared_distance(first[0], second[0]) ** 0.5
    upper = bound_above(masses(first), masses(second), (1.0, 1.0), (False, False))
    assert exact <= upper * (1 + 1e-9)


def test_equal_densities_have_distance_zero():
    mass = masses(make_pair((8, 7), 0.0)[0])
    assert bound_above(mass, mass, (1.0, 1.0), (False, False)) == 0
    assert bound_below(torch.zeros(8, 7), mass, mass, (1.0, 1.0), (False, False)) == 0


def test_other_cells_and_large_curvature_give_no_bound():
    mass = masses(make_pair((8, 7), 0.0)[0])
    sides, wraps = (1.0, 1.0), (False, False)
    assert bound_below(torch.zeros(12, 7), mass, mass, sides, wraps) == 0
    steep = torch.linspace(0, 9, 8)[:, None].expand(8, 7) ** 2
    assert bound_below(steep, mass, mass, sides, wraps) == 0


def test_the_logarithmic_mean():
    a, b = torch.tensor([1.0, 2.0, 1.0, 0.0]).double(), torch.tensor([1.0, 3.0, 1 + 1e-7, 2.0])
    expected = [1.0, 1 / np.log(1.5), 1 + 5e-8, 0.0]
    torch.testing.assert_close(logarithmic_mean(a, b.double()), torch.tensor(expected).double())
