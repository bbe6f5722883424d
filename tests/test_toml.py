import re
import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest

from geonet._toml import from_table, read_toml, require, to_table, to_toml
from geonet.errors import ConfigError, FileError


@dataclass(frozen=True)
class Layer:
    width: int = 3
    scale: float = 1.0

    def __post_init__(self):
        require(self.width > 0, f"width is {self.width}; give at least 1.")


@dataclass(frozen=True)
class Network:
    """One field of each supported type."""

    name: str
    kind: Literal["small", "large"] = "small"
    frozen: bool = False
    box: tuple[float, float] = (0.0, 1.0)
    sizes: tuple[int, ...] = ()
    note: str | None = None
    layer: Layer = field(default_factory=Layer)


@dataclass(frozen=True)
class Shape:
    """A class that is replaced by the class of the kind."""

    @classmethod
    def classes_by_kind(cls):
        return {"round": Round, "square": Square}


@dataclass(frozen=True)
class Round(Shape):
    kind: Literal["round"] = "round"
    radius: float = 1.0

    def __post_init__(self):
        require(self.radius > 0, f"radius is {self.radius}; give > 0.")


@dataclass(frozen=True)
class Square(Shape):
    kind: Literal["square"] = "square"
    side: int = 2


@dataclass(frozen=True)
class Drawing:
    """A field with a choice of two classes."""

    shape: Shape = field(default_factory=Round)


EVERYTHING = Network("n", "large", True, (-1.5, 2.0), (3, 4, 5), "why", Layer(7, 1e-5))


@pytest.mark.parametrize(
    "settings",
    [
        EVERYTHING,
        Network('quotes " and \\ backslash, é and μ'),
        Network("".join(map(chr, range(160)))),
        Network("n", layer=Layer(10**12, -0.1 - 0.2)),
    ],
)
def test_toml_round_trip(settings):
    text = to_toml(to_table(settings))
    assert from_table(Network, tomllib.loads(text)) == settings


def test_toml_text():
    assert to_toml(to_table(EVERYTHING)) == (
        'name = "n"\nkind = "large"\nfrozen = true\nbox = [-1.5, 2.0]\nsizes = [3, 4, 5]\n'
        'note = "why"\n\n[layer]\nwidth = 7\nscale = 1e-05\n'
    )


def test_defaults_and_integers_become_floats():
    assert from_table(Network, {"name": "n", "layer": {}}) == Network("n")
    assert "note" not in to_table(Network("n"))
    made = from_table(Network, {"name": "n", "box": [0, 2], "layer": {"scale": 3}})
    assert made == Network("n", box=(0.0, 2.0), layer=Layer(scale=3.0))
    assert isinstance(made.layer.scale, float) and isinstance(made.box[1], float)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "n", "layer": {"widht": 3}}, "key layer.widht; did you mean 'width'?"),
        ({"name": "n", "layer": {"zzz": 3}}, "key layer.zzz; it takes width, scale"),
        ({}, "key name is missing"),
        ({"name": 3}, "name is 3"),
        ({"name": "n", "frozen": 1}, "frozen is 1"),
        ({"name": "n", "layer": {"width": True}}, "layer.width is True"),
        ({"name": "n", "layer": {"scale": 10**400}}, "give a finite number"),
        ({"name": "n", "layer": {"width": -3}}, "layer: width is -3"),
        ({"name": "n", "layer": [{}]}, "give a table of width, scale"),
        ({"name": "n", "kind": "medium"}, "choose from 'small', 'large'"),
        ({"name": "n", "box": 1.0}, "give a list"),
        ({"name": "n", "box": [1.0]}, "box has 1 entries; give 2"),
        ({"name": "n", "box": [1.0, "a"]}, "box[1] is 'a'"),
    ],
)
def test_invalid_tables_raise(table, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_table(Network, table)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, Drawing(Round())),
        ({"shape": {"radius": 3}}, Drawing(Round(radius=3.0))),
        ({"shape": {"kind": "square", "side": 5}}, Drawing(Square(side=5))),
    ],
)
def test_the_kind_selects_the_class(table, expected):
    assert from_table(Drawing, table) == expected
    assert from_table(Drawing, tomllib.loads(to_toml(to_table(expected)))) == expected


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"shape": {"kind": "oval"}}, "shape.kind is 'oval'; choose from 'round', 'square'"),
        ({"shape": {"kind": "square", "radius": 2}}, "key shape.radius; it takes kind, side"),
        ({"shape": {"radius": 0}}, "shape: radius is 0.0"),
    ],
)
def test_invalid_kinds_raise(table, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_table(Drawing, table)


def test_reading_files(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('name = "µ"\n[layer]\nwidth = 4\n', encoding="utf-8")
    assert read_toml(file) == {"name": "µ", "layer": {"width": 4}}
    file.write_text("name = ", encoding="utf-8")
    with pytest.raises(FileError, match=r"Cannot read .*settings.toml as TOML: Invalid value"):
        read_toml(file)
    with pytest.raises(FileError, match=r"There is no file .*none.toml; check the path\."):
        read_toml(tmp_path / "none.toml")
