"""Weights: polygons, tables, lattices and the order of solving."""

import numpy as np
import pytest
import torch

from geonet.errors import InputError
from geonet.weights import (
    check_weights,
    corner_positions,
    find_table,
    make_lattice,
    make_table,
    plan_order,
    position_of,
    weights_at,
)


def cross(first, second):
    return first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_polygon_weights_are_barycentric_coordinates(count):
    corners = corner_positions(count)
    assert np.allclose(weights_at(corners, count), np.eye(count))
    inside = np.random.default_rng(0).dirichlet(np.ones(count), 40) @ corners
    weights = weights_at(inside, count)
    assert weights.min() >= 0
    assert np.allclose(weights.sum(-1), 1)
    assert np.allclose(position_of(weights), inside)  # linear precision


def test_polygons_of_many_corners():
    weights = weights_at(np.array([0.4, 0.6]), 400)  # products of 398 areas
    assert weights.sum() == pytest.approx(1) and np.allclose(position_of(weights), [0.4, 0.6])


def test_square_is_bilinear():
    weights = weights_at(np.array([0.3, 0.6]), 4)  # x to the right, y downwards
    assert np.allclose(weights, [0.7 * 0.4, 0.3 * 0.4, 0.7 * 0.6, 0.3 * 0.6])


@pytest.mark.parametrize(("count", "shape"), [(2, (5,)), (3, (15,)), (4, (5, 5))])
def test_tables(count, shape):
    table = make_table(count, 5)
    assert table.shape == (*shape, count)
    assert np.allclose(table.sum(-1), 1)
    assert find_table(table) == 5
    assert find_table(table[::-1]) is None and find_table(table[:2]) is None
    flat = table.reshape(-1, count)
    assert all((flat == corner).all(1).any() for corner in np.eye(count))


def test_corners_of_a_square_are_in_reading_order():
    table = make_table(4, 3)
    assert [int(table[i, j].argmax()) for i in (0, 2) for j in (0, 2)] == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7])
def test_lattice_covers_the_polygon(count):
    lattice = make_lattice(count, 5)
    assert np.allclose(weights_at(lattice.positions, count), lattice.weights, atol=1e-6)
    assert {int(k) for k in lattice.simplices.ravel()} == set(range(len(lattice.positions)))
    assert sorted(np.flatnonzero(lattice.weights.max(1) == 1).tolist()) == sorted(
        lattice.weights.argmax(0).tolist()
    )
    if count > 2:
        a, b, c = lattice.positions[lattice.simplices].transpose(1, 0, 2)
        areas = np.abs(cross(b - a, c - a)) / 2
        corners = corner_positions(count)[[0, 1, 3, 2] if count == 4 else list(range(count))]
        after = np.roll(corners, -1, 0)
        assert areas.sum() == pytest.approx(cross(corners, after).sum() / 2)


def test_order_starts_inside_and_continues_with_neighbours():
    weights = torch.tensor(make_table(4, 5).reshape(-1, 4))
    order = plan_order(weights)
    assert order[0] == (12, None)  # the centre
    assert len(order) == 21  # without the corners
    done = {12}
    for k, neighbour in order[1:]:
        assert neighbour in done
        assert bool((weights[neighbour] > 0)[weights[k] > 0].all())
        done.add(k)


def test_order_of_disjoint_densities_has_two_starts():
    weights = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [1, 0, 0, 0]])
    assert [start for _, start in plan_order(weights)] == [None, None]
    assert plan_order(torch.eye(3)) == []


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, -0.1, 0.6], "A weight is negative .* give numbers of at least 0"),
        ([0.5, 0.3, 0.1], "sum to 0.9, not to one; divide them by their sum"),
        ([0.5, 0.5], r"3 densities and weights of shape \(2,\)"),
        ([[0.5, 0.5]], r"3 densities and weights of shape \(1, 2\)"),
        (0.5, "3 densities and weights of shape"),
        ([], "3 densities and weights of shape"),
        ([0.5, float("nan"), 0.5], "NaN"),
        ([0.5, float("inf"), 0.5], "NaN or infinity"),
        ("0.5,0.3,0.2", "weights is '0.5,0.3,0.2'; give a list of 3 numbers"),
        (["a", "b", "c"], "give real numbers"),
    ],
)
def test_bad_weights_raise(weights, message):
    with pytest.raises(InputError, match=message):
        check_weights(weights, 3)


def test_weights_are_rounded_not_normalised():
    assert check_weights(None, 4).tolist() == [0.25] * 4
    kept = check_weights([0.5, 0.5 - 1e-8, 1e-8], 3)
    assert kept[2] == 0 and float(kept.sum()) == pytest.approx(1, abs=1e-15)
    assert check_weights([0.333] * 3, 3).tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(InputError, match="sum to 1.006, not to one; divide them by their sum"):
        check_weights([0.5, 0.506], 2)
    with pytest.raises(InputError, match="sum to 0, not to one; give at least one positive"):
        check_weights([0, 0], 2)


def test_tables_of_many_corners_raise():
    with pytest.raises(InputError, match="two to four corners and there are 5"):
        make_table(5, 3)
    with pytest.raises(InputError, match="table is 1; give an integer of at least 2"):
        make_table(3, 1)
