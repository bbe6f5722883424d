"""What is torn, and what only moves or stretches."""

from __future__ import annotations

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.report import torn_share


def discs(n, *circles):
    """Discs (row, column, radius) on n × n cells."""
    points = Grid((n, n)).points()
    inside = [
        ((points - torch.tensor([y, x])) ** 2).sum(-1) < radius**2 for y, x, radius in circles
    ]
    return Density(torch.stack(inside).any(0).double(), Grid((n, n)))


def torn(source, target, solver="midpoint"):
    return torn_share(geonet.geodesic(source, target, solver))


@pytest.mark.parametrize("n", [32, 64])
def test_halves_that_move_apart(n):
    """The cut through the middle of the disc: two columns of 32, so 2 · 0.4/32 / (π · 0.2²)."""
    share = torn(discs(n, (0.5, 0.5, 0.2)), discs(n, (0.5, 0.2, 0.14), (0.5, 0.8, 0.14)))
    assert share == pytest.approx(2 * 0.4 / 32 / (torch.pi * 0.04), rel=0.35)


def test_a_disc_that_moves():
    assert torn(discs(64, (0.3, 0.3, 0.2)), discs(64, (0.7, 0.6, 0.2))) == 0.0


def test_a_disc_that_grows():
    """Neighbours end six times as far apart, everywhere: that is stretched, not torn."""
    assert torn(discs(64, (0.5, 0.5, 0.07)), discs(64, (0.5, 0.5, 0.42))) < 0.02


def test_parts_that_meet_are_not_torn():
    assert torn(discs(64, (0.5, 0.2, 0.14), (0.5, 0.8, 0.14)), discs(64, (0.5, 0.5, 0.2))) < 0.02


def test_a_curve():
    x = Grid(128).points()[..., 0]
    box = Density((abs(x - 0.5) < 0.125).double(), Grid(128))
    apart = Density((abs(abs(x - 0.5) - 0.35) < 0.1).double(), Grid(128))
    assert torn(box, apart, "quantile") == pytest.approx(2 / 16, rel=0.01)  # 2 of 16 places
    assert torn(box, box, "quantile") == 0.0


def test_where_no_way_is_known():
    assert torn(discs(16, (0.3, 0.3, 0.2)), discs(16, (0.7, 0.6, 0.2)), "linear") is None


def test_a_single_place_has_no_neighbours():
    values = torch.zeros(2, 16, 16)
    values[0, 2, 2] = values[1, 12, 12] = 1.0
    ends = (Density(each, Grid((16, 16))) for each in values)
    assert torn(*ends, "back-and-forth") == 0.0
