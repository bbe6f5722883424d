"""Remedies in the words of whoever asked: Python's arguments, or options of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_at_command_line: ContextVar[bool] = ContextVar("at_command_line", default=False)
# arguments that are options of the command line, and not of a solver
OPTIONS = ("solver", "cmap", "norm", "vmin", "vmax", "mass")


@contextmanager
def at_the_command_line() -> Iterator[None]:
    """Errors and warnings that are raised meanwhile are read by people at a command line."""
    token = _at_command_line.set(True)
    try:
        yield
    finally:
        _at_command_line.reset(token)


def is_command_line() -> bool:
    """Whether people at a command line will read what is said here."""
    return _at_command_line.get()


def either(python: str, command: str) -> str:
    """The first in Python, the second at the command line."""
    return command if is_command_line() else python


def setting(name: str, value: object) -> str:
    """An argument with its value: floor=0.01, or --option floor=0.01."""
    between = " " if name in OPTIONS else "="
    return either(f"{name}={value!r}", f"{argument(name)}{between}{_word(value)}")


def argument(name: str) -> str:
    """An argument by its name: epsilon and vmin, or --option epsilon and --vmin."""
    return either(name, f"--{name}" if name in OPTIONS else f"--option {name}")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
