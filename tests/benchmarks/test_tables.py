"""What the tables say of rows that nobody measured."""

from dataclasses import replace

from benchmarks.records import Benchmark, Skipped
from benchmarks.tables import make_equal_error_table, make_skipped_table, make_loads_table, make_ranking, make_scaling_table, make_sizes_table, make_tables


def test_ranking_is_sorted_and_marks_the_front(row):
    rows = [
        row(label="slow", seconds=2.0, l1_percent=0.1, w2_percent=0.01),
        row(label="fast", seconds=0.001, l1_percent=9.0),
        row(label="worse", seconds=3.0, l1_percent=1.0),
        row(label="auto", solver="auto", seconds=0.0001, l1_percent=0.01),
    ]
    table = make_ranking(rows, "2d")
    assert table.title.startswith("2D, 64² cells, one pair, 5 times")
    assert [line[:5] for line in table.format_rows()] == [
        ["auto", "", "0.010", "–", "0.100"],
        ["fast", "●", "9.00", "–", "1.00"],
        ["slow", "●", "0.100", "0.010", "2000"],
        ["worse", "", "1.00", "–", "3000"],
    ]
    assert table.format_rows()[1][5:] == ["0.900–1.20", "20", "16", "0.100", "12.5", "float64"]


def test_sizes(row):
    rows = [
        row(label="a", cells=32, seconds=1.0),
        row(label="a", cells=64, seconds=2.0),
        row(label="b", cells=64, seconds=0.1),
        row(label="c", cells=32, seconds=0.5),
        row(label="c", cells=64, seconds=1.0),
        row(label="c", cells=64, times=20, seconds=9.0),
    ]
    table = make_sizes_table(rows, "2d")
    assert table.columns == ("cells per side", "32", "64")
    assert table.format_rows() == [["c", "500", "1000"], ["a", "1000", "2000"], ["b", "–", "100"]]
    assert make_sizes_table(rows[2:3], "2d").rows == []


def test_loads(row):
    rows = [
        row(label="a", seconds=0.002),
        row(label="a", times=1, seconds=0.001),
        row(label="a", pairs=64, seconds=0.0005),
        row(label="b", seconds=0.001),
    ]
    table = make_loads_table(rows, "2d")
    assert table.columns == ("solver", "1 time", "5 times", "5 times, batch of 64")
    assert table.format_rows() == [["b", "–", "1.00", "–"], ["a", "1.00", "2.00", "0.500"]]


def test_equal_errors(row):
    net = row(label="net", kind="learned", seconds=0.01, l1_percent=0.5, training_seconds=100.0)
    exact = row(label="exact", seconds=1.01, l1_percent=0.1)
    rough = row(label="rough", seconds=0.005, l1_percent=0.9)
    name = "net, 2D, 64² cells, 5 times"
    end = ["rough", "0.500"]
    (line,) = make_equal_error_table([net, exact, rough]).format_rows()
    assert line == [name, "0.500", "10.0", "exact", "1010", "101", "100", "100", *end]
    (line,) = make_equal_error_table([net, rough]).format_rows()
    assert line == [name, "0.500", "10.0", "none", "–", "–", "100", "–", *end]
    (line,) = make_equal_error_table([net, replace(exact, seconds_per_pair=rough.seconds_per_pair)]).format_rows()
    assert line[7] == "never"
    coarse = replace(net, cells=32)
    assert make_equal_error_table([coarse, exact]).rows == []


def test_left_out_is_grouped_by_reason():
    parts = ("2d", 2), ("some", "some")
    skipped = [
        Skipped(*parts[0], 64, 1, 5, *parts[1], "too slow"),
        Skipped(*parts[0], 64, 64, 5, *parts[1], "too slow"),
        Skipped(*parts[0], 128, 1, 5, *parts[1], "too slow"),
        Skipped(*parts[0], 24, 1, 5, *parts[1], "too coarse"),
    ]
    assert make_skipped_table(skipped).format_rows() == [
        ["some", "2d", "64; 64 (5 times, batch of 64); 128", "too slow"],
        ["some", "2d", "24", "too coarse"],
    ]


def test_scaling(made_up):
    assert make_scaling_table(made_up).format_rows()[0] == [
        "transport-1d",
        "output points",
        "1–64",
        "4.44–32.4",
        "0.87",
    ]


def test_all_tables_that_have_rows(made_up):
    assert [table.title.split(",")[0] for table in make_tables(made_up)] == [
        "Any pair: medians over the pairs that were answered",
        "64² cells",
        "128² cells",
        "What can be relied on",
        "Pairs that were not measured",
        "1D",
        "1D",
        "1D",
        "2D",
        "2D",
        "2D",
        "Speed at equal error",
        "Cost against size",
        "Not measured",
    ]
    for table in make_tables(made_up):
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert make_tables(Benchmark({}, True)) == []
