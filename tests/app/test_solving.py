"""The last paths are kept, and outdated questions are dropped."""

from __future__ import annotations

import pytest

from geonet.app import jobs as module
from geonet.app.jobs import KEPT_CLIENTS, KEPT_PATHS, Recent, RefusedError
from geonet.app.requests import asked_from


def test_what_was_used_last_is_kept():
    recent = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (1, None, 3, 2)
    recent.put("a", 4)
    assert recent.get("a") == 4 and len(recent) == 2


def test_a_path_is_solved_once(solving, question, monkeypatch):
    calls, solve = [], module.geodesic
    monkeypatch.setattr(module, "geodesic", lambda *a, **o: calls.append(o) or solve(*a, **o))
    first = solving.solved(asked_from(question()))
    again = solving.solved(asked_from(question(number=2, frames=9, client="other")))
    assert again is first and calls == [{"time_limit": 5.0}]


def test_noise_is_passed_on(solving, question):
    asked = asked_from(question(solver="schrodinger", epsilon=0.01))
    assert solving.solved(asked).path.notes["epsilon"] == 0.01


def test_few_paths_are_kept(solving, question, drawn, encoded):
    for k in range(2 * KEPT_PATHS):
        source = encoded(drawn(16, 16, at=(0.02 * k, 0.5)))
        solving.solved(asked_from(question(source=source, solver="linear")))
    assert len(solving.paths) == KEPT_PATHS


def test_the_latest_number_counts(solving, question):
    first, second = (asked_from(question(number=k)) for k in (3, 4))
    other = asked_from(question(client="other", number=1))
    for asked in (first, second, other):
        solving.check_latest(asked)  # nobody asked for a path yet
    for asked in (second, other, first):
        solving.note(asked)
    solving.check_latest(second)
    solving.check_latest(other)
    with pytest.raises(RefusedError) as caught:
        solving.check_latest(first)
    assert (str(caught.value), caught.value.status) == ("A newer drawing is being solved.", 409)


def test_few_clients_are_remembered(solving, question):
    given = question()
    for k in range(KEPT_CLIENTS + 10):
        solving.note(asked_from(given | {"client": f"page-{k}"}))
    assert len(solving.numbers) == KEPT_CLIENTS
