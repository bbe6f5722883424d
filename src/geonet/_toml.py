"""Conversion of frozen dataclasses from and to TOML, with checks of keys and types."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import sys
import tomllib
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from geonet._files import wrap_read_errors
from geonet._validation import check_instance, short_repr
from geonet.errors import ConfigError

T = TypeVar("T")


def read_toml(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    with wrap_read_errors(file, "TOML"):
        return tomllib.loads(file.read_text(encoding="utf-8"))


def from_table(cls: type[T], table: Any, where: str = "") -> T:
    """Return a dataclass from nested tables; `where` is the path of keys to the table.

    A class with `classes_by_kind` is replaced by the class that the `kind` of the table selects.
    """
    if "classes_by_kind" in vars(cls):
        cls = _select_class(cls.classes_by_kind(), table, where)  # type: ignore[attr-defined]
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r}; give a table of {', '.join(_names(cls))}.")
    known, hints = _names(cls), get_type_hints(cls)
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}."
            raise ConfigError(f"Unknown key {_path(where, key)}; {hint}")
    values = {key: _value(hints[key], value, _path(where, key)) for key, value in table.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and field.name not in values:
            raise ConfigError(f"The key {_path(where, field.name)} is missing; add it.")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where + ': ' if where else ''}{error}") from None


def to_table(settings: Any) -> dict[str, Any]:
    """Return nested tables of a dataclass for JSON and TOML, without fields that are None."""
    table = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            table[field.name] = to_table(value)
        elif value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """Return the TOML text of nested tables of numbers, strings, booleans and lists of these."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"{key} = {_literal(value)}" for key, value in table.items() if key not in inner]
    text = "".join(line + "\n" for line in lines)
    for key, value in inner.items():
        name = f"{prefix}{key}"
        text += f"\n[{name}]\n" + to_toml(value, f"{name}.")
    return text


def check_types(settings: Any) -> None:
    """Raise ConfigError if the values of a dataclass do not have the types of its fields."""
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        hint, value = hints[field.name], getattr(settings, field.name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None and NoneType in kinds:
            continue
        kind = kinds[0]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            remedy = f"give {kind.__name__}(...)"
            check_instance(value, kind, field.name, remedy, ConfigError)
        elif get_origin(kind) is Literal:
            check_instance(value, str, field.name, "give a name", ConfigError)
        else:
            _value(kind, value, field.name)


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with a message if a condition does not hold."""
    if not condition:
        raise ConfigError(message)


def _names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]


def _path(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _value(hint: Any, value: Any, where: str) -> Any:
    """Return `value` as the type `hint`; raise ConfigError with its key otherwise."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (kind for kind in arguments if kind is not NoneType)  # T | None, from TOML: T
        return _value(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return from_table(hint, value, where)  # type: ignore[arg-type]
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where} is {value!r}; choose from {', '.join(map(repr, arguments))}.")
    if origin is tuple:
        return _to_tuple(arguments, value, where)
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise ConfigError(f"{where} is {short_repr(value)}; give {_KINDS[hint]}.")
    return value


def _select_class(named: dict[str, type], value: Any, where: str) -> type:
    """Return the dataclass with the kind of the table; the first if the table has none."""
    default = next(iter(named))
    name = value.get("kind", default) if isinstance(value, dict) else default
    if not isinstance(name, str) or name not in named:
        choices = ", ".join(map(repr, named))
        raise ConfigError(f"{_path(where, 'kind')} is {name!r}; choose from {choices}.")
    return named[name]


def _to_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {value!r}; give a list.")
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise ConfigError(f"{where} has {len(value)} entries; give {len(arguments)}.")
    items = enumerate(zip(arguments, value, strict=True))
    return tuple(_value(kind, item, f"{where}[{i}]") for i, (kind, item) in items)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML escapes like JSON, apart from DEL, which JSON keeps.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)


_KINDS = {int: "an integer", float: "a finite number", bool: "true or false", str: "a string"}
