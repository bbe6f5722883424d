"""Pairs beyond the transport form, and the reports on them.

Writes a table and a picture into docs/transport.md. Run it by `make benchmark
NAME=transport-failures`.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

import geonet
from benchmarks.pages import ROOT, Cells, format_share, format_table, publish
from benchmarks.results import record_provenance
from geonet import Density, GaussianMixture, Grid
from geonet.evaluation import reference_solution
from geonet.metrics import l1
from geonet.paths import QUARTERS

GRID = Grid((48, 48), 0.0, 5.0)


def cases() -> dict[str, tuple[Density, Density]]:
    """Return pairs by name."""
    x = GRID.points()
    radius = (x - 2.5).norm(dim=-1)
    wave = torch.cos(2 * torch.pi * x).prod(-1)
    lumps = GaussianMixture.isotropic([[1.2, 2.5], [3.8, 2.5]], 0.3).to_density(GRID)
    lump = GaussianMixture.isotropic([[2.5, 2.5]], 0.3).to_density(GRID)
    flat = GaussianMixture.isotropic([[2.5, 2.5]], 1.2).to_density(GRID)
    return {
        "one lump, torn into two": (Density(lump.tensor, GRID), Density(lumps.tensor, GRID)),
        "a ring with a hole, to a disc": (
            Density(((radius > 1.2) & (radius < 2.0)).double(), GRID),
            Density((radius < 1.0).double(), GRID),
        ),
        "a fine chequerboard, to a hill": (
            Density((1 + 0.95 * wave), GRID),
            Density(flat.tensor, GRID),
        ),
    }


def judge_pair(name: str, pair: tuple[Density, Density], axes) -> Cells:
    """Return a row of the table and a row of the picture."""
    path = geonet.geodesic(*pair, "transport-2d", max_iterations=0)
    fallback = geonet.geodesic(*pair, "auto")
    truth = reference_solution(*pair)
    (solver,) = truth.solvers
    report = path.report
    frames = (pair[0], pair[1], path.density(0.5), truth.frames[QUARTERS.index(0.5)])
    titles = ("source", "target", "transport-2d, t = ½", f"{solver}, t = ½")
    for axis, frame, title in zip(axes, frames, titles, strict=True):
        axis.imshow(frame.tensor.T, origin="lower", cmap="magma", vmin=0)
        axis.set(title=title, xticks=[], yticks=[])
    axes[0].set_ylabel(name, fontsize=8)
    return (
        name,
        "yes" if report.in_distribution else "no",
        format_share(report.mismatch),
        format_share(report.error_estimate),
        f"{format_share(l1(frames[2], frames[3]))} (`{solver}`)",
        f"{report.distance_lower_bound:.3f} to {report.distance_upper_bound:.3f}",
        f"{float(truth.distance):.3f}",
        f"`{fallback.solver}`",
    )


def main() -> None:
    """Measure, draw, print and write."""
    provenance = record_provenance()
    pairs = cases()
    figure, axes = plt.subplots(len(pairs), 4, figsize=(8, 6), layout="constrained")
    rows = [
        judge_pair(name, pair, row) for (name, pair), row in zip(pairs.items(), axes, strict=True)
    ]
    figure.savefig(ROOT / "docs" / "images" / "transport-failures.png", dpi=110)
    header = (
        "pair",
        "in distribution",
        "mismatch",
        "expected error",
        "L1 to another solver, t = ½",
        "bounds on W2",
        "W2 of the other solver",
        "`auto` takes",
    )
    text = format_table(header, rows)
    print(text)
    publish("transport-failures", provenance, {"docs/transport.md": {"failures": text}})


if __name__ == "__main__":
    main()
