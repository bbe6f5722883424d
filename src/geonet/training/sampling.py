"""Random pairs and random points, in two schemes."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.measures.grid import Grid
from geonet.operators.objective import Batch, EndFunctions
from geonet.training.problem import Problem


def sensor_points(sensors: int, dimension: int) -> Tensor:
    """Where the branches read: the centres of sensors^d cells of the unit box, (m, d), float32."""
    return Grid((sensors,) * dimension).points().reshape(-1, dimension).float()


def cartesian_batch(
    problem: Problem,
    sensors: Tensor,
    pairs: int,
    points: int,
    places: int,
    generator: torch.Generator,
    means: int | None = None,
) -> Batch:
    """`pairs` new pairs, each to be asked at the same `points` and `places`.

    With `means`, the number of cells an axis, the sensors read means over cells instead of values.
    """
    d = problem.box.dimension
    ends = problem.draw(pairs, generator)
    where, there = spread(points, d + 1, generator), spread(places, d, generator)
    seen = [
        problem.sensed(end, sensors) if means is None else problem.means(end, means) for end in ends
    ]
    return _batch(ends, seen, where, there, [end(there) for end in ends], paired=False)


def triples_batch(
    problem: Problem, sensors: Tensor, count: int, generator: torch.Generator
) -> Batch:
    """The paper's: `count` pairs, each with a point and a place of its own (algorithm 1)."""
    d = problem.box.dimension
    ends = problem.draw(count, generator)
    where = torch.rand(count, d + 1, generator=generator)
    there = torch.rand(count, d, generator=generator)
    at_places = [end(there[:, None])[:, 0] for end in ends]
    seen = [problem.sensed(end, sensors) for end in ends]
    return _batch(ends, seen, where, there, at_places, paired=True)


def spread(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Points spread evenly over the unit cube, moved by a random vector as a whole, (count, d).

    Point i is i·(1/g, 1/g², …) modulo 1, with g^(d+1) = g + 1, the golden ratio for d = 1
    (Kronecker's sequence). All pairs of a batch share its points, so gaps between random points
    would show in every one of them.
    """
    ratio = 1.0
    for _ in range(64):  # which is a contraction
        ratio = (1 + ratio) ** (1 / (dimension + 1))
    steps = ratio ** -torch.arange(1.0, dimension + 1, dtype=torch.float64)
    start = torch.rand(dimension, generator=generator, dtype=torch.float64)
    index = torch.arange(count, dtype=torch.float64)[:, None]
    return ((start + index * steps) % 1).float()


def _batch(
    ends: EndFunctions,
    seen: list[Tensor],
    where: Tensor,
    there: Tensor,
    at_places: list[Tensor],
    paired: bool,
) -> Batch:
    (source, target), (points, times) = seen, (where[:, :-1], where[:, -1])
    return Batch(source, target, points, times, there, *at_places, ends=ends, paired=paired)
