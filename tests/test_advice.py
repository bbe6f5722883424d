"""Remedies name Python's arguments in Python, and options at the command line."""

from __future__ import annotations

from geonet.advice import argument, at_the_command_line, either, setting


def test_in_python_and_at_the_command_line():
    def said():
        return either("a", "b"), setting("solver", "auto"), setting("floor", 0.01), argument("reg")

    python = ("a", "solver='auto'", "floor=0.01", "reg")
    assert said() == python
    with at_the_command_line():
        assert said() == ("b", "--solver auto", "--option floor=0.01", "--option reg")
        assert setting("coarsen", True) == "--option coarsen=true"
    assert said() == python
