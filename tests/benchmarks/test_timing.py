"""How often a call is repeated, and what is said about its memory."""

import numpy as np
import pytest

from benchmarks import timing
from benchmarks.timing import repeat_within


@pytest.fixture
def clock(monkeypatch):
    """A clock that only calls move; gives a maker of calls with given durations."""
    now = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])

    def lasting(*durations):
        made = []

        def call(k):
            now[0] += durations[min(len(made), len(durations) - 1)]
            made.append(k)
            return k

        return call, made

    return lasting


def test_repeats_that_fit(clock):
    call, made = clock(0.5, 0.1)
    calls = repeat_within(10, 5, call)
    assert calls.first == pytest.approx(0.5)
    assert calls.warm == pytest.approx([0.1] * 5)
    assert made == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("seconds", "repeats"),
    [(1.0, 4), (1.3, 3), (2.0, 2), (2.1, 1), (3.9, 1), (4.1, 1), (11.9, 1)],
)
def test_repeats_that_do_not_all_fit(clock, seconds, repeats):
    call, made = clock(seconds)
    assert repeat_within(4, 5, call).warm == pytest.approx([seconds] * repeats)
    assert len(made) == repeats + 1


def test_a_call_that_is_far_too_long_is_not_repeated(clock):
    call, made = clock(12.1)
    calls = repeat_within(4, 5, call)
    assert calls.warm == [calls.first] == pytest.approx([12.1])
    assert made == [0]


def test_what_only_the_first_call_does_is_not_counted(clock):
    call, _ = clock(11.0, 0.1)  # compiling, say
    assert repeat_within(4, 5, call).warm == pytest.approx([0.1] * 5)


def test_answers_are_seen_and_not_timed(clock):
    call, _ = clock(0.1)
    seen = []
    repeat_within(4, 2, call, lambda k, answer: seen.append((k, answer)))
    assert seen == [(0, 0), (0, 0), (1, 1)]


def test_memory_of_the_first_call():
    kept = []
    calls = repeat_within(4, 1, lambda k: kept.append(np.ones(2**22)) if not kept else None)
    if calls.memory_mb is None:
        pytest.skip("only Linux tells")
    assert 30 < calls.memory_mb < 60


def test_elsewhere_memory_is_not_known(monkeypatch):
    def refuses(self, text):
        raise FileNotFoundError

    monkeypatch.setattr(timing.Path, "write_text", refuses)
    assert repeat_within(4, 1, lambda k: None).memory_mb is None
