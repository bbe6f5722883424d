"""Solvers by name, and by the file of a trained model."""

import pytest

import geonet
from geonet.errors import FileError, SolverError
from geonet.operators import model_file
from geonet.operators.architecture import Branch, Trunk
from geonet.operators.deeponet import DeepONetSettings
from geonet.operators.forms import build
from geonet.operators.geonet import GeONetSettings
from geonet.operators.model_file import kind_of, save_model, write_tensors
from geonet.operators.transport import TransportSettings
from geonet.solvers.learned.network import NetworkSolver
from geonet.solvers.learned.transport import TransportSolver
from geonet.solvers.registry import import_all, make_solver, register, solver_class, solver_names

SETTINGS = {
    "geonet": GeONetSettings(
        sensors=8, rank=4, branch=Branch(width=4, depth=3), trunk=Trunk(width=4, depth=3)
    ),
    "deeponet": DeepONetSettings(
        sensors=8, rank=4, branch=Branch(width=4, depth=3), trunk=Trunk(width=4, depth=3)
    ),
    "transport": TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1),
}
SOLVERS = {"geonet": NetworkSolver, "deeponet": NetworkSolver, "transport": TransportSolver}


@pytest.fixture
def file_of(tmp_path):
    def write(kind):
        return save_model(tmp_path / f"{kind}.safetensors", build(SETTINGS[kind], 0), {})

    return write


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_file_gets_the_solver_of_its_kind(file_of, kind, pair_1d):
    file = file_of(kind)
    assert kind_of(file) == kind
    solver = make_solver(str(file))
    assert isinstance(solver, SOLVERS[kind])
    assert solver.file == str(file)
    assert geonet.geodesic(*pair_1d, str(file)).solver == kind


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_weights_are_not_read_to_choose_a_solver(file_of, kind, monkeypatch):
    file = file_of(kind)
    monkeypatch.setattr(model_file, "read_tensors", lambda *_: pytest.fail("read"))
    make_solver(str(file))


def test_options_of_a_file(file_of):
    assert make_solver(str(file_of("transport")), corrections=2).corrections == 2
    with pytest.raises(SolverError, match="has no option 'corrections'; it takes file."):
        make_solver(str(file_of("geonet")), corrections=2)
    with pytest.raises(SolverError, match="The option corrections of .* it takes a whole number"):
        make_solver(str(file_of("transport")), corrections="many")


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(FileError, match="There is no file"):
        make_solver(str(tmp_path / "nowhere.safetensors"))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not tensors")
    with pytest.raises(FileError, match="as a geonet model"):
        make_solver(str(broken))


@pytest.mark.parametrize("header", [[1, 2], "text", {}, {"kind": "checkpoint"}, {"kind": 3}])
def test_an_unknown_kind_is_refused_when_it_is_asked(tmp_path, header, pair_1d):
    import torch

    file = write_tensors(tmp_path / "odd.safetensors", {"weight": torch.zeros(3)}, header)
    with pytest.raises(FileError, match="odd.safetensors"):
        geonet.geodesic(*pair_1d, str(file))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_shipped_transports_by_name(d):
    cls = solver_class(f"transport-{d}d")
    assert issubclass(cls, TransportSolver) and cls.dimensions == (d,)
    assert cls().corrections == 5 and f"{d}D" in cls.summary


def test_every_name_is_the_solvers_own():
    import_all()
    for name in solver_names():
        assert solver_class(name).name == name
    with pytest.raises(SolverError, match="A solver named 'transport-1d' exists already"):
        register("transport-1d", "nowhere:Nothing")
