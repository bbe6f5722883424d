"""What the tables say of answers that nobody measured."""

import pytest

from benchmarks.any_pair.records import AnyPairs, Unanswered
from benchmarks.any_pair.tables import make_any_tables, make_kinds_table, make_overview, write_remark, make_trust_table, make_unanswered_table

FINER = {64: 256, 128: 512}


def test_what_an_answer_says_of_itself(answer):
    good = answer()
    assert good.frame_percent == 0.4 and good.has_close_distance and good.has_close_frames
    assert good.bounds_percent == pytest.approx(3.0) and good.outside_percent == 0
    missed = answer(w2_percent=-0.3, l1_percent=[0.1, 1.2, 0.2], bounds=[0.101, 0.102])
    assert not missed.has_close_distance and not missed.has_close_frames
    assert missed.outside_percent == pytest.approx(1.0) and not missed.is_flagged
    assert answer(l1_percent=[1.2, 0, 0], estimate_percent=0.6).is_flagged
    assert not answer(l1_percent=[1.2, 0, 0], estimate_percent=None).is_flagged
    assert not answer(w2_percent=None).has_close_distance


def test_overview(answer):
    answers = [
        *(answer(pair=k, w2_percent=-0.1 * k, seconds=0.01 * k) for k in (1, 2, 6)),
        answer(cells=128, seconds=2.0),
        answer(label="blur", w2_percent=None),
    ]
    left = [Unanswered(128, "smooth", k, "some", "some", "too slow") for k in (1, 2)]
    table = make_overview(AnyPairs({}, FINER, answers, [], left))
    assert table.columns[:4] == ["solver", "64²: W2, %", "frames, %", "ms"]
    assert table.format_rows() == [
        ["some", "0.200", "0.400", "20.0", "0.100", "0.400", "2000", "3 of 3 · 1 of 3"],
        ["blur", "–", "0.400", "50.0", "–", "–", "–", "1 of 1 · 0 of 0"],
    ]


def test_kinds(answer):
    answers = [
        answer(pair=0),
        answer(pair=1, l1_percent=[2.0, 2.4, 2.3], w2_percent=0.5, estimate_percent=1.5),
        answer(kind="spots", label="blur", w2_percent=None, bounds=[0.0, 0.05]),
        answer(cells=128),
    ]
    table = make_kinds_table(AnyPairs({}, FINER, answers), 64)
    assert table.title == "64² cells, against 256², kind by kind"
    first, second = table.format_rows()
    assert first[:7] == ["smooth", "some", "0.300", "1.10", "1.40", "1.30", "50.0"]
    assert first[7:] == ["1 of 2", "1 of 2", "3.00", "2 of 2", "1 of 1"]
    assert second[:3] == ["spots", "blur", "–"]
    assert second[7:] == ["–", "1 of 1", "50.0", "0 of 1", "–"]
    assert len(table.columns) == len(first)


def test_trust(answer):
    answers = [answer(pair=0), answer(pair=1, w2_percent=-0.5, l1_percent=[2.0, 2.4, 2.3])]
    (line,) = make_trust_table(AnyPairs({}, FINER, answers)).format_rows()
    assert line[:6] == ["some", "64²", "1 of 2", "1 of 2", "0.500", "2.40"]
    assert line[6:] == ["3.00", "2 of 2", "0.000", "0 of 1"]


def test_unanswered_are_grouped_by_what_they_say():
    rows = [
        Unanswered(64, "spots", 0, "some", "some", "misses by 0.12"),
        Unanswered(64, "spots", 1, "some", "some", "misses by 0.57"),
        Unanswered(64, "shapes", 0, "some", "some", "misses by 0.91"),
        Unanswered(128, "spots", 0, "some", "some", "too slow"),
    ]
    assert make_unanswered_table(rows).format_rows() == [
        ["some", "64²", "spots 2, shapes 1", "misses by 0.12"],
        ["some", "128²", "spots 1", "too slow"],
    ]


def test_the_remark(answer):
    answers = [
        answer(label="auto"),
        answer(label="auto", pair=1, w2_percent=0.5, l1_percent=[2.0, 0.0, 0.0]),
    ]
    assert write_remark(AnyPairs({}, FINER, answers)) == (
        "On 64² cells, W2 of `auto` is within 0.2 % for 1 of 2 pairs and all of its frames within "
        "1 % for 1 of 2; W2 lies inside its bounds for 2 of 2; 0 of 1 misses were flagged."
    )
    assert write_remark(AnyPairs({}, FINER)) == ""


def test_nothing_measured():
    assert make_any_tables(None) == make_any_tables(AnyPairs({}, FINER)) == []
