"""Random pairs and random points, in two schemes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from geonet.measures.grid import Grid
from geonet.training.problem import Ends, Problem


@dataclass(frozen=True)
class Batch:
    """What one step of training sees, all in the unit box, float32.

    Cartesian: every one of B pairs at every one of Q points. Triples: pair n at point n only.

    Attributes:
        source: μ0 at the sensors, (B, m).
        target: μ1 at the sensors, (B, m).
        points: where the equations are asked for, (Q, d).
        times: and when, (Q,).
        places: where the ends are compared, (P, d).
        source_there: μ0 at the places, (B, P); triples (B,).
        target_there: μ1 at the places, likewise.
        ends: μ0 and μ1 of every pair as functions.
        paired: whether these are triples.
        known: μ_t at the points and times, (B, Q), where the training is shown exact paths.
    """

    source: Tensor
    target: Tensor
    points: Tensor
    times: Tensor
    places: Tensor
    source_there: Tensor
    target_there: Tensor
    ends: Ends
    paired: bool
    known: Tensor | None = None

    def to(self, device: str) -> Batch:
        """The same on a device."""
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


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
