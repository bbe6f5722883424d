"""Fronts, speed at equal error, when training pays, slopes: of rows that nobody measured."""

import pytest

from benchmarks.records import compute_break_even, find_equal_error, select_setting, find_pareto_front, fit_slope


def test_rows_of_a_setting_are_sorted_by_time(row):
    rows = [
        row(label="slow", seconds=2.0),
        row(label="fast", seconds=1.0),
        row(label="coarse", cells=32),
        row(label="many", pairs=64),
        row(label="once", times=1),
        row(label="line", suite="1d"),
    ]
    assert [found.label for found in select_setting(rows, "2d", 64)] == ["fast", "slow"]
    assert [found.label for found in select_setting(rows, "2d", 64, pairs=64)] == ["many"]
    assert [found.label for found in select_setting(rows, "2d", 64, times=1)] == ["once"]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(1, 1)], [0]),
        ([(1, 5), (2, 4), (3, 3)], [0, 1, 2]),
        ([(3, 3), (2, 4), (1, 5)], [2, 1, 0]),
        ([(1, 5), (2, 6), (3, 3)], [0, 2]),  # the second is slower and worse
        ([(1, 5), (2, 5)], [0]),  # as good, but slower
        ([(1, 5), (1, 4)], [1]),  # as fast, but worse
        ([(1, 1), (2, 2), (3, 3)], [0]),
    ],
)
def test_front(row, points, front):
    rows = [row(label=str(k), seconds=s, l1_percent=e) for k, (s, e) in enumerate(points)]
    assert [found.label for found in find_pareto_front(rows)] == [str(k) for k in front]


@pytest.fixture
def learned(row):
    return row(label="net", kind="learned", seconds=0.01, l1_percent=0.5, training_seconds=100.0)


def test_equal_error_is_the_fastest_that_is_as_exact(row, learned):
    rows = [
        learned,
        row(label="exact", seconds=3.0, l1_percent=0.1),
        row(label="as exact", seconds=2.0, l1_percent=0.5),
        row(label="rough", seconds=1.0, l1_percent=0.9),
        row(label="other net", kind="learned", seconds=0.1, l1_percent=0.1),
        row(label="trained", kind="per-pair", seconds=0.1, l1_percent=0.1),
        row(label="coarse", cells=32, seconds=0.1, l1_percent=0.1),
        row(label="once", times=1, seconds=0.1, l1_percent=0.1),
    ]
    assert find_equal_error(rows, learned).label == "as exact"
    assert find_equal_error(rows, learned, limit=1.0).label == "rough"
    assert find_equal_error(rows, learned, limit=0.05) is None
    assert find_equal_error([learned], learned) is None


def test_in_a_batch_single_pairs_count_where_there_is_no_batch(row, learned):
    batch = row(label="net", kind="learned", pairs=64, seconds=0.001, l1_percent=0.5)
    alone = row(label="alone", seconds=2.0, l1_percent=0.1)
    both = [
        row(label="both", seconds=1.0, l1_percent=0.1),
        row(label="both", pairs=64, seconds=4.0, l1_percent=0.1),
    ]
    assert find_equal_error([batch, alone, *both], batch) is alone  # with its batch, both is slower
    assert find_equal_error([batch, alone, *both], learned) is both[0]


def test_break_even(row, learned):
    assert compute_break_even(learned, row(seconds=1.01)) == pytest.approx(100)
    assert compute_break_even(learned, row(seconds=0.01)) is None
    assert compute_break_even(learned, row(seconds=0.001)) is None
    assert compute_break_even(row(kind="learned", seconds=0.01), row(seconds=1.0)) is None


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_slope_of_a_power(power):
    values = [1, 2, 4, 8, 16]
    assert fit_slope(values, [3 * n**power for n in values]) == pytest.approx(power)


def test_slope_is_of_the_upper_half():
    assert fit_slope([1, 2, 4, 8], [5.0, 5.0, 4.0, 8.0]) == pytest.approx(1)
    assert fit_slope([1, 2, 4], [9.0, 2.0, 4.0]) == pytest.approx(1)
    assert fit_slope([1, 4], [1.0, 2.0]) == pytest.approx(0.5)
