"""What a measurement depends on: found from its imports and texts, and not more than that."""

from pathlib import Path

import pytest

from geonet.evaluation.sources import SOURCES, source_files, sources_hash
from geonet.solvers.learned.shipped import SHIPPED
from geonet.solvers.registry import solver_names

FILES = {
    "geonet/__init__.py": "from geonet.api import ask\n",
    "geonet/api.py": "from geonet.solvers.registry import make\n\n\ndef ask():\n    make('x')\n",
    "geonet/solvers/__init__.py": "",
    "geonet/solvers/registry.py": (
        "import geonet.solvers.learned.shipped\n\n"
        'TABLE = {"plain": "geonet.solvers.plain:Plain", "other": "geonet.solvers.other:Other"}\n'
    ),
    "geonet/solvers/plain.py": "class Plain:\n    pass\n",
    "geonet/solvers/other.py": "class Other:\n    pass\n",
    "geonet/solvers/learned/shipped.py": (
        'SHIPPED = {"net-1d": 1, "net-2d": 2}\nNETWORK = "geonet.solvers.learned.net:Net"\n'
    ),
    "geonet/solvers/learned/net.py": "class Net:\n    pass\n",
    "geonet/fields/loops.py": '"""Loops."""\n\nCELLS = 3  # a side\n',
    "geonet/fields/kernels.c": "int cells = 3;\n",
    "geonet/plotting/__init__.py": "COLOUR = 'red'\n",
    "geonet/operators/pretrained/net-1d.safetensors": "one",
    "geonet/operators/pretrained/net-2d.safetensors": "two",
    "geonet/operators/pretrained/net-2d.md": "A card.",
}
LOOPS = {"fields/loops.py", "fields/kernels.c"}
TABLES = {"solvers/registry.py", "solvers/learned/shipped.py", "solvers/learned/net.py"}


@pytest.fixture
def tree(tmp_path):
    """A package with three solvers, two of them with weights, and a way to add a script."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def found(tree, script):
    (tree / "script.py").write_text(script)
    return {name.removeprefix("geonet/") for name in source_files(["script"], (tree,))}


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("", set()),
        ("import os, torch", set()),
        ("from geonet.fields import loops", LOOPS),
        ("import geonet.fields.loops", LOOPS),
        ("def f():\n    from geonet.fields.loops import CELLS", LOOPS),
        ('PLACE = "geonet.fields.loops:CELLS"', LOOPS),
        ("import geonet", {"__init__.py", "api.py", *TABLES}),
        ("from geonet import api", {"api.py", *TABLES}),
        ("import geonet.solvers.registry", TABLES),  # which names all solvers, and means none
        ("from geonet.plotting import COLOUR", set()),
        ('PLACE = "geonet.plotting:COLOUR"', set()),
        ('NAME = "plain"', {"solvers/plain.py"}),
        ('NAME = "not plain"', set()),
        ('"""plain"""', set()),  # a docstring is not code
        ('NAME = "net-1d"', {"operators/pretrained/net-1d.safetensors"}),
        ('NAME = "net-1d.safetensors"', {"operators/pretrained/net-1d.safetensors"}),
        ('NAME = "net-2d.md"', set()),
    ],
)
def test_imports_and_texts_count(tree, script, more):
    assert found(tree, script) == {"script.py"} | more


def test_anything_may_stand_for_braces(tree):
    files = found(tree, 'NAME = f"net-{d}d"')
    assert {f"operators/pretrained/net-{d}d.safetensors" for d in (1, 2)} <= files
    assert "solvers/plain.py" not in files
    assert found(tree, 'NAME = f"{a}{b}**"') == {"script.py"}


def test_only_what_is_code_changes_the_hash(tree):
    script = tree / "script.py"
    (tree / "geonet" / "plotting" / "__init__.py").write_text("COLOUR = 'blue'\n")
    script.write_text("from geonet.fields.loops import CELLS\nfrom geonet.plotting import COLOUR\n")

    def now():
        return sources_hash(["script"], (tree,))

    before, loops = now(), tree / "geonet" / "fields" / "loops.py"
    loops.write_text('"""Other words."""\n# more\n\nCELLS = (\n    3\n)\n')
    assert now() == before
    (tree / "geonet" / "plotting" / "__init__.py").write_text("COLOUR = 'green'\n")
    assert now() == before
    loops.write_text("CELLS = 4\n")
    changed = now()
    assert changed != before
    (tree / "geonet" / "fields" / "kernels.c").write_text("int cells = 4;\n")
    assert now() not in (before, changed)


def test_weights_count_where_they_are_loaded(tree):
    script = tree / "script.py"
    script.write_text('NAME = "net-1d"\n')
    before = sources_hash(["script"], (tree,))
    weights = tree / "geonet" / "operators" / "pretrained"
    (weights / "net-2d.safetensors").write_text("other")
    assert sources_hash(["script"], (tree,)) == before
    (weights / "net-1d.safetensors").write_text("other")
    assert sources_hash(["script"], (tree,)) != before


def test_the_command_line_counts_for_itself_alone():
    benchmark = source_files(["geonet.studies.benchmark.run"])
    assert not any(name.startswith(("geonet/cli", "geonet/plotting")) for name in benchmark)
    assert "geonet/cli/geodesic.py" in source_files(["geonet.cli.app"])


def test_every_solver_is_found_by_its_name(tmp_path):
    """As the tables have them; a solver that is registered in another way would be missed."""
    for name in solver_names():
        (tmp_path / "script.py").write_text(f"NAME = {name!r}\n")
        files = source_files(["script"], (SOURCES, tmp_path))
        weights = f"geonet/operators/pretrained/{name}.safetensors"
        assert (weights in files) == (name in SHIPPED)
        assert name in SHIPPED or any(file.startswith("geonet/solvers/") for file in files), name


def test_the_real_package():
    files = source_files(["geonet.evaluation.truth"])
    assert list(files) == sorted(files)
    assert all(isinstance(file, Path) and file.is_file() for file in files.values())
    for part in ("solvers/exact/monge_ampere.py", "fields/compiled/kernels.c", "errors.py"):
        assert f"geonet/{part}" in files
    assert not any("training" in name or "per_pair" in name for name in files)
