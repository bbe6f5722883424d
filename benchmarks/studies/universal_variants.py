"""Networks for any two densities, trained for the same time: a single pass, or a cascade.

All have the same time, pairs, loss and optimizer; they are measured on kinds of pairs that none was
trained on. Prints a table and writes it into docs/universal.md. Run it by `make benchmark
NAME=universal-variants` on an otherwise idle machine.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import clip_grad_norm_

import geonet
from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.pairs import KINDS, PAIRS, draw
from benchmarks.results import record_provenance
from benchmarks.studies.universal_networks import (
    cascade,
    convolutions_once,
    fourier_once,
    modes_once,
    one_network,
)
from benchmarks.timing import make_generator, measure_median
from geonet import _utils as randomness
from geonet._threads import passive_wait
from geonet.solvers.neural.cascade import compute_losses
from geonet.solvers.newton.iteration import unbalanced_mass
from geonet.solvers.newton.path import push_frames
from geonet.solvers.newton.system import evaluate_residual
from geonet.synthetic import SQUARE
from geonet.training.optim import SOAP
from geonet.training.synthetic_pairs import random_pairs

MINUTES = 5.0  # of training
SEED = 0  # of weights and training pairs
SEED_OTHER = 8_000  # of the pairs measured on: not the suite's, on which the published ones are
BATCH = 32  # pairs in a step
RATE, HELD = 3e-3, 0.3  # the learning rate, and the part of the time in which it stays there
CLIP = 1.0  # the largest norm of a gradient
TOLERANCE = 1e-3  # of the references
PAUSE = 10.0  # seconds between two lines of progress
REPEATS = 21

VARIANTS: dict[str, Callable[[], Module]] = {
    "MLP on 32² modes, once": modes_once,
    "Fourier layers, once": fourier_once,
    "convolutions, once": convolutions_once,
    "cascade": cascade,
    "cascade, one network for all grids": one_network,
}


def say(line: str) -> None:
    """Print the state of the work."""
    print(line, file=sys.stderr, flush=True)


# ---- training


def build_variant(label: str) -> Module:
    """Return a variant before training, its weights from the seed."""
    with randomness.fork_rng(SEED):
        return VARIANTS[label]()


def learning_rate(share: float) -> float:
    """Return the rate after a share of the time: constant, then half a cosine to zero."""
    falling = max(0.0, (share - HELD) / (1 - HELD))
    return RATE * 0.5 * (1 + math.cos(math.pi * falling))


def train_variant(label: str, network: Module, minutes: float) -> int:
    """Train for so long; gives the number of pairs that it saw."""
    optimizer, generator = SOAP(network.parameters(), RATE), make_generator(SEED)
    began, said, seen = perf_counter(), -math.inf, 0
    while (passed := perf_counter() - began) < 60 * minutes:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(passed / (60 * minutes))
        source, target = random_pairs(generator, BATCH, SQUARE)
        lacking = take_step(network, optimizer, source, target)
        seen += BATCH
        if passed - said >= PAUSE:
            said = passed
            so_far = f"{label}: {passed:.0f} of {60 * minutes:.0f} s, {seen:,} pairs"
            say(f"{so_far}, the dual value lacks {format_share(lacking)}")
    return seen


def take_step(
    network: Module, optimizer: torch.optim.Optimizer, source: Tensor, target: Tensor
) -> float:
    """Take one step on pairs (B, n, n); return the relative dual gap before it.

    A step with a gradient that is not finite is skipped: one batch must not end a comparison.
    """
    terms = compute_losses(network(source, target), source, target)
    optimizer.zero_grad()
    torch.stack(list(terms.values())).sum().backward()
    if clip_grad_norm_(network.parameters(), CLIP).isfinite():
        optimizer.step()
    return float(terms[f"deficit_{source.shape[-1]}"].detach())


# ---- measuring


class Known(NamedTuple):
    """Pairs of all kinds, one kind after the other, with what `midpoint` says of them.

    Attributes:
        source: (P, n, n), mean one.
        target: likewise.
        distance: W2, (P,).
        halfway: the density at t = ½, (P, n, n).
    """

    source: Tensor
    target: Tensor
    distance: Tensor
    halfway: Tensor


def known_pairs(count: int = PAIRS) -> Known:
    """Return `count` pairs of each kind."""
    found = []
    for kind in KINDS:
        say(f"reference paths: {kind}")
        for k in range(count):
            source, target = draw(kind, SQUARE.cells, k, seed=SEED_OTHER)
            path = geonet.geodesic(source, target, solver="midpoint", tolerance=TOLERANCE)
            ends = source.tensor.float(), target.tensor.float()
            found.append((*ends, path.distance, path.density(0.5).tensor))
    return Known(*(torch.stack(column) for column in zip(*found, strict=True)))


class Errors(NamedTuple):
    """Means over kinds of the medians over the pairs of a kind.

    Attributes:
        distance: |W2/its reference − 1|, W2 by the dual value.
        relative: L1 at t = ½, divided by the error of the linear mixture.
        unbalanced: the share of the mass that is not balanced halfway.
    """

    distance: float
    relative: float
    unbalanced: float


@torch.no_grad()
def errors_of(network: Module, pairs: Known) -> Errors:
    """Return the errors of a network on the grid of the pairs."""
    coefficients = network(pairs.source, pairs.target)[-1]
    look = evaluate_residual(coefficients, pairs.source, pairs.target, torch.get_num_threads())
    off = (look.dual.clamp(min=0).sqrt() / pairs.distance - 1).abs()
    frames = torch.stack(list(map(frame_of, coefficients, pairs.source, pairs.target)))
    linear = (pairs.source + pairs.target) / 2
    own, mixed = ((f - pairs.halfway).abs().mean((1, 2)) for f in (frames, linear))
    residuals = look.residual.double() / SQUARE.cells**2  # of unit mass
    left = map(unbalanced_mass, residuals, look.integrals[:, 1:3].tolist())
    columns = torch.stack([off, own / mixed, torch.tensor(list(left), dtype=torch.float64)])
    medians = columns.unflatten(1, (len(KINDS), -1)).quantile(0.5, dim=2)
    return Errors(*medians.mean(1).tolist())


def frame_of(coefficients: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return the density at t = ½, (n, n), of a potential (n, n) in squared cells."""
    n, ends = len(coefficients), (source.double(), target.double())
    half = torch.tensor([0.5], dtype=torch.float64)
    return push_frames(coefficients.double() / n**2, ends, (1.0, 1.0), half, (n, n), 1)[0]


@torch.no_grad()
def one_pair(network: Module, pairs: Known) -> float:
    """Return seconds for one pair in torch, without the compiled loop that answers for
    `universal-2d`.
    """
    call = lambda: network(pairs.source[:1], pairs.target[:1])  # noqa: E731
    measure_median(call, REPEATS)  # to warm up
    return measure_median(call, REPEATS)


def row(label: str, pairs: Known, minutes: float) -> Cells:
    """Train a variant and measure it."""
    network = build_variant(label)
    weights = sum(parameter.numel() for parameter in network.parameters())
    seen = train_variant(label, network, minutes)
    errors = errors_of(network, pairs)
    say(f"{label}: {errors}")
    return (
        label,
        f"{weights / 1000:,.0f}",
        f"{seen:,}",
        format_share(errors.distance),
        f"{errors.relative:.3f}",
        format_share(errors.unbalanced),
        f"{1e3 * one_pair(network, pairs):.3g}",
    )


def main() -> None:
    """Train all variants one after the other."""
    warnings.simplefilter("ignore")
    provenance = record_provenance()
    with passive_wait():
        pairs = known_pairs()
        rows = [row(label, pairs, MINUTES) for label in VARIANTS]
    told = (
        f"Each was trained for {MINUTES:g} minutes, with {BATCH} new pairs at every step. Errors "
        f"are means over {len(KINDS)} kinds of the medians over {PAIRS} pairs. The times are those "
        "of torch, not of the compiled network."
    )
    header = ("network", "thousand weights", "pairs seen", "W2", "L1 at ½, of the linear mixture's")
    header += ("not balanced", "one pair, ms")
    text = f"{told}\n\n{format_table(header, rows)}"
    print(text)
    publish("universal-variants", provenance, {"docs/universal.md": {"variants": text}})


if __name__ == "__main__":
    main()
