"""The sources of a measurement: all that may change its figures, found from where it begins.

One rule, which counts too much rather than too little:

- A module counts with all that it imports, wherever in it the import stands, and with the C files
  beside it. A text "module:name" is an import too, of what is imported when it is first used.
- A text that is the name of a solver counts as an import of its module; one that is the name of a
  model, or of a file of weights, digits or settings, as that file. In the name f"transport-{d}d"
  anything may stand for the braces. The two tables of all solvers name every one, and so say
  nothing about which is used.
- Pictures and the command line count for nothing but themselves.

The hash is that of the code: comments, docstrings and layout do not change it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parents[2]  # the folder that has the package
DATA = ("geonet/operators/pretrained", "geonet/demo_data", "../configs")  # from a folder
REGISTRY, SHIPPED = "geonet.solvers.registry", "geonet.solvers.learned.shipped"  # the two tables
APART = (  # what shows a figure does not measure it, and neither does what stamps it
    "geonet.cli",
    "geonet.plotting",
    "geonet.evaluation.machine",
    "geonet.evaluation.sources",
    "geonet.evaluation.stamp",
    "pages",  # these two are in studies/pages and write tables there
    "published",
)
LOADS = "geonet.api:load"  # by which a path loads a stored one; no measurement does
LOCATION = re.compile(r"geonet(\.\w+)+:\w+")
ANY = "\0"  # in a text: what an f-string has between braces


class Contents(NamedTuple):
    """What matters of a module: its code, the names it imports, and its texts."""

    code: str
    imports: set[str]
    texts: set[str]


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
    solvers, data = _solvers(folders), _data(folders)
    todo, seen, found = list(modules), set[str](), set[Path]()
    while todo:
        module = todo.pop()
        file = module_file(module, folders)
        if module in seen or file is None:
            continue
        seen.add(module)
        contents = _read(file)
        found |= {file, *file.parent.glob("*.c")}
        imported = set(contents.imports)
        if module != REGISTRY:
            imported |= {text for text in contents.texts if LOCATION.fullmatch(text)} - {LOADS}
        if module not in (REGISTRY, SHIPPED):
            imported |= {solvers[name] for name in _named(solvers, contents.texts)}
            found |= {data[name] for name in _named(data, contents.texts)}
        todo += [
            name
            for location in imported
            if not _is_apart(name := _module_at(location, folders), module)
        ]
    named = {_path_in(file, folders): file for file in found}
    return dict(sorted(named.items()))


def module_file(module: str, folders: Sequence[Path]) -> Path | None:
    """The file of a module in one of the folders; None for all others' modules."""
    path = Path(*module.split("."))
    places = [folder / end for folder in folders for end in (f"{path}.py", path / "__init__.py")]
    return next((place for place in places if place.is_file()), None)


def _solvers(folders: Sequence[Path]) -> dict[str, str]:
    """The modules of solvers by name, from the dictionary of the registry."""
    file, found = module_file(REGISTRY, folders), {}
    tree = ast.parse("" if file is None else file.read_text(encoding="utf-8"))
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                found[str(key.value)] = str(value.value).partition(":")[0]
    return found


def _data(folders: Sequence[Path]) -> dict[str, Path]:
    """Files by their names, and weights also by those of their models."""
    files = [f for folder in folders for part in DATA for f in (folder / part).glob("*.*")]
    files = [file for file in files if file.suffix != ".md"]
    models = {file.stem: file for file in files if file.suffix == ".safetensors"}
    return {file.name: file for file in files} | models


def _named(names: Iterable[str], texts: set[str]) -> list[str]:
    """Those of the names that are one of the texts, or could be; of files that are."""
    patterns = [
        re.compile(".*".join(map(re.escape, text.split(ANY)))) for text in texts if ANY in text
    ]
    return [
        name
        for name in names
        if name in texts or ("." not in name and any(p.fullmatch(name) for p in patterns))
    ]


def _module_at(location: str, folders: Sequence[Path]) -> str:
    """The module of "module:name", which is module.name where that is a module."""
    inner = location.replace(":", ".")
    return inner if module_file(inner, folders) else location.partition(":")[0]


def _is_apart(imported: str, by: str) -> bool:
    def inside(module: str, package: str) -> bool:
        return module == package or module.startswith(f"{package}.")

    return any(inside(imported, package) and not inside(by, package) for package in APART)


def _path_in(file: Path, folders: Sequence[Path]) -> str:
    folder = next(folder for folder in folders if file.is_relative_to(folder))
    return file.relative_to(folder).as_posix()  # with .. for a config


# ---- reading code


def _read(file: Path) -> Contents:
    return _read_as_of(file, file.stat().st_mtime_ns)


@lru_cache(1024)
def _read_as_of(file: Path, changed: int) -> Contents:
    tree = _without_docstrings(ast.parse(file.read_text(encoding="utf-8")))
    imports, texts = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.JoinedStr):
            texts.add(_pattern(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
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


def _written(node: object) -> str:
    """A tree as text; `ast.dump` writes it differently from version to version of Python."""
    if isinstance(node, ast.AST):
        parts = [(key, value) for key, value in ast.iter_fields(node) if value not in (None, [])]
        inside = ",".join(f"{key}={_written(value)}" for key, value in parts)
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return f"[{','.join(map(_written, node))}]"
    return repr(node)
