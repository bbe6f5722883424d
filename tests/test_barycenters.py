"""Barycenters: laws, problems with exact answers, zero weights, files and errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import (
    ConvergenceWarning,
    DensityError,
    FileError,
    GridError,
    InputError,
    SolverError,
    UnavailableError,
)
from geonet.metrics import l1
from geonet.weights import make_table

GRID = Grid((48, 48), 0, 2)
CENTRES = np.array([(0.6, 0.7), (1.2, 0.7), (0.8, 1.3)])
WEIGHTS = np.array([0.5, 0.3, 0.2])


def blob(centre, grid=GRID):
    """Return two merged bumps, which have no symmetry."""
    x, y = np.moveaxis(grid.points().numpy() - np.asarray(centre), -1, 0)
    values = np.exp(-(x**2 / 0.03 + y**2 / 0.05)) + 0.5 * np.exp(-((x - 0.2) ** 2 + y**2) / 0.02)
    return Density(values, grid)


@pytest.fixture(scope="module")
def blobs():
    return [blob(centre) for centre in CENTRES]


@pytest.fixture(scope="module")
def shapes():
    """A disc, a square and a ring of 32² cells, with zeros around them."""
    grid = Grid((32, 32))
    y, x = np.moveaxis(grid.points().numpy() - 0.5, -1, 0)
    radius, side = np.hypot(x, y), np.maximum(abs(x), abs(y))
    masks = (radius < 0.3, side < 0.27, (radius < 0.36) & (radius > 0.2))
    return [Density(mask.astype(float), grid) for mask in masks]


@pytest.fixture(scope="module")
def solved(blobs):
    return geonet.barycenter(blobs, WEIGHTS)


# ---- Problems with exact answers


def test_translates(solved, blobs):
    """The barycenter of translates is the translate by the mean."""
    mean = WEIGHTS @ CENTRES
    exact = float(WEIGHTS @ np.square(CENTRES - mean).sum(1))
    assert l1(solved.density, blob(mean)) < 0.02
    assert solved.objective == pytest.approx(exact, rel=2e-3)
    assert solved.lower_bound <= exact * (1 + 1e-6) and exact <= solved.upper_bound * (1 + 1e-3)
    assert 0 <= solved.gap < 0.02
    points = np.array([[0.8, 0.85], [0.9, 0.8]])
    for i, centre in enumerate(CENTRES):
        assert np.allclose(solved.map(i, points), points + centre - mean, atol=5e-3)


def test_gaussians():
    """The covariance is the fixed point of Bures."""
    covariances = 4 * np.array(
        [
            [[0.010, 0.004], [0.004, 0.004]],
            [[0.004, 0.0], [0.0, 0.012]],
            [[0.006, -0.003], [-0.003, 0.008]],
        ]
    )
    means, weights = 2 * np.array([(0.42, 0.5), (0.55, 0.45), (0.5, 0.58)]), WEIGHTS
    ends = [
        GaussianMixture([mean], [covariance]).to_density(GRID)
        for mean, covariance in zip(means, covariances, strict=True)
    ]
    root = np.eye(2) / 10
    for _ in range(100):
        inverse = np.linalg.inv(root)
        total = sum(
            w * np.real(sqrtm(root @ s @ root)) for w, s in zip(weights, covariances, strict=True)
        )
        root = np.real(sqrtm(inverse @ total @ total @ inverse))
    centre = root @ root
    spread = sum(
        w * np.trace(centre + s - 2 * np.real(sqrtm(root @ s @ root)))
        for w, s in zip(weights, covariances, strict=True)
    )
    exact = float(spread + weights @ np.square(means - weights @ means).sum(1))
    result = geonet.barycenter(ends, weights)
    assert l1(result.density, GaussianMixture([weights @ means], [centre]).to_density(GRID)) < 0.02
    assert result.objective == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize("t", [0.25, 0.5, 0.7])
def test_two_densities_are_a_geodesic(shapes, t):
    source, target = shapes[0], shapes[2]
    path = geonet.geodesic(source, target, "midpoint")
    result = geonet.barycenter([source, target], [1 - t, t])
    assert l1(result.density, path.density(t)) < 0.03
    assert result.objective == pytest.approx(t * (1 - t) * path.distance**2, rel=0.01)


@pytest.mark.parametrize("dimension", [1, 3])
def test_other_dimensions(dimension):
    grid = Grid((64,) if dimension == 1 else (16,) * 3, 0, 4)
    centres = (1.4, 2.4)
    ends = [GaussianMixture.isotropic([[c] * dimension], 0.4).to_density(grid) for c in centres]
    result = geonet.barycenter(ends, [0.25, 0.75])
    assert np.allclose(result.density.mean(), 2.15, atol=0.01)
    assert result.objective == pytest.approx(0.25 * 0.75 * dimension, rel=0.02)
    moved = result.map(0, [[2.0] * dimension])
    assert moved.shape == (1, dimension) and np.allclose(moved, 1.25, atol=0.05)


def test_periodic_axes():
    """Two bumps on both sides of the seam meet at the seam, as on the geodesic."""
    grid = Grid((32, 16), 0, (2, 1), periodic=(True, False))
    x = grid.points().numpy()
    ends = []
    for centre in (0.3, 1.7):
        away = np.abs(x[..., 0] - centre)
        away = np.minimum(away, 2 - away)
        ends.append(Density(np.exp(-(away**2 + (x[..., 1] - 0.5) ** 2) / 0.02), grid))
    result = geonet.barycenter(ends)
    assert result.density.numpy().sum(1).argmax() in (0, 31)
    path = geonet.geodesic(*ends, "midpoint")
    assert l1(result.density, path.density(0.5)) < 0.03
    assert result.objective == pytest.approx(path.distance**2 / 4, rel=0.01)
    points = np.array([[0.0, 0.5], [1.95, 0.5]])
    assert np.allclose(result.map(0, points)[:, 0], [0.3, 0.25], atol=0.03)


# ---- Laws


def test_shifts_along_periodic_axes_change_nothing(shapes):
    grid = Grid(shapes[0].grid.shape, periodic=True)
    results = []
    for shift in ((0, 0), (7, 30)):
        ends = [Density(np.roll(one.numpy(), shift, (0, 1)), grid) for one in shapes]
        result = geonet.barycenter(ends, WEIGHTS)
        results.append((result, np.roll(result.density.numpy(), (-shift[0], -shift[1]), (0, 1))))
    (first, density), (second, moved) = results
    bounds = second.lower_bound, second.upper_bound
    assert bounds == pytest.approx((first.lower_bound, first.upper_bound), rel=1e-9)
    assert np.abs(density - moved).mean() < 1e-5


def test_permutation(shapes):
    weights, order = np.array([0.2, 0.3, 0.5]), [2, 0, 1]
    first = geonet.barycenter(shapes, weights)
    second = geonet.barycenter([shapes[k] for k in order], weights[order])
    assert l1(first.density, second.density) < 5e-3
    assert first.objective == pytest.approx(second.objective, rel=1e-3)


def test_translation_by_whole_cells():
    """Far from the walls, all densities may move together."""
    ends = [blob(centre) for centre in CENTRES[:2]]
    moved = [Density(np.roll(end.numpy(), 6, 1), GRID) for end in ends]
    first, second = (geonet.barycenter(each, [0.4, 0.6]) for each in (ends, moved))
    assert np.abs(np.roll(first.density.numpy(), 6, 1) - second.density.numpy()).mean() < 5e-3


def test_reflection(shapes, blobs):
    for ends in (shapes, blobs):
        first = geonet.barycenter(ends).density.numpy()
        flipped = [Density(end.numpy()[::-1].copy(), end.grid) for end in ends]
        second = geonet.barycenter(flipped).density.numpy()[::-1]
        assert np.abs(first - second).sum() * ends[0].grid.cell_volume < 5e-3


def test_equal_densities(shapes):
    result = geonet.barycenter([shapes[0]] * 3)
    assert l1(result.density, shapes[0]) < 0.02  # cells of the edge are averaged
    assert result.objective == pytest.approx(0, abs=1e-9)
    assert str(result.report.summary()) == "Nothing moves: all densities are equal."


def test_units(solved, blobs):
    """Lengths scale the objective by their square; masses do not count."""
    large = Grid(GRID.shape, -3, 7)
    ends = [Density(7 * end.numpy(), large) for end in blobs]
    result = geonet.barycenter(ends, WEIGHTS)
    assert result.objective == pytest.approx(25 * solved.objective, rel=1e-6)
    points = np.array([[0.8, 0.9]])
    expected = 5 * solved.map(1, points) - 3
    assert np.allclose(result.map(1, 5 * points - 3), expected, atol=1e-6)
    assert result.potential(1, 5 * points - 3) == pytest.approx(25 * solved.potential(1, points))


# ---- Results


def test_potentials_and_maps(solved):
    points = np.random.default_rng(0).uniform(0.4, 1.4, (5, 4, 2))
    potentials = np.stack([solved.potential(i, points) for i in range(3)])
    assert potentials.shape == (3, 5, 4)
    assert np.allclose(np.tensordot(WEIGHTS, potentials, 1), 0, atol=1e-6)
    maps = np.stack([solved.map(i, points) for i in range(3)])
    inside = np.tensordot(WEIGHTS, maps, 1)
    assert np.allclose(inside, points, atol=1e-6)
    step = 1e-5 * np.array([1, 0])
    slope = (solved.potential(1, points + step) - solved.potential(1, points - step)) / 2e-5
    assert np.allclose(points[..., 0] + slope, maps[1][..., 0], atol=1e-5)


def test_array_types(blobs):
    ends = [Density(end.tensor.float(), GRID) for end in blobs[:2]]
    result = geonet.barycenter(ends)
    assert isinstance(result.density.values, torch.Tensor)
    assert result.density.values.dtype == torch.float32
    for value in (result.weights, result.objective, result.gap, result.map(0, [1.0, 1.0])):
        assert isinstance(value, torch.Tensor)
    result = geonet.barycenter([ends[0], blobs[1]])
    assert result.density.values.dtype == torch.float64
    result = geonet.barycenter(blobs[:2])
    assert isinstance(result.density.values, np.ndarray) and isinstance(result.weights, np.ndarray)
    assert isinstance(result.objective, float) and isinstance(
        result.potential(0, [1.0, 1.0]), float
    )


def test_batch_and_list_are_the_same(blobs, solved):
    batch = Density(np.stack([end.numpy() for end in blobs]), GRID)
    result = geonet.barycenter(batch, WEIGHTS)
    assert np.allclose(result.density.numpy(), solved.density.numpy())
    assert np.allclose(geonet.barycenter(batch).weights, 1 / 3)


def test_mass_is_the_weighted_mean(blobs):
    ends = [Density(k * end.numpy(), GRID) for k, end in enumerate(blobs, 1)]
    result = geonet.barycenter(ends, WEIGHTS)
    assert result.mass == pytest.approx(float(WEIGHTS @ [1, 2, 3]))
    assert result.density.numpy().sum() * GRID.cell_volume == pytest.approx(1, abs=1e-3)
    assert "masses of the densities" in str(result.report)
    assert "they count as one each" in str(result.report.summary())


@pytest.mark.parametrize("reach", [None, 0.3])
def test_mass_is_differentiable(blobs, reach):
    values = torch.stack([torch.tensor(one.numpy()) for one in blobs]).requires_grad_()
    mass = geonet.barycenter(Density(values, GRID), WEIGHTS, reach=reach).mass
    mass.backward()
    assert torch.allclose(values.grad[:, 0, 0], torch.tensor(WEIGHTS) * GRID.cell_volume)


# ---- Zero weights


def test_weight_zero(blobs):
    result = geonet.barycenter(blobs, [0.4, 0.6, 0.0])
    alone = geonet.barycenter(blobs[:2], [0.4, 0.6])
    assert np.allclose(result.density.numpy(), alone.density.numpy())
    assert result.objective == pytest.approx(alone.objective)
    points = np.array([[0.96, 0.7], [1.0, 0.75]])  # near the barycenter's mean
    mean = 0.4 * CENTRES[0] + 0.6 * CENTRES[1]
    assert np.allclose(result.map(2, points), points + CENTRES[2] - mean, atol=0.02)
    assert np.shape(result.potential(2, points)) == (2,)


def test_single_weight(blobs):
    result = geonet.barycenter(blobs, [0, 1, 0])
    assert np.array_equal(result.density.values, blobs[1].values)
    assert result.objective == result.lower_bound == result.gap == 0
    assert (
        result.report.summary().headline
        == "One density has all the weight; it is its own barycenter"
    )
    points = np.array([[1.2, 0.7]])
    assert np.allclose(result.map(1, points), points) and result.potential(1, points) == 0
    assert np.allclose(result.map(0, points), [CENTRES[0]], atol=0.02)


# ---- Many weights


@pytest.fixture(scope="module")
def table(shapes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return geonet.barycenter([*shapes, shapes[0]], make_table(4, 3))


def test_table(table, shapes):
    assert table.shape == (3, 3) and len(table) == 3
    assert table.weights.shape == (3, 3, 4)
    assert table.density.values.shape == (3, 3, 32, 32) and table.mass.shape == (3, 3)
    assert table.objective.shape == table.gap.shape == (3, 3)
    assert (table.lower_bound <= table.objective).all()
    assert (table.objective <= table.upper_bound).all()
    assert isinstance(table[0], geonet.Barycenters) and table[0].shape == (3,)
    assert isinstance(table[1, 2], geonet.Barycenter) and table[1][2] is table[1, 2]
    assert table[:, 1].shape == (3,) and len(list(table)) == 3
    for corner, density in ((table[0, 0], shapes[0]), (table[0, -1], shapes[1])):
        assert np.array_equal(corner.density.values, density.values)
    assert len(table.report.converged) == 9
    assert table.report.summary().headline.startswith("Worst of 9 barycenters: ")


def test_warm_starts_do_not_change_the_result(shapes):
    weights = make_table(3, 5)
    many = geonet.barycenter(shapes, weights)
    for k in (4, 7, 12):
        alone = geonet.barycenter(shapes, weights[k])
        assert l1(many[k].density, alone.density) < 0.02
        assert many[k].estimate == pytest.approx(alone.estimate, rel=5e-3)


def test_equal_weights_are_solved_once(blobs):
    lines = []
    with geonet.progress_callback(lines.append):
        many = geonet.barycenter(blobs[:2], [[0.5, 0.5], [0.5, 0.5], [0.2, 0.8]])
    assert many.shape == (3,) and many[0].solution is many[1].solution
    stages = {line.split(",")[0] for line in lines}
    assert stages == {"barycenter 1 of 2", "barycenter 2 of 2"}


def test_bad_indices(table):
    with pytest.raises(IndexError, match="outside the shape"):
        table[5]
    with pytest.raises(InputError, match="give integers or slices"):
        table["a"]
    with pytest.raises(InputError, match="selects no barycenter"):
        table[3:]
    with pytest.raises(InputError, match="outside a batch of 4"):
        table[0, 0].map(4, [0.5, 0.5])


# ---- Reach


def test_reach_keeps_masses_apart():
    """With a short reach nothing moves between distant bumps, and both fade by their weight."""
    ends = [Density(mass * blob(c).numpy(), GRID) for mass, c in ((1, CENTRES[0]), (3, (1.4, 1.3)))]
    near = geonet.barycenter(ends, [0.5, 0.5], reach=0.02)
    assert near.mass == pytest.approx(2.0, rel=0.02)
    fade = 0.5 * sum(end.numpy("given") for end in ends)
    assert np.abs(near.density.numpy("given") - fade).sum() * GRID.cell_volume < 0.1
    assert near.objective > 0
    rows = dict(near.report.rows())
    assert near.report.gap is None and "reach" in rows
    assert "objective" in rows and "Σ w W2²" not in rows  # the costs are no squared distances
    with pytest.raises(UnavailableError, match="without reach only"):
        _ = near.lower_bound
    far = geonet.barycenter([blob(c) for c in CENTRES[:2]], reach=100.0)
    balanced = geonet.barycenter([blob(c) for c in CENTRES[:2]])
    assert l1(far.density, balanced.density) < 0.01


# ---- Reports and warnings


def test_report(solved):
    report = solved.report
    assert report.converged and report.residual <= 2e-3
    assert report.objective == solved.objective and report.gap == solved.gap
    summary = str(report.summary())
    assert summary.startswith("Optimal within ") and "Mass moves" in summary and "cells" in summary
    labels, texts = zip(*report.rows(), strict=True)
    assert float(texts[2]) <= report.lower_bound and float(texts[3]) >= report.upper_bound
    assert labels[:3] == ("weights", "Σ w W2²", "Σ w W2² at least") and "newton steps" in labels
    assert report.to_dict()["weights"] == pytest.approx(WEIGHTS.tolist())
    assert repr(solved) == "Barycenter(3 densities, 48×48 cells on [0, 2]×[0, 2])"


def test_missed_tolerance_is_reported(shapes):
    with pytest.warns(ConvergenceWarning, match=r"did not reach the tolerance of 1e-7 %"):
        result = geonet.barycenter(shapes, tolerance=1e-9, max_iterations=1)
    assert not result.converged
    assert result.report.summary().headline.startswith("Not converged: ")
    assert "max_iterations" in str(result.report.summary())
    with pytest.warns(ConvergenceWarning, match="2 of 2 barycenters did not"):
        geonet.barycenter(shapes[:2], [[0.5, 0.5], [0.4, 0.6]], tolerance=1e-9, max_iterations=1)


def test_time_limit(shapes):
    with pytest.warns(ConvergenceWarning):
        result = geonet.barycenter(shapes, tolerance=1e-9, time_limit=1e-6)
    assert "time_limit" in result.report.info["stopped after"]
    assert "Give a larger time_limit, on" in str(result.report.summary())


# ---- Files


def test_save_and_load(tmp_path, solved, table):
    for result in (solved, table):
        file = result.save(tmp_path / "saved.npz")
        loaded = geonet.load(file)
        assert type(loaded) is type(result) and repr(loaded) == repr(result)
        assert np.array_equal(loaded.density.values, result.density.values)
        assert np.array_equal(loaded.weights, result.weights)
        assert np.array_equal(loaded.objective, result.objective)
        assert loaded.report == result.report
        with np.load(file) as arrays:
            assert np.array_equal(arrays["weights"], result.weights)
            assert np.array_equal(arrays["density"], result.density.values)
    one = geonet.load(solved.save(tmp_path / "one.npz"))
    assert np.array_equal(one.map(1, [[0.8, 0.9]]), solved.map(1, [[0.8, 0.9]]))


def test_saved_grids_keep_orientation_and_periodic_axes(tmp_path):
    grid = Grid((16, 16), 0, 3, "plane", periodic=(True, False))
    result = geonet.barycenter([Density(np.ones(grid.shape), grid)] * 2)
    loaded = geonet.load(result.save(tmp_path / "a.npz"))
    assert loaded.grid == grid and loaded.grid.orientation == "plane"


def test_damaged_files_raise(tmp_path, solved):
    with pytest.raises(FileError, match="does not end in .npz"):
        solved.save(tmp_path / "a.npy")
    file = solved.save(tmp_path / "a.npz")
    with np.load(file) as arrays:
        changed = dict(arrays) | {"weights": np.array([0.3, 0.3, 0.4])}
    np.savez(file, **changed)
    with pytest.raises(FileError, match="was changed after it was written"):
        geonet.load(file)


# ---- Errors


def test_bad_densities_raise(blobs, tmp_path):
    other = blob((1, 1), Grid((48, 48), 0, 3))
    coarse = blob((1, 1), Grid((24, 24), 0, 2))
    batch = Density(np.stack([end.numpy() for end in blobs]), GRID)
    times = Density(np.ones((2, 3, 48, 48)), GRID)
    four, line = (Density(np.ones((3,) * d), Grid((3,) * d)) for d in (4, 1))
    for densities, error, message in (
        (blobs[:1], InputError, "There is one density; a barycenter needs two or more"),
        (blobs[0], InputError, "There is one density"),
        ([], InputError, "There are no densities"),
        ([blobs[0], other], GridError, "Densities 0 and 1 lie on different grids.*same lower"),
        ([blobs[0], line], GridError, "different grids.*; give densities of one dimension"),
        ([blobs[0], blobs[1], coarse], GridError, r"Densities 0 and 2 .*density\.resample"),
        ([batch, batch], DensityError, "Density 0 is a batch of shape .3,.; give a list of single"),
        (times, DensityError, "give one batch axis"),
        ("a.png", InputError, r"'a.png' is a file name.*geonet\.read\('a.png'\)"),
        (["a.png", "b.png"], InputError, r"geonet\.read\('a.png'\)"),
        ([tmp_path / "a.png"], InputError, "is a file name"),
        ([blobs[0], np.ones((48, 48))], DensityError, "Density 1 is an array of shape"),
        (3, DensityError, "Density 0 is 3; give geonet.Density"),
        ([four, four], GridError, "4D; barycenters exist in 1D, 2D and 3D"),
    ):
        with pytest.raises(error, match=message):
            geonet.barycenter(densities)


def test_too_many_densities_raise():
    values = np.random.default_rng(0).uniform(0.5, 1, (70, 8, 8, 8))
    with pytest.raises(InputError, match="70 densities have weights above zero.*at most 65"):
        geonet.barycenter(Density(values, Grid((8, 8, 8))))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": [0.5, 0.6]}, InputError, "sum to 1.1, not to one"),
        ({"weights": [1.5, -0.5]}, InputError, "negative"),
        ({"reach": 0}, InputError, "reach is 0; give a finite length above 0, or leave it out"),
        ({"reach": -1.0}, InputError, "reach is -1"),
        ({"reach": float("nan")}, InputError, "reach is nan"),
        ({"reach": "far"}, InputError, "reach is 'far'"),
        ({"tolerance": 0}, SolverError, "tolerance is 0; give a share of the mass"),
        ({"tolerance": "small"}, SolverError, "tolerance is 'small'; give a share of the mass"),
        ({"max_iterations": 0}, SolverError, "max_iterations is 0"),
        ({"time_limit": 0}, SolverError, "time_limit is 0; give seconds above 0"),
    ],
)
def test_bad_options_raise(blobs, options, error, message):
    with pytest.raises(error, match=message):
        geonet.barycenter(blobs[:2], **options)


def test_a_reach_beyond_the_precision_of_the_kernels_raises(blobs):
    with pytest.raises(geonet.errors.SolverError, match="times the longest side of the box"):
        geonet.barycenter(blobs, reach=1e5 * max(blobs[0].grid.lengths))
