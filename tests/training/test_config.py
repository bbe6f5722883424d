import tomllib
from copy import deepcopy
from pathlib import Path

import pytest

from geonet._toml import from_table, to_table, to_toml
from geonet.errors import ConfigError, FileError
from geonet.training.config import TrainingConfig, read_config

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "studies" / "configs").glob("*.toml"))
KNOWN = (
    "a DeepONet learns from exact paths, which are known for 1D families alone; "
    'set problem.family = "mixtures-1d", or model.kind = "geonet".'
)
SMALLEST = {"name": "small", "steps": 10, "problem": {"family": "mixtures-1d"}}


def changed(changes):
    """The smallest config with some keys, given by their dotted paths, set; None takes one away."""
    table = deepcopy(SMALLEST)
    for path, value in changes.items():
        *tables, key = path.split(".")
        place = table
        for name in tables:
            place = place.setdefault(name, {})
        if value is None:
            del place[key]
        else:
            place[key] = value
    return table


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.name)
def test_experiments_load(file):
    config = read_config(file)
    assert from_table(TrainingConfig, tomllib.loads(to_toml(to_table(config)))) == config


def test_there_are_experiments():
    assert EXPERIMENTS


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 2**31 - 1, "compile": True, "name": "a.b-c_1"},
        {"problem": {"file": "some where/pairs.npz"}, "model.dimension": 3},
        {"problem.family": "mixtures-2d", "model.dimension": 2},
        {"loss.epsilon": 0.01, "model.swap_symmetry": "density"},
        {"loss.weigh_by_density": True, "model.swap_symmetry": "both"},
        {"model.trunk.features": "fourier", "model.trunk.sigma": 3},
        {"optimizer.name": "adam", "sampling.scheme": "triples", "validation.pairs": 0},
        {"problem.family": "mixtures-3d", "model.dimension": 3, "model.sensors": 10},
        {"model.kind": "geonet"},
        {"model.kind": "transport"},
        {"model.kind": "transport", "model.seen": 8, "loss.floor": 0.3},
        {"model.kind": "deeponet", "model.swap_symmetry": "density", "compile": True},
        {
            "problem.family": "mixtures-3d",
            "model": {"kind": "transport", "dimension": 3, "sensors": 8, "seen": 4, "modes": 6},
        },
        {"problem": {"file": "pairs.npz"}, "model": {"kind": "transport", "dimension": 2}},
    ],
)
def test_toml_round_trip(changes):
    config = from_table(TrainingConfig, changed(changes))
    assert from_table(TrainingConfig, tomllib.loads(to_toml(to_table(config)))) == config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # unknown, missing, of a wrong type
        ({"modle": {}}, "Unknown key modle; did you mean 'model'?"),
        ({"model.trunk.witdh": 3}, "Unknown key model.trunk.witdh; did you mean 'width'?"),
        ({"problem": None}, "The key problem is missing; add it."),
        ({"steps": None}, "The key steps is missing; add it."),
        ({"steps": 10.5}, "steps is 10.5; give a whole number."),
        ({"compile": "yes"}, "compile is 'yes'; give true or false."),
        (
            {"model": 3},
            "model is 3; "
            "give a table of kind, dimension, sensors, rank, branch, trunk, swap_symmetry, ends, "
            "density_scale, potential_scale.",
        ),
        (
            {"problem.family": "mixtures-4d"},
            "problem.family is 'mixtures-4d'; "
            "choose from 'mixtures-1d', 'mixtures-2d', 'mixtures-3d', "
            "'anything-2d', 'anything-3d', 'clouds', 'digits', 'digit-codes'.",
        ),
        (
            {"model.branch.network": "separable"},
            "model.branch.network is 'separable'; choose from 'mlp', 'modified-mlp'.",
        ),
        # out of range
        ({"model.trunk.width": -3}, "model.trunk: width is -3; give 1 to 1048576."),
        ({"model.branch.width": 0}, "model.branch: width is 0; give 1 to 1048576."),
        (
            {"model.trunk.depth": 1},
            "model.trunk: depth is 1; give 3 to 100 layers to modified-mlp.",
        ),
        ({"model.trunk.modes": 0}, "model.trunk: modes is 0; give 1 to 1048576."),
        ({"model.trunk.sigma": 0.0}, "model.trunk: sigma is 0.0; give a positive number."),
        ({"model.dimension": 4}, "model: dimension is 4; give 1, 2 or 3."),
        ({"model.sensors": 1}, "model: sensors is 1; give 2 to 4096."),
        ({"model.rank": 0}, "model: rank is 0; give 1 to 1048576."),
        ({"loss.source": -1}, "loss: source is -1.0; give ≥ 0."),
        (
            {"loss": dict.fromkeys(("continuity", "hamilton_jacobi", "source", "target"), 0)},
            "loss: all weights are zero; give at least one.",
        ),
        ({"sampling.endpoint_points": 0}, "sampling: places is 0; give at least 1."),
        ({"optimizer.learning_rate": 0}, "optimizer: learning_rate is 0.0; give > 0."),
        ({"optimizer.final": 1.5}, "optimizer: final is 1.5; give a share in (0, 1]."),
        ({"optimizer.warmup": -1}, "optimizer: warmup is -1; give ≥ 0."),
        ({"optimizer.balance_every": -1}, "optimizer: balance_every is -1; give ≥ 0."),
        ({"optimizer.weight_decay": -0.1}, "optimizer: weight_decay is -0.1; give ≥ 0."),
        ({"validation.pairs": -1}, "validation: pairs is -1; give ≥ 0."),
        ({"validation.every": 0}, "validation: every is 0; give at least 1."),
        ({"steps": 0}, "steps is 0; give at least 1."),
        ({"log_every": 0}, "log_every is 0; give at least 1."),
        ({"checkpoint_every": -1}, "checkpoint_every is -1; give at least 1."),
        ({"seed": -1}, "seed is -1; give 0 to 2³¹ − 1."),
        ({"seed": 2**31}, "seed is 2147483648; give 0 to 2³¹ − 1."),
        # of no use together
        ({"problem": {}}, "problem: give either a family or a file of pairs."),
        ({"problem.file": "a.npz"}, "problem: give either a family or a file of pairs."),
        (
            {"model.dimension": 2},
            "model.dimension is 2, but mixtures-1d is 1D; let them agree.",
        ),
        (
            {"problem.family": "mixtures-2d"},
            "model.dimension is 1, but mixtures-2d is 2D; let them agree.",
        ),
        (
            {"loss.epsilon": 0.01, "model.swap_symmetry": "both"},
            "with loss.epsilon > 0 the potential has no swap symmetry; "
            'set model.swap_symmetry = "density".',
        ),
        (
            {"loss.epsilon": 0.01, "loss.characteristics": 1.0, "model.swap_symmetry": "density"},
            "the particles of a bridge do not move along straight lines; "
            "set loss.characteristics = 0 where loss.epsilon > 0.",
        ),
        (
            {"loss.characteristics": 1.0, "sampling.scheme": "triples"},
            'loss.characteristics takes sampling.scheme = "cartesian" only.',
        ),
        (
            {"problem.family": "mixtures-3d"},
            "model.dimension is 1, but mixtures-3d is 3D; let them agree.",
        ),
        (
            {"problem.family": "mixtures-3d", "model.kind": "transport", "model.dimension": 2},
            "model.dimension is 2, but mixtures-3d is 3D; let them agree.",
        ),
        # the kinds of models
        (
            {"model.kind": "fno"},
            "model.kind is 'fno'; choose from 'geonet', 'transport', 'deeponet', 'cascade'.",
        ),
        (
            {"model.kind": "transport", "model.rank": 3},
            "Unknown key model.rank; it takes kind, dimension, sensors, seen, modes, width, depth.",
        ),
        (
            {"model.seen": 8},
            "Unknown key model.seen; "
            "it takes kind, dimension, sensors, rank, branch, trunk, swap_symmetry, ends, "
            "density_scale, potential_scale.",
        ),
        (
            {"model.kind": "transport", "model.seen": 7},
            "model: seen is 7; give an even number of modes, at most 2^20 in all.",
        ),
        (
            {"model.kind": "transport", "sampling.scheme": "triples"},
            'the transport form takes sampling.scheme = "cartesian" only.',
        ),
        (
            {"model.kind": "transport", "compile": True},
            "the transport form is not compiled; remove compile.",
        ),
        (
            {"model.kind": "deeponet", "model.swap_symmetry": "both"},
            "model.swap_symmetry is 'both'; choose from 'none', 'density'.",
        ),
        (
            {
                "model": {"kind": "deeponet", "dimension": 2, "sensors": 8},
                "problem.family": "mixtures-2d",
            },
            KNOWN,
        ),
        ({"model.kind": "deeponet", "problem": {"file": "pairs.npz"}}, KNOWN),
        (
            {"model.kind": "deeponet", "loss.epsilon": 0.1},
            "a DeepONet has one term and no physics, so it takes nothing of loss; remove it.",
        ),
        (
            {"model.kind": "deeponet", "sampling.scheme": "triples"},
            'a DeepONet takes sampling.scheme = "cartesian" only.',
        ),
    ],
)
def test_wrong_configs_are_refused(changes, expected):
    with pytest.raises(ConfigError) as error:
        from_table(TrainingConfig, changed(changes))
    assert str(error.value) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"continuity": 1.0},
        {"hamilton_jacobi": 1.0},
        {"source": 0.5},
        {"target": 0.5},
        {"continuity_gradient": 0.1},
        {"hamilton_jacobi_gradient": 0.1},
        {"epsilon": 0.01},
        {"weigh_by_density": True},
        {"weigh_by_density": True, "floor": 0.2},
    ],
)
def test_the_transport_form_takes_no_other_loss(changes):
    with pytest.raises(ConfigError) as error:
        from_table(TrainingConfig, changed({"model.kind": "transport", "loss": changes}))
    assert str(error.value) == (
        "the transport form fixes its weights: of loss it takes only floor; remove the others."
    )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_transport_experiments(d):
    config = read_config(ROOT / "studies" / "configs" / f"transport-{d}d.toml")
    assert config.name == f"transport-{d}d"
    assert (config.model.kind, config.model.dimension) == ("transport", d)
    assert config.problem.family == f"mixtures-{d}d"


def test_the_supervised_experiment():
    """The same family and sensors as geonet-1d, with which it is compared."""
    config, other = (
        read_config(ROOT / "studies" / "configs" / f"{name}.toml")
        for name in ("deeponet-1d", "gaussian-1d")
    )
    assert (config.name, config.model.kind) == ("deeponet-1d", "deeponet")
    assert config.problem == other.problem
    assert (config.model.dimension, config.model.sensors) == (1, other.model.sensors)


@pytest.mark.parametrize("name", ["", "two words", ".hidden", "..", "a/b", "a\\b", "line\n"])
def test_bad_names_are_refused(name):
    with pytest.raises(ConfigError) as error:
        from_table(TrainingConfig, SMALLEST | {"name": name})
    assert str(error.value) == f"name is {name!r}; use letters, digits, '-', '_' and '.'."


def write(file, settings):
    file.parent.mkdir(exist_ok=True)
    file.write_text(to_toml(settings), encoding="utf-8")


def test_a_file_of_pairs_counts_from_the_config(tmp_path):
    write(tmp_path / "config.toml", SMALLEST | {"problem": {"file": "pairs.npz"}})
    assert read_config(tmp_path / "config.toml").problem.file == str(tmp_path / "pairs.npz")
    elsewhere = str(tmp_path.parent / "pairs.npz")
    write(tmp_path / "config.toml", SMALLEST | {"problem": {"file": elsewhere}})
    assert read_config(tmp_path / "config.toml").problem.file == elsewhere


def test_a_file_that_no_path_can_name(tmp_path):
    write(tmp_path / "config.toml", SMALLEST | {"problem": {"file": "pairs\0.npz"}})
    with pytest.raises(FileError, match=r"Cannot read .*config.toml as a config: .*null"):
        read_config(tmp_path / "config.toml")


def test_a_start_counts_from_the_config_unless_a_shipped_model_has_its_name(tmp_path):
    (tmp_path / "universal-2d").mkdir()
    for start, found in (
        ("own.safetensors", str(tmp_path / "own.safetensors")),
        ("universal-2d", "universal-2d"),
    ):
        write(tmp_path / "config.toml", SMALLEST | {"start": start})
        assert read_config(tmp_path / "config.toml").start == found


def test_a_config_written_to_another_folder_names_the_same_file(tmp_path, monkeypatch):
    """As a run's config.toml does, which can be trained from again."""
    monkeypatch.chdir(tmp_path)
    write(Path("configs/config.toml"), SMALLEST | {"problem": {"file": "pairs.npz"}})
    config = read_config(Path("configs/config.toml"))
    write(Path("runs/config.toml"), to_table(config))
    again = read_config(Path("runs/config.toml"))
    assert Path(again.problem.file).resolve() == tmp_path / "configs" / "pairs.npz"
