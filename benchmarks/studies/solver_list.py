"""Write docs/solvers.md: a section for every registered solver.

Names, summaries, dimensions and quantities come from the registry; texts and options come from the
docstrings. Run `make benchmark NAME=solvers` after a change; a test compares page and registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING

from benchmarks.baselines import BASELINES
from benchmarks.pages import ROOT, format_table
from experiments import MODELS
from geonet.solvers.base import Solver
from geonet.solvers.registry import (
    list_options,
    list_solver_names,
    load_solver_class,
    split_docstring,
)

PAGE = ROOT / "docs" / "solvers.md"
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
    "quantile": "[accuracy](accuracy.md#1d-quantiles)",
    "monge-ampere": "[accuracy](accuracy.md#2d-mongeampere)",
    "linear-program": "[accuracy](accuracy.md#2d-mongeampere)",
    "schrodinger": "[accuracy](accuracy.md#entropic-the-schrodinger-bridge), "
    "[units of ε](faq.md#what-are-the-units-of-reg-and-epsilon)",
    "barycenter": "[why it is biased](concepts.md#why-pots-barycenter-is-biased), "
    "[units of reg](faq.md#what-are-the-units-of-reg-and-epsilon)",
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


def main() -> None:
    """Write the page."""
    PAGE.write_text(format_page() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
