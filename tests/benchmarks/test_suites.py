"""Which settings a suite has, and that its pairs come out of their file as they went in."""

import pytest
import torch

from benchmarks.suites import (
    NAMES,
    QUICK_CELLS,
    SUITES,
    Call,
    PairsFile,
    Suite,
    check_suites,
    get_suite,
)
from geonet.errors import InputError
from geonet.evaluation import TestSet, sample_pairs
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.paths import QUARTERS


def test_the_suites_are_there():
    assert NAMES == ("1d", "2d", "any", "scaling")
    for name, suite in SUITES.items():
        assert list(suite.cells) == sorted(set(suite.cells))
        assert suite.name == name and suite.reference in QUICK_CELLS[name]
        assert set(QUICK_CELLS[name]) <= set(suite.cells)


def test_only_the_reference_has_other_times_and_batches():
    settings = Suite("2d", mixtures_1d, BOX_1D, (24, 64, 128), 64).calls()
    assert [s.cells for s in settings] == [24, 64, 64, 64, 64, 128]
    assert [s for s in settings if not s.is_base] == [
        Call(64, 1, 1),
        Call(64, 1, 20),
        Call(64, 64, 5),
    ]


def test_a_quick_suite_has_pairs_one_by_one_at_the_quarters():
    assert get_suite("1d", quick=True).calls() == [Call(100), Call(200)]
    assert get_suite("1d", quick=False) is SUITES["1d"]


@pytest.mark.parametrize(
    ("times", "moments"), [(1, [0.5]), (5, list(QUARTERS)), (3, [0.0, 0.5, 1.0])]
)
def test_moments(times, moments):
    assert Call(10, times=times).make_times().tolist() == moments


def test_pairs_are_those_of_the_reproduction(tmp_path):
    suite = Suite("1d", mixtures_1d, BOX_1D, (20, 30), 30, batches=(1, 3))
    expected = sample_pairs(TestSet(mixtures_1d, BOX_1D.with_shape(30)), 2)
    suite.write_pairs(30, 2, tmp_path / "pairs")
    file = PairsFile(tmp_path / "pairs", expected.source.grid)
    found = file.pairs()
    for name in ("source", "target", "truth"):
        assert torch.allclose(getattr(found, name).tensor, getattr(expected, name).tensor)
        assert getattr(found, name).mixture is None
    assert torch.equal(found.distance, expected.distance)
    first, second = file.batch(3)
    assert first.batch_shape == second.batch_shape == (3,)
    assert len(torch.cat([first.tensor, second.tensor]).unique(dim=0)) == 6


def test_a_batch_is_written_where_it_is_asked_for(tmp_path):
    suite = Suite("1d", mixtures_1d, BOX_1D, (20, 30), 30, batches=(1, 3))
    suite.write_pairs(20, 1, tmp_path / "pairs")
    with pytest.raises(KeyError):
        PairsFile(tmp_path / "pairs", BOX_1D.with_shape(20)).batch(3)


def test_names_of_suites():
    assert check_suites([]) == list(NAMES)
    assert check_suites(["2d", "1d", "2d"]) == ["2d", "1d"]
    with pytest.raises(
        InputError, match="There is no suite '3d'; choose from 1d, 2d, any, scaling."
    ):
        check_suites(["1d", "3d"])
