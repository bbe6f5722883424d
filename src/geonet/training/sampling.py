"""Random pairs and random points, in two schemes."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.measures.grid import Grid
from geonet.operators.objective import Batch
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
) -> Batch:
    """`pairs` new pairs, each to be asked at the same `points` and `places`."""
    d = problem.box.dimension
    ends = problem.draw(pairs, generator)
    where = torch.rand(points, d + 1, generator=generator)
    there = torch.rand(places, d, generator=generator)
    source, target = (problem.sensed(end, sensors) for end in ends)
    source_there, target_there = (end(there) for end in ends)
    return Batch(
        source, target, where[:, :d], where[:, d], there, source_there, target_there, ends, False
    )


def triples_batch(
    problem: Problem, sensors: Tensor, count: int, generator: torch.Generator
) -> Batch:
    """The paper's: `count` pairs, each with a point and a place of its own (algorithm 1)."""
    d = problem.box.dimension
    ends = problem.draw(count, generator)
    where = torch.rand(count, d + 1, generator=generator)
    there = torch.rand(count, d, generator=generator)
    source, target = (problem.sensed(end, sensors) for end in ends)
    source_there, target_there = (end(there[:, None])[:, 0] for end in ends)
    return Batch(
        source, target, where[:, :d], where[:, d], there, source_there, target_there, ends, True
    )
