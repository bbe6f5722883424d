"""`geonet.evaluation` has what users need, and depends on nothing above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from geonet import evaluation

FOLDER = Path(evaluation.__file__).parent
ABOVE = ("geonet.training", "geonet.studies", "geonet.plotting", "geonet.cli")


@pytest.mark.parametrize("name", evaluation.__all__)
def test_every_name_is_there(name):
    assert getattr(evaluation, name).__name__ == name


def test_no_name_is_that_of_a_module():
    modules = {file.stem for file in FOLDER.glob("*.py")}
    assert not modules & set(evaluation.__all__)
    assert dir(evaluation) == sorted(evaluation.__all__)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'geonet.evaluation' has no attribute 'l3'"):
        evaluation.l3  # noqa: B018


def test_importing_it_takes_no_time():
    code = "import sys, geonet.evaluation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_nothing_above_is_imported(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        assert not any(name.startswith(ABOVE) for name in names)
