"""Write docs/solvers.md, and the tables of objects and settings of three other pages.

Names, summaries, dimensions and quantities of solvers come from the registry; texts, options,
purposes of objects and settings come from the docstrings. Run `make benchmark NAME=solvers` after a
change; tests compare the pages with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.baselines import BASELINES
from benchmarks.pages import ROOT, format_table
from experiments import MODELS
from geonet._utils import import_object
from geonet.solvers.base import Solver
from geonet.solvers.registry import (
    list_options,
    list_solver_names,
    load_solver_class,
    split_docstring,
)

PAGE = ROOT / "docs" / "solvers.md"
PURPOSES = ("api.md",)  # pages with a table of objects and purposes above their directives
SETTINGS = (
    "training.md",
    "adding-a-solver.md",
)  # pages with a table of fields above each directive
# Directives of mkdocstrings in comments, which `mkdocs_hooks` turns into documentation.
DIRECTIVE = re.compile(r"^<!-- ::: (\S+)((?:(?!-->).)*)-->\n", re.MULTILINE | re.DOTALL)
RUN = re.compile(rf"(?:(?:^\|[^\n]*\n)+\n)?((?:{DIRECTIVE.pattern}\n*)+)", re.MULTILINE | re.DOTALL)
HEAD = """# Solvers

`geonet.geodesic(source, target, solver="…")` takes any of these names. Options are keywords:
`geonet.geodesic(source, target, "monge-ampere", floor=0.01)`. See [Choosing a
solver](choosing.md) for advice and the [benchmark](benchmark.md) for errors and times.

`make benchmark NAME=solvers` writes this page from the solvers' docstrings."""
BASELINES_HEAD = """## Baselines

These methods are in the repository and not in the package. `import benchmarks.baselines` in a clone
registers them."""
MODELS_HEAD = """## Models of the paper's experiments

`import experiments` in a clone of the repository registers them. They have the options of
`geonet-1d` and `transport-2d`."""
# Pages with more about solvers, by the start of their names.
MORE = {
    "auto": "[unequal masses](unbalanced.md), [periodic axes](periodic.md)",
    "quantile": "[accuracy](accuracy.md#1d-quantiles), [periodic axes](periodic.md)",
    "midpoint": "[any two densities](midpoint.md), [unequal masses](unbalanced.md), "
    "[periodic axes](periodic.md)",
    "monge-ampere": "[accuracy](accuracy.md#2d-mongeampere)",
    "linear-program": "[accuracy](accuracy.md#2d-mongeampere)",
    "schrodinger": "[accuracy](accuracy.md#entropic-the-schrodinger-bridge), "
    "[units of ε](coming-from-pot.md#units-of-reg-and-epsilon)",
    "barycenter": "[why it is biased](coming-from-pot.md#why-the-barycenter-of-pot-is-blurred), "
    "[units of reg](coming-from-pot.md#units-of-reg-and-epsilon)",
    "geonet": "[trained models](models.md), [training](training.md)",
    "er-geonet": "[trained models](models.md#er-geonet-1d-and-er-geonet-2d)",
    "deeponet": "[trained models](models.md#the-others)",
    "transport": "[the transport form](transport.md), [trained models](models.md)",
    "pinn": "[cost and accuracy](reproduction.md#table-1-kinds-of-method)",
    "flow-matching": "[questions](faq.md#is-ot-cfm-not-the-geodesic-already)",
}


def format_page() -> str:
    """Return the whole page: solvers of the package, then the baselines and the paper's models."""
    models = {file.stem for file in MODELS.glob("*.safetensors")}
    names = [name for name in list_solver_names() if name not in models]
    installed = [name for name in names if name not in BASELINES]
    experimental = [name for name in list_solver_names() if name in models]
    parts = [HEAD, format_overview(installed)]
    parts += [format_section(name) for name in installed]
    parts += [BASELINES_HEAD, format_overview(list(BASELINES))]
    parts += [format_section(name) for name in BASELINES]
    return "\n\n".join([*parts, MODELS_HEAD, format_overview(experimental, linked=False)])


def format_overview(names: list[str], linked: bool = True) -> str:
    """Return a table with one row for each solver."""
    rows = []
    for name in names:
        info = load_solver_class(name).info
        link = f"[`{name}`](#{name})" if linked else f"`{name}`"
        rows.append((link, info.summary, ", ".join(info.provides[1:]) or "–"))
    return format_table(("solver", "summary", "provides, besides densities"), rows)


def format_section(name: str) -> str:
    """Return the section of one solver."""
    cls = load_solver_class(name)
    facts = f"- dimensions: {format_dimensions(cls)}\n- provides: {', '.join(cls.info.provides)}"
    facts += f"\n- differentiable: {format_gradients(cls)}"
    facts += f"\n- periodic axes: {'yes' if cls.info.periodic else 'no'}"
    parts = [f"## {name}", read_text(cls), facts]
    options = list(list_rows(cls))
    if options:
        parts.append(format_table(("option", "default", "meaning"), options))
    more = [link for start, link in MORE.items() if name.startswith(start)]
    if more:
        parts.append(f"More: {', '.join(more)}.")
    return "\n\n".join(parts)


def read_text(cls: type[Solver]) -> str:
    """Return the docstring without its list of attributes."""
    return split_docstring(cls.__dict__.get("__doc__"))[0]


def list_rows(cls: type[Solver]) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of every option."""
    for option in list_options(cls):
        yield f"`{option.name}`", _default(option.default), option.help.replace("|", r"\|")


def format_dimensions(cls: type[Solver]) -> str:
    """Return the dimensions: any; 1D; 1D, 2D."""
    if cls.info.dimensions is None:
        return "any"
    return ", ".join(f"{d}D" for d in cls.info.dimensions)


def format_gradients(cls: type[Solver]) -> str:
    """Return the quantities that have gradients."""
    if set(cls.info.differentiable) >= set(cls.info.provides):
        return "all"
    return ", ".join(cls.info.differentiable) or "none"


def _default(value: object) -> str:
    """Return a default as a user writes it."""
    if value is MISSING:
        return "–"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


# ---- tables above the directives of mkdocstrings


def format_reference(name: str) -> str:
    """Return a page with the tables of its objects or settings."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")

    def insert(run: re.Match[str]) -> str:
        listed = [(found[1], found[2]) for found in DIRECTIVE.finditer(run[1])]
        if name in SETTINGS:
            table = format_fields(import_object(":".join(listed[0][0].rsplit(".", 1))))
        else:
            rows = [row for path, options in listed for row in list_purposes(path, options)]
            table = format_table(("name", "purpose"), rows)
        return f"{table}\n\n{run[1]}"

    return RUN.sub(insert, text)


def list_purposes(path: str, options: str) -> Iterator[tuple[str, str]]:
    """Yield name and first sentence of an object, or of the members of a module."""
    try:
        module = import_module(path)
    except ModuleNotFoundError:
        yield _find_public_name(path), _read_summary(import_object(":".join(path.rsplit(".", 1))))
        return
    members = re.search(r"members: \[(.*)\]", options)
    for name in members[1].split(", ") if members else _list_members(module):
        yield f"`{path}.{name}`", _read_summary(getattr(module, name))


def format_fields(cls: type) -> str:
    """Return a table of the fields of a dataclass."""
    assert is_dataclass(cls)
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= split_docstring(base.__dict__.get("__doc__"))[1]
    rows = []
    for field in fields(cls):
        is_table = field.default_factory is not MISSING
        default = "a table of its own" if is_table else _default(field.default)
        meaning = texts.get(field.name, "").rstrip(".").replace("|", r"\|")
        rows.append((f"`{field.name}`", default, meaning))
    return format_table(("name", "default", "meaning"), rows)


def _list_members(module: ModuleType) -> list[str]:
    own = [key for key, value in vars(module).items() if _is_member(value, module)]
    return [key for key in own if not key.startswith("_")]


def _is_member(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _find_public_name(path: str) -> str:
    """Return the name with the shortest path of modules that leads to the same object."""
    *parents, name = path.split(".")
    value = import_object(f"{'.'.join(parents)}:{name}")
    for k in range(1, len(parents) + 1):
        home = ".".join(parents[:k])
        if getattr(import_module(home), name, None) is value:
            return f"`{home}.{name}`"
    raise AssertionError(path)


def _read_summary(value: Any) -> str:
    """Return the first paragraph of a docstring up to its first full stop."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[\w`)])\.(?: |$)", text)[0].replace("|", r"\|") + "."


def main() -> None:
    """Write the pages."""
    PAGE.write_text(format_page() + "\n", encoding="utf-8")
    for name in (*PURPOSES, *SETTINGS):
        (ROOT / "docs" / name).write_text(format_reference(name), encoding="utf-8")


if __name__ == "__main__":
    main()
