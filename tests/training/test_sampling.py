from dataclasses import fields

import numpy as np
import pytest
import torch

from geonet.training.problems import FAMILIES, cartesian_batch, sensor_points, spread, triples_batch
from geonet.training.user_data import read_dataset

SENSORS, PAIRS, POINTS, PLACES = 4, 6, 7, 5


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=[*FAMILIES, "recorded-1d", "recorded-2d", "recorded-3d"])
def problem(request, tmp_path, generator):
    if request.param in FAMILIES:
        return make_problem(request.param)
    d = int(request.param[-2])
    source, target = torch.rand(2, 9, *(5,) * d, generator=generator).numpy()
    np.savez(tmp_path / "pairs.npz", source=source, target=target)
    return read_dataset(tmp_path / "pairs.npz")


def cartesian(problem, generator):
    sensors = sensor_points(SENSORS, problem.box.dimension)
    return cartesian_batch(problem, sensors, PAIRS, POINTS, PLACES, generator)


def triples(problem, generator):
    sensors = sensor_points(SENSORS, problem.box.dimension)
    return triples_batch(problem, sensors, PAIRS, generator)


def tensors(batch):
    found = {field.name: getattr(batch, field.name) for field in fields(batch)}
    del found["is_paired"], found["ends"]
    assert found.pop("exact_density") is None  # exact paths come later, for those who are shown them
    return found


def shapes(batch):
    return {name: tuple(tensor.shape) for name, tensor in tensors(batch).items()}


def test_sensors_are_cell_centres():
    assert sensor_points(4, 1).flatten().tolist() == [0.125, 0.375, 0.625, 0.875]
    places = sensor_points(2, 2)
    assert places.dtype == torch.float32
    assert places.tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    assert sensor_points(3, 3).shape == (27, 3)


def test_cartesian_shapes(problem):
    d = problem.box.dimension
    batch = cartesian(problem, seeded())
    assert not batch.is_paired
    assert shapes(batch) == {
        "source": (PAIRS, SENSORS**d),
        "target": (PAIRS, SENSORS**d),
        "points": (POINTS, d),
        "times": (POINTS,),
        "endpoint_points": (PLACES, d),
        "source_values": (PAIRS, PLACES),
        "target_values": (PAIRS, PLACES),
    }


def test_triples_shapes(problem):
    d = problem.box.dimension
    batch = triples(problem, seeded())
    assert batch.is_paired
    assert shapes(batch) == {
        "source": (PAIRS, SENSORS**d),
        "target": (PAIRS, SENSORS**d),
        "points": (PAIRS, d),
        "times": (PAIRS,),
        "endpoint_points": (PAIRS, d),
        "source_values": (PAIRS,),
        "target_values": (PAIRS,),
    }


@pytest.mark.parametrize("scheme", [cartesian, triples])
def test_all_in_the_unit_box_and_single_precision(scheme, problem):
    batch = scheme(problem, seeded())
    assert {tensor.dtype for tensor in tensors(batch).values()} == {torch.float32}
    for where in (batch.points, batch.times, batch.endpoint_points):
        assert float(where.min()) >= 0 and float(where.max()) <= 1


@pytest.mark.parametrize("scheme", [cartesian, triples])
def test_the_same_seed_gives_the_same_batches(scheme, problem):
    first, second = seeded(), seeded()
    for _ in range(2):
        a, b = (tensors(scheme(problem, generator)) for generator in (first, second))
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("scheme", [cartesian, triples])
def test_every_draw_is_new(scheme, problem):
    generator = seeded()
    a, b = (tensors(scheme(problem, generator)) for _ in range(2))
    assert [name for name in a if torch.equal(a[name], b[name])] == []


@pytest.mark.parametrize("scheme", [cartesian, triples])
def test_ends_are_the_densities_at_sensors_and_places(scheme, problem):
    batch = scheme(problem, seeded())
    sensors = sensor_points(SENSORS, problem.box.dimension)
    ends = problem.draw(PAIRS, seeded())  # drawn first, so these are the same pairs
    found = ((batch.source, batch.source_values), (batch.target, batch.target_values))
    for end, (sensed, there) in zip(ends, found, strict=True):
        at_places = end(batch.endpoint_points)
        expected = at_places.diagonal() if batch.is_paired else at_places
        assert torch.allclose(sensed, end(sensors), rtol=1e-4, atol=1e-5)
        assert torch.allclose(there, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", [cartesian, triples])
def test_the_ends_of_a_batch_are_its_densities(scheme, problem, generator):
    """As functions, which answer anywhere, also at points of each pair's own."""
    batch = scheme(problem, seeded())
    sensors = sensor_points(SENSORS, problem.box.dimension)
    own = torch.rand(PAIRS, 3, problem.box.dimension, generator=generator)
    for end, sensed in zip(batch.ends, (batch.source, batch.target), strict=True):
        assert torch.allclose(end(sensors), sensed, rtol=1e-4, atol=1e-5)
        assert end(own).shape == (PAIRS, 3)


def test_a_batch_may_have_no_places(problem):
    sensors = sensor_points(SENSORS, problem.box.dimension)
    batch = cartesian_batch(problem, sensors, PAIRS, POINTS, 0, seeded())
    assert shapes(batch)["endpoint_points"] == (0, problem.box.dimension)
    assert shapes(batch)["source_values"] == shapes(batch)["target_values"] == (PAIRS, 0)
    other = cartesian(problem, seeded())
    assert torch.equal(batch.points, other.points)
    assert torch.allclose(batch.source, other.source, rtol=1e-4, atol=1e-5)


def test_a_batch_goes_to_a_device(problem):
    batch = cartesian(problem, seeded())
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in tensors(moved).values()} == {"meta"}
    assert shapes(moved) == shapes(batch)
    assert moved.ends is batch.ends and moved.is_paired == batch.is_paired


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("dimension", "cells"), [(1, 64), (2, 8), (3, 4)])
def test_points_are_spread_evenly(dimension, cells, seed):
    """No cell of a grid lacks points, and none has twice its share of four; random ones do both."""
    count = 4 * cells**dimension
    points = kronecker_points(count, dimension, seeded(seed))
    assert points.shape == (count, dimension)
    assert bool((points >= 0).all() and (points <= 1).all())
    places = (points * cells).long().clamp(max=cells - 1)
    index = sum(places[:, i] * cells**i for i in range(dimension))
    counts = torch.bincount(index, minlength=cells**dimension)
    assert int(counts.min()) >= 1 and int(counts.max()) <= 8
    assert not torch.equal(points, kronecker_points(count, dimension, seeded(seed + 1)))
