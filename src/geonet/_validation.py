"""Checks of arguments. Each error is one sentence with the cause and the remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any

from geonet.errors import FileError, InputError


def check_instance(
    value: Any, kind: type, name: str, remedy: str, error: type[InputError] = InputError
) -> None:
    """Raise `error` if `value` is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise error(f"{name} is {short_repr(value)}; {remedy}.")


def check_choice(
    word: Any, words: Sequence[str], name: str, error: type[InputError] = InputError
) -> None:
    """Raise `error` if `word` is none of `words`."""
    if not isinstance(word, str) or word not in words:
        raise error(f"{name} is {short_repr(word)}; give {' or '.join(map(repr, words))}.")


def check_count(count: Any, least: int, name: str) -> None:
    """Raise InputError if `count` is not an integer of at least `least`."""
    if not is_integer(count) or count < least:
        raise InputError(f"{name} is {short_repr(count)}; give an integer of at least {least}.")


def check_flag(flag: Any, name: str) -> None:
    """Raise InputError if `flag` is no bool: any word, such as "no", would count as true."""
    check_instance(flag, bool, name, "give True or False")


def check_index(index: Any, count: int, slices: bool = True) -> None:
    """Raise InputError if `index` is neither an index of a batch of `count` nor a slice of it."""
    if slices and isinstance(index, slice):
        return
    if not is_integer(index) or not -count <= index < count:
        raise InputError(
            f"The index {short_repr(index)} is outside a batch of {count}; "
            f"give an integer from 0 to {count - 1}."
        )


def as_path(file: Any, name: str = "file") -> Path:
    """Return a path from a string or a path."""
    if not isinstance(file, str | os.PathLike) or not isinstance(os.fspath(file), str):
        raise FileError(f"{name} is {short_repr(file)}; give the name of a {name}.")
    return Path(file)


def as_number(value: Any, name: str, remedy: str = "give a number") -> float:
    """Return a real number as a float."""
    try:
        if is_number(value):
            return float(value)
    except OverflowError:
        pass
    raise InputError(f"{name} is {short_repr(value)}; {remedy}.")


def is_integer(value: Any) -> bool:
    """Return whether `value` is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether `value` is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def short_repr(value: Any, longest: int = 60) -> str:
    """Return a value for a message: in full if it is short, else its beginning or shape."""
    kind = type(value).__name__.removeprefix("nd")  # arrays
    noun = f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{noun} of shape {tuple(shape)}"
    text = repr(value)
    if len(text) <= longest and "\n" not in text:
        return text
    return f"{text[:longest]}…" if isinstance(value, str | Number) else noun
