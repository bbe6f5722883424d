"""`geonet app` passes its options to the server."""

from __future__ import annotations

import os

import pytest

from geonet.app import server


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), (None, True)),
        (("--no-browser",), (None, False)),
        (("--port", "8080"), (8080, True)),
    ],
)
def test_options(run, monkeypatch, options, expected):
    calls = []
    monkeypatch.setattr(server, "serve", lambda *arguments: calls.append(arguments) or True)
    assert run("app", *options) == (0, "", "")
    assert calls == [expected]


@pytest.mark.parametrize("options", [("--port", "0"), ("--port", "65536"), ("--host", "0.0.0.0")])
def test_bad_options(run, options):
    result = run("app", *options)
    assert result.code == 2 and options[0] in result.err


def test_a_running_computation_does_not_block_the_exit(run, monkeypatch):
    codes = []
    monkeypatch.setattr(server, "serve", lambda *_: False)
    monkeypatch.setattr(os, "_exit", codes.append)
    assert run("app").code == 0 and codes == [0]
