"""Fields looked up between the nodes of a table."""

import itertools

import pytest
import torch

from geonet.solvers.neural.transport.splines import look_up


def multilinear(table, points):
    """One field (*nodes) at points (N, d) of the unit cube, corner by corner."""
    last = torch.tensor(table.shape, dtype=torch.float64) - 1
    scaled = points.clamp(0, 1) * last
    first = torch.minimum(scaled.floor(), last - 1)
    value = torch.zeros(len(points), dtype=torch.float64)
    for corner in itertools.product((0, 1), repeat=table.ndim):
        offset = torch.tensor(corner, dtype=torch.float64)
        weight = torch.where(offset == 1, scaled - first, 1 - scaled + first).prod(-1)
        value += weight * table[tuple((first + offset).long().T)]
    return value


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_look_up_is_multilinear(d, batch, generator):
    nodes, times, count = (5, 4, 6)[:d], 2, 30
    table = torch.rand(batch, 2, *nodes, generator=generator)
    points = [1.4 * torch.rand(batch, times, count, generator=generator) - 0.2 for _ in range(d)]
    found = look_up(table, points)
    assert found.shape == (2, batch, times, count)
    outside = torch.stack([(x < 0) | (x > 1) for x in points]).any(0)
    assert 0 < int(outside.sum()) < outside.numel()  # these move to the faces
    for b, t, c in itertools.product(range(batch), range(times), range(2)):
        where = torch.stack([x[b, t] for x in points], -1).double()
        expected = multilinear(table[b, c].double(), where)
        assert torch.allclose(found[c, b, t].double(), expected, atol=1e-5)
