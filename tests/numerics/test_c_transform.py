"""Tests of c-transforms and of pushed cells, compiled and not."""

import math

import pytest
import torch

from geonet.errors import InputError
from geonet.grid import Grid
from geonet.numerics import c_transform
from geonet.numerics.c_transform import (
    Lattice,
    cell_centres,
    push_cells,
    transform,
    transform_with_minimisers,
)

SHAPES = pytest.mark.parametrize("shape", [(17,), (9, 14), (5, 7, 6)], ids=str)


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"])
def either_way(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    if request.param == "1" and not c_transform.is_available():
        pytest.skip("needs compiled kernels")


@pytest.fixture
def both_ways(monkeypatch):
    """Evaluate a function with the kernel and without."""

    def evaluate(function):
        monkeypatch.setenv("GEONET_COMPILED", "1")
        if not c_transform.is_available():
            pytest.skip("needs compiled kernels")
        first = function()
        monkeypatch.setenv("GEONET_COMPILED", "0")
        assert not c_transform.is_available()
        return first, function()

    return evaluate


def noise(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def lattices(shape):
    """Lattices of values and of results, with different positions, spacings and counts."""
    at = [Lattice(0.3 + k, 0.1 * (k + 1), n) for k, n in enumerate(shape)]
    to = [Lattice(0.1 + k, 0.07, n + 2 + k) for k, n in enumerate(shape)]
    return at, to


# ---- transforms


@SHAPES
def test_transform_is_its_definition(shape, either_way):
    at, to = lattices(shape)
    values = noise(*shape)
    values.view(-1)[::5] = torch.inf
    x, y = (
        torch.stack(torch.meshgrid(*[lattice.points() for lattice in axes], indexing="ij"), -1)
        for axes in (to, at)
    )
    cost = ((x[..., None, :] - y.reshape(-1, len(at))) ** 2).sum(-1)
    expected, expected_index = (values.reshape(-1) + 0.7 * cost).min(-1)
    minimum, index = transform_with_minimisers(values, at, to, 0.7)
    assert torch.allclose(minimum, expected, rtol=1e-13)
    assert torch.equal(transform(values, at, to, 0.7), minimum)
    strides = torch.tensor([math.prod(shape[k + 1 :]) for k in range(len(shape))])
    flat = (index * strides.reshape(-1, *(1,) * len(shape))).sum(0)
    assert torch.equal(flat, expected_index)


@SHAPES
def test_compiled_and_torch_transforms_agree(shape, both_ways):
    at, to = lattices(shape)
    values = noise(3, 2, *shape)  # batch axes first
    values[0, 1] = torch.inf
    (first, index), (second, other) = both_ways(lambda: transform_with_minimisers(values, at, to))
    assert torch.allclose(first, second, rtol=1e-13) and torch.equal(index, other)
    assert bool(torch.isinf(first[0, 1]).all()) and bool((index[:, 0, 1] == -1).all())
    assert bool(torch.isfinite(first[1:]).all())


def test_transform_far_from_the_origin(either_way):
    grid = Grid((12, 20), (3e5, -2.0), (3e5 + 2, 1.0))
    potential, points = noise(*grid.shape), grid.points().reshape(-1, 2)
    costs = (points[:, None] - points).square().sum(-1) - potential.flatten()
    expected = costs.amin(1).reshape(grid.shape)
    assert torch.allclose(transform(-potential, cell_centres(grid)), expected, rtol=1e-9)


def test_transform_of_a_parabola(either_way):
    """min_y a·y² + w(x − y)² = aw/(a + w)·x², up to the spacing of the lattice."""
    fine, coarse = Lattice(-2.0, 1e-3, 4001), Lattice(-1.0, 0.5, 5)
    result = transform(3 * fine.points() ** 2, [fine], [coarse], 2.0)
    assert torch.allclose(result, 6 / 5 * coarse.points() ** 2, atol=5e-6)


def test_invalid_transforms():
    at = [Lattice(0.0, 0.1, 3)]
    with pytest.raises(InputError, match=r"shape \(4,\) do not match"):
        transform(torch.zeros(4), at)
    with pytest.raises(InputError, match="weight is 0"):
        transform(torch.zeros(3), at, weight=0.0)
    for bad in (torch.nan, -torch.inf):
        with pytest.raises(InputError, match="NaN or −∞"):
            transform(torch.tensor([0.0, bad, 0.0]), at)
    with pytest.raises(InputError, match="positive spacing"):
        Lattice(0.0, -0.1, 3)


# ---- push-forward


def corners(shape):
    """Corners of the cells under the identity map."""
    edges = [torch.arange(n + 1, dtype=torch.float64) - 0.5 for n in shape]
    return torch.stack(torch.meshgrid(*edges, indexing="ij"))


@SHAPES
def test_identity_keeps_masses(shape, either_way):
    mass = noise(*shape)
    assert torch.equal(push_cells(mass, corners(shape), shape), mass)


@SHAPES
def test_compiled_and_numpy_pushes_agree_and_keep_mass(shape, both_ways):
    mass, cells = noise(*shape), [n + 2 for n in shape]
    mass.view(-1)[::3] = 0
    images = 9 * noise(len(shape), *(n + 1 for n in shape)) - 1  # also beyond the faces
    first, second = both_ways(lambda: push_cells(mass, images, cells))
    assert torch.allclose(first, second, atol=1e-12)
    assert float(first.sum()) == pytest.approx(float(mass.sum()))
    assert float(first.min()) >= 0


def test_stretched_cells_fill_their_image(either_way):
    mass = noise(5, 4)
    pushed = push_cells(mass, 2 * corners((5, 4)) + 0.5, (10, 8))
    assert torch.allclose(pushed, mass.repeat_interleave(2, 0).repeat_interleave(2, 1) / 4)


def test_invalid_pushes():
    mass = torch.ones(3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"do not belong to cells of shape \(3,\)"):
        push_cells(mass, torch.zeros(1, 3), (3,))
    with pytest.raises(InputError, match=r"output's shape is \(3, 3\)"):
        push_cells(mass, corners((3,)), (3, 3))
    with pytest.raises(InputError, match="NaN or infinite"):
        push_cells(mass, corners((3,)) * torch.nan, (3,))


# ---- periodic axes


@pytest.mark.parametrize("periodic", [(True, True), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("beyond", [0, 1])
def test_periodic_transform_equals_all_pairs(periodic, beyond, generator, either_way):
    grid = Grid((7, 10), (1, 0), (2, 3), periodic=periodic)
    values = 0.3 * torch.rand(2, 7, 10, dtype=torch.float64, generator=generator)
    at, to = cell_centres(grid), cell_centres(grid.with_shape((4, 6)), beyond)
    offset = grid_of(to)[:, None] - grid_of(at)
    cost = grid.shorten(offset).square().sum(-1) * 0.7
    best = (values.reshape(2, 1, -1) + cost).min(-1)
    shape = tuple(lattice.count for lattice in to)
    least, index = transform_with_minimisers(values, at, to, 0.7, periodic)
    assert torch.allclose(transform(values, at, to, 0.7, periodic), least, atol=1e-14)
    assert torch.allclose(least, best.values.reshape(2, *shape), atol=1e-13)
    # the index is not wrapped: it leads to the nearest image, at the distance of the cost
    inside = torch.stack([index[0] % 7, index[1] % 10])
    image = torch.stack([x.first + x.spacing * k for x, k in zip(at, index, strict=True)], -1)
    squares = (image - grid_of(to).reshape(*shape, 2)).square().sum(-1) * 0.7
    batch = torch.arange(2)[:, None, None]
    assert torch.allclose(values[batch, inside[0], inside[1]] + squares, least, atol=1e-13)


def grid_of(lattices):
    """Return all points of a lattice, (N, d)."""
    axes = torch.meshgrid(*(lattice.points() for lattice in lattices), indexing="ij")
    return torch.stack(axes, -1).reshape(-1, len(lattices))


def test_wrong_number_of_periodic_flags_raises():
    with pytest.raises(InputError, match="periodic has 1 entries for 2 lattices"):
        transform(torch.zeros(3, 3), cell_centres(Grid((3, 3))), periodic=(True,))


def test_push_wraps_around_periodic_axes(generator, either_way):
    mass = torch.rand(6, 5, dtype=torch.float64, generator=generator)
    axes = (torch.arange(n + 1, dtype=torch.float64) - 0.5 for n in (6, 5))
    corners = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    shift = torch.tensor([-8.0, 0.0]).reshape(2, 1, 1)
    moved = push_cells(mass, corners + shift, (6, 5), (True, False))
    assert torch.allclose(moved, mass.roll(-8, 0), atol=1e-14)
    half = push_cells(mass, corners + shift / 16, (6, 5), (True, False))
    assert torch.allclose(half, (mass + mass.roll(-1, 0)) / 2, atol=1e-14)
