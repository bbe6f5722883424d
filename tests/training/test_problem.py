import numpy as np
import pytest
import torch

from geonet import GaussianMixture, Grid
from geonet.errors import FileError
from geonet.solvers.neural.deeponet import BasisCache
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model
from geonet.training.problems import (
    FAMILIES,
    QUADRATURE,
    Mixtures,
    evaluate,
    log_quadratics,
    quadrature,
    sensor_points,
)
from geonet.training.user_data import read_dataset


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def in_box(unit, box):
    return box.lower_tensor + unit.double() * torch.tensor(box.lengths).double()


def mass_in(box, function):
    """∫ over a box, from the sums over the cells of two grids: their errors are as 4 to 1."""
    coarse, fine = (
        function(box.with_shape(n).points().reshape(-1, box.dimension)).double().mean(-1)
        for n in {1: (1000, 2000), 2: (60, 120), 3: (20, 40)}[box.dimension]
    )
    return (4 * fine - coarse) / 3 * box.volume


def lopsided(count, generator):
    """Mixtures of two Gaussians, one three times the other."""
    means = 1 + 3 * torch.rand(count, 2, 1, dtype=torch.float64, generator=generator)
    weights = torch.tensor([0.25, 0.75]).expand(count, 2)
    return GaussianMixture.isotropic(means, 0.5, weights)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_polynomials_are_the_mixture(d, generator):
    """Any weights and covariances, on a box with sides of its own."""
    factor = torch.randn(2, 3, d, d, dtype=torch.float64, generator=generator)
    covariances = 0.3 * factor @ factor.mT + 0.3 * torch.eye(d)
    means = 2 * torch.randn(2, 3, d, dtype=torch.float64, generator=generator)
    mixture = GaussianMixture(means, covariances, torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 0.1]]))
    box = Grid((8,) * d, (-3.0, -2.0, -4.0)[:d], (3.0, 5.0, 4.0)[:d])
    unit = torch.rand(50, d, generator=generator)
    computed = evaluate(log_quadratics(mixture, box), unit)
    assert computed.dtype == torch.float32
    expected = mixture.pdf(in_box(unit, box)) * box.volume
    assert torch.allclose(computed.double(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_drawn_mixtures_are_those_of_the_family_normalised_on_the_box(name, generator):
    problem = make_problem(name)
    d, count = problem.box.dimension, 3
    mixture = problem.family(2 * count, seeded())
    mass = mass_in(problem.box, mixture.pdf)
    unit = torch.rand(40, d, generator=generator)
    expected = mixture.pdf(in_box(unit, problem.box)) * problem.box.volume / mass[:, None]
    for end, wanted in zip(problem.draw(count, seeded()), expected.chunk(2), strict=True):
        computed = end(unit)
        assert computed.shape == (count, 40) and computed.dtype == torch.float32
        assert torch.allclose(computed.double(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_drawn_mixtures_have_mean_one(name):
    problem = make_problem(name)
    unit = Grid((2,) * problem.box.dimension)
    for end in problem.draw(20, seeded()):
        means = mass_in(unit, lambda points, end=end: end(points.float()))
        assert torch.allclose(means, torch.ones_like(means), rtol=0, atol=1e-4)


@pytest.mark.parametrize("d", QUADRATURE)
def test_quadrature_is_exact_for_polynomials(d, generator):
    nodes, weights = quadrature(d)
    assert nodes.shape == (QUADRATURE[d] ** d, d) and nodes.dtype == torch.float32
    assert float(nodes.min()) > 0 and float(nodes.max()) < 1
    powers = torch.randint(0, 2 * QUADRATURE[d], (20, d), generator=generator)
    powers[0], powers[1] = 0, 2 * QUADRATURE[d] - 1
    for power in powers:
        computed = (nodes.double() ** power).prod(1) @ weights.double()
        assert computed.item() == pytest.approx((1 / (power + 1.0)).prod().item(), rel=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_mixture_can_have_its_own_points(name, generator):
    problem = make_problem(name)
    own = torch.rand(4, 6, problem.box.dimension, generator=generator)
    for end in problem.draw(4, seeded()):
        one_by_one = torch.stack([end(points)[k] for k, points in enumerate(own)])
        assert torch.allclose(end(own), one_by_one, rtol=1e-4)


@pytest.mark.parametrize(
    "problem", [*(make() for make in FAMILIES.values()), Mixtures(lopsided, Grid(80, 0, 5))]
)
def test_densities_are_the_pairs_of_the_same_draw(problem):
    """On the problem's grid; validation must measure what training learns."""
    unit = Grid(problem.box.shape).points().reshape(-1, problem.box.dimension).float()
    ends = problem.draw(3, seeded())
    densities = problem.draw_densities(3, seeded())
    for end, density in zip(ends, densities, strict=True):
        assert density.grid == problem.box
        relative = density.tensor.flatten(1) * problem.box.volume
        assert torch.allclose(end(unit).double(), relative, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_both_ends_and_every_draw_differ(name):
    problem, generator = make_problem(name), seeded()
    unit = torch.full((1, problem.box.dimension), 0.4)
    draws = torch.stack([end(unit) for _ in range(2) for end in problem.draw(5, generator)])
    assert len(draws.unique()) == draws.numel()


@pytest.fixture
def record(tmp_path, generator):
    """Writes pairs with these cells; other arrays and changes by name, None to leave one out."""

    def write(shape, **changes):
        values = torch.rand(2, *shape, dtype=torch.float64, generator=generator).numpy()
        arrays = {"source": values[0], "target": values[1]} | changes
        file = tmp_path / "pairs.npz"
        np.savez(file, **{k: v for k, v in arrays.items() if v is not None})
        return file, arrays

    return write


@pytest.mark.parametrize(
    ("shape", "lower", "upper"),
    [
        ((4, 9), None, None),
        ((4, 9), -1.0, 4.0),
        ((3, 5, 6), None, None),
        ((3, 5, 6), 0.0, 3.0),
        ((3, 5, 6), [0.0, 1.0], [2.0, 3.0]),
        ((3, 4, 4, 3), None, None),
    ],
)
def test_recorded_pairs_take_their_values_at_the_cells(shape, lower, upper, record):
    file, arrays = record(shape, lower=lower, upper=upper)
    problem, d = read_dataset(file), len(shape) - 1
    assert problem.box == Grid(shape[1:], 0.0 if lower is None else lower, upper or 1.0)
    cells = Grid(shape[1:]).points().reshape(-1, d).float()
    drawn = [end(cells) for end in problem.draw(40, seeded())]
    assert rows_of(drawn, arrays) <= set(range(shape[0]))
    held = [end.tensor * problem.box.volume for end in problem.draw_densities(40, seeded())]
    assert rows_of(held, arrays) <= set(range(shape[0]))


@pytest.mark.parametrize(
    ("count", "trained", "held_out"),
    [
        (30, range(27), (range(27, 29), [29])),
        (11, range(9), ([9], [10])),
        (3, [0], ([1], [2])),
    ],
)
def test_the_last_tenth_of_recorded_pairs_is_held_out(count, trained, held_out, record):
    file, arrays = record((count, 9))
    problem = read_dataset(file)
    drawn = [end(Grid(9).points().float()) for end in problem.draw(400, seeded())]
    assert rows_of(drawn, arrays) == set(trained)
    for found, expected in zip(
        (problem.draw_densities(400, seeded()), problem.test_pairs(400)), held_out, strict=True
    ):
        assert rows_of([end.tensor for end in found], arrays) == set(expected)


def rows_of(ends, arrays):
    """Which of the file's pairs these are, given relative to uniform; both ends from one row."""
    found = set()
    for values, key in zip(ends, ("source", "target"), strict=True):
        recorded = torch.from_numpy(arrays[key]).flatten(1)
        relative = recorded / recorded.mean(1, keepdim=True)
        off = (values.double().flatten(1)[:, None] - relative).abs().amax(-1)
        assert float(off.amin(1).max()) < 1e-4
        found.add(tuple(off.argmin(1).tolist()))
    (rows,) = found
    return set(rows)


def test_each_recorded_pair_can_have_its_own_points(record, generator):
    problem = read_dataset(record((3, 5, 6))[0])
    own = torch.rand(4, 7, 2, generator=generator)
    for end in problem.draw(4, seeded()):
        one_by_one = torch.stack([end(points)[k] for k, points in enumerate(own)])
        assert torch.allclose(end(own), one_by_one, atol=1e-5)


def test_a_box_that_is_no_cube_is_refused(record):
    file, _ = record((3, 8, 16), lower=np.zeros(2), upper=np.array([1.0, 2.0]))
    with pytest.raises(FileError) as error:
        read_dataset(file)
    expected = f"The box in {file} has sides (1.0, 2.0); pad the densities to a cube."
    assert str(error.value) == expected


@pytest.mark.parametrize("upper", [(1.0, 1.0), (3.0, 3.0)])
def test_training_and_solver_read_the_same_sensors(upper, record):
    settings = GeONetSettings(
        dimension=2, sensors=6, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)
    )
    model = build_model(settings, 0).requires_grad_(False)
    file, _ = record((3, 8, 16), lower=np.zeros(2), upper=np.array(upper))
    problem = read_dataset(file)
    ends = [end(sensor_points(6, 2)) for end in problem.draw(1, seeded())]
    trained = model.coefficients(*ends)
    solved = BasisCache(model).coefficients(*problem.pairs(1))
    for a, b in zip(trained, solved, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": None}, " has no array 'source'; give source and target, (n, cells…)"),
        ({"target": None}, " has no array 'target'; give source and target, (n, cells…)"),
        (
            {"target": np.ones((3, 7))},
            " has source (3, 8) and target (3, 7); "
            "give two arrays (n, cells…) of one shape, in 1D to 3D.",
        ),
        (
            {"source": np.ones(8), "target": np.ones(8)},
            " has source (8,); give an array (n, cells…), in 1D to 3D.",
        ),
        (
            {"source": -np.eye(3, 8)},
            ": 3 of 24 values are negative; clip them at zero if they are noise.",
        ),
        ({"target": np.full((3, 8), np.nan)}, ": 24 of 24 values are NaN; fill them first."),
        ({"source": np.zeros((3, 8))}, ": Density 0 of the batch is zero everywhere, so there"),
        ({"source": np.array([["a"] * 8] * 3)}, ": Values of type <U1 are not numbers; give"),
        ({"lower": 2.0}, ": The box is empty along axis 0: lower 2, upper 1; give finite"),
        ({"upper": np.ones(3)}, ": upper has 3 entries but the grid has 1 axes; give one"),
        ({"upper": "wide"}, ": "),
        ({"source": np.ones((3, 1)), "target": np.ones((3, 1))}, ": Axis 0 has 1 cells; a grid"),
    ],
)
def test_wrong_arrays_are_refused(changes, message, record):
    file, _ = record((3, 8), **changes)
    with pytest.raises(FileError) as error:
        read_dataset(file)
    assert str(error.value).startswith(f"{file}{message}")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*none.npz; check the path\."):
        read_dataset(tmp_path / "none.npz")


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "single.npy", np.ones((3, 8)))
    with pytest.raises(FileError, match=r"Cannot read .*single.npy as an npz of densities: "):
        read_dataset(tmp_path / "single.npy")


def test_a_broken_file_is_refused_and_closed(tmp_path):
    """An open file would be a warning, which is an error in tests."""
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(FileError, match=r"Cannot read .*broken.npz as an npz of densities: "):
        read_dataset(tmp_path / "broken.npz")
