"""Data sets from files: what is trained on and what is held out, and rejected files."""

import numpy as np
import pytest
import torch

from geonet import Density, Grid
from geonet.errors import ConfigError, FileError
from geonet.solvers.neural.cascade import _to_square
from geonet.solvers.neural.deeponet import BasisCache
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import BasisModel, Branch, Trunk, build_model, model_class
from geonet.training import make_config
from geonet.training.problems import sensor_points
from geonet.training.user_data import DensityDataset, read_dataset


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def centres(shape):
    """Return the centres of cells of the unit box."""
    return Grid(shape).points().reshape(-1, len(shape)).float()


def rows_of(values, recorded):
    """Return the index in `recorded` of each density, given relative to uniform."""
    recorded = torch.as_tensor(recorded).flatten(1)
    relative = recorded / recorded.mean(1, keepdim=True)
    error = (values.double().flatten(1)[:, None] - relative).abs().amax(-1)
    assert float(error.amin(1).max()) < 1e-4
    return error.argmin(1).tolist()


def pair_rows(ends, arrays):
    """Return the set of rows of pairs; both ends must come from the same row."""
    first, second = (
        rows_of(values, arrays[key]) for values, key in zip(ends, ("source", "target"), strict=True)
    )
    assert first == second
    return set(first)


@pytest.fixture
def record(tmp_path, generator):
    """Write pairs with this shape; further arrays replace or add others, None removes one."""

    def write(shape, **changes):
        values = torch.rand(2, *shape, dtype=torch.float64, generator=generator).numpy()
        arrays = {"source": values[0], "target": values[1]} | changes
        file = tmp_path / "pairs.npz"
        np.savez(file, **{k: v for k, v in arrays.items() if v is not None})
        return file, arrays

    return write


# ---- pairs


@pytest.mark.parametrize(
    ("shape", "lower", "upper"),
    [
        ((4, 9), -1.0, 4.0),
        ((3, 5, 6), [0.0, 1.0], [2.0, 3.0]),
        ((3, 4, 4, 4), None, None),
    ],
)
def test_pairs_take_their_values_at_the_cells(shape, lower, upper, record):
    file, arrays = record(shape, lower=lower, upper=upper)
    problem = read_dataset(file)
    assert problem.box == Grid(shape[1:], 0.0 if lower is None else lower, upper or 1.0)
    drawn = [end(centres(shape[1:])) for end in problem.draw(40, seeded())]
    assert pair_rows(drawn, arrays) <= set(range(shape[0]))


@pytest.mark.parametrize(
    ("count", "training", "validation", "test"),
    [(30, range(27), range(27, 29), [29]), (11, range(9), [9], [10]), (3, [0], [1], [2])],
)
def test_the_last_tenth_of_pairs_is_held_out(count, training, validation, test, record):
    file, arrays = record((count, 9))
    problem = read_dataset(file)
    drawn = [end(centres((9,))) for end in problem.draw(400, seeded())]
    assert pair_rows(drawn, arrays) == set(training)
    for ends, expected in (
        (problem.draw_densities(400, seeded()), validation),
        (problem.test_pairs(400), test),
    ):
        assert pair_rows([end.tensor for end in ends], arrays) == set(expected)


def test_training_and_solver_read_the_same_sensors(record):
    settings = GeONetSettings(
        dimension=2, sensors=6, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)
    )
    model = build_model(settings, 0).requires_grad_(False)
    file, _ = record((3, 8, 16), lower=np.zeros(2), upper=np.full(2, 3.0))
    problem = read_dataset(file)
    ends = [end(sensor_points(6, 2)) for end in problem.draw(1, seeded())]
    solved = BasisCache(model).coefficients(*problem.pairs(1))
    for a, b in zip(model.coefficients(*ends), solved, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


# ---- single densities


@pytest.fixture(params=[Grid(9, 0.0, 5.0), Grid((6, 7), (1.0, 2.0), (3.0, 6.0))], ids=str)
def grid(request):
    return request.param


def random_densities(count, grid):
    values = torch.rand(count, *grid.shape, dtype=torch.float64, generator=seeded(5))
    return Density(values, grid)


@pytest.mark.parametrize(("count", "training"), [(10, 8), (30, 27), (39, 35)])
def test_the_last_tenth_of_densities_is_held_out(grid, count, training):
    densities = random_densities(count, grid)
    dataset, everything = DensityDataset(densities), set(range(count))
    for end in dataset.draw(300, seeded()):
        rows = rows_of(end(centres(grid.shape)), densities.tensor)
        assert set(rows) == set(range(training))
    ends = dataset.draw_densities(300, seeded())
    rows = [rows_of(end.tensor * grid.volume, densities.tensor) for end in ends]
    assert set(rows[0]) == set(rows[1]) == everything - set(range(training))
    assert not any(a == b for a, b in zip(*rows, strict=True))


def test_test_pairs_are_different_and_always_the_same(grid):
    densities = random_densities(40, grid)
    dataset = DensityDataset(densities)
    for count, pairs in ((12, dataset.test_pairs(100)), (30, dataset.pairs(30))):
        source, target = (rows_of(end.tensor * grid.volume, densities.tensor) for end in pairs)
        assert len(set(zip(source, target, strict=True))) == len(source) == count
        assert not any(a == b for a, b in zip(source, target, strict=True))
    again = dataset.test_pairs(100)
    assert torch.equal(again[0].tensor, dataset.test_pairs(100)[0].tensor)


# ---- default settings


def test_default_settings_follow_dimension_size_and_empty_cells(record, tmp_path):
    file, arrays = record((20, 40))
    config = make_config(file, steps=60)
    assert (config.model.kind, config.model.sensors, config.problem.floor) == ("transport", 40, 0)
    assert (config.steps, config.validation.every, config.name) == (60, 10, "pairs")
    arrays["source"][:, :5] = 0
    np.savez(file, **arrays)
    assert (
        make_config(file).problem.floor == 0.05 and make_config(file, floor=0.0).problem.floor == 0
    )
    np.savez(tmp_path / "images.npz", values=np.ones((8, 20, 20)))
    config = make_config(tmp_path / "images.npz", name="mine")
    assert (config.model.kind, config.start, config.name) == ("cascade", "universal-2d", "mine")
    with pytest.raises(ConfigError, match="floor is 0.1; models for 2D need none"):
        make_config(tmp_path / "images.npz", floor=0.1)


def test_2d_models_that_can_be_exported(tmp_path):
    np.savez(tmp_path / "images.npz", values=np.eye(20) + np.zeros((8, 1, 1)))
    config = make_config(tmp_path / "images.npz", exportable=True)
    assert (config.model.kind, config.start, config.problem.floor) == ("transport", None, 0.05)
    assert issubclass(model_class(config.model.kind), BasisModel)
    assert not issubclass(model_class(make_config(tmp_path / "images.npz").model.kind), BasisModel)


# ---- contents


def test_contents_are_described(record, tmp_path):
    file, _ = record((20, 8))
    (line,) = read_dataset(file).describe()
    assert line.startswith("read 20 pairs of 8 cells, 0 % of them empty, on the box [0, 1]")
    assert line.endswith(
        "18 are for training, 2 are held out: 1 for validation, 1 for the final report"
    )
    values = np.ones((8, 4, 4))
    values[:, 0] = 0
    np.savez(tmp_path / "images.npz", values=values, lower=0, upper=2)
    (line,) = read_dataset(tmp_path / "images.npz").describe()
    assert line.startswith("read 8 densities of 4×4 cells, 25 % of them empty, on the box [0, 2]²")
    assert "2 are held out: any two of them are a pair for validation" in line


def test_arrays_that_are_not_square_are_padded(tmp_path):
    file, values = tmp_path / "images.npz", np.arange(1.0, 8 * 3 * 6 + 1).reshape(8, 3, 6)
    np.savez(file, values=values)
    dataset = read_dataset(file)
    assert dataset.box == Grid((6, 6)) and dataset.unpadded == (3, 6)
    padded = dataset.pairs(1)[0].values[0]
    assert not padded[0].any() and not padded[4:].any() and padded[1:4].all()
    lines = dataset.describe()
    assert "8 densities of 3×6 cells, 0 % of them empty" in lines[0]
    assert make_config(file, exportable=True).problem.floor == 0
    values[:, :, 0] = 0
    np.savez(file, source=values, target=values)
    assert "8 pairs of 3×6 cells, 17 % of them empty" in read_dataset(file).describe()[0]
    assert make_config(file, exportable=True).problem.floor == 0.05
    assert lines[1].startswith("3×6 cells are centred in 6×6 cells")
    # A box in the file says how wide the cells are.
    np.savez(file, values=values, lower=0.0, upper=1.0)
    stretched = read_dataset(file)
    assert stretched.box == Grid((3, 6)) and stretched.unpadded is None


def test_training_and_inference_pad_alike(tmp_path):
    """A network sees the same square for a padded array and for the density it stands for."""
    file, values = tmp_path / "images.npz", 1 + np.arange(8.0 * 16 * 32).reshape(8, 16, 32)
    np.savez(file, values=values)
    dataset = read_dataset(file)
    own = Density(values[0], Grid((16, 32), 0, [0.5, 1]))
    seen = _to_square(dataset.values[:1].double(), dataset.box, 32)
    torch.testing.assert_close(seen, _to_square(own.tensor[None], own.grid, 32))


# ---- rejected files


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": None}, "no array 'source'"),
        ({"target": np.ones((3, 7))}, r"source \(3, 8\) and target \(3, 7\)"),
        ({"source": np.ones(8), "target": np.ones(8)}, r"source \(8,\)"),
        ({"source": -np.eye(3, 8)}, "3 of 24 values are negative"),
        ({"lower": 2.0}, "empty"),
        ({"upper": np.ones(3)}, "upper has 3 entries"),
        ({"upper": "wide"}, ""),
        ({"source": np.ones((2, 8)), "target": np.ones((2, 8))}, "too few pairs, 2"),
    ],
)
def test_wrong_arrays_are_rejected(changes, message, record):
    file, _ = record((3, 8), **changes)
    with pytest.raises(FileError, match=f"{file}.*{message}"):
        read_dataset(file)


def test_unequal_sides_few_densities_and_unreadable_files_are_rejected(record, tmp_path):
    file, _ = record((3, 8, 16), lower=np.zeros(2), upper=np.array([1.0, 2.0]))
    np.savez(tmp_path / "few.npz", values=np.ones((3, 8)))
    np.save(tmp_path / "single.npy", np.ones((3, 8)))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    for name, message in (
        (file, r"has sides \(1.0, 2.0\); pad"),
        (tmp_path / "few.npz", "too few densities, 3"),
        (tmp_path / "none.npz", "There is no file"),
        (tmp_path / "single.npy", "Cannot read .* as an npz of densities"),
        (tmp_path / "broken.npz", "Cannot read .* as an npz of densities"),
    ):
        with pytest.raises(FileError, match=message):
            read_dataset(name)
