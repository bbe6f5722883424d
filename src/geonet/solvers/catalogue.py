"""What is to be known of a solver before it is used, read from its source.

Importing the solvers takes seconds, for torch and SciPy. A list of them needs a few attributes and
a docstring each, so the source files are parsed and nothing is imported. The same is read from a
class where there is one: of another package, or of a model's file.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from geonet.solvers.base import Solver

REQUIRED = dataclasses.MISSING
FORMS = "geonet.solvers.neural.model"
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a name",
    "Tensor": "an array",
    "None": "none",
}


class Option(NamedTuple):
    """An option of a solver.

    Attributes:
        name: of the keyword.
        takes: what it takes, in words.
        default: `REQUIRED` where there is none; of a file its name.
        meaning: what the docstring says.
    """

    name: str
    takes: str
    default: Any
    meaning: str

    def __str__(self) -> str:
        default = "" if self.default is REQUIRED else f", by default {self.written_default()}"
        return f"{self.name} ({self.takes}{default})"

    def written_default(self) -> str:
        """As `--option` takes it; a dash where there is none."""
        if self.default is REQUIRED:
            return "–"
        return str(self.default) if isinstance(self.default, str) else repr(self.default).lower()


class Card(NamedTuple):
    """A solver in a few lines; see `Solver` for all but the options."""

    name: str
    summary: str
    dimensions: tuple[int, ...] | None
    gives: tuple[str, ...]
    options: tuple[Option, ...]


def card_at(location: str) -> Card:
    """The card of a solver of geonet at 'module:Class', from its source."""
    found = _class_at(location)
    known = {what: found.value(what) for what in ("name", "summary", "dimensions", "gives")}
    return Card(**known, options=tuple(found.options()))


def card_of(cls: type[Solver]) -> Card:
    """The card of a solver's class."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        meanings |= parts(base.__dict__.get("__doc__"))[1]
    options = [
        _option(
            field.name, getattr(field.type, "__name__", str(field.type)), field.default, meaning
        )
        for field in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        for meaning in [meanings.get(field.name, "")]
    ]
    return Card(cls.name, cls.summary, cls.dimensions, cls.gives, tuple(options))


def gives_of_form(form: str) -> tuple[str, ...]:
    """What paths of models of a form can answer, from the form's source."""
    return _class_at(_module(FORMS)["FORMS"][form]).value("gives")


def parts(docstring: str | None) -> tuple[str, dict[str, str]]:
    """A docstring's text, and the meanings of its attributes by name."""
    text, _, listed = inspect.cleandoc(docstring or "").partition("\nAttributes:")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    return text.strip(), {name: " ".join(meaning.split()) for name, meaning in entries}


def _option(name: str, annotation: str, default: Any, meaning: str) -> Option:
    kinds = [KINDS.get(kind.strip(), kind.strip()) for kind in annotation.split("|")]
    if name == "file" and isinstance(default, str):
        default = Path(default).name
    return Option(name, " or ".join(kinds), default, meaning.rstrip("."))


# ---- source files, of which nothing runs but the expressions that are asked for


class _Module:
    """The names at the top of a file, each evaluated when it is asked for."""

    def __init__(self, name: str):
        spec = find_spec(name)  # imports the packages around it, which are empty
        assert spec is not None and spec.origin is not None
        self._nodes: dict[str, ast.stmt] = {}
        for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
            self._nodes |= dict.fromkeys(_names(node), node)

    def __getitem__(self, name: str) -> Any:
        node = self._nodes[name]
        if isinstance(node, ast.ImportFrom):
            return _module(str(node.module))[name]
        return _Class(node, self) if isinstance(node, ast.ClassDef) else self.value(node)

    def value(self, node: ast.AST) -> Any:
        """Of an expression, or of what an assignment assigns."""
        expression = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else node
        code = compile(ast.Expression(expression), "", "eval")  # pyright: ignore
        return eval(code, {"__builtins__": {}}, self)  # pyright: ignore[reportArgumentType]

    def has(self, node: ast.expr) -> bool:
        """Whether an expression is a name of geonet's, here or imported."""
        found = self._nodes.get(node.id) if isinstance(node, ast.Name) else None
        return str(getattr(found, "module", "geonet" if found else "")).startswith("geonet")


class _Class:
    """The attributes of a class, with those of its bases in geonet."""

    def __init__(self, node: ast.ClassDef, module: _Module):
        self._node, self._module = node, module

    def __getattr__(self, name: str) -> Any:
        return self.value(name)  # Midpoint.tolerance, in an expression

    def value(self, name: str) -> Any:
        """Of an attribute, its own or the first base's that has it."""
        for cls in self._with_bases():
            for node in cls._node.body:
                if name in _names(node) and getattr(node, "value", None) is not None:
                    return cls._module.value(node)
        raise AttributeError(f"{self._node.name} has no {name}")

    def options(self) -> Iterator[Option]:
        """Those of the bases first, as a dataclass has them."""
        fields: dict[str, tuple[str, Any]] = {}
        meanings: dict[str, str] = {}
        for cls in reversed(list(self._with_bases())):
            meanings |= parts(ast.get_docstring(cls._node))[1]
            for node in cls._node.body if cls._is_dataclass() else ():
                if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.dump(node.annotation):
                    default = REQUIRED if node.value is None else cls._module.value(node)
                    fields[_names(node)[0]] = ast.unparse(node.annotation), default
        for name, (annotation, default) in fields.items():
            yield _option(name, annotation, default, meanings.get(name, ""))

    def _with_bases(self) -> Iterator[_Class]:
        """Itself, then its bases in order."""
        yield self
        for base in self._node.bases:
            if self._module.has(base):
                yield from self._module.value(base)._with_bases()

    def _is_dataclass(self) -> bool:
        return any("dataclass" in ast.unparse(each) for each in self._node.decorator_list)


@cache
def _module(name: str) -> _Module:
    return _Module(name)


def _class_at(location: str) -> _Class:
    module, _, name = location.partition(":")
    return _module(module)[name]


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement binds; of tuples none."""
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ClassDef):
        return [node.name]
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]
