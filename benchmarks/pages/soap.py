"""Our SOAP against the one of `pytorch-optimizer`: time and loss over the same steps.

Needs `pip install pytorch-optimizer`, which geonet itself does not. Prints a table; run it on an
otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter

import pytorch_optimizer
import torch
from pages import ROOT, Cells, table

from geonet.solvers.neural.geonet import GeONetObjective
from geonet.solvers.neural.model import build
from geonet.training.config import read_config
from geonet.training.loop import make_problem
from geonet.training.optim import SOAP
from geonet.training.problems import cartesian_batch, sensor_points

CONFIG = read_config(ROOT / "studies" / "configs" / "gaussian-1d.toml")
RATE, STEPS = 3e-3, 200


def theirs(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Theirs with our settings."""
    return pytorch_optimizer.SOAP(
        list(parameters),
        lr=RATE,
        betas=(0.95, 0.95),
        weight_decay=0.0,
        precondition_frequency=10,
        max_precondition_dim=400,
    )


def measure(make: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]) -> tuple[float, float]:
    """Milliseconds of the optimizer's step, and the mean loss of the last twenty."""
    problem = make_problem(CONFIG)
    objective = GeONetObjective(build(CONFIG.model, 0), CONFIG.loss, problem.box)
    optimizer = make(p for p in objective.parameters() if p.requires_grad)
    sensors = sensor_points(CONFIG.model.sensors, CONFIG.model.dimension)
    generator = torch.Generator().manual_seed(0)
    times, losses = [], []
    for _ in range(STEPS):
        loss = objective.total(objective(cartesian_batch(problem, sensors, 64, 128, 64, generator)))
        optimizer.zero_grad()
        loss.backward()
        began = perf_counter()
        optimizer.step()
        times.append(perf_counter() - began)
        losses.append(float(loss.detach()))
    return 1e3 * sum(times[10:]) / len(times[10:]), median(losses[-20:])


def main() -> None:
    """Print one row each."""
    rows: list[Cells] = []
    for name, make in (("geonet", lambda p: SOAP(p, lr=RATE)), ("pytorch-optimizer", theirs)):
        step, loss = measure(make)
        rows.append((name, f"{step:.0f}", f"{loss:.3f}"))
    print(table(("SOAP of", "ms a step", f"loss after {STEPS} steps"), rows))


if __name__ == "__main__":
    main()
