"""`geonet app` hands its options to the server."""

from __future__ import annotations

import os

import pytest

from geonet.app import server as serving


@pytest.fixture
def served(monkeypatch):
    """What the server is asked for; it ends at once."""
    calls = []
    monkeypatch.setattr(serving, "serve", lambda *given: calls.append(given) or True)
    return calls


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ((), (None, True)),
        (("--no-browser",), (None, False)),
        (("--port", "8080"), (8080, True)),
    ],
)
def test_options(run, served, options, given):
    assert run("app", *options) == (0, "", "")
    assert served == [given]


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_a_port_that_is_none(refused, served, port):
    assert "--port" in refused("app", "--port", port)
    assert served == []


def test_there_is_no_host_to_choose(refused, served):
    assert "No such option: --host" in refused("app", "--host", "0.0.0.0")


def test_work_that_goes_on_does_not_hold_it(run, monkeypatch):
    codes = []
    monkeypatch.setattr(serving, "serve", lambda *given: False)
    monkeypatch.setattr(os, "_exit", codes.append)
    assert run("app").code == 0 and codes == [0]
