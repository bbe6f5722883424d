"""Time of a path of transport-2d, relative to the machine's arithmetic and memory bandwidth.

Counts the floating-point operations and the bytes of a path (64×64, 11 times, in a batch of 64) as
the code does them, measures the peak of matrix products and of copying, and compares the time they
would take with the time a path takes, stage by stage. Writes the table into docs/benchmark.md. Run
it by `make inference-floor` on an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import geonet
from benchmarks.pages import Cells, format_table, publish
from benchmarks.results import describe_machine, record_provenance
from benchmarks.timing import make_generator, measure_median
from geonet import Density
from geonet.solvers.neural.model import PRETRAINED, load_cached
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.network import TransportNet, predict_potential
from geonet.solvers.neural.transport.potential import VELOCITY
from geonet.solvers.neural.transport.solver import make_injective
from geonet.solvers.neural.transport.splines import DensityPairs
from geonet.training.problems import make_problem

CELLS, TIMES, BATCH = 64, 11, 64
INSIDE = TIMES - 2
MODEL = "transport-2d"
# Operations at a point, counted in cosine_paths.c.
LOOK = 82  # a cubic spline: two places, two sets of weights, sixteen terms
NEWTON, STEPS = 95, 3  # five bilinear fields and a step of Newton's method; three of these, assumed
MEAN = 25  # both determinants and the mean


def warm(call: Callable[[], object], repeats: int = 15) -> float:
    """Return the median time of a call that was made before."""
    call()
    return measure_median(call, repeats)


def peaks() -> tuple[float, float]:
    """Return operations a second in a product of matrices, bytes a second in a copy; single
    precision.
    """
    a = torch.rand(1024, 1024)
    block, to = torch.rand(2**25), torch.rand(2**25)
    arithmetic = 2 * 1024**3 / warm(lambda: a @ a, 30)
    return arithmetic, 2 * 4 * 2**25 / warm(lambda: to.copy_(block))


def operations(model: TransportNet) -> dict[str, float]:
    """Return floating-point operations of a path by stage."""
    s, n, coarse, nodes = model.settings, CELLS, compiled.CELLS, VELOCITY[2].nodes + 1
    weights = sum(p.numel() for p in model.parameters())

    def series(places: int) -> float:
        return 2 * s.modes * places * (3 * s.modes + 6 * places)

    def both_axes(rows: int) -> float:
        return 2 * 2 * rows * n * (n + rows)  # of both ends

    sensing = both_axes(s.sensors) + 2 * 2 * s.sensors**2 * s.seen**2
    checked = series(2 * s.modes) + (2 * s.modes) ** 2 * (2 * LOOK + MEAN)
    refining = 2 * n * coarse * (4 * coarse + 5 * n)
    return {
        "the network": sensing + 2 * weights,
        "splines, mismatch": both_axes(n + 4) + checked,
        "velocities": series(nodes) + INSIDE * coarse**2 * STEPS * NEWTON,
        "frames": INSIDE * (refining + n**2 * (2 * LOOK + MEAN)),
    }


def stages(model: TransportNet, source: Density, target: Density) -> dict[str, float]:
    """Return seconds a pair by stage, as in the solver and in the path."""
    potentials = predict_potential(model, source, target)
    moments = torch.arange(1, TIMES - 1) / (TIMES - 1)
    answer = torch.zeros(BATCH, TIMES, CELLS**2, dtype=torch.float64)
    pairs = DensityPairs(source, target)
    ((_, ends),) = pairs.chunks(1)
    velocity = compiled.solve_velocity(potentials, moments, VELOCITY[2])
    inside = range(1, TIMES - 1)
    calls = {
        "the network": lambda: predict_potential(model, source, target),
        "splines, mismatch": lambda: make_injective(DensityPairs(source, target), potentials),
        "velocities": lambda: compiled.solve_velocity(potentials, moments, VELOCITY[2]),
        "frames": lambda: compiled.write_frames(
            answer, inside, ends, velocity, moments, source.grid
        ),
    }
    return {name: warm(call) / BATCH for name, call in calls.items()}


def rows() -> list[Cells]:
    """Return every stage, and the whole path as a user gets it."""
    model, _ = load_cached(PRETRAINED / f"{MODEL}.safetensors", 2)
    assert isinstance(model, TransportNet)
    ends = make_problem("mixtures-2d").draw_densities(BATCH, make_generator(7_000))
    source, target = (Density(end.tensor, end.grid) for end in ends)
    arithmetic, copying = peaks()
    print(f"peak {arithmetic / 1e9:.0f} GFLOP/s, copy {copying / 1e9:.1f} GB/s", flush=True)
    solver, times = geonet.solver(MODEL), [k / (TIMES - 1) for k in range(TIMES)]
    whole = warm(lambda: solver(source, target).density(times), 9) / BATCH
    needed, taken = operations(model), stages(model, source, target)
    found = []
    for name, count in needed.items():
        found.append(_row(name, count, 0.0, taken[name], arithmetic, copying))
    rest = whole - sum(taken.values())
    found.append(("the rest", "–", "–", "–", f"{1e3 * rest:.3f} ms", "–"))
    weights = 4 * sum(p.numel() for p in model.parameters()) / BATCH
    moved = 8 * CELLS**2 * (2 + TIMES) + weights
    found.append(_row("the whole path", sum(needed.values()), moved, whole, arithmetic, copying))
    return found


def _row(
    name: str, count: float, moved: float, taken: float, arithmetic: float, copying: float
) -> Cells:
    floor = max(count / arithmetic, moved / copying)  # both can go on at once
    return (
        name,
        f"{count / 1e6:.1f}",
        f"{moved / 1e6:.2f}" if moved else "–",
        f"{1e3 * floor:.3f} ms",
        f"{1e3 * taken:.3f} ms",
        f"{taken / floor:.1f}",
    )


def main() -> None:
    """Measure, print and write."""
    provenance = record_provenance()
    header = ("per pair", "MFLOP", "MB in and out", "floor", "taken", "ratio")
    text = f"{format_table(header, rows())}\n\n{describe_machine()}."
    print(text)
    publish("inference-floor", provenance, {"docs/benchmark.md": {"floor": text}})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
