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
        {"problem": {"file": "a folder/pairs.npz"}, "model.dimension": 3},
        {"model.trunk.features": "fourier", "model.trunk.sigma": 3},
        {"model.kind": "transport", "model.seen": 8, "loss.floor": 0.3},
        {"model.kind": "deeponet", "model.swap_symmetry": "density", "compile": True},
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
        # out of range
        ({"model.trunk.width": -3}, "model.trunk: width is -3"),
        ({"model.dimension": 4}, "model: dimension is 4"),
        ({"loss.source": -1}, "loss: source is -1.0"),
        (
            {"loss": dict.fromkeys(("continuity", "hamilton_jacobi", "source", "target"), 0)},
            "all weights are zero",
        ),
        ({"sampling.places": 0}, "sampling: places is 0"),
        ({"optimizer.learning_rate": 0}, "optimizer: learning_rate is 0.0"),
        ({"seed": 2**31}, "seed is 2147483648"),
        ({"name": "../a"}, "use letters"),
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
        ({"model.kind": "transport", "model.rank": 3}, "Unknown key model.rank"),
        ({"model.kind": "transport", "sampling.scheme": "triples"}, "cartesian"),
        ({"model.kind": "transport", "compile": True}, "compile"),
        ({"model.kind": "transport", "loss.epsilon": 0.01}, "loss"),
        ({"model.kind": "deeponet", "model.swap_symmetry": "both"}, "swap_symmetry is 'both'"),
        ({"model.kind": "deeponet", "problem": {"file": "pairs.npz"}}, "mixtures-1d"),
        ({"model.kind": "deeponet", "sampling.scheme": "triples"}, "cartesian"),
    ],
)
def test_wrong_configs_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        from_table(TrainingConfig, change(changes))


def write(file, settings):
    file.parent.mkdir(exist_ok=True)
    file.write_text(to_toml(settings), encoding="utf-8")


def test_files_are_relative_to_the_config(tmp_path, monkeypatch):
    config = tmp_path / "configs" / "config.toml"
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
