"""Imports point down the list of packages, lazy ones included: the tree shows the flow."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import geonet

ROOT = Path(geonet.__file__).parent
LAYERS = (  # from the bottom up; a package may import what stands before it
    (
        "advice",
        "errors",
        "arguments",
        "locations",
        "version",
        "quiet",
        "randomness",
        "files",
        "settings",
        "threads",
        "progress",
        "wording",
    ),
    ("optimizers",),
    ("measures",),
    ("fields",),
    ("geodesics",),
    ("operators",),
    ("solvers",),
    ("evaluation",),
    ("training",),
    ("plotting",),
    ("export",),
    ("studies",),
    ("api",),  # the façade
    ("",),  # geonet itself, which gives the façade's names
    ("xarray",),
    ("app",),
    ("cli",),
    ("__main__",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
BELOW = LEVEL["solvers"]
# Paths and densities are drawn and loaded by packages above their own, by these locations.
HANDED_UP = {
    "geonet.plotting.figures:plot_kind",
    "geonet.plotting.animation:animate_geodesic",
    "geonet.plotting.explore:explore_geodesic",
    "geonet.plotting.explore:framed_html",
    "geonet.plotting.figures:plot_density",
    "geonet.plotting.style:Look",
    "geonet.api:load",
}


def imports_of(tree: ast.AST) -> set[str]:
    """Every module of geonet that is imported anywhere in a file, by statement or by location."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, colon, attribute = node.value.partition(":")
            if colon and attribute.isidentifier() and node.value not in HANDED_UP:
                found.add(module)
    return {name for name in found if name.split(".")[0] == "geonet"}


def part_of(module: str) -> str:
    """The package of a module, or the module itself where it stands alone."""
    names = module.split(".")[1:]
    return names[0] if names and names[0] in LEVEL else ""


def violations(root: Path) -> list[str]:
    """Imports that point up, or from one package into another beside it."""
    wrong = []
    for file in sorted(root.rglob("*.py")):
        module = ".".join(("geonet", *file.relative_to(root).with_suffix("").parts))
        here = part_of(module.removesuffix(".__init__"))
        for name in sorted(imports_of(ast.parse(file.read_text(encoding="utf-8")))):
            there = part_of(name)
            up = LEVEL[there] > LEVEL[here] or (
                LEVEL[there] == LEVEL[here] and there != here and LEVEL[here] > 0
            )
            if up and here != "":  # the front door opens every room
                wrong.append(f"{module} imports {name}")
    return wrong


def test_imports_point_down():
    assert violations(ROOT) == []


def test_every_package_has_its_place():
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or _is_package(path)}
    assert parts - {"__init__"} == set(LEVEL) - {""}


def test_the_check_can_fail(tmp_path):
    """An import that points up is found, at the top of a file and inside a function."""
    (tmp_path / "solvers").mkdir()
    (tmp_path / "solvers" / "pinn.py").write_text(
        "from geonet.grid import Grid\n"
        "def f():\n    from geonet.training.loop import train\n    import geonet\n"
        "PLACE = 'geonet.plotting.figures:draw'\n"
    )
    assert violations(tmp_path) == [
        "geonet.solvers.pinn imports geonet",
        "geonet.solvers.pinn imports geonet.plotting.figures",
        "geonet.solvers.pinn imports geonet.training.loop.train",
    ]


def modules() -> list[str]:
    found = pkgutil.walk_packages(geonet.__path__, "geonet.")
    return [m.name for m in found if not m.name.rpartition(".")[2].startswith("_")]  # compiled


@pytest.mark.parametrize("name", modules())
def test_nothing_shadows_a_module(name):
    """`import a.b.c`, `import a.b.c as m` and `from a.b import c` all give the module."""
    module = importlib.import_module(name)
    package, _, leaf = name.rpartition(".")
    assert getattr(importlib.import_module(package), leaf) is module
    scope: dict[str, object] = {}
    exec(f"import {name} as m", scope)
    assert scope["m"] is module
    exec(f"from {package} import {leaf} as n", scope)
    assert scope["n"] is module


def _is_package(path: Path) -> bool:
    return path.is_dir() and (path / "__init__.py").exists()
