"""Structure of the package: imports point inwards, and only `info` describes solvers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import geonet
from geonet.solvers.registry import list_solver_names

ROOT = Path(geonet.__file__).parent
RINGS = {  # other files are the core, ring 0
    **dict.fromkeys(("solvers", "api", "barycenter_report", "barycenters", "distances"), 1),
    **dict.fromkeys(("metrics", "report"), 1),
    **dict.fromkeys(("evaluation", "training", "onnx", "plotting", "xarray", "app", "cli"), 2),
}
ENTRY_POINTS = ("__init__.py", "__main__.py")


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(ROOT.rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield imported modules, also those inside functions, but not those for type checking."""
    nodes = list(tree.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            nodes += ast.iter_child_nodes(node)


def ring(module: str) -> int:
    return RINGS.get(module.split(".")[0], 0)


def test_imports_point_inwards():
    outwards = [
        (file, name)
        for file, tree in trees()
        for name in imports(tree)
        if name.startswith("geonet.") and file not in ENTRY_POINTS
        if ring(name.removeprefix("geonet.")) > ring(file.removesuffix(".py").replace("/", "."))
    ]
    assert outwards == []


def test_the_package_imports_no_benchmarks():
    names = {name.split(".")[0] for _, tree in trees() for name in imports(tree)}
    assert not names & {"benchmarks", "experiments", "tests"}


def test_importing_geonet_does_not_import_torch():
    code = "import sys, geonet, geonet.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


SLOW_IMPORTS = ("matplotlib", "ot", "PIL", "rich", "torch._dynamo", "typer", "sympy")
FIRST_USE = f"""
import sys
import numpy as np
import geonet
from geonet.solvers.neural.model import PRETRAINED, load_model
y, x = np.mgrid[0:16, 0:16] / 16
spots = [np.exp(-((x - c) ** 2 + (y - c) ** 2) / 0.01) for c in (0.3, 0.6)]
ends = [geonet.Density(spot, geonet.Grid((16, 16))) for spot in spots]
path = geonet.geodesic(*ends)
path.density(0.5), path.distance, path.report
for file in PRETRAINED.glob("*.safetensors"):
    load_model(file)
imported = [name for name in {SLOW_IMPORTS} if name in sys.modules]
sys.exit(f"imported {{imported}} by {{path.solver}}" if imported else 0)
"""


def test_the_first_use_imports_nothing_slow():
    """These packages, or torch's compiler, would delay the first result by up to two seconds."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_info_describes_solvers():
    """No file but these has a table of solver names, or compares with one."""
    allowed = ("solvers/registry.py", "solvers/neural/pretrained.py", "solvers/auto.py")
    # also names of colour scales, of layouts, and of a function and a command
    ambiguous = {"linear", "auto", "barycenter"}
    names = set(list_solver_names()) - ambiguous
    tables = []
    for file, tree in trees():
        for node in ast.walk(tree):
            parts: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                parts = node.keys
            elif isinstance(node, ast.Tuple | ast.List | ast.Set):
                parts = [*node.elts]
            elif isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
            if file not in allowed and names & {getattr(part, "value", None) for part in parts}:
                tables.append(f"{file}:{node.lineno}")
    assert tables == []


def test_the_default_solver_passes_through_few_files():
    """Count the files of a solve with the default solver, after imports and caches are warm."""
    points = geonet.Grid((48, 48)).points()
    ends = [torch.exp(-((points - c) ** 2).sum(-1) / 0.02) + 0.01 for c in (0.35, 0.65)]
    source, target = (geonet.Density(end, geonet.Grid((48, 48))) for end in ends)
    files = set()

    def record(frame, event, argument):
        files.add(frame.f_code.co_filename)

    for profile in (None, record):
        sys.setprofile(profile)
        geonet.geodesic(source, target).density([0.25, 0.5, 0.75])
    sys.setprofile(None)
    assert len([file for file in files if file.startswith(str(ROOT))]) <= 18
