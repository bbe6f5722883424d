"""The sources of a measurement: all that may change its figures, found from where it begins.

One rule, which counts too much rather than too little:

- A module counts with all that it imports, wherever in it the import stands. So do the C files
  beside it.
- A text in it that is the name of a solver counts as an import of that solver's class. In
  f"transport-{d}d" anything may stand for the braces.
- A text in it that is the name of weights, digits or a config counts as that file; within a class
  only where that class is imported or named, for a module of solvers has many.
- Pictures and the command line count for nothing but themselves.

The hash is that of the code: comments, docstrings and layout do not change it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parents[2]  # the folder that has the package
DATA = ("geonet/operators/pretrained", "geonet/demo_data", "../configs")  # from a folder
REGISTRY = "geonet.solvers.registry"
APART = (  # what shows a figure does not measure it, and neither does what stamps it
    "geonet.cli",
    "geonet.plotting",
    "geonet.evaluation.machine",
    "geonet.evaluation.sources",
    "geonet.evaluation.stamp",
    "pages",  # these two are in studies/pages and write tables there
    "published",
)
ALL = "*"  # of the names in a module
ANY = "\0"  # in a text: what an f-string has between braces


class Use(NamedTuple):
    """A name in a module, or all of them."""

    module: str
    name: str


class Contents(NamedTuple):
    """What matters of a module: its code, what it imports, and its texts by class, "" for none."""

    code: str
    imports: list[Use]
    texts: dict[str, set[str]]

    def texts_for(self, name: str) -> set[str]:
        """The texts outside classes, and those in the class of that name, or in all."""
        wanted = list(self.texts) if name == ALL else ["", name]
        return set[str]().union(*(self.texts.get(part, ()) for part in wanted))


def sources_hash(modules: Sequence[str], folders: Sequence[Path] = (SOURCES,)) -> str:
    """A hash of the code and the data on which measurements that begin in these modules depend."""
    digest = sha256()
    for name, file in source_files(modules, folders).items():
        digest.update(f"{name} {_file_hash(file, file.stat().st_mtime_ns)}\n".encode())
    return digest.hexdigest()[:16]


@lru_cache(1024)
def _file_hash(file: Path, changed: int) -> str:
    content = _read(file).code.encode() if file.suffix == ".py" else file.read_bytes()
    return sha256(content).hexdigest()


def source_files(modules: Sequence[str], folders: Sequence[Path] = (SOURCES,)) -> dict[str, Path]:
    """The files themselves, by their path in the folder of `folders` that has them, sorted."""
    registry = module_file(REGISTRY, folders)
    solvers = {} if registry is None else _solvers(registry)
    data = {f.name: f for folder in folders for f in _data_files(folder)}
    todo, seen, found = [Use(module, ALL) for module in modules], set[Use](), set[Path]()
    while todo:
        use = todo.pop()
        file = module_file(use.module, folders)
        if use in seen or file is None:
            continue
        seen.add(use)
        contents = _read(file)
        texts = contents.texts_for(use.name)
        found |= {file, *file.parent.glob("*.c"), *(data[text] for text in texts & data.keys())}
        todo += [
            whole if module_file(whole.module, folders) else one
            for one in contents.imports
            for whole in [Use(f"{one.module}.{one.name}", ALL)]
            if not _is_apart(one.module, use.module) and not _is_apart(whole.module, use.module)
        ]
        if use.module != REGISTRY:  # which names them all
            open_texts = [text for text in texts if ANY in text]
            todo += [
                solver
                for name, solver in solvers.items()
                if name in texts or any(_could_be(name, text) for text in open_texts)
            ]
    named = {_path_in(file, folders): file for file in found}
    return dict(sorted(named.items()))


def module_file(module: str, folders: Sequence[Path]) -> Path | None:
    """The file of a module in one of the folders; None for all others' modules."""
    path = Path(*module.split("."))
    places = [folder / end for folder in folders for end in (f"{path}.py", path / "__init__.py")]
    return next((place for place in places if place.is_file()), None)


def _data_files(folder: Path) -> list[Path]:
    return [f for part in DATA for f in (folder / part).glob("*.*") if f.suffix != ".md"]


def _is_apart(imported: str, by: str) -> bool:
    def inside(module: str, package: str) -> bool:
        return module == package or module.startswith(f"{package}.")

    return any(inside(imported, package) and not inside(by, package) for package in APART)


def _could_be(name: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, text.split(ANY))), name) is not None


def _path_in(file: Path, folders: Sequence[Path]) -> str:
    folder = next(folder for folder in folders if file.is_relative_to(folder))
    return file.relative_to(folder).as_posix()  # with .. for a config


# ---- reading code


def _read(file: Path) -> Contents:
    return _read_as_of(file, file.stat().st_mtime_ns)


@lru_cache(1024)
def _read_as_of(file: Path, changed: int) -> Contents:
    tree = _without_docstrings(ast.parse(file.read_text(encoding="utf-8")))
    imports: list[Use] = []
    texts: dict[str, set[str]] = {}
    for statement in tree.body:
        own = texts.setdefault(statement.name if isinstance(statement, ast.ClassDef) else "", set())
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                imports += [Use(alias.name, ALL) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports += [Use(node.module, alias.name) for alias in node.names]
            elif isinstance(node, ast.JoinedStr):
                own.add(_pattern(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                own.add(node.value)
    return Contents(_written(tree), imports, texts)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return tree


def _pattern(text: ast.JoinedStr) -> str:
    """An f-string with `ANY` for its braces; empty where it has no letters besides."""
    parts = [part.value if isinstance(part, ast.Constant) else ANY for part in text.values]
    pattern = "".join(map(str, parts))
    return pattern if any(letter.isalpha() for letter in pattern) else ""


def _solvers(registry: Path) -> dict[str, Use]:
    """Solvers by name, from the dictionaries of the registry: "name": "module:Class"."""
    tree, found = ast.parse(registry.read_text(encoding="utf-8")), {}
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                module, colon, name = str(value.value).partition(":")
                if colon and module.startswith("geonet."):
                    found[str(key.value)] = Use(module, name)
    return found


def _written(node: object) -> str:
    """A tree as text; `ast.dump` writes it differently from version to version of Python."""
    if isinstance(node, ast.AST):
        parts = [(key, value) for key, value in ast.iter_fields(node) if value not in (None, [])]
        inside = ",".join(f"{key}={_written(value)}" for key, value in parts)
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return f"[{','.join(map(_written, node))}]"
    return repr(node)
