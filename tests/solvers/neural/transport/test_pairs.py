"""Pairs of densities ready to be read between their cells, some at a time."""

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid
from geonet.numerics.cosine import unit_centres
from geonet.solvers.neural.transport import certificate as module
from geonet.solvers.neural.transport.certificate import Pairs, density_at, ends_of

GRID = Grid((6, 8), 0.0, (3.0, 4.0))


@pytest.fixture
def ends(generator):
    draws = torch.rand(2, 5, *GRID.shape, dtype=torch.float64, generator=generator)
    return Density(draws[0], GRID), Density(draws[1], GRID)


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"], autouse=True)
def both_ways(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)


def values(end):
    """Densities at some places, (B, places)."""
    still = [torch.zeros(len(end), 1, 25)] * 2
    return density_at(end, unit_centres(2, 5), still, 0.0)[:, 0]


def test_one_pair_is_a_batch_of_one(ends):
    one = Pairs(ends[0][1], ends[1][1])
    assert (len(one), len(Pairs(*ends)), one.box.length) == (1, 5, 4.0)
    ((some, ready),) = one.chunks(1)
    assert some.start == 0
    expected = ends_of(ends[0].tensor, ends[1].tensor, GRID)
    for end in range(2):
        assert torch.allclose(values(ready[end]), values(expected[end])[1:2], rtol=1e-5)


@pytest.mark.parametrize(("points", "sizes"), [(100, [2, 2, 1]), (150, [1] * 5), (1, [5])])
@pytest.mark.parametrize("kept", [0, 2**23])
def test_all_pairs_come_once_and_with_their_own_ends(ends, monkeypatch, points, sizes, kept):
    pairs, numbers = Pairs(*ends), GRID.size
    monkeypatch.setattr(module, "POINTS", 2 * 100 * numbers if points > 1 else 5 * numbers)
    monkeypatch.setattr(module, "KEPT", kept)
    chunks = list(pairs.chunks(points * numbers))
    assert [len(ready[0]) for _, ready in chunks] == sizes
    whole = ends_of(ends[0].tensor, ends[1].tensor, GRID)
    for end in range(2):
        together = torch.cat([values(ready[end]) for _, ready in chunks])
        assert torch.allclose(together, values(whole[end]), rtol=1e-5)
    assert torch.cat([torch.arange(5)[some] for some, _ in chunks]).tolist() == [0, 1, 2, 3, 4]


def test_ends_are_made_ready_once_if_they_are_small(ends, monkeypatch):
    made = []

    def count(source, target, grid):
        made.append(len(source))
        return ends_of(source, target, grid)

    monkeypatch.setattr(module, "ends_of", count)
    small = Pairs(*ends)
    for _ in range(2):
        list(small.chunks(1))
    assert made == [5]
    monkeypatch.setattr(module, "KEPT", 5 * GRID.size - 1)
    large = Pairs(*ends)
    for _ in range(2):
        list(large.chunks(1))
    assert made == [5, 5, 5]


def test_chosen_pairs(ends):
    source, target = Pairs(*ends).chosen(torch.tensor([False, True, False, True, False]))
    assert source.leading == target.leading == (2,)
    assert torch.allclose(source.tensor, ends[0].tensor[[1, 3]])
    assert torch.allclose(target.tensor, ends[1].tensor[[1, 3]])
