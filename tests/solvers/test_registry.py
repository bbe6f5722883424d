"""Solvers by name, and by the file of a trained model."""

import json
from importlib.metadata import EntryPoint

import pytest

import geonet

from geonet.errors import FileError, SolverError
from geonet.solvers import registry
from geonet.solvers.linear import Linear
from geonet.solvers.neural import model as model_file
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import (
    Branch,
    Trunk,
    build_model,
    read_kind,
    save_model,
    write_tensors,
)
from geonet.solvers.neural.solver import NetworkSolver
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.neural.transport.solver import TransportSolver
from geonet.solvers.registry import (
    import_all_solvers,
    list_solver_names,
    load_solver_class,
    make_solver,
    register,
)

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
        return save_model(tmp_path / f"{kind}.safetensors", build_model(SETTINGS[kind], 0), {})

    return write


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_file_gets_the_solver_of_its_kind(file_of, kind, pair_1d):
    file = file_of(kind)
    assert read_kind(file) == kind
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
    with pytest.raises(
        SolverError, match="has no option 'corrections'; it takes file \\(a name\\)."
    ):
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
    cls = load_solver_class(f"transport-{d}d")
    assert issubclass(cls, TransportSolver) and cls.info.dimensions == (d,)
    assert cls().corrections == TransportSolver.corrections > 0 and f"{d}D" in cls.info.summary


def test_every_name_is_the_solvers_own():
    import_all_solvers()
    for name in list_solver_names():
        assert load_solver_class(name).info.name == name
    with pytest.raises(SolverError, match="A solver named 'transport-1d' exists already"):
        register("transport-1d", "nowhere:Nothing")


@pytest.fixture
def others(monkeypatch):
    """Solvers of other packages; gives how often they were looked for."""
    places = {
        "theirs": "geonet.solvers.linear:Linear",
        "quantile": "geonet.solvers.linear:Linear",
        "gone": "no_such_package.solver:Gone",
        "renamed": "geonet.solvers.linear:Nothing",
        "number": "math:pi",
        "module": "math",
    }
    asked = []

    def found(*, group):
        asked.append(group)
        return [EntryPoint(name, place, group) for name, place in places.items()]

    monkeypatch.setattr(registry, "entry_points", found)
    registry._find_plugins.cache_clear()
    yield asked
    registry._find_plugins.cache_clear()


def test_a_solver_of_another_package(others, pair_1d, capsys):
    assert geonet.geodesic(*pair_1d, "theirs").density(0.5).tensor.shape == pair_1d[0].tensor.shape
    assert load_solver_class("theirs") is Linear
    assert list_solver_names()[-5:] == ["theirs", "gone", "renamed", "number", "module"]
    assert geonet.list_solvers()["theirs"] == geonet.list_solvers()["linear"]
    assert main(["solvers", "--json"]) == 0
    assert "theirs" in [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    with pytest.raises(SolverError, match="There is no solver 'theirz'; did you mean 'theirs'?"):
        load_solver_class("theirz")
    assert others == ["geonet.solvers"]  # once


def test_a_name_of_ours_stays_ours_and_nothing_is_looked_for(others):
    assert make_solver("quantile").name == "quantile"
    assert others == []
    assert list_solver_names().count("quantile") == 1
    assert load_solver_class("quantile").info.name == "quantile"


@pytest.mark.parametrize(
    ("name", "place", "reason"),
    [
        ("gone", "no_such_package.solver:Gone", "No module named 'no_such_package'"),
        ("renamed", "geonet.solvers.linear:Nothing", "has no attribute 'Nothing'"),
        ("number", "math:pi", "it is no subclass of geonet.Solver"),
        ("module", "math", "it is no subclass of geonet.Solver"),
    ],
)
def test_a_broken_one_is_named_and_breaks_no_other(others, name, place, reason, pair_1d, tmp_path):
    with pytest.raises(SolverError) as error:
        geonet.geodesic(*pair_1d, name)
    message = str(error.value)
    start = f"The solver {name!r} of another package, {place}, cannot be loaded: "
    assert message.startswith(start) and reason in message
    assert message.endswith("; mend or remove that package.")
    assert name not in geonet.list_solvers() and "theirs" in geonet.list_solvers()
    file = geonet.geodesic(*pair_1d, "theirs").save(tmp_path / "path.npz", times=[0.0])
    assert geonet.load(file).source.grid == pair_1d[0].grid
