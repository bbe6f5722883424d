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
    ends, where, there = _drawn(problem, pairs, points, places, generator)
    seen = [
        problem.sensed(end, sensors) if means is None else problem.means(end, means) for end in ends
    ]
    return _batch(ends, seen, where, there, [end(there) for end in ends], paired=False)


def triples_batch(
    problem: Problem, sensors: Tensor, count: int, generator: torch.Generator
) -> Batch:
    """The paper's: `count` pairs, each with a point and a place of its own (algorithm 1)."""
    ends, where, there = _drawn(problem, count, count, count, generator)
    at_places = [end(there[:, None])[:, 0] for end in ends]
    seen = [problem.sensed(end, sensors) for end in ends]
    return _batch(ends, seen, where, there, at_places, paired=True)


def _drawn(
    problem: Problem, pairs: int, points: int, places: int, generator: torch.Generator
) -> tuple[EndFunctions, Tensor, Tensor]:
    """New pairs, points (x, t) and places x."""
    d = problem.box.dimension
    ends = problem.draw(pairs, generator)
    where = torch.rand(points, d + 1, generator=generator)
    return ends, where, torch.rand(places, d, generator=generator)


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
