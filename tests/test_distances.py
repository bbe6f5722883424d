"""W2 between two densities, and between all pairs of many."""

from __future__ import annotations

import csv
from itertools import permutations

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.distances import PairwiseConfig
from geonet.errors import (
    ConvergenceWarning,
    DensityError,
    FileError,
    GridError,
    InputError,
    SolverError,
)

GRID = Grid((24, 24))


def spots(count: int, seed: int = 0, grid: Grid = GRID) -> np.ndarray:
    """Return images of some spots each, with empty cells around them."""
    rng, points = np.random.default_rng(seed), grid.points().numpy()
    centres = rng.uniform(0.25, 0.75, (count, 3, grid.dimension))
    squares = ((points[..., None, None, :] - centres) ** 2).sum(-1)
    return np.moveaxis((np.exp(-squares / 0.01) * (squares < 0.03)).sum(-1), -1, 0)


@pytest.fixture(scope="module")
def densities() -> Density:
    return Density(spots(5), GRID)


@pytest.fixture(scope="module")
def result(densities):
    return geonet.pairwise_distances(densities)


def test_the_distance_is_that_of_the_geodesic(densities):
    path = geonet.geodesic(densities[0], densities[1])
    value = geonet.distance(densities[0], densities[1])
    assert type(value) is float and value == path.distance
    assert geonet.distance(densities, densities.take([1, 2, 3, 4, 0])).shape == (5,)
    bures = [geonet.GaussianMixture([[m, 0.0]], [np.eye(2)]) for m in (0.0, 3.0)]
    assert geonet.distance(*bures, "bures") == pytest.approx(3)
    with_reach = geonet.distance(densities[0], densities[1], reach=0.2)
    assert with_reach == geonet.geodesic(densities[0], densities[1], reach=0.2).distance


def test_matrices(densities, result):
    matrices = result.distances, result.lower_bounds, result.upper_bounds
    for matrix in matrices:
        assert type(matrix) is np.ndarray and matrix.shape == (5, 5)
        assert np.array_equal(matrix, matrix.T) and not matrix.diagonal().any()
    assert (result.lower_bounds <= result.distances).all()
    assert (result.distances <= result.upper_bounds).all()
    assert result.converged.dtype == bool and result.converged.all()
    assert 0 < result.gap < 0.02  # the bounds are refined until 1 % is reached
    path = geonet.geodesic(densities[1], densities[3])
    # The network adds in another order for another number of pairs.
    assert result.distances[1, 3] == pytest.approx(path.distance, rel=1e-4)
    assert result.lower_bounds[1, 3] == pytest.approx(path._bounds[0], rel=1e-4)


def test_triangle_inequality(result):
    lower, upper = result.lower_bounds, result.upper_bounds
    for i, j, k in permutations(range(5), 3):
        assert lower[i, k] <= upper[i, j] + upper[j, k]
        # The distances are within half a gap of W2.
        slack = (upper - lower).max()
        assert result.distances[i, k] <= result.distances[i, j] + result.distances[j, k] + slack


def test_chunks_and_others(densities, result):
    small = PairwiseConfig(chunk_cells=3 * GRID.size)
    chunked = geonet.pairwise_distances(densities, config=small)
    assert np.allclose(chunked.distances, result.distances, rtol=1e-4)
    listed = [densities[k] for k in range(5)]
    others = geonet.pairwise_distances(listed[:2], listed)
    assert others.distances.shape == (2, 5)
    # The same densities are at the resolution of the bounds' lattice from each other.
    assert np.allclose(others.distances, result.distances[:2], rtol=1e-2, atol=1e-3)


def test_nearly_equal_densities_do_not_widen_the_gap():
    """Bounds of tiny distances are far apart relative to them."""
    matrices = (np.array([[0, low, 2], [low, 0, 2], [2, 2, 0.0]]) for low in (5e-4, 1e-4, 1e-3))
    distances, lower, upper = matrices
    lower[2, :2] = lower[:2, 2] = 1.99
    known = geonet.PairwiseDistances(distances, lower, upper, np.ones((3, 3), bool))
    assert known.gap == pytest.approx(0.005)
    assert repr(known) == "PairwiseDistances(3×3, known within 0.5 % of the largest)"


def test_one_density_has_no_pairs(densities):
    single = geonet.pairwise_distances([densities[0]])
    assert single.distances.tolist() == [[0.0]] and single.converged.tolist() == [[True]]
    assert single.gap == 0


def test_lines_are_exact():
    grid = Grid(200)
    x = grid.axes()[0].numpy()
    shifts = np.array([0.3, 0.45, 0.5])
    lines = Density(np.exp(-(((x - shifts[:, None]) / 0.05) ** 2)), grid)
    result = geonet.pairwise_distances(lines)
    exact = np.abs(shifts[:, None] - shifts)
    assert np.allclose(result.distances, exact, atol=1e-6)
    assert np.allclose(result.lower_bounds, result.upper_bounds)


def test_the_solver_of_each_pair_is_chosen_separately(densities):
    """Isolated cells are for a linear program, also among pairs that are for Newton's method."""
    atoms = np.zeros((1, *GRID.shape))
    atoms[0, 4:20:8, 4:20:8] = 1.0
    mixed = Density(np.concatenate([atoms, np.roll(atoms, 2, 1), densities.values[:2]]), GRID)
    result = geonet.pairwise_distances(mixed)
    for i, j in ((0, 1), (0, 2)):
        path = geonet.geodesic(mixed[i], mixed[j])
        lower, upper = result.lower_bounds[i, j], result.upper_bounds[i, j]
        assert lower <= path.distance * (1 + 1e-9) and path.distance <= upper * (1 + 1e-9)
    batch = geonet.geodesic(mixed.take([0, 2]), mixed.take([1, 3]))
    assert [path.solver for path in batch.paths] == ["linear-program", "midpoint"]


def test_unequal_masses():
    values = spots(3) * np.array([1.0, 2.0, 3.0])[:, None, None]
    densities = Density(values, GRID)
    result = geonet.pairwise_distances(densities, reach=0.3)
    path = geonet.geodesic(densities[0], densities[2], reach=0.3)
    assert result.distances[0, 2] == pytest.approx(path.distance, rel=1e-4)
    lower, upper = (np.sqrt(2 * bound) for bound in path.cost_bounds)
    assert result.lower_bounds[0, 2] == pytest.approx(lower, rel=1e-3)
    assert result.upper_bounds[0, 2] == pytest.approx(upper, rel=1e-3)


def test_torch_and_gradients():
    values = torch.tensor(spots(3), requires_grad=True)
    result = geonet.pairwise_distances(Density(values, GRID))
    assert isinstance(result.distances, torch.Tensor)
    assert isinstance(result.lower_bounds, torch.Tensor) and result.converged.dtype == torch.bool
    result.distances.sum().backward()
    assert values.grad is not None and bool(values.grad.isfinite().all())
    separate = torch.tensor(spots(3), requires_grad=True)
    ends = [Density(separate, GRID).take(index) for index in ([0, 0, 1], [1, 2, 2])]
    (2 * geonet.distance(*ends).sum()).backward()
    assert torch.allclose(values.grad, separate.grad, rtol=1e-3, atol=1e-6)


def test_pairs_that_do_not_converge_are_marked(densities):
    solver = geonet.solver("midpoint", max_iterations=1, refine=False)
    with pytest.warns(ConvergenceWarning, match="10 distances did not converge.*`converged`"):
        result = geonet.pairwise_distances(
            densities, solver=solver, config=PairwiseConfig(max_gap=0.0)
        )
    assert not result.converged.all() and result.converged.diagonal().all()
    assert (result.lower_bounds <= result.distances).all()


def test_progress(densities):
    lines = []
    with geonet.progress_callback(lines.append):
        geonet.pairwise_distances(densities, config=PairwiseConfig(chunk_cells=4 * GRID.size))
    assert any(line.startswith("pairs 5 to 8 of 10, auto: midpoint") for line in lines)


@pytest.mark.parametrize("suffix", ["csv", "npy", "npz"])
def test_files(result, tmp_path, suffix):
    names = ["one", "two, or so", "three", "four", "five"]
    (file,) = result.save(tmp_path / f"m.{suffix}", names)
    if suffix == "csv":
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
        assert rows[0] == ["", *names] and [row[0] for row in rows[1:]] == names
        read = np.array([row[1:] for row in rows[1:]], dtype=float)
    elif suffix == "npy":
        read = np.load(file)
    else:
        arrays = np.load(file)
        read = arrays["distances"]
        assert arrays["names"].tolist() == names and arrays["converged"].all()
        assert np.array_equal(arrays["upper_bounds"], result.upper_bounds)
    assert np.array_equal(read, result.distances)
    files = result.save(tmp_path / f"m.{suffix}", bounds=True)
    expected = (
        ["m.npz"] if suffix == "npz" else [f"m{k}.{suffix}" for k in ("", "-lower", "-upper")]
    )
    assert [file.name for file in files] == expected
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_wrong_arguments(densities, result, tmp_path):
    other = Density(np.ones((3, 3)), Grid((3, 3)))
    with pytest.raises(InputError, match=r"densities\[1\] lies on .*resample"):
        geonet.pairwise_distances([densities[0], other])
    with pytest.raises(InputError, match="densities is empty"):
        geonet.pairwise_distances([])
    with pytest.raises(InputError, match="batch shape"):
        geonet.pairwise_distances(densities[0])
    with pytest.raises(InputError, match="is a batch"):
        geonet.pairwise_distances([densities])
    with pytest.raises(DensityError, match=r"densities\[0\] is 3"):
        geonet.pairwise_distances([3])
    with pytest.raises(GridError, match="different grids"):
        geonet.pairwise_distances(densities, [other])
    with pytest.raises(SolverError, match="need a solver name"):
        geonet.pairwise_distances(densities, solver=geonet.solver("linear"), reach=1.0)
    with pytest.raises(FileError, match="ends in .csv"):
        result.save(tmp_path / "m.txt")
    with pytest.raises(InputError, match="2 names"):
        result.save(tmp_path / "m.csv", ["a", "b"])
    with pytest.raises(FileError, match="does not exist"):
        result.save(tmp_path / "missing" / "m.csv")
