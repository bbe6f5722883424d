"""Writes docs/solvers.md: every registered solver, from its class.

Names, summaries, dimensions and answers come from the registry; the texts and the options come from
the docstrings. Run it by `make benchmark NAME=solvers` after a change to any of them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING

from benchmarks.pages import ROOT, format_table
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
`geonet.geodesic(source, target, "monge-ampere", floor=0.01)`. [Choosing a solver](choosing.md) says
which to take, the [benchmark](benchmark.md) how accurate and how fast each is.

`make benchmark NAME=solvers` writes this page from the solvers' docstrings."""
# Pages with more about solvers whose names begin so.
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


def page() -> str:
    """Return the whole page."""
    classes = {name: load_solver_class(name) for name in list_solver_names()}
    rows = [
        (f"[`{name}`](#{name})", cls.info.summary, ", ".join(cls.info.provides[1:]) or "–")
        for name, cls in classes.items()
    ]
    overview = format_table(("solver", "what it is", "gives, besides densities"), rows)
    return "\n\n".join([HEAD, overview, *(section(name, cls) for name, cls in classes.items())])


def section(name: str, cls: type[Solver]) -> str:
    """Return the section of one solver."""
    facts = f"- takes: {dimensions(cls)}\n- gives: {answers(cls)}\n- gradients of: {gradients(cls)}"
    parts = [f"## {name}", text_of(cls), facts]
    options = list(options_of(cls))
    if options:
        parts.append(format_table(("option", "default", "meaning"), options))
    more = [link for start, link in MORE.items() if name.startswith(start)]
    if more:
        parts.append(f"More: {', '.join(more)}.")
    return "\n\n".join(parts)


def text_of(cls: type[Solver]) -> str:
    """Return the docstring without its list of attributes."""
    return split_docstring(cls.__dict__.get("__doc__"))[0]


def options_of(cls: type[Solver]) -> Iterator[tuple[str, str, str]]:
    """Return name, default and meaning of every option."""
    for option in list_options(cls):
        yield f"`{option.name}`", _default(option.default), option.help.replace("|", r"\|")


def dimensions(cls: type[Solver]) -> str:
    """Return the dimensions in words: any dimension; 1D; 1D, 2D."""
    if cls.info.dimensions is None:
        return "any dimension"
    return ", ".join(f"{d}D" for d in cls.info.dimensions)


def answers(cls: type[Solver]) -> str:
    """Return the quantities that its paths provide."""
    return ", ".join(cls.info.provides)


def gradients(cls: type[Solver]) -> str:
    """Return the quantities that have gradients."""
    if set(cls.info.differentiable) >= set(cls.info.provides):
        return "all of these"
    return ", ".join(cls.info.differentiable) or "none of these"


def _default(value: object) -> str:
    """Return a default as a user writes it."""
    if value is MISSING:
        return "–"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
