"""Remedies name Python's arguments in Python, and options at the command line."""

from __future__ import annotations

from geonet._advice import argument, at_the_command_line, either, setting


def test_in_python_and_at_the_command_line():
    def said():
        words = setting("solver", "auto"), setting("floor", 0.01), setting("vmin", 2.0)
        return either("a", "b"), *words, argument("reg"), argument("vmin")

    python = ("a", "solver='auto'", "floor=0.01", "vmin=2.0", "reg", "vmin")
    assert said() == python
    with at_the_command_line():
        options = ("--solver auto", "--option floor=0.01", "--vmin 2.0", "--option reg", "--vmin")
        assert said() == ("b", *options)
        assert setting("coarsen", True) == "--option coarsen=true"
    assert said() == python
