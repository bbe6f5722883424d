"""Models from files, kept until their file changes."""

import os

import pytest

from geonet.errors import FileError, SolverError
from geonet.solvers.neural import model as opening
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build, opened, save_model
from geonet.solvers.neural.transport.network import TransportNet, TransportSettings

LINE = TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1)
TINY = GeONetSettings(
    sensors=8, rank=4, branch=Branch(width=4, depth=3), trunk=Trunk(width=4, depth=3)
)


@pytest.fixture
def file(tmp_path):
    return save_model(tmp_path / "model.safetensors", build(LINE, 0), {"name": "tiny"})


def test_the_model_and_its_header(file):
    model, header = opened(file, 1)
    assert isinstance(model, TransportNet)
    assert (model.settings, header["name"], header["kind"]) == (LINE, "tiny", "transport")


def test_a_file_is_read_once(file, monkeypatch):
    first, _ = opened(file, 1)
    monkeypatch.setattr(opening, "load_model", lambda *_: pytest.fail("read again"))
    assert opened(file, 1)[0] is first


@pytest.mark.parametrize("how", ["time", "size"])
def test_a_file_that_changed_is_read_again(file, how):
    first, _ = opened(file, 1)
    before = file.stat().st_mtime_ns
    save_model(file, build(LINE, 1), {"name": "tiny" if how == "time" else "another name"})
    os.utime(file, ns=(before, before + 1 if how == "time" else before))
    second, _ = opened(file, 1)
    assert second is not first


def test_another_kind_is_refused(file, tmp_path):
    other = save_model(tmp_path / "other.safetensors", build(TINY, 0), {})
    for wrong, kind, named in ((file, "geonet", "transport"), (other, "transport", "geonet")):
        with pytest.raises(SolverError) as caught:
            opened(wrong, 1, kind)
        assert f"is of the kind '{named}', which this solver does not take" in str(caught.value)
        assert f"solver={str(wrong)!r}." in str(caught.value)


def test_another_dimension_is_refused(file):
    with pytest.raises(SolverError, match="takes 1D densities, these are 2D; choose another"):
        opened(file, 2)


def test_no_file(tmp_path):
    with pytest.raises(FileError, match="There is no file"):
        opened(tmp_path / "nowhere.safetensors", 1)
