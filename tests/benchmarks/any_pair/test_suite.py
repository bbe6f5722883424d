"""What is measured, and that pairs come out of their files as they went in."""

import pytest
import torch

from benchmarks.any_pair.suite import CONTESTANTS, SUITE, select_any_contestants, read_pairs
from benchmarks.pairs import KINDS, draw
from geonet.grid import Grid
from geonet.solvers.registry import make_solver


def test_the_suite():
    assert SUITE.finer == {64: 256, 128: 512, 256: 512}
    assert SUITE.kinds == KINDS and SUITE.reference == "midpoint"
    assert len(SUITE.list_pairs()) == 11 * SUITE.pairs == 44
    quick = SUITE.reduce()
    assert quick.finer == {64: 256} and len(quick.each()) == 11 and quick.budget < SUITE.budget


def test_pairs_go_through_their_files(tiny, tmp_path):
    files = tiny.write_pairs(tmp_path)
    assert list(files) == [16, 32]
    for cells, file in files.items():
        found = read_pairs(file, cells)
        assert sorted(found) == sorted(tiny.each())
        for (kind, k), ends in found.items():
            for end, expected in zip(ends, draw(kind, cells, k), strict=True):
                assert end.grid == Grid((cells, cells))
                assert torch.allclose(end.tensor, expected.tensor, rtol=1e-12)


@pytest.mark.parametrize("entrant", CONTESTANTS, ids=lambda entrant: entrant.label)
def test_entrants_can_be_made(entrant):
    make_solver(entrant.solver, **entrant.options)


def test_who_takes_part():
    assert select_any_contestants([], quick=False) == list(CONTESTANTS)
    assert {e.solver for e in select_any_contestants([], quick=True)} < {e.solver for e in CONTESTANTS}
    chosen = select_any_contestants(["schrodinger", "linear", "quantile", "linear"], quick=True)
    assert [entrant.label for entrant in chosen] == [
        "schrodinger, ε 0.0003, tolerance 0.001",
        "linear",
    ]
    assert len({entrant.label for entrant in CONTESTANTS}) == len(CONTESTANTS)
