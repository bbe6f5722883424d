"""One thread computes; what waits is bounded, and nothing stops it."""

from __future__ import annotations

import warnings
from threading import Event, get_ident

import pytest
import torch

from geonet.app.jobs import BUSY, STOPPED, WAITING, RefusedError, Worker
from geonet.errors import ConvergenceWarning

SOON = 60  # seconds, on a machine with much else to do


@pytest.fixture
def gate(worker):
    """The worker is busy until the gate opens."""
    opened, begun = Event(), Event()

    def wait():
        begun.set()
        assert opened.wait(SOON)

    worker.asked_for(wait)
    assert begun.wait(SOON)
    yield opened
    opened.set()


def test_answers_come_in_turn(worker):
    order = []
    answers = [worker.asked_for(lambda k=k: order.append(k) or k) for k in range(10)]
    assert [answer.result(SOON) for answer in answers] == list(range(10)) == order


def test_one_thread_does_it_all(worker):
    threads = {worker.asked_for(get_ident).result(SOON) for _ in range(3)}
    assert len(threads) == 1 and threads != {get_ident()}


def test_an_error_belongs_to_whoever_asked(worker):
    assert isinstance(worker.asked_for(lambda: 1 / 0).exception(SOON), ZeroDivisionError)
    assert worker.asked_for(lambda: 5).result(SOON) == 5


def test_a_warning_stops_nothing(worker):
    def warn():
        warnings.warn("far from done", ConvergenceWarning, stacklevel=1)
        return "done"

    assert worker.asked_for(warn).result(SOON) == "done"


def test_nothing_is_recorded_for_gradients(worker):
    assert worker.asked_for(torch.is_grad_enabled).result(SOON) is False


def test_few_wait(worker, gate):
    waiting = [worker.asked_for(lambda: 1) for _ in range(WAITING)]
    with pytest.raises(RefusedError) as caught:
        worker.asked_for(lambda: 1)
    assert (str(caught.value), caught.value.status) == (BUSY, 503)
    gate.set()
    assert [answer.result(SOON) for answer in waiting] == [1] * WAITING
    assert worker.asked_for(lambda: 1).result(SOON) == 1


def test_what_is_given_up_is_not_done(worker, gate):
    done = []
    given_up, kept = (worker.asked_for(lambda k=k: done.append(k)) for k in (1, 2))
    assert given_up.cancel()
    gate.set()
    kept.result(SOON)
    assert done == [2]


def test_closing_refuses_all_that_waits():
    worker, opened, begun = Worker(), Event(), Event()
    work = worker.asked_for(lambda: (begun.set(), opened.wait(SOON)))
    assert begun.wait(SOON)
    waiting = [worker.asked_for(lambda: 1) for _ in range(WAITING)]
    worker.close()
    for answer in (work, *waiting):
        with pytest.raises(RefusedError) as caught:
            answer.result(SOON)
        assert (str(caught.value), caught.value.status) == (STOPPED, 503)
    with pytest.raises(RefusedError):
        worker.asked_for(lambda: 1)
    assert not worker.ended(patience=0)
    opened.set()
    assert worker.ended(patience=SOON)
