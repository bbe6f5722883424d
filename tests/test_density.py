import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import DensityError, GridError, InputError

GRID = Grid((4, 5), 0, (2, 1))


def test_normalises_and_keeps_the_given_mass():
    given = np.arange(20.0).reshape(4, 5)
    density = Density(given, GRID)
    assert float(density.tensor.sum() * GRID.cell_volume) == pytest.approx(1, abs=1e-14)
    assert float(density.mass) == pytest.approx(given.sum() * GRID.cell_volume)
    assert np.allclose(density.numpy() * density.mass.item(), given)


@pytest.mark.parametrize(
    "kind", ["list", "int", "bool", "float32", "torch", "big-endian", "long double"]
)
def test_accepts_what_users_hold(kind):
    array = np.ones((4, 5))
    given = {
        "list": array.tolist(),
        "int": array.astype(int),
        "bool": array.astype(bool),
        "float32": array.astype(np.float32),
        "torch": torch.ones(4, 5),
        "big-endian": array.astype(">f8"),
        "long double": array.astype(np.longdouble),
    }[kind]
    density = Density(given, GRID)
    expected = torch.float32 if kind in ("float32", "torch") else torch.float64
    assert density.tensor.dtype == expected
    assert torch.allclose(density.tensor, torch.full((4, 5), 0.5, dtype=expected))


def test_the_callers_array_is_not_shared():
    array = np.ones((4, 5))
    density = Density(array, GRID)
    array[:] = 7
    assert float(density.tensor.max()) == pytest.approx(0.5)


def test_batches_are_normalised_one_by_one():
    batch = Density(np.stack([np.ones((4, 5)), 3 * np.eye(4, 5)]), GRID)
    assert batch.leading == (2,) and len(batch) == 2
    assert torch.allclose(batch.tensor.sum((1, 2)) * GRID.cell_volume, torch.ones(2).double())
    assert torch.allclose(batch[1].tensor, Density(np.eye(4, 5), GRID).tensor)
    assert [part.leading for part in batch] == [(), ()]


def changed(index, value):
    values = np.ones((4, 5))
    values[index] = value
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed((1, 2), np.nan), "1 of 20 values are NaN; fill them, or give nodata="),
        (changed((1, 2), np.inf), "1 of 20 values are infinite"),
        (changed((0, slice(None)), -1.0), "5 of 20 values are negative; clip them at zero"),
        (np.zeros((4, 5)), "The density is zero everywhere"),
        (
            np.stack([np.ones((4, 5)), np.zeros((4, 5))]),
            "Density 1 of the batch is zero everywhere",
        ),
        (np.ones(4), "Values have 1 axes but the grid has 2; give 2 axes"),
        (np.ones((1, 1, 1, 4, 5)), "Values have 5 axes but the grid has 2"),
        (np.ones((5, 4)), r"Values of shape \(5, 4\) do not match the grid's \(4, 5\)"),
        (np.ones((0, 4, 5)), "The batch is empty"),
        (np.array([["a"] * 5] * 4), "are not numbers"),
        (np.ones((4, 5), complex), "are not numbers"),
        ([[1.0, 2.0], [3.0]], "Values are not an array"),
    ],
)
def test_what_is_not_a_density_is_refused(values, message):
    with pytest.raises(DensityError, match=message):
        Density(values, GRID)


def test_computed_values_stay_as_they_are():
    values = torch.full((4, 5), -2.0)
    density = Density.as_computed(values, GRID)
    assert density.tensor is values and float(density.mass) == 1


# ---- cells without data


def test_masked_cells_are_empty():
    """Whatever lies under the mask, NaN and negative numbers too; each end has its own mask."""
    given = np.arange(40.0).reshape(2, 4, 5)
    mask = np.zeros((2, 4, 5), bool)
    mask[0, 1, 2], mask[1, 3] = True, True
    given[0, 1, 2], given[1, 3] = np.nan, -1
    batch = Density(np.ma.masked_array(given, mask), GRID)
    expected = np.where(mask, 0, given)
    assert np.allclose(batch.numpy(mass="given"), expected)
    assert batch.mass.tolist() == pytest.approx(expected.sum((1, 2)) * GRID.cell_volume)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f2", "f4", "f8"])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_a_value_can_stand_for_no_data(dtype, kind):
    values = np.ones((4, 5), dtype)
    values[1, 2], values[2, 2] = 200, 9
    density = Density(kind(values), GRID, nodata=200)
    assert density.numpy(mass="given")[1, 2] == 0
    assert np.count_nonzero(density) == 19 and np.asarray(density)[2, 2] > 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_data_is_compared_in_the_type_of_the_values(dtype):
    values = np.ones((4, 5), dtype)
    values[1] = -9999.9  # rounded
    for given in (values, torch.from_numpy(values)):
        assert np.count_nonzero(Density(given, GRID, nodata=-9999.9)) == 15


def test_nan_counts_as_empty_when_somebody_says_so():
    values = torch.ones(4, 5, dtype=torch.float64)
    values[1, 2] = np.nan
    values.requires_grad_()
    density = Density(values, GRID, nodata=float("nan"))
    assert density.numpy()[1, 2] == 0 and density.mass.item() == pytest.approx(1.9)
    density.tensor[0, 0].backward()
    assert values.grad is not None and float(values.grad[1, 2]) == 0
    assert bool(torch.isfinite(values.grad).all())
    with pytest.raises(DensityError, match="1 of 20 values are NaN"):
        Density(values, GRID, nodata=0)
    with pytest.raises(InputError, match="nodata is 'nan'; give the number that marks cells"):
        Density(values, GRID, nodata="nan")  # type: ignore[arg-type]


def test_a_mask_that_would_be_lost_is_refused():
    masked = np.ma.masked_greater(np.arange(20.0).reshape(4, 5), 17)
    points = np.ma.masked_greater([[0.5, 0.1], [0.8, 0.9]], 0.7)
    for use in (
        lambda: Density([masked, np.ones((4, 5))], GRID),
        lambda: Density(np.ones((4, 5)), GRID).at(points),
        lambda: GaussianMixture.isotropic(points, 0.1),
    ):
        with pytest.raises(DensityError, match=r"2 numbers are masked, .*; .* with np\.ma\.stack"):
            use()
    whole = np.ma.masked_greater(np.ones((4, 5)), 17)
    assert Density([whole, whole], GRID).leading == (2,)
    joined = np.ma.stack([masked, whole])
    assert np.count_nonzero(Density(joined, GRID)[0]) == 17  # one cell is zero by itself


# ---- masses


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_have_mass_one_or_the_given_mass(dtype):
    given = np.stack([np.arange(20.0), 7 * np.ones(20)]).reshape(2, 4, 5).astype(dtype)
    batch = Density(given, GRID)
    assert batch.numpy("given").dtype == batch.numpy().dtype == dtype
    assert np.allclose(batch.numpy(mass="given"), given, rtol=1e-6)
    assert np.array_equal(batch.numpy(mass="one"), batch.tensor)
    with pytest.raises(InputError, match="mass is 'two'; give 'one' or 'given'"):
        batch.numpy(mass="two")  # type: ignore[arg-type]


def test_computed_values_stand_for_the_mass_that_is_said():
    values = torch.rand(2, 3, 4, 5)
    assert torch.equal(Density.as_computed(values, GRID).mass, torch.ones(2, 3).double())
    mass = torch.rand(2, 3).double()
    found = Density.as_computed(values, GRID, mass).numpy(mass="given")
    assert np.allclose(found, values * mass[..., None, None])


def test_moments_of_a_gaussian():
    covariance = torch.tensor([[0.02, 0.005], [0.005, 0.01]], dtype=torch.float64)
    gaussian = GaussianMixture([[0.9, 0.5]], covariance[None])
    density = Density(gaussian.on(Grid((80, 80), 0, (2, 1))).tensor, Grid((80, 80), 0, (2, 1)))
    assert torch.allclose(density.mean(), torch.tensor([0.9, 0.5]).double(), atol=1e-4)
    assert torch.allclose(density.covariance(), covariance, atol=1e-4)


def test_floor_mixes_in_uniform_mass():
    density = Density(np.eye(4, 5), GRID).with_floor(0.1)
    assert float(density.tensor.min()) == pytest.approx(0.1 / GRID.volume)
    assert float(density.tensor.sum() * GRID.cell_volume) == pytest.approx(1)
    with pytest.raises(DensityError, match="floor is 1"):
        density.with_floor(1.0)


def test_points_between_cells():
    gaussian = GaussianMixture.isotropic([[1.0, 0.5]], 0.2)
    exact = gaussian.on(Grid((60, 60), 0, (2, 1)))
    gridded = Density(exact.tensor, exact.grid)
    points = torch.rand(50, 2, dtype=torch.float64) * torch.tensor([2.0, 1.0])
    assert torch.allclose(gridded.at(points), exact.at(points), rtol=0, atol=1e-4)
    assert exact.at(points.reshape(5, 10, 2)).shape == (5, 10)
    with pytest.raises(GridError, match="do not lie in 2D"):
        exact.at([1.0, 2.0, 3.0])
    with pytest.raises(GridError, match="NaN"):
        exact.at([np.nan, 0.0])


def test_a_single_density_has_no_batch():
    with pytest.raises(DensityError, match="no batch axis"):
        Density(np.ones((4, 5)), GRID)[0]
    with pytest.raises(DensityError, match="no batch axis"):
        len(Density(np.ones((4, 5)), GRID))


def test_one_point_and_plain_coordinates():
    plane = Density(np.ones((4, 5)), GRID)
    assert plane.at([0.5, 0.5]).shape == ()
    line = Density(np.ones(4), Grid(4))
    assert line.at([0.3]).shape == (1,) and line.at([0.3, 0.4]).shape == (2,)
    with pytest.raises(GridError, match="There are no points"):
        plane.at(np.ones((0, 2)))


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_extreme_masses_are_kept(size):
    density = Density(np.full((4, 5), size), GRID)
    assert torch.allclose(density.tensor, torch.full((4, 5), 0.5).double())
    assert float(density.mass) == pytest.approx(2 * size)


@pytest.mark.parametrize(
    ("values", "grid"),
    [
        (np.full((8, 8), 1e308), Grid((8, 8), 0, 8)),
        (np.ones((4, 4, 4), np.float32), Grid((4, 4, 4), 0, 1e-13)),
    ],
)
def test_what_floating_point_cannot_hold_is_refused(values, grid):
    with pytest.raises(DensityError, match="beyond the range of float.* use other units"):
        Density(values, grid)


def test_resampling_a_mixture_keeps_mass_and_regions():
    narrow = GaussianMixture.isotropic([[0.31, 0.5]], 0.02).on(Grid((64, 64)))
    coarse = narrow.resample(Grid((10, 10)))
    assert torch.equal(coarse.mass, narrow.mass) and coarse.mixture is None
    left = [
        float(d.tensor[: d.grid.shape[0] // 2].sum() * d.grid.cell_volume) for d in (narrow, coarse)
    ]
    assert left[0] == pytest.approx(left[1])


def test_numpy_takes_it():
    density = Density(np.eye(4, 5), GRID)
    assert np.array_equal(np.asarray(density), density.numpy())
    assert np.asarray(density, dtype=np.float32).dtype == np.float32


def test_a_grid_must_be_a_grid():
    with pytest.raises(GridError, match="grid is 100; give a geonet.Grid"):
        Density(np.ones(100), 100)


def test_a_box_that_single_precision_has_no_room_for_is_refused():
    """Values of 1e-42 would lose their digits, and of 1e-60 be zero, without a word."""
    for length in (1e14, 1e20):
        with pytest.raises(DensityError, match="beyond the range of float32; use other units"):
            Density(np.ones((2, 2, 2), np.float32), Grid((2, 2, 2), 0, length))
        Density(np.ones((2, 2, 2)), Grid((2, 2, 2), 0, length))


# ---- blur


def test_blur_is_gaussian_between_reflecting_walls():
    density = Density(torch.rand(2, 9, 14, dtype=torch.float64), Grid((9, 14)))
    blurred = density.blurred(1.3)
    expected = gaussian_filter(density.numpy(), (0, 1.3, 1.3), mode="reflect", truncate=4)
    # scipy cuts the tails at round(4σ) cells, we at the next whole number: e^(−4²/2) of the rest
    assert np.abs(blurred.numpy() - expected).max() < 1e-3 * expected.max()
    assert blurred.numpy().sum((1, 2)) * density.grid.cell_volume == pytest.approx([1, 1])
    assert torch.equal(blurred.mass, density.mass)
    assert density.blurred(0) is density


def test_blur_wider_than_the_box_leaves_little_but_the_mean():
    values = torch.zeros(4, 400, dtype=torch.float64)
    values[:, 0] = 1
    narrow = Density(values, Grid((4, 400))).blurred(100).numpy()
    assert np.ptp(narrow[:, 200]) < 1e-12 * narrow.max()


def test_blur_is_differentiable():
    values = torch.rand(5, 6, dtype=torch.float64, requires_grad=True)
    blur = lambda v: Density(v, Grid((5, 6))).blurred(0.9).tensor  # noqa: E731
    assert torch.autograd.gradcheck(blur, (values,))


def test_points_outside_the_box_are_refused_but_for_formulas():
    grid = Grid((8, 8))
    with pytest.raises(GridError, match=r"1 of 2 points lie outside the box of 8×8 cells"):
        Density(torch.ones(8, 8), grid).at([[0.5, 0.5], [2, 2]])
    mixture = geonet.GaussianMixture.isotropic([[0.5, 0.5]], 0.1).on(grid)
    assert float(mixture.at([2.0, 2.0])) < 1e-9


def test_points_that_lie_on_their_side_are_recognised():
    with pytest.raises(GridError, match=r"give an array \(\.\.\., 2\), as points\.T is\."):
        geonet.from_samples(np.random.rand(2, 50), Grid((8, 8)))
    with pytest.raises(GridError, match="There are no points"):
        geonet.from_samples([], Grid((8, 8)))
