"""Pairs of densities as tables, some at a time."""

import pytest
import torch

from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.solvers.midpoint import pairs as module
from geonet.solvers.midpoint.lookup import density_table
from geonet.solvers.midpoint.pairs import Pairs

GRID = Grid((6, 8), 0.0, (3.0, 4.0))


@pytest.fixture
def ends(generator):
    draws = torch.rand(2, 5, *GRID.shape, dtype=torch.float64, generator=generator)
    return Density(draws[0], GRID), Density(draws[1], GRID)


def test_one_pair_is_a_batch_of_one(ends):
    one = Pairs(ends[0][1], ends[1][1])
    assert (len(one), len(Pairs(*ends)), one.length) == (1, 5, 4.0)
    ((some, tables),) = one.chunks(1)
    assert some.start == 0
    assert torch.equal(tables[1], density_table(ends[1].values[1:2], GRID))


@pytest.mark.parametrize(("points", "sizes"), [(100, [2, 2, 1]), (150, [1] * 5), (1, [5])])
@pytest.mark.parametrize("kept", [0, 2**23])
def test_all_pairs_come_once_and_with_their_own_tables(ends, monkeypatch, points, sizes, kept):
    pairs = Pairs(*ends)
    nodes = 16 * GRID.size
    monkeypatch.setattr(module, "POINTS", 2 * 100 * nodes if points > 1 else 5 * nodes)
    monkeypatch.setattr(module, "KEPT", kept)
    chunks = list(pairs.chunks(points * nodes))
    assert [len(tables[0]) for _, tables in chunks] == sizes
    for end in range(2):
        together = torch.cat([tables[end] for _, tables in chunks])
        assert torch.equal(together, density_table(ends[end].values, GRID))
    assert torch.cat([torch.arange(5)[some] for some, _ in chunks]).tolist() == [0, 1, 2, 3, 4]


def test_tables_are_made_once_if_they_are_small(ends, monkeypatch):
    made = []

    def count(values, grid):
        made.append(len(values))
        return density_table(values, grid)

    monkeypatch.setattr(module, "density_table", count)
    small = Pairs(*ends)
    for _ in range(2):
        list(small.chunks(1))
    assert made == [5, 5]
    monkeypatch.setattr(module, "KEPT", 5 * 16 * GRID.size - 1)
    large = Pairs(*ends)
    for _ in range(2):
        list(large.chunks(1))
    assert made == [5, 5] + [5] * 4


def test_chosen_pairs(ends):
    source, target = Pairs(*ends).chosen(torch.tensor([False, True, False, True, False]))
    assert source.leading == target.leading == (2,)
    assert torch.allclose(source.values, ends[0].values[[1, 3]])
    assert torch.allclose(target.values, ends[1].values[[1, 3]])
