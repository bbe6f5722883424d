"""Transforms and pushes: compiled and plain agree, and both do what their formulas say."""

import math

import pytest
import torch

from geonet.errors import InputError
from geonet.grid import Grid
from geonet.numerics import c_transform as transforms
from geonet.numerics.c_transform import Lattice, centres, minimisers, nodes, push, transform
from geonet.solvers.schrodinger import squared_distance_transform

SHAPES = pytest.mark.parametrize("shape", [(17,), (9, 14), (5, 7, 6)], ids=str)


@pytest.fixture(params=["1", "0"], ids=["compiled", "plain"])
def either_way(request, monkeypatch):
    """A test that runs with the compiled loops and without."""
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    if request.param == "1" and not transforms.available():
        pytest.skip("the loops were not compiled here")


@pytest.fixture
def both_ways(monkeypatch):
    """The answers of a function with the compiled loops and without."""

    def answers(function):
        monkeypatch.setenv("GEONET_COMPILED", "1")
        if not transforms.available():
            pytest.skip("the loops were not compiled here")
        first = function()
        monkeypatch.setenv("GEONET_COMPILED", "0")
        assert not transforms.available()
        return first, function()

    return answers


def noise(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def lattices(shape):
    """Where values are, and where they are wanted: other places, spacings and counts."""
    at = [Lattice(0.3 + k, 0.1 * (k + 1), n) for k, n in enumerate(shape)]
    to = [Lattice(0.1 + k, 0.07, n + 2 + k) for k, n in enumerate(shape)]
    return at, to


def by_definition(values, at, to, weight):
    """Every sum, all axes at once."""
    x, y = (
        torch.stack(torch.meshgrid(*[one.points() for one in axes], indexing="ij"), -1)
        for axes in (to, at)
    )
    flat = y.reshape(-1, len(at))
    cost = ((x[..., None, :] - flat) ** 2).sum(-1)
    return (values.reshape(-1) + weight * cost).min(-1)


# ---- transforms


@SHAPES
def test_a_transform_is_its_definition(shape, either_way):
    at, to = lattices(shape)
    values = noise(*shape)
    values.view(-1)[::5] = torch.inf
    expected = by_definition(values, at, to, 0.7)
    found, where = minimisers(values, at, to, 0.7)
    assert torch.allclose(found, expected.tensor, rtol=1e-13)
    assert torch.equal(transform(values, at, to, 0.7), found)
    sizes = torch.tensor([math.prod(shape[k + 1 :]) for k in range(len(shape))])
    flat = (where * sizes.reshape(-1, *(1,) * len(shape))).sum(0)
    assert torch.equal(flat, expected.indices)


@SHAPES
def test_compiled_and_plain_transforms_agree(shape, both_ways):
    at, to = lattices(shape)
    values = noise(3, 2, *shape)  # batches in front
    values[0, 1] = torch.inf
    (first, where), (second, there) = both_ways(lambda: minimisers(values, at, to))
    assert torch.allclose(first, second, rtol=1e-13) and torch.equal(where, there)
    assert bool(torch.isinf(first[0, 1]).all()) and bool((where[:, 0, 1] == -1).all())
    assert bool(torch.isfinite(first[1:]).all())


def test_on_the_cells_of_a_grid_it_is_what_legendre_has(either_way):
    grid = Grid((12, 20), (3e5, -2.0), (3e5 + 2, 1.0))
    potential = noise(*grid.shape)
    found = transform(-potential, centres(grid))
    assert torch.allclose(found, squared_distance_transform(potential, grid), rtol=1e-9)


def test_parabolas_are_known(either_way):
    """min_y a·y² + w(x − y)² is aw/(a + w)·x² for y anywhere, and nearly on a fine lattice."""
    fine, coarse = Lattice(-2.0, 1e-3, 4001), Lattice(-1.0, 0.5, 5)
    found = transform(3 * fine.points() ** 2, [fine], [coarse], 2.0)
    assert torch.allclose(found, 6 / 5 * coarse.points() ** 2, atol=5e-6)


def test_columns_that_are_not_contiguous(either_way):
    values = noise(14, 9).T
    at = [Lattice(0.0, 0.1, 9), Lattice(0.0, 0.1, 14)]
    assert torch.equal(transform(values, at), transform(values.contiguous(), at))


def test_lattices_of_a_grid():
    grid = Grid((4, 2), (0.0, 1.0), (2.0, 2.0))
    assert centres(grid) == (Lattice(0.25, 0.5, 4), Lattice(1.25, 0.5, 2))
    assert centres(grid, beyond=1)[0] == Lattice(-0.25, 0.5, 6)
    assert nodes(grid, parts=2)[1] == Lattice(1.0, 0.25, 5)
    assert torch.equal(centres(grid)[1].points(), grid.axes()[1])


def test_what_cannot_be_transformed_is_refused():
    at = [Lattice(0.0, 0.1, 3)]
    with pytest.raises(InputError, match=r"shape \(4,\) do not lie on 1 lattices of \(3,\) points"):
        transform(torch.zeros(4), at)
    with pytest.raises(InputError, match="weight is 0; give a positive number"):
        transform(torch.zeros(3), at, weight=0.0)
    for bad in (torch.nan, -torch.inf):
        with pytest.raises(InputError, match="NaN or −∞, of which there is no minimum"):
            transform(torch.tensor([0.0, bad, 0.0]), at)
    with pytest.raises(InputError, match="give a positive spacing and count"):
        Lattice(0.0, -0.1, 3)


# ---- pushes


def corners(shape, stretch=1.0):
    """Of cells that stay where they are, or are stretched from the first centre on."""
    edges = [stretch * (torch.arange(n + 1, dtype=torch.float64) - 0.5) for n in shape]
    return torch.stack(torch.meshgrid(*edges, indexing="ij"))


@SHAPES
def test_standing_still_changes_nothing(shape, either_way):
    mass = noise(*shape)
    assert torch.equal(push(mass, corners(shape), shape), mass)


@SHAPES
def test_compiled_and_plain_pushes_agree_and_keep_mass(shape, both_ways):
    mass, cells = noise(*shape), [n + 2 for n in shape]
    mass.view(-1)[::3] = 0
    places = 9 * noise(len(shape), *(n + 1 for n in shape)) - 1  # also beyond the faces
    first, second = both_ways(lambda: push(mass, places, cells))
    assert torch.allclose(first, second, atol=1e-12)
    assert float(first.sum()) == pytest.approx(float(mass.sum()))
    assert float(first.min()) >= 0


def test_a_shift_by_half_a_cell_is_shared(either_way):
    found = push(torch.tensor([0.0, 1.0, 0.0]), corners((3,)) + 0.5, (3,))
    assert found.tolist() == [0.0, 0.5, 0.5]


def test_a_cell_that_is_stretched_fills_what_it_covers(either_way):
    """Twice as fine an output: the identity puts a cell into both of its halves."""
    mass = noise(5, 4)
    found = push(mass, 2 * corners((5, 4)) + 0.5, (10, 8))
    assert torch.allclose(found, mass.repeat_interleave(2, 0).repeat_interleave(2, 1) / 4)


def test_what_cannot_be_pushed_is_refused():
    mass = torch.ones(3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"do not belong to cells of shape \(3,\)"):
        push(mass, torch.zeros(1, 3), (3,))
    with pytest.raises(InputError, match=r"output's shape is \(3, 3\); give 1 positive"):
        push(mass, corners((3,)), (3, 3))
    with pytest.raises(InputError, match="Corners are NaN or infinite"):
        push(mass, corners((3,)) * torch.nan, (3,))
