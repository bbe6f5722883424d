"""What potentials leave unbalanced halfway, for batches of pairs on the unit cube.

The same as `fields.elliptic` has for one pair, in the units of networks: lengths in cells,
densities relative to the uniform one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.fields.compiled import loops
from geonet.fields.elliptic import Elliptic, Totals, levels_on

KEPT = 2**15  # cells up to which the room for an equation is kept
MOST_KEPT = 8  # rooms of one shape


class Looked(NamedTuple):
    """The equation at given potentials.

    Attributes:
        residual: Σ over half-cells of B_i(ρ1 − ρ0), (B, *cells), relative to the uniform density.
        weight: trace A/d, (B, *cells), likewise.
        totals: as in `fields.elliptic.Totals`, (B, 6).
    """

    residual: Tensor
    weight: Tensor
    totals: Tensor

    @property
    def dual(self) -> Tensor:
        """Kantorovich's dual value of the potentials, (B,): at most W2² where no map folds."""
        energy, gain = (self.totals[:, Totals._fields.index(name)] for name in ("energy", "gain"))
        return energy / 2 + 2 * gain


@torch.no_grad()
def looked(coefficients: Tensor, source: Tensor, target: Tensor, threads: int) -> Looked:
    """Look at potentials, (B, *cells) in squared cells, between densities (B, *cells) of mean one.

    Pairs are shared out among the threads; a single pair has them all.
    """
    count, shape = len(coefficients), tuple(coefficients.shape[1:])
    residual, weight = torch.empty(count, *shape), torch.empty(count, *shape)
    totals = torch.empty(count, len(Totals._fields), dtype=torch.float64)
    potentials = coefficients.double() / max(shape) ** 2
    workers = min(count, threads)

    def work(first: int) -> None:
        with _room(shape, max(1, threads // count)) as equation:
            for k in range(first, count, workers):
                equation.between(source[k], target[k], 0.0)
                own, sums = equation.look(potentials[k])
                residual[k], weight[k] = own, equation.mean_weight()
                totals[k] = torch.tensor(sums, dtype=torch.float64)

    if workers == 1:
        work(0)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
    return Looked(residual * math.prod(shape), weight, totals)


_free: dict[tuple[str | int | None, ...], list[Elliptic]] = {}
_lock = Lock()


@contextmanager
def _room(shape: tuple[int, ...], threads: int) -> Iterator[Elliptic]:
    """The equation on a grid of the unit cube; making room for it costs as much as a small look."""
    key = loops.build(), *shape, threads
    with _lock:
        free = _free.get(key)
        equation = free.pop() if free else None
    if equation is None:
        equation = levels_on(shape, [n / max(shape) for n in shape], threads).at(0)
    yield equation
    if math.prod(shape) <= KEPT:
        with _lock:
            kept = _free.setdefault(key, [])
            if len(kept) < MOST_KEPT:
                kept.append(equation)
