"""Cost of one training step: the paper's algorithm, and Cartesian batches with jets.

Both train the paper's 1D (or 2D) networks on the paper's losses. The paper's algorithm draws 2,000
triples (pair, point, boundary point) and differentiates by nested autograd; ours draws 64 pairs and
512 points and meets them all. Prints the time per step and per residual, medians of interleaved
repetitions, and writes them into docs/training.md. Run it by `make benchmark NAME=training-step` on
an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.pages import Cells, format_table, publish
from benchmarks.results import record_provenance
from geonet.solvers.neural.geonet import GeONetLoss, GeONetSettings
from geonet.solvers.neural.layers import DeepONet
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model
from geonet.training.config import OptimizerSettings
from geonet.training.optim import make_optimizer
from geonet.training.problems import cartesian_batch, make_problem, sensor_points, triples_batch

TRIPLES, PAIRS, POINTS = 2000, 64, 512
PAPER = {
    1: GeONetSettings(dimension=1, sensors=100, branch=Branch(width=150), trunk=Trunk(width=100)),
    2: GeONetSettings(dimension=2, sensors=24, branch=Branch(width=200), trunk=Trunk(width=150)),
}


def field(operator: DeepONet, source: Tensor, target: Tensor, z: Tensor) -> Tensor:
    """Return Σ_k B0_k(μ0) B1_k(μ1) T_k(x, t) at one point per pair, (N,), term by term."""
    first, second = operator.branches
    return operator.scale * (first(source) * second(target) * operator.trunk(z)).sum(-1)


def nested_loss(objective: GeONetLoss, batch: Batch) -> Tensor:
    """Return the paper's loss on triples, every derivative by autograd of the one before."""
    model, d = objective.model, batch.points.shape[1]
    ends = [(values - 1) / 2 for values in (batch.source, batch.target)]
    z = torch.cat([batch.points, batch.times[:, None]], dim=1).requires_grad_()
    density, potential = (field(op, *ends, z) for op in (model.density, model.potential))
    density_slopes, slopes = (
        torch.autograd.grad(f.sum(), z, create_graph=True)[0] for f in (density, potential)
    )
    laplacian = sum(
        torch.autograd.grad(slopes[:, i].sum(), z, create_graph=True)[0][:, i] for i in range(d)
    )
    terms = {
        "continuity": density_slopes[:, d]
        + (density_slopes[:, :d] * slopes[:, :d]).sum(-1)
        + density * laplacian,
        "hamilton_jacobi": slopes[:, d] + 0.5 * (slopes[:, :d] ** 2).sum(-1),
    }
    for t, name in enumerate(("source", "target")):
        there = torch.cat(
            [batch.endpoint_points, torch.full((len(batch.endpoint_points), 1), float(t))], dim=1
        )
        given = batch.source_values if t == 0 else batch.target_values
        terms[name] = field(model.density, *ends, there) - given
    return objective.total({name: (value**2).mean() for name, value in terms.items()})


def steppers(dimension: int) -> dict[str, tuple[int, Callable[[], None]]]:
    """Return for each algorithm, the number of residuals of a step and the step itself."""
    problem = make_problem(f"mixtures-{dimension}d")
    sensors = sensor_points(PAPER[dimension].sensors, dimension)
    generator = torch.Generator().manual_seed(0)

    def stepper(optimizer_name, draw, loss_of):
        objective = GeONetLoss(build_model(PAPER[dimension], 0), LossSettings(), problem.box)
        settings = OptimizerSettings(optimizer_name)
        optimizer = make_optimizer(settings, objective.parameters())

        def step() -> None:
            loss = loss_of(objective, draw())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    def triples():
        return triples_batch(problem, sensors, TRIPLES, generator)

    def cartesian():
        return cartesian_batch(problem, sensors, PAIRS, POINTS, POINTS, generator)

    def ours(objective, batch):
        return objective.total(objective(batch))

    return {
        "paper: triples, nested autograd, Adam": (TRIPLES, stepper("adam", triples, nested_loss)),
        "triples, jets, Adam": (TRIPLES, stepper("adam", triples, ours)),
        "Cartesian, jets, Adam": (PAIRS * POINTS, stepper("adam", cartesian, ours)),
        "Cartesian, jets, SOAP": (PAIRS * POINTS, stepper("soap", cartesian, ours)),
    }


def measure(dimension: int, repetitions: int = 15) -> list[tuple[str, float, float]]:
    """Return rows of algorithm, milliseconds per step and microseconds per residual."""
    algorithms = steppers(dimension)
    times: dict[str, list[float]] = {name: [] for name in algorithms}
    for repetition in range(repetitions + 2):
        for name, (_, step) in algorithms.items():
            began = perf_counter()
            step()
            if repetition >= 2:
                times[name].append(perf_counter() - began)
    return [
        (name, 1e3 * median(times[name]), 1e6 * median(times[name]) / residuals)
        for name, (residuals, _) in algorithms.items()
    ]


def main() -> None:
    """Measure 1D and 2D, print the table and write it into the page."""
    provenance = record_provenance()
    rows: list[Cells] = []
    for dimension in (1, 2):
        measured = measure(dimension)
        paper = measured[0][2]
        rows += [
            (f"{dimension}D, {name}", f"{step:.0f}", f"{residual:.2f}", f"1/{paper / residual:.1f}")
            for name, step, residual in measured
        ]
    text = format_table(("one step", "ms", "µs per residual", "relative to the paper"), rows)
    print(text)
    publish("training-step", provenance, {"docs/training.md": {"step": text}})


if __name__ == "__main__":
    main()
