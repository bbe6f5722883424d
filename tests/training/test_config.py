"""Training configs: round trip through TOML, rejected settings, relative paths."""

import tomllib
from copy import deepcopy
from pathlib import Path

import pytest

from geonet._toml import from_table, to_table, to_toml
from geonet.errors import ConfigError, FileError
from geonet.training.config import TrainingConfig, read_config

CONFIGS = sorted((Path(__file__).parents[2] / "experiments" / "configs").glob("*.toml"))
SMALLEST = {"name": "small", "steps": 10, "problem": {"family": "mixtures-1d"}}


def change(changes):
    """Return the smallest config with some keys set by their dotted paths; None removes one."""
    table = deepcopy(SMALLEST)
    for path, value in changes.items():
        *tables, key = path.split(".")
        part = table
        for name in tables:
            part = part.setdefault(name, {})
        if value is None:
            del part[key]
        else:
            part[key] = value
    return table


def assert_round_trip(config):
    assert from_table(TrainingConfig, tomllib.loads(to_toml(to_table(config)))) == config


def test_configs_of_the_experiments_load():
    names = [read_config(file).name for file in CONFIGS]
    assert {"geonet-1d", "transport-2d", "deeponet-1d", "universal-3d"} <= set(names)
    for file in CONFIGS:
        assert_round_trip(read_config(file))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 2**31 - 1, "compile": True, "name": "a.b-c_1"},
        {"problem": {"file": "a folder/pairs.npz"}, "model.dimension": 3},
        {"problem": {"family": "my.module:problem", "file": "data.npz"}},
        {"loss.epsilon": 0.01, "model.swap_symmetry": "density"},
        {"loss.weigh_by_density": True, "model.swap_symmetry": "both"},
        {"model.trunk.features": "fourier", "model.trunk.sigma": 3},
        {"optimizer.name": "adam", "sampling.scheme": "triples", "validation.pairs": 0},
        {"model.kind": "transport", "model.seen": 8, "loss.floor": 0.3},
        {"model.kind": "deeponet", "model.swap_symmetry": "density", "compile": True},
        {"problem": {"file": "pairs.npz"}, "model": {"kind": "transport", "dimension": 2}},
    ],
)
def test_toml_round_trip(changes):
    assert_round_trip(from_table(TrainingConfig, change(changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # unknown, missing, of a wrong type
        ({"modle": {}}, "Unknown key modle; did you mean 'model'"),
        ({"model.trunk.witdh": 3}, "Unknown key model.trunk.witdh; did you mean 'width'"),
        ({"problem": None}, "problem is missing"),
        ({"steps": 10.5}, "steps is 10.5"),
        ({"compile": "yes"}, "compile is 'yes'"),
        ({"model": 3}, "model is 3"),
        ({"model.branch.network": "separable"}, "model.branch.network is 'separable'"),
        # out of range
        ({"model.trunk.width": -3}, "model.trunk: width is -3"),
        ({"model.trunk.depth": 1}, "model.trunk: depth is 1"),
        ({"model.trunk.sigma": 0.0}, "model.trunk: sigma is 0.0"),
        ({"model.dimension": 4}, "model: dimension is 4"),
        ({"model.sensors": 1}, "model: sensors is 1"),
        ({"loss.source": -1}, "loss: source is -1.0"),
        (
            {"loss": dict.fromkeys(("continuity", "hamilton_jacobi", "source", "target"), 0)},
            "all weights are zero",
        ),
        ({"sampling.places": 0}, "sampling: places is 0"),
        ({"optimizer.learning_rate": 0}, "optimizer: learning_rate is 0.0"),
        ({"optimizer.final": 1.5}, "optimizer: final is 1.5"),
        ({"optimizer.warmup": -1}, "optimizer: warmup is -1"),
        ({"optimizer.weight_decay": -0.1}, "optimizer: weight_decay is -0.1"),
        ({"validation.pairs": -1}, "validation: pairs is -1"),
        ({"validation.every": 0}, "validation: every is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"seed": 2**31}, "seed is 2147483648"),
        # contradictory
        ({"problem": {}}, "either a family or a file"),
        ({"problem.file": "a.npz"}, "either a family or a file"),
        ({"problem.floor": 0.1}, "floor applies to a file only"),
        ({"loss.epsilon": 0.01, "model.swap_symmetry": "both"}, "swap_symmetry"),
        (
            {"loss.epsilon": 0.01, "loss.characteristics": 1.0, "model.swap_symmetry": "density"},
            "loss.characteristics",
        ),
        ({"loss.characteristics": 1.0, "sampling.scheme": "triples"}, "cartesian"),
        # by the kind of model
        ({"model.kind": "fno"}, "model.kind is 'fno'"),
        ({"model.kind": "transport", "model.rank": 3}, "Unknown key model.rank"),
        ({"model.kind": "transport", "model.seen": 7}, "seen is 7"),
        ({"model.kind": "transport", "sampling.scheme": "triples"}, "cartesian"),
        ({"model.kind": "transport", "compile": True}, "compile"),
        ({"model.kind": "transport", "loss.source": 0.5}, "loss"),
        ({"model.kind": "transport", "loss.epsilon": 0.01}, "loss"),
        ({"model.kind": "deeponet", "model.swap_symmetry": "both"}, "swap_symmetry is 'both'"),
        ({"model.kind": "deeponet", "problem": {"file": "pairs.npz"}}, "mixtures-1d"),
        ({"model.kind": "deeponet", "loss.epsilon": 0.1}, "loss"),
        ({"model.kind": "deeponet", "sampling.scheme": "triples"}, "cartesian"),
    ],
)
def test_wrong_configs_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        from_table(TrainingConfig, change(changes))


@pytest.mark.parametrize("name", ["", "two words", ".hidden", "..", "a/b", "a\\b", "line\n"])
def test_names_that_are_no_folder_are_rejected(name):
    with pytest.raises(ConfigError, match="use letters"):
        from_table(TrainingConfig, SMALLEST | {"name": name})


def write(file, settings):
    file.parent.mkdir(exist_ok=True)
    file.write_text(to_toml(settings), encoding="utf-8")


def test_files_are_relative_to_the_config(tmp_path, monkeypatch):
    config = tmp_path / "configs" / "config.toml"
    write(config, SMALLEST | {"problem": {"file": "pairs.npz"}})
    assert read_config(config).problem.file == str(tmp_path / "configs" / "pairs.npz")
    elsewhere = str(tmp_path.parent / "pairs.npz")
    write(config, SMALLEST | {"problem": {"file": elsewhere}})
    assert read_config(config).problem.file == elsewhere
    monkeypatch.chdir(tmp_path)
    write(config, SMALLEST | {"problem": {"file": "pairs.npz"}})
    write(Path("runs/config.toml"), to_table(read_config(Path("configs/config.toml"))))
    copy = read_config(Path("runs/config.toml"))
    assert Path(copy.problem.file).resolve() == tmp_path / "configs" / "pairs.npz"
    write(config, SMALLEST | {"problem": {"file": "pairs\0.npz"}})
    with pytest.raises(FileError, match=r"Cannot read .*config.toml as a config: .*null"):
        read_config(config)


def test_a_start_is_a_pretrained_model_or_relative_to_the_config(tmp_path):
    (tmp_path / "universal-2d").mkdir()
    for start, expected in (
        ("own.safetensors", str(tmp_path / "own.safetensors")),
        ("universal-2d", "universal-2d"),
    ):
        write(tmp_path / "config.toml", SMALLEST | {"start": start})
        assert read_config(tmp_path / "config.toml").start == expected
