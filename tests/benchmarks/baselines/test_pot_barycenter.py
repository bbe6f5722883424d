"""POT's barycenters through the solver interface."""

import numpy as np
import ot
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, ConvergenceWarning, SolverError, UnavailableError
from geonet.metrics import mass_error

LINE = Grid(50, 0, 10)
SQUARE = Grid((24, 24), 0, 5)
NAMES = ("barycenter", "debiased-barycenter")


def pair_on(grid):
    if grid.dimension == 1:
        means, stds = ([[3.0]], [[6.5]]), (0.6, 0.8)
    else:
        means, stds = ([[2.0, 2.0]], [[3.0, 2.5]]), (0.5, 0.6)
    return tuple(
        GaussianMixture.isotropic(mean, [std]).to_density(grid)
        for mean, std in zip(means, stds, strict=True)
    )


def masses(density):
    return density.numpy() * density.grid.cell_volume


def squared_distances(grid):
    x = grid.points().numpy()
    M = ot.dist(x)
    return M / M.max()


# ---- what POT gives


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_the_line_is_pots_barycenter(t):
    source, target = pair_on(LINE)
    A = np.stack([masses(source), masses(target)], axis=1)
    weights = np.array([1 - t, t])
    plain = ot.bregman.barycenter(A, squared_distances(LINE), 6e-4, weights=weights)
    answer = geonet.geodesic(source, target, solver="barycenter").density(t)
    np.testing.assert_allclose(masses(answer), plain, atol=1e-9)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_the_square_is_pots_convolutional_barycenter(t):
    source, target = pair_on(SQUARE)
    A, weights = np.stack([masses(source), masses(target)]), np.array([1 - t, t])
    plain = ot.bregman.convolutional_barycenter2d(A, 4e-3, weights=weights)
    answer = geonet.geodesic(source, target, solver="barycenter").density(t)
    np.testing.assert_allclose(masses(answer), plain, atol=1e-12)


def test_the_debiased_ones_are_pots():
    t, weights = 0.3, np.array([0.7, 0.3])
    source, target = pair_on(LINE)
    A = np.stack([masses(source), masses(target)], axis=1)
    M = squared_distances(LINE)
    on_line = ot.bregman.barycenter_debiased(A, M, 2e-3, weights=weights, method="sinkhorn_log")
    path = geonet.geodesic(source, target, solver="debiased-barycenter", reg=2e-3)
    np.testing.assert_allclose(masses(path.density(t)), on_line, atol=1e-9)

    source, target = pair_on(SQUARE.with_shape(16))
    A = np.stack([masses(source), masses(target)])
    on_square = ot.bregman.convolutional_barycenter2d_debiased(
        A, 4e-3, weights=weights, method="sinkhorn_log", stopThr=1e-4
    )
    path = geonet.geodesic(source, target, solver="debiased-barycenter")
    np.testing.assert_allclose(masses(path.density(t)), on_square, atol=1e-12)


@pytest.mark.parametrize("grid", [LINE, SQUARE], ids=["1D", "2D"])
def test_plain_is_blurred_and_debiased_is_not(grid):
    """Along each axis the variance grows by reg/2 of the squared distance of the outer centres."""
    source, target = pair_on(grid)
    spans = torch.tensor(grid.lengths) - torch.tensor(grid.spacing)
    reg = 6e-4 if grid.dimension == 1 else 4e-3
    blur = reg / 2 * spans**2
    std = [end._covariance().diagonal(dim1=-2, dim2=-1).sqrt() for end in (source, target)]
    variance = ((std[0] + std[1]) / 2) ** 2  # of the geodesic at t = ½
    options = {"method": "sinkhorn_log"} if grid.dimension == 1 else {}
    plain = geonet.geodesic(source, target, solver="barycenter", **options).density(0.5)
    debiased = geonet.geodesic(source, target, solver="debiased-barycenter").density(0.5)
    grown = plain._covariance().diagonal() - variance
    torch.testing.assert_close(grown, blur.double(), rtol=0.05, atol=0)
    torch.testing.assert_close(debiased._covariance().diagonal(), variance, rtol=0.01, atol=0)


def test_the_ends_are_left_blurred():
    source, target = pair_on(SQUARE)
    first = geonet.geodesic(source, target, solver="barycenter").density(0.0)
    error = float((first.tensor - source.tensor).abs().sum()) * SQUARE.cell_volume
    assert 0.05 < error < 0.2


# ---- how it answers


@pytest.mark.parametrize("name", NAMES)
def test_batch_other_grid_and_mass(name):
    grid = SQUARE.with_shape(12)
    source, target = pair_on(grid)
    both = [
        Density(torch.stack([a.tensor, b.tensor]), grid)
        for a, b in ((source, target), (target, source))
    ]
    path = geonet.geodesic(*both, solver=name, method="sinkhorn")
    frames = path.density((0.25, 0.75))
    assert frames.tensor.shape == (2, 2, 12, 12)
    torch.testing.assert_close(frames.tensor[0], frames.tensor[1].flip(0), atol=1e-3, rtol=0)
    finer = path.density(0.5, grid=grid.with_shape(30))
    assert float(mass_error(finer).max()) < 1e-3


def test_frames_are_kept(monkeypatch):
    path = geonet.geodesic(*pair_on(SQUARE), solver="barycenter")
    first = path.density(0.5).tensor
    monkeypatch.setattr(ot.bregman, "convolutional_barycenter2d", None)
    assert torch.equal(path.density(0.5).tensor, first)


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load(name, tmp_path):
    path = geonet.geodesic(*pair_on(LINE), solver=name, reg=5e-3, method="sinkhorn_log")
    again = geonet.load(path.save(tmp_path / "path.npz", times=(0.5,)))
    assert again.info == path.info
    assert again.solver == name
    torch.testing.assert_close(again.density(0.3).tensor, path.density(0.3).tensor)


@pytest.mark.parametrize("what", ["distance", "velocity", "potential"])
def test_nothing_but_density(what):
    path = geonet.geodesic(*pair_on(LINE), solver="barycenter")
    with pytest.raises(UnavailableError, match=f"gives no {what}"):
        _ = path.distance if what == "distance" else getattr(path, what)(0.5, [5.0])


# ---- what can go wrong


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grid", [LINE, SQUARE], ids=["1D", "2D"])
def test_stopping_early_is_a_warning_and_a_note(name, grid):
    path = geonet.geodesic(*pair_on(grid), solver=name, max_iterations=12, tolerance=1e-12)
    with pytest.warns(
        ConvergenceWarning, match=r"t = 0\.5 stopped at .* after 12 iterations"
    ) as seen:
        path.density(0.5)
    assert seen[0].filename == __file__
    assert path.info["stopped early at t"] == [0.5]


def test_the_note_reaches_a_batch():
    batch = [Density(end.tensor[None], LINE) for end in pair_on(LINE)]
    path = geonet.geodesic(*batch, solver="barycenter", max_iterations=3, tolerance=1e-12)
    with pytest.warns(ConvergenceWarning):
        path.density(0.5)
    assert path.info["stopped early at t"] == [[0.5]]


def test_underflow_is_an_error():
    x = LINE.points()[:, 0]
    ends = [Density(((x - centre).abs() < 0.5).double(), LINE) for centre in (1.0, 9.0)]
    path = geonet.geodesic(*ends, solver="barycenter", max_iterations=50)
    with pytest.raises(ConvergenceError, match=r"t = 0\.5 is not finite.*sinkhorn_log"):
        path.density(0.5)
    middle = geonet.geodesic(*ends, solver="barycenter", method="sinkhorn_log").density(0.5)
    assert float(middle.mean()) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize(
    "grid",
    [Grid((12, 16), 0, 1), Grid((12, 12), (0, 0), (1, 2))],
    ids=["cells", "box"],
)
def test_only_square_grids(grid):
    uniform = Density(torch.ones(grid.shape), grid)
    with pytest.raises(SolverError, match="takes a square box with as many cells either way"):
        geonet.geodesic(uniform, uniform, solver="barycenter")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reg": 0.0}, "reg is 0; give a positive number"),
        ({"reg": float("nan")}, "reg is nan"),
        ({"max_iterations": 0}, "both must be positive"),
        ({"tolerance": -1.0}, "both must be positive"),
        ({"method": "newton"}, "no method 'newton'; choose from sinkhorn, sinkhorn_log"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_options_are_checked(name, options, message):
    with pytest.raises(SolverError, match=message):
        geonet.solver(name, **options)
