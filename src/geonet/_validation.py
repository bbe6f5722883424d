"""Checks what callers give. Each refusal is one sentence with the cause and the remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any

from geonet.errors import FileError, InputError

LONGEST = 60  # characters of a value that a message shows


def check_instance(
    value: Any, kind: type, name: str, remedy: str, error: type[InputError] = InputError
) -> None:
    """Refuse what is not an instance of `kind`; the remedy says what to give."""
    if not isinstance(value, kind):
        raise error(f"{name} is {short_repr(value)}; {remedy}.")


def as_path(file: Any, name: str = "file") -> Path:
    """A path from a string or a path."""
    if not isinstance(file, str | os.PathLike) or not isinstance(os.fspath(file), str):
        raise FileError(
            f"{name} is {short_repr(file)}; give the name of a {name}, a string or a path."
        )
    return Path(file)


def check_count(count: Any, least: int, name: str) -> None:
    """Refuse what is not a whole number, or is too small."""
    if not is_integer(count) or count < least:
        raise InputError(f"{name} is {short_repr(count)}; give a whole number, at least {least}.")


def check_choice(
    word: Any, words: Sequence[str], name: str, error: type[InputError] = InputError
) -> None:
    """Refuse what is none of a few words."""
    if not isinstance(word, str) or word not in words:
        choice = " or ".join(map(repr, words))
        raise error(f"{name} is {short_repr(word)}; give {choice}.")


def check_flag(flag: Any, name: str) -> None:
    """Refuse what is neither true nor false: any word, such as "no", would count as true."""
    check_instance(flag, bool, name, "give True or False")


def as_number(value: Any, name: str, remedy: str = "give a number") -> float:
    """A float from a real number that it can hold."""
    try:
        if is_number(value):
            return float(value)
    except OverflowError:
        pass
    raise InputError(f"{name} is {short_repr(value)}; {remedy}.")


def check_index(index: Any, count: int, slices: bool = True) -> None:
    """Refuse what is neither the number of one of a batch of `count`, nor a slice of it."""
    if slices and isinstance(index, slice):
        return
    if not is_integer(index) or not -count <= index < count:
        raise InputError(
            f"The index {short_repr(index)} is none of a batch of {count}; "
            f"give a whole number from 0 to {count - 1}."
        )


def is_integer(value: Any) -> bool:
    """Whether it is a whole number; true and false are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number; true and false are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def short_repr(value: Any) -> str:
    """A value in a message: in full where it is short, else its beginning, or type and shape."""
    kind = type(value).__name__.removeprefix("nd")  # arrays
    noun = f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{noun} of shape {tuple(shape)}"
    text = repr(value)
    if len(text) <= LONGEST and "\n" not in text:
        return text
    return f"{text[:LONGEST]}…" if isinstance(value, str | Number) else noun
