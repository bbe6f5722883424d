"""Accuracy of gradients of the transport form, relative to monge-ampere.

Writes the table of docs/gradients.md. Run it by `make benchmark NAME=gradients`.
"""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor

import geonet
from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.results import record_provenance
from benchmarks.timing import make_generator
from geonet import Density, Geodesic
from geonet.evaluation import SEED, TEST_SETS
from geonet.mixture import BOX_2D

GRID = BOX_2D.with_shape(32)
PAIRS = 6
SETTINGS = {
    "`transport-2d`": {},
    "`transport-2d`, the network alone (`max_iterations=0`)": {"max_iterations": 0},
}


def squared_distance(path: Geodesic) -> Tensor:
    """Return W2²."""
    return path.distance**2


def mean_halfway(path: Geodesic) -> Tensor:
    """Return the mean over the density at t = ½ of a function that is no constant."""
    x, y = (path.grid.points() / 5).unbind(-1)
    weight = torch.cos(2 * torch.pi * x) + torch.sin(3 * y) * x
    return (path.density(0.5).tensor * weight).sum() * path.grid.cell_volume


def slopes(ask, source: Tensor, target: Tensor, solver: str, **options) -> Tensor:
    """Return the derivative of the answer by the relative mass of each cell, (2·cells,)."""
    ends = [end.clone().requires_grad_() for end in (source, target)]
    path = geonet.geodesic(*(Density(end, GRID) for end in ends), solver, **options)
    gradients = torch.autograd.grad(ask(path), ends)
    return torch.cat([(g * e.detach()).flatten() for g, e in zip(gradients, ends, strict=True)])


def errors(case: str, ask, options: dict) -> str:
    """Return least, median and largest relative error over the pairs of a case."""
    mixtures = TEST_SETS[case].family(2 * PAIRS, make_generator(SEED)).to_density(GRID).tensor
    found = []
    for source, target in zip(mixtures[:PAIRS], mixtures[PAIRS:], strict=True):
        truth = slopes(ask, source, target, "monge-ampere")
        own = slopes(ask, source, target, "transport-2d", **options)
        found.append(float((own - truth).norm() / truth.norm()))
    return (
        f"{format_share(median(found))} ({format_share(min(found))} to {format_share(max(found))})"
    )


def main() -> None:
    """Measure, print and write the table."""
    provenance = record_provenance()
    rows: list[Cells] = [
        (name, case, *(errors(case, ask, options) for ask in (squared_distance, mean_halfway)))
        for case in ("2D random", "2D OOD")
        for name, options in SETTINGS.items()
    ]
    text = format_table(("", "pairs", "W2²", "a mean over the density at t = ½"), rows)
    publish("gradients", provenance, {"docs/gradients.md": {"gradients": text}})
    print(text)


if __name__ == "__main__":
    main()
