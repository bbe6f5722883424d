"""`geonet.evaluation` has what users need."""

import subprocess
import sys
from pathlib import Path

import pytest

from geonet import evaluation

FOLDER = Path(evaluation.__file__).parent


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
