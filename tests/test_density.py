import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from geonet import Density, GaussianMixture, Grid
from geonet.errors import DensityError, GridError, InputError

GRID = Grid((4, 5), 0, (2, 1))


@pytest.mark.parametrize("size", [1.0, 1e-300, 1e300])
def test_normalises_a_copy_and_keeps_the_given_mass(size):
    given = size * np.arange(20.0).reshape(4, 5) / 20
    density = Density(given, GRID)
    mass, expected = given.sum() * GRID.cell_volume, given.copy()
    given[:] = 7
    assert density.values.sum() * GRID.cell_volume == pytest.approx(1, abs=1e-14)
    assert density.mass == pytest.approx(mass)
    assert np.array_equal(np.asarray(density), density.values)
    assert np.array(density, dtype=np.float32, copy=True).dtype == np.float32
    assert np.allclose(density.numpy(mass="given") / size, expected / size)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.ones((4, 5)).tolist(), torch.float64),
        (np.ones((4, 5), np.uint8), torch.float64),
        (np.ones((4, 5), np.float32), torch.float32),
        (np.ones((4, 5), ">f8"), torch.float64),
        (torch.ones(4, 5), torch.float32),
    ],
)
def test_accepted_types(given, dtype):
    assert torch.equal(Density(given, GRID).tensor, torch.full((4, 5), 0.5, dtype=dtype))


def test_each_density_of_a_batch_is_normalised():
    batch = Density(np.stack([np.ones((4, 5)), 3 * np.eye(4, 5)]), GRID)
    assert batch.batch_shape == (2,) and len(batch) == 2
    assert batch.values.sum((1, 2)) * GRID.cell_volume == pytest.approx([1, 1])
    assert np.array_equal(batch[1].values, Density(np.eye(4, 5), GRID).values)
    assert [part.batch_shape for part in batch] == [(), ()]
    taken = batch.take([1, 1, 0])
    assert np.array_equal(taken.values, batch.values[[1, 1, 0]])
    assert np.array_equal(taken.mass, batch.mass[[1, 1, 0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.diag([1, np.nan, 1, 1, 1])[:4], "1 of 20 values is NaN; .*missing='exclude'"),
        (np.diag([1, np.inf, 1, 1, 1])[:4], "1 of 20 values is infinite"),
        (-np.eye(4, 5), "4 of 20 values are negative"),
        (np.array(19 * [1.0] + [-1]).reshape(4, 5), "1 of 20 values is negative"),
        (np.stack([np.ones((4, 5)), np.zeros((4, 5))]), "Density 1 of the batch is zero"),
        (np.ones((1, 1, 1, 4, 5)), "5 axes but the grid has 2"),
        (np.ones((5, 4)), r"\(5, 4\) do not match the grid's \(4, 5\)"),
        (np.ones((0, 4, 5)), "batch is empty"),
        (np.ones((4, 5), complex), "real numbers"),
        (torch.ones(4, 5, dtype=torch.complex64), "complex"),
        ([[1.0, 2.0], [3.0]], "not an array"),
    ],
)
def test_invalid_values_raise(values, message):
    with pytest.raises(DensityError, match=message):
        Density(values, GRID)


@pytest.mark.parametrize(
    ("values", "upper"),
    [
        (np.full((8, 8), 1e308), 8),
        (np.ones((4, 4, 4), np.float32), 1e-13),
        (np.ones((2, 2, 2), np.float32), 1e14),  # values would be subnormal
    ],
)
def test_values_beyond_floating_point_raise(values, upper):
    with pytest.raises(DensityError, match=r"beyond the range of torch\.float"):
        Density(values, Grid(values.shape, 0, upper))


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda d: d.at([1.0, 2.0, 3.0]), GridError, "do not lie in 2D"),
        (lambda d: d.at([np.nan, 0.0]), GridError, "NaN"),
        (lambda d: d.at(np.ones((0, 2))), GridError, "no points"),
        (lambda d: d.at([[0.5, 0.5], [3, 3]]), GridError, "1 of 2 points lies outside the box"),
        (lambda d: d.at(np.ones((2, 50))), GridError, r"such as points\.T"),
        (lambda d: d[0], DensityError, "no batch axis"),
        (len, DensityError, "no batch axis"),
        (lambda d: Density(d.values, 100), GridError, "grid is 100"),
        (lambda d: Density(d.values, GRID, "drop"), InputError, "missing is 'drop'"),
        (lambda d: Density(d.values, GRID, -1), DensityError, "missing is -1"),
        (lambda d: Density(d.values, GRID, nodata="0"), InputError, "nodata is"),
        (lambda d: d.resample(Grid((4, 5))), GridError, "box"),
        (lambda d: d.numpy(mass="two"), InputError, "'one' or 'given'"),
        (lambda d: d.plot(cmap="virids"), InputError, "viridis"),
        (lambda d: Density(np.ones((2, 4, 5)), GRID)[2], InputError, "0 to 1"),
        (lambda d: Density(np.ones((2, 4, 5)), GRID).take([]), InputError, "0 to 1"),
    ],
)
def test_invalid_arguments_raise(use, error, message):
    with pytest.raises(error, match=message):
        use(Density(np.ones((4, 5)), GRID))


# ---- Missing values


@pytest.mark.parametrize(("missing", "fill"), [("exclude", 0.0), (2.5, 2.5)])
def test_masked_cells_are_filled(missing, fill):
    """Each density of a batch has its own mask; values under the mask do not matter."""
    given = np.arange(40.0).reshape(2, 4, 5)
    mask = np.zeros((2, 4, 5), bool)
    mask[0, 1, 2], mask[1, 3] = True, True
    given[0, 1, 2], given[1, 3] = np.nan, -1
    batch = Density(np.ma.masked_array(given, mask), GRID, missing)
    assert np.allclose(batch.numpy(mass="given"), np.where(mask, fill, given))
    with pytest.raises(DensityError, match="cells have no value; .*missing='exclude'"):
        Density(np.ma.masked_array(given, mask), GRID)


@pytest.mark.parametrize(("dtype", "marker"), [("u1", 200), ("f2", -9999.9), ("f8", -9999.9)])
def test_a_number_can_mark_missing_cells(dtype, marker):
    """The marker is compared in the type of the values."""
    values = np.ones((4, 5), dtype)
    values[1] = marker
    for given in (values, torch.from_numpy(values)):
        density = Density(given, GRID, missing="exclude", nodata=marker)
        assert np.count_nonzero(density) == 15
        with pytest.raises(DensityError, match="cells have no value"):
            Density(given, GRID, nodata=marker)


def test_excluded_nan_has_gradient_zero():
    values = torch.ones(4, 5, dtype=torch.float64)
    values[1, 2] = np.nan
    values.requires_grad_()
    density = Density(values, GRID, missing="exclude")
    assert density.numpy()[1, 2] == 0 and density.mass.item() == pytest.approx(1.9)
    density.tensor[0, 0].backward()
    assert values.grad is not None and float(values.grad[1, 2]) == 0
    assert bool(torch.isfinite(values.grad).all())


# ---- Masses, moments and points


def test_unnormalised_values_are_kept():
    values = -2 * torch.rand(2, 3, 4, 5)
    density = Density.from_unnormalized(values, GRID)
    assert density.tensor is values and torch.equal(density.mass, torch.ones(2, 3).double())
    mass = torch.rand(2, 3).double()
    given = Density.from_unnormalized(values, GRID, mass).numpy(mass="given")
    assert np.allclose(given, values * mass[..., None, None])


def test_moments_of_a_gaussian():
    covariance = np.array([[0.02, 0.005], [0.005, 0.01]])
    grid = Grid((80, 80), 0, (2, 1))
    density = GaussianMixture([[0.9, 0.5]], covariance[None]).to_density(grid)
    assert density.mean() == pytest.approx([0.9, 0.5], abs=1e-4)
    assert density.covariance() == pytest.approx(covariance, abs=1e-4)


def test_floor_mixes_in_uniform_mass():
    density = Density(np.eye(4, 5), GRID).with_floor(0.1)
    assert density.values.min() == pytest.approx(0.1 / GRID.volume)
    assert density.values.sum() * GRID.cell_volume == pytest.approx(1)
    assert density.with_floor(0) is density
    with pytest.raises(DensityError, match="floor is 1"):
        density.with_floor(1.0)


def test_values_between_cells():
    exact = GaussianMixture.isotropic([[1.0, 0.5]], 0.2).to_density(Grid((60, 60), 0, (2, 1)))
    interpolated = Density(exact.tensor, exact.grid)
    points = torch.rand(50, 2, dtype=torch.float64) * torch.tensor([2.0, 1.0])
    assert interpolated.at(points).numpy() == pytest.approx(exact.at(points), abs=1e-4)
    assert exact.at(points.reshape(5, 10, 2)).shape == (5, 10)
    assert exact.at([7.0, 7.0]) < 1e-9  # a mixture is known outside the box
    line = Density(np.ones(4), Grid(4))
    assert line.at([0.3]).shape == (1,) and line.at([0.3, 0.4]).shape == (2,)


# ---- Resampling and blur


def test_blur_is_gaussian_with_reflecting_walls():
    density = Density(np.random.rand(2, 9, 14), Grid((9, 14)))
    result = density.gaussian_blur(1.3)
    expected = gaussian_filter(density.values, (0, 1.3, 1.3), mode="reflect", truncate=4)
    # scipy cuts the tails at round(4σ) cells, geonet at ceil(4σ): a relative e^(−4²/2)
    assert np.abs(result.values - expected).max() < 1e-3 * expected.max()
    assert result.values.sum((1, 2)) * density.grid.cell_volume == pytest.approx([1, 1])
    assert np.array_equal(result.mass, density.mass)
    assert density.gaussian_blur(0) is density
    with pytest.raises(DensityError, match="give a blur of 0 to 3.5 cells"):
        density.gaussian_blur(4)


def test_blur_is_differentiable():
    values = torch.rand(5, 6, dtype=torch.float64, requires_grad=True)

    def blur(values):
        return Density(values, Grid((5, 6))).gaussian_blur(0.9).tensor

    assert torch.autograd.gradcheck(blur, (values,))


def test_periodic_axes_wrap_points_and_blur():
    grid = Grid((16, 8), 0, (2, 1), periodic=(True, False))
    values = np.random.default_rng(0).random(grid.shape)
    density, rolled = Density(values, grid), Density(np.roll(values, 5, 0), grid)
    points = np.array([[0.01, 0.3], [1.97, 0.6]])
    turns, cells, above = (np.array(step) for step in ([4, 0], [5 / 8, 0], [0, 2]))
    assert np.allclose(density.at(points + turns), density.at(points), atol=1e-12)
    assert np.allclose(rolled.at(points + cells), density.at(points), atol=1e-12)
    with pytest.raises(GridError, match="outside the box"):
        density.at(points + above)
    blurred = density.gaussian_blur(1.5).values
    assert np.allclose(rolled.gaussian_blur(1.5).values, np.roll(blurred, 5, 0), atol=1e-12)
    assert np.allclose(
        blurred, gaussian_filter(density.values, 1.5, mode=("wrap", "reflect")), atol=1e-3
    )
    assert density.resample(grid.with_shape((8, 4))).grid.periodic == (True, False)
    with pytest.raises(GridError, match="boxes or periodic axes differ"):
        density.resample(Grid((8, 4), 0, (2, 1)))
