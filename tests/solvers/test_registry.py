"""Solvers by name and by model file, their metadata and options."""

from dataclasses import MISSING
from importlib.metadata import EntryPoint

import pytest
import torch

import geonet
from geonet.errors import FileError, SolverError
from geonet.solvers import registry
from geonet.solvers.base import ALL_QUANTITIES
from geonet.solvers.linear import Linear
from geonet.solvers.neural import model as model_file
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model, save_model, write_tensors
from geonet.solvers.neural.solver import NetworkSolver
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.neural.transport.solver import TransportSolver
from geonet.solvers.registry import (
    find_info,
    list_options,
    list_solver_names,
    load_solver_class,
    make_solver,
    register,
)

SMALL = {
    "sensors": 8,
    "rank": 4,
    "branch": Branch(width=4, depth=3),
    "trunk": Trunk(width=4, depth=3),
}
SETTINGS = {
    "geonet": GeONetSettings(**SMALL),
    "deeponet": DeepONetSettings(**SMALL),
    "transport": TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1),
}


@pytest.fixture
def write_model(tmp_path):
    def write(kind):
        return save_model(tmp_path / f"{kind}.safetensors", build_model(SETTINGS[kind], 0), {})

    return write


# ---- Metadata


@pytest.mark.parametrize("name", list_solver_names())
def test_metadata_is_complete(name):
    info = load_solver_class(name).info
    assert info.name == name and info.summary and info.family
    assert set(info.differentiable) <= set(info.provides) <= set(ALL_QUANTITIES)
    assert info.provides[0] == "density"
    options = list_options(load_solver_class(name))
    assert all(option.help and option.default is not MISSING for option in options)
    assert ("tolerance" in {option.name for option in options}) == (info.tolerance is not None)


def test_the_default_solver_provides_everything():
    assert find_info("auto").provides == ALL_QUANTITIES


def test_metadata_of_unknown_names():
    assert find_info("not-installed").family == "unknown"


def test_options_come_from_fields_and_docstrings():
    options = {option.name: option for option in list_options(load_solver_class("linear-program"))}
    assert options["max_cells"].default == 48 * 48 and options["method"].type == "a name"
    (file,) = list_options(NetworkSolver)
    assert file.default is MISSING and (str(file), file.default_text) == ("file (a name)", "–")


def test_invalid_options_raise():
    with pytest.raises(SolverError, match="no option 'tolerence'; did you mean 'tolerance'?"):
        make_solver("midpoint", tolerence=1e-3)
    with pytest.raises(SolverError, match="refine of 'midpoint' is 'no'; it takes true or false"):
        make_solver("midpoint", refine="no")
    for name, value in {"reach": 0.1, "growth": "wfr"}.items():
        with pytest.raises(SolverError, match=f"takes no {name}; choose one of auto, midpoint"):
            make_solver("quantile", **{name: value})
    with pytest.raises(SolverError, match="'linear' has no option 'x'; it takes none"):
        make_solver("linear", x=1)
    for option, owners in (
        ("refine", "solver='midpoint' has it"),
        ("max_iterations", "solver='midpoint' and solver='linear-program' have it"),
    ):
        with pytest.raises(SolverError, match=f"'auto' has no option '{option}'; {owners}"):
            make_solver("auto", **{option: 5})
    with pytest.raises(SolverError, match="'auto' has no option 'epsilon'; it takes learned"):
        make_solver("auto", epsilon=0.1)  # of schrodinger, which auto never chooses


# ---- Model files


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_model_file_is_a_solver(write_model, kind, pair_1d, monkeypatch):
    file = write_model(kind)
    assert geonet.geodesic(*pair_1d, str(file)).solver == kind
    monkeypatch.setattr(model_file, "read_tensors", lambda *_: pytest.fail("weights are read"))
    solver = make_solver(str(file))
    assert isinstance(solver, TransportSolver if kind == "transport" else NetworkSolver)
    assert solver.file == str(file)


def test_options_of_a_model_file(write_model):
    assert make_solver(write_model("transport"), max_iterations=2).max_iterations == 2
    with pytest.raises(SolverError, match="no option 'max_iterations'"):
        make_solver(write_model("geonet"), max_iterations=2)
    with pytest.raises(SolverError, match="it takes a whole number"):
        make_solver(write_model("transport"), max_iterations="many")


def test_invalid_model_files_raise(tmp_path, pair_1d):
    with pytest.raises(FileError, match="nowhere"):
        make_solver(str(tmp_path / "nowhere.safetensors"))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not tensors")
    with pytest.raises(FileError, match="model"):
        make_solver(str(broken))
    for header in ([1, 2], "text", {}, {"kind": "checkpoint"}, {"kind": 3}):
        file = write_tensors(tmp_path / "odd.safetensors", {"weight": torch.zeros(3)}, header)
        with pytest.raises(FileError, match=r"odd\.safetensors"):
            geonet.geodesic(*pair_1d, str(file))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_pretrained_models(d):
    cls = load_solver_class(f"transport-{d}d")
    assert issubclass(cls, TransportSolver) and cls.info.dimensions == (d,)
    assert cls().max_iterations == TransportSolver.max_iterations > 0


# ---- Solvers of other packages


def test_register(monkeypatch):
    monkeypatch.setattr(registry, "_LOCATIONS", dict(registry._LOCATIONS))
    register("mine", "geonet.solvers.linear:Linear")
    assert load_solver_class("mine") is Linear
    for name, location in (("mine", "a:B"), ("transport-1d", "a:B"), ("", "a:B"), ("other", "a")):
        with pytest.raises(SolverError, match="exists|empty|module:Class"):
            register(name, location)


@pytest.fixture
def plugins(monkeypatch):
    """Install entry points; return the list of lookups."""
    locations = {
        "plugin": "geonet.solvers.linear:Linear",
        "quantile": "geonet.solvers.linear:Linear",
        "missing": "no_such_package.solver:Missing",
        "renamed": "geonet.solvers.linear:Nothing",
        "number": "math:pi",
    }
    lookups = []

    def entry_points(*, group):
        lookups.append(group)
        return [EntryPoint(name, location, group) for name, location in locations.items()]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry._find_plugins.cache_clear()
    yield lookups
    registry._find_plugins.cache_clear()


def test_a_plugin_is_a_solver(plugins, pair_1d):
    assert geonet.geodesic(*pair_1d, "plugin").solver == "linear"
    assert list_solver_names()[-4:] == ["plugin", "missing", "renamed", "number"]
    assert geonet.list_solvers()["plugin"] == geonet.list_solvers()["linear"]
    with pytest.raises(SolverError, match="did you mean 'plugin'?"):
        load_solver_class("plugins")
    assert plugins == ["geonet.solvers"]  # looked up once


def test_plugins_do_not_replace_solvers(plugins):
    assert make_solver("quantile").name == "quantile"
    assert plugins == []  # not looked up
    assert list_solver_names().count("quantile") == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "No module named 'no_such_package'"),
        ("renamed", "has no attribute 'Nothing'"),
        ("number", "not a subclass of geonet.Solver"),
    ],
)
def test_a_broken_plugin_raises_only_if_it_is_used(plugins, name, reason, pair_1d, tmp_path):
    with pytest.raises(SolverError, match=reason):
        geonet.geodesic(*pair_1d, name)
    assert name not in geonet.list_solvers() and "plugin" in geonet.list_solvers()
    file = geonet.geodesic(*pair_1d, "plugin").save(tmp_path / "path.npz", times=[0.0])
    assert geonet.load(file).grid == pair_1d[0].grid
