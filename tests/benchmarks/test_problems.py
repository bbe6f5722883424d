"""Problems with exact answers agree with other formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import ot
import pytest

from benchmarks.problems import (
    CIRCLE_MAPS,
    SHAPES,
    Gaussian,
    average_gaussians,
    dirac_cost,
    draw_digits,
    draw_shape,
    draw_showers,
    gaussian_hellinger_cost,
)
from geonet import Grid
from geonet.solvers.bures import gaussian_distance

FIRST = Gaussian((0.42, 0.50), (0.0080, 0.0030, 0.0032), 1.0)
SECOND = Gaussian((0.56, 0.46), (0.0032, -0.0010, 0.0060), 1.8)


def test_barycenter_of_two_gaussians_is_on_their_geodesic():
    shift = SECOND.centre - FIRST.centre
    distance = float(gaussian_distance(shift, FIRST.matrix, SECOND.matrix))
    _, objective = average_gaussians([FIRST, SECOND], [0.7, 0.3], Grid((16, 16)))
    assert objective == pytest.approx(0.7 * 0.3 * distance**2, rel=1e-9)


def test_cost_of_gaussians_has_both_limits():
    equal = replace(SECOND, mass=1.0)
    distance = float(gaussian_distance(SECOND.centre - FIRST.centre, FIRST.matrix, SECOND.matrix))
    assert gaussian_hellinger_cost(FIRST, equal, 1e3) == pytest.approx(distance**2 / 2, rel=1e-3)
    ends = [g.to_density(Grid((128, 128))).numpy("given") for g in (FIRST, SECOND)]
    hellinger = float(((np.sqrt(ends[0]) - np.sqrt(ends[1])) ** 2).mean())
    found = gaussian_hellinger_cost(FIRST, SECOND, 1e-3)
    assert found == pytest.approx(1e-6 / 2 * hellinger, rel=1e-3)


def test_cost_of_diracs():
    assert dirac_cost((1.0, 1.0), 0.01, 10.0) == pytest.approx(0.01**2 / 2, rel=1e-5)
    far = dirac_cost((1.0, 2.0), 5.0, 1.0)  # beyond π/2: both fade
    assert far == pytest.approx(1.5) == dirac_cost((1.0, 2.0), math.pi / 2, 1.0)


@pytest.mark.parametrize("circle", CIRCLE_MAPS)
def test_circle_maps_agree_with_pot(circle):
    x = (np.arange(1024) + 0.5) / 1024
    ends = [circle.cell_means(1024, t) for t in (0.0, 1.0)]
    assert min(end.min() for end in ends) > 0 and np.mean(ends, 1) == pytest.approx(1)
    masses = [end / end.sum() for end in ends]
    cost = ot.wasserstein_circle(x, x, *masses, p=2)
    assert float(np.asarray(cost).item()) == pytest.approx(circle.squared_distance, rel=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_edges_of_one_cell_and_the_same_area_on_all_grids(name):
    shares = []
    for cells in (32, 128):
        values = draw_shape(name, Grid((cells, cells)), mass=2.0).numpy()
        inside = values / values.max()
        assert ((inside > 0) & (inside < 1)).mean() < 8 / cells
        shares.append(inside.mean())
    assert shares[0] == pytest.approx(shares[1], rel=0.03)
    assert draw_shape(name, Grid((16, 16)), mass=2.0).mass == pytest.approx(2.0)


def test_showers_and_digits():
    source, target = draw_showers(Grid((64, 64)))
    assert float(source.mass) == pytest.approx(2.0, rel=1e-4)
    assert float(target.mass) == pytest.approx(2.3, rel=1e-4)
    assert len(draw_digits()) == 10 and draw_digits(14)[3].grid.shape == (14, 14)
