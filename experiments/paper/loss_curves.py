"""Loss of the trainings by term, from the headers of model files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import experiments.problems  # noqa: F401  registers the names in headers of model files
from benchmarks.results import Result, Table
from experiments.paper import published_values as paper
from experiments.paper.experiments import LOGGED as MODELS
from experiments.paper.experiments import Conditions
from geonet._toml import from_table
from geonet.solvers.neural.model import Header, read_tensors
from geonet.training.config import TrainingConfig
from geonet.training.log import LOG_FILE, read_log
from geonet.training.loop import load_problem

LATE = 0.5  # the share of the steps that counts as late training


def loss_curves(conditions: Conditions) -> Result:
    """Draw the loss of each model, whole and second half, in the units of the paper's box."""
    figure = Figure(figsize=(8, 2.3 * len(MODELS)), layout="constrained")
    axes = figure.subplots(len(MODELS), 2)
    rows = []
    for row, name in zip(axes, MODELS, strict=True):
        steps, curves, header = history(conditions, name)
        for axis, first in zip(row, (0.0, LATE), strict=True):
            shown = [k for k, step in enumerate(steps) if step >= first * steps[-1]]
            for term, values in curves.items():
                axis.semilogy(
                    [steps[k] for k in shown], [values[k] for k in shown], label=term, lw=0.9
                )
            axis.set_title(f"{name}{', late' if first else ''}", fontsize="small")
        last = max(1, len(steps) // 20)
        final = {term: sum(values[-last:]) / last for term, values in curves.items()}
        rows.append(
            [
                f"`{name}`",
                f"{paper.FINAL_LOSS[name]:.1e}",
                *(f"{final[term]:.1e}" if term in final else "–" for term in TERMS),
                header.get("steps"),
                header["seconds"] / 60,
                60 * paper.HOURS_ON_A_GPU[name],
            ]
        )
    axes[0][0].legend(frameon=False, fontsize="x-small")
    columns = ("", "paper: loss", *TERMS, "steps", "minutes, one core", "paper: minutes, GPU")
    table = Table("Weighted terms at the end, in the units of the paper's box", columns, rows)
    return Result("loss-curves", "The loss by term", conditions.quick, [table], figure=figure)


TERMS = (
    *("loss", "continuity", "characteristics", "hamilton_jacobi", "hamilton_jacobi_gradient"),
    *("source", "target"),  # of models that learn their ends
)


def history(conditions: Conditions, name: str) -> tuple[list[int], dict[str, list[float]], Header]:
    """Return steps, the loss and its terms there, and the header of the model's file.

    Training has them relative to uniform, which is L^2d times the paper's.
    """
    file = conditions.file(name)
    _, header = read_tensors(file, "a geonet model")
    config = from_table(TrainingConfig, header["training"])
    scale = _side(config) ** (2 * config.model.dimension)
    # Shipped models carry the history of their training; others lie beside its log.
    lines = header.get("history") or _losses_in(file.with_name(LOG_FILE))
    curves = {"loss": [line["loss"] / scale for line in lines]}
    for term in lines[0]["terms"]:
        curves[term] = [line["terms"][term] / scale for line in lines]
    return [line["step"] for line in lines], curves, header


def _losses_in(log: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_log(log) if "terms" in entry]


def _side(config: TrainingConfig) -> float:
    """Return the side of the box, without reading any data for it."""
    if config.problem.family in ("digit-codes", "experiments.problems:digit_codes"):
        from experiments.autoencoder import CODE_BOX

        return max(CODE_BOX.lengths)
    return max(load_problem(config).box.lengths)
