"""Point clouds: Table 3 and its figure.

Particles of both clouds are matched exactly by a linear program and move straight; their histogram
is the truth. Every method sees the same particles, or their histograms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import numpy as np
import ot
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.baselines.flow_matching import FlowSolver
from benchmarks.results import Result, Table, format_digits, make_spreads
from experiments.paper import published_values as paper
from experiments.paper.experiments import Conditions
from experiments.point_clouds import BOX_CLOUDS, PARTICLES, cloud_mixtures, histogram, quantize
from geonet.density import Density
from geonet.evaluation import SEED, TIME_LABELS
from geonet.metrics import l1
from geonet.mixture import GaussianMixture
from geonet.paths import QUARTERS
from geonet.plotting import DENSITY_MAP
from geonet.samples import sample_particles
from geonet.solvers.registry import make_solver

PAIRS, FEW_PAIRS = 30, 4  # few for methods with a training or an ODE for every pair
QUICK_STEPS = 300
FLOWS = {"CFM": "flow-matching", "RF": "rectified-flow"}


@dataclass(frozen=True)
class CloudPair:
    """Particles of two clouds on [0, 5]², (3000, 2) each, and a second sample of both mixtures."""

    source: Tensor
    target: Tensor
    again: tuple[Tensor, Tensor]

    @cached_property
    def truth(self) -> Density:
        """Return histograms of the particles on their optimal straight ways, (5, 25, 25)."""
        return histogram(_move_particles(self.source, self.target), BOX_CLOUDS)

    @cached_property
    def ends(self) -> tuple[Density, Density]:
        """Return the histograms that operators see."""
        return histogram(self.source, BOX_CLOUDS), histogram(self.target, BOX_CLOUDS)

    @cached_property
    def noise(self) -> Tensor:
        """Return the error between the truths of both samples, (5,)."""
        return l1(histogram(_move_particles(*self.again), BOX_CLOUDS), self.truth)


def cloud_pairs(count: int, seed: int = SEED) -> list[CloudPair]:
    """Return pairs of clouds that are not in any training set."""
    generator = torch.Generator().manual_seed(seed)
    mixtures = cloud_mixtures(2 * count, generator)
    ends = [_particles(mixtures, generator) for _ in range(2)]  # two samples of each
    first, second = ends
    return [
        CloudPair(first[k], first[count + k], (second[k], second[count + k])) for k in range(count)
    ]


def table_3(conditions: Conditions) -> Result:
    """Measure L1 errors of both forms and both flows."""
    pairs = cloud_pairs(conditions.count(PAIRS, 2))
    some = pairs[: conditions.count(FEW_PAIRS, 1)]
    rows = [[f"paper: {name}", *cells] for name, cells in paper.TABLE_3.items()]
    rows.append(["truth of a second sample", *make_spreads(torch.stack([p.noise for p in pairs]))])
    for label, method in _operators(conditions).items():
        rows.append([label, *make_spreads(torch.stack([l1(method(p), p.truth) for p in pairs]))])
    network = conditions.solver("geonet-cloud")
    errors = [l1(_push_particles(p, network, both=False), p.truth) for p in some]
    rows.append(
        [f"`geonet-cloud`, particles forth, {len(some)} pairs", *make_spreads(torch.stack(errors))]
    )
    seconds, flows = {}, {name: _flow(method, conditions) for name, method in FLOWS.items()}
    for name, flow in flows.items():
        replace(flow, steps=1).fit(some[0].source, some[0].target)  # imports
        began = perf_counter()
        errors = [l1(_carried_by_flow(p, flow), p.truth) for p in some]
        seconds[name] = (perf_counter() - began) / len(some)
        rows.append(
            [f"{name} (`{flow.name}`), {len(some)} pairs", *make_spreads(torch.stack(errors))]
        )
    rows.append(
        ["`linear`", *make_spreads(torch.stack([l1(_frames("linear")(p), p.truth) for p in pairs]))]
    )
    title = f"L1 in %, {len(pairs)} pairs of {PARTICLES} particles, 25×25 bins"
    pot = _against_pot(pairs, conditions)
    remarks = [
        f"CFM and RF were trained for each pair on its own: {flows['CFM'].steps} steps of Adam on "
        f"batches of {flows['CFM'].batch}, RF twice that (once more after one reflow), "
        f"{format_digits(seconds['CFM'])} s and {format_digits(seconds['RF'])} s a pair.",
    ]
    remarks += _write_goal_remark(rows)
    return Result(
        "table-3",
        "Point clouds",
        conditions.quick,
        [Table(title, ("", *TIME_LABELS), rows), pot],
        remarks,
    )


def _operators(conditions: Conditions) -> dict[str, Callable[[CloudPair], Density]]:
    """Return functions that compute histograms by the operators."""
    network = conditions.solver("geonet-cloud")
    transport = conditions.solver("transport-cloud")
    return {
        "`geonet-cloud`, density": _frames(network),
        "`transport-cloud`, density": _frames(transport),
        "`transport-cloud`, particles forth": lambda p: _push_particles(p, transport, both=False),
        "`transport-cloud`, particles of both ends": lambda p: _push_particles(
            p, transport, both=True
        ),
    }


def _write_goal_remark(rows: list) -> list[str]:
    """Return a sentence on the goal: half of the paper's error at the interior times."""
    named = {str(row[0]): row[1:] for row in rows}
    theirs, noise = named["paper: GeONet"], named["truth of a second sample"]
    ours = named["`transport-cloud`, density"]
    inner = slice(1, 4)
    parts = ", ".join(
        f"{format_digits(o.mean)} (paper {format_digits(p.mean)}, noise {format_digits(n.mean)})"
        for o, p, n in zip(ours[inner], theirs[inner], noise[inner], strict=True)
    )
    half = all(o.mean <= p.mean / 2 for o, p in zip(ours[inner], theirs[inner], strict=True))
    said = "at most half of the paper's" if half else "not at half of the paper's"
    return [f"In between, `transport-cloud` has {parts}: {said}, with the noise still in it."]


def _against_pot(pairs: list[CloudPair], conditions: Conditions) -> Table:
    """Measure by the paper's protocol: POT's barycenters of histograms are the reference."""
    references = [_frames("barycenter")(p) for p in pairs]
    rows = [["paper: GeONet", *paper.TABLE_3["GeONet"]]]
    for name in ("geonet-cloud", "transport-cloud", "linear"):
        method = _frames(conditions.solver(name))
        errors = [l1(method(p), pot) for p, pot in zip(pairs, references, strict=True)]
        rows.append([f"`{name}`", *make_spreads(torch.stack(errors))])
    errors = [l1(pot, p.truth) for p, pot in zip(pairs, references, strict=True)]
    rows.append(["POT to the truth", *make_spreads(torch.stack(errors))])
    return Table(f"L1 to POT in %, {len(pairs)} pairs", ("", *TIME_LABELS), rows)


def point_clouds(conditions: Conditions) -> Result:
    """Draw a pair by all methods, as histograms and as particles."""
    pair = cloud_pairs(1)[0]
    rows: dict[str, Density] = {"truth": pair.truth}
    for name in ("geonet-cloud", "transport-cloud"):
        path = make_solver(conditions.solver(name))(*pair.ends)
        rows[name] = path.density(QUARTERS)
        rows[f"{name}, finer"] = path.density(QUARTERS, BOX_CLOUDS.with_shape(100))
    for name, method in FLOWS.items():
        rows[name] = _carried_by_flow(pair, _flow(method, conditions))
    table = Table(
        "This pair, L1 to the truth in %",
        ("", *TIME_LABELS),
        [
            [name, *spreads_of_one(l1(frames, pair.truth))]
            for name, frames in rows.items()
            if frames.grid == BOX_CLOUDS and name != "truth"
        ],
    )
    path = make_solver(conditions.solver("transport-cloud"))(*pair.ends)
    generator = torch.Generator().manual_seed(SEED)
    starts = {
        "particles": pair.source,
        "sampled": sample_particles(pair.ends[0], PARTICLES, generator),
        "rounded": quantize(pair.ends[0], PARTICLES),
    }
    ways = {name: path.trajectories(QUARTERS, points) for name, points in starts.items()}
    remark = (
        f"From the histogram at t = 0, sampling gives {len(starts['sampled'])} particles and "
        f"rounding {len(starts['rounded'])}, which the learned velocity then carries."
    )
    return Result(
        "point-clouds", "A pair of clouds", conditions.quick, [table], [remark], _figure(rows, ways)
    )


def spreads_of_one(errors: Tensor) -> list[float]:
    """Return the errors of one pair in per cent."""
    return (100 * errors).tolist()


# ---- methods


def _frames(solver: str) -> Callable[[CloudPair], Density]:
    return lambda pair: make_solver(solver)(*pair.ends).density(QUARTERS)


def _push_particles(pair: CloudPair, solver: str, both: bool) -> Density:
    """Return histograms of the particles, moved by the learned velocity.

    With `both`, source particles count (1 − t) and target particles, moved back, t.
    """
    forth = make_solver(solver)(*pair.ends).trajectories(QUARTERS, pair.source)
    found = histogram(forth, BOX_CLOUDS)
    if not both:
        return found
    back = make_solver(solver)(*pair.ends[::-1]).trajectories(QUARTERS, pair.target)
    there = histogram(back.flip(0), BOX_CLOUDS)
    t = torch.tensor(QUARTERS, dtype=torch.float64)[:, None, None]
    return Density.from_unnormalized(torch.lerp(found.tensor, there.tensor, t), BOX_CLOUDS)


def _carried_by_flow(pair: CloudPair, solver: FlowSolver) -> Density:
    flow = solver.fit(pair.source, pair.target)
    return histogram(flow.carry(pair.source, QUARTERS), BOX_CLOUDS)


def _flow(method: str, conditions: Conditions) -> FlowSolver:
    """Return a solver with a training for every pair; fewer steps if quick."""
    options = {"steps": QUICK_STEPS} if conditions.quick else {}
    solver = make_solver(method, **options)
    assert isinstance(solver, FlowSolver)
    return solver


def _move_particles(source: Tensor, target: Tensor) -> Tensor:
    """Return particles (n, 2) on their optimal straight ways at the quarters, (5, n, 2)."""
    share = np.full(len(source), 1 / len(source))
    cost = ot.dist(source.numpy(), target.numpy())
    plan = ot.emd(share, share, cost, numItermax=100_000_000)
    partner = target[torch.from_numpy(plan.argmax(1))]  # a vertex of the polytope: a permutation
    return torch.stack([torch.lerp(source, partner, t) for t in QUARTERS])


def _particles(mixtures: GaussianMixture, generator: torch.Generator) -> Tensor:
    """Return PARTICLES of each mixture, (B, n, 2); points outside are moved to the box."""
    batch = len(mixtures.weights)
    chosen = torch.multinomial(mixtures.weights, PARTICLES, True, generator=generator)
    std = mixtures.covariances[..., 0, 0].sqrt().gather(1, chosen)[..., None]
    means = mixtures.means.gather(1, chosen[..., None].expand(-1, -1, 2))
    drawn = torch.randn(batch, PARTICLES, 2, dtype=torch.float64, generator=generator)
    lower, upper = BOX_CLOUDS.lower_tensor, BOX_CLOUDS.upper_tensor
    return (means + std * drawn).clamp(lower, upper)


# ---- figure


def _figure(rows: dict[str, Density], ways: dict[str, Tensor]) -> Figure:
    count = len(rows) + len(ways)
    figure = Figure(figsize=(7.5, 1.45 * count), layout="constrained")
    axes = figure.subplots(count, len(QUARTERS))
    for row, (name, frames) in zip(axes, rows.items(), strict=False):
        for axis, frame in zip(row, frames.numpy(), strict=True):
            axis.imshow(frame.T, origin="lower", cmap=DENSITY_MAP, vmin=0)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, fontsize=7)
    for row, (name, where) in zip(axes[len(rows) :], ways.items(), strict=True):
        for axis, points in zip(row, where.numpy(), strict=True):
            axis.plot(*points.T, ".", markersize=0.6, color="#333333")
            axis.set(xticks=[], yticks=[], xlim=(0, 5), ylim=(0, 5), aspect="equal")
        row[0].set_ylabel(f"transport, {name}", fontsize=7)
    for axis, time in zip(axes[0], TIME_LABELS, strict=True):
        axis.set_title(time, fontsize=8)
    return figure
