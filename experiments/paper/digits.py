"""Handwritten digits: the paper's codes of an autoencoder, and images without one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.results import Result, Table, make_means
from experiments.autoencoder import Autoencoder, as_rows, code_densities, codes_of, load_autoencoder
from experiments.mnist import as_densities, sample_digits
from experiments.paper import published_values as paper
from experiments.paper.experiments import Conditions
from experiments.problems import BLUR, FLOOR
from geonet.density import Density
from geonet.evaluation import PAIRS, SEED, TIME_LABELS, reference_frames
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.registry import make_solver

QUICK_PAIRS = 4
METHODS = ("geonet-mnist", "transport-1d", "linear")


@dataclass(frozen=True)
class CodePairs:
    """Pairs of digits as densities of codes, with the exact paths between them at the quarters."""

    autoencoder: Autoencoder
    source: Density
    target: Density
    truth: Density

    def images(self, frames: Density) -> Tensor:
        """Decode densities (pairs, 5, 32) to images (pairs, 5, 784).

        The mass of the codes is interpolated linearly between the ends.
        """
        t = torch.tensor(QUARTERS, dtype=torch.float64)
        mass = torch.lerp(self.source.mass_tensor[:, None], self.target.mass_tensor[:, None], t)
        codes = codes_of(frames.tensor.double(), mass)
        return self.autoencoder.decode(codes.float())


def code_pairs(images: tuple[np.ndarray, np.ndarray], autoencoder: Autoencoder) -> CodePairs:
    """Encode pairs of digits (n, 28, 28) and solve them exactly."""
    source, target = (code_densities(autoencoder.encode(as_rows(end))) for end in images)
    return CodePairs(autoencoder, source, target, reference_frames(source, target, 0.0))


def digit_pairs(count: int, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Return random pairs of the digits that come with geonet (MNIST's test set)."""
    digits = sample_digits().images
    chosen = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed)).numpy()
    return digits[chosen[:count]], digits[chosen[count : 2 * count]]


def mnist(conditions: Conditions) -> Result:
    """Measure errors of codes and of decoded images, beside the linear blend."""
    images = digit_pairs(conditions.count(PAIRS, QUICK_PAIRS))
    autoencoder = load_autoencoder(conditions.file("mnist-autoencoder"))
    tables = []
    for kind, ends in (("identity", (images[0], images[0])), ("random", images)):
        pairs = code_pairs(ends, autoencoder)
        references = {"exact truth": pairs.truth}
        references["POT"] = make_solver("barycenter")(pairs.source, pairs.target).density(QUARTERS)
        codes: list = [["paper: GeONet to POT", *paper.MNIST[f"codes, {kind}"]]]
        pictures: list = [["paper: GeONet to POT", *paper.MNIST[f"images, {kind}"]]]
        for method in METHODS:
            frames = make_solver(conditions.solver(method))(pairs.source, pairs.target)
            frames = frames.density(QUARTERS)
            for reference, truth in references.items():
                label = f"`{method}` to {reference}"
                codes.append([label, *make_means(l1(frames, truth))])
                error = _picture_errors(pairs.images(frames), pairs.images(truth))
                pictures.append([label, *make_means(error)])
        count = len(pairs.source)
        tables.append(Table(f"Codes, {kind}, {count} pairs, L1 in %", ("", *TIME_LABELS), codes))
        tables.append(Table(f"Decoded images, {kind}, L1 in %", ("", *TIME_LABELS), pictures))
    tables.append(_image_table(images, conditions))
    remark = "The exact truth is computed between splines through the codes."
    return Result("mnist", "Encoded MNIST", conditions.quick, tables, [remark])


def _picture_errors(found: Tensor, truth: Tensor) -> Tensor:
    """Return Σ|a − b| / Σ|b| of images (pairs, 5, 784), (pairs, 5)."""
    return (found - truth).abs().sum(-1) / truth.abs().sum(-1)


def _image_table(images: tuple[np.ndarray, np.ndarray], conditions: Conditions) -> Table:
    """Measure the transport form between the images themselves: W2 and density."""
    some = conditions.count(20, 2)
    source, target = (as_densities(end[:some], BLUR, FLOOR) for end in images)
    exact = make_solver("linear-program")(source, target)
    rows = []
    for name, options in (("transport-mnist", {}), ("transport-mnist", {"max_iterations": 0})):
        path = make_solver(conditions.solver(name), **options)(source, target)
        wrong = (path.distance / exact.distance - 1).abs()
        lower = torch.tensor(path.report.distance_lower_bound, dtype=torch.float64)
        rows.append(
            [
                f"`{name}`{', the network alone' if options else ''}",
                float(100 * wrong.mean()),
                float(100 * (path.distance / lower - 1).mean()),
                *make_means(l1(path.density((0.0, 0.5, 1.0)), exact.density((0.0, 0.5, 1.0)))),
            ]
        )
    columns = ("", "W2 to its, %", "W2 above its lower bound, %", "t = 0", "t = 0.5", "t = 1")
    title = (
        f"28×28 images, blurred by {BLUR:g} pixel, {100 * FLOOR:g} % of the mass uniform, {some} "
        "pairs: against `linear-program`, whose frames are grainy"
    )
    return Table(title, columns, rows)


def mnist_figure(conditions: Conditions) -> Result:
    """Draw codes, their geodesic and decoded images, and geodesics of the images."""
    autoencoder = load_autoencoder(conditions.file("mnist-autoencoder"))
    digits = sample_digits()
    first, second = (int(np.flatnonzero(digits.labels == label)[3]) for label in (2, 6))
    ends = digits.images[[first]], digits.images[[second]]
    pairs = code_pairs(ends, autoencoder)
    rows: dict[str, Tensor] = {}
    for method in ("geonet-mnist", "transport-1d"):
        frames = make_solver(conditions.solver(method))(pairs.source, pairs.target).density(
            QUARTERS
        )
        rows[f"{method},\ndecoded"] = pairs.images(frames)[0].reshape(-1, 28, 28)
    images = [as_densities(end, BLUR, FLOOR) for end in ends]
    moved = make_solver(conditions.solver("transport-mnist"))(*images).density(QUARTERS).tensor[0]
    rows["transport-mnist,\nimages"] = moved
    first_image, last_image = (torch.from_numpy(end).double() for end in ends)
    weight = torch.tensor(QUARTERS, dtype=torch.float64)[:, None, None]
    rows["linear,\nimages"] = torch.lerp(first_image, last_image, weight)
    frames = make_solver(conditions.solver("geonet-mnist"))(pairs.source, pairs.target)
    table = Table(
        "This pair of codes, L1 to exact truth in %",
        ("", *TIME_LABELS),
        [["`geonet-mnist`", *make_means(l1(frames.density(QUARTERS), pairs.truth))]],
    )
    figure = _figure(pairs, frames.density([k / 40 for k in range(41)]), rows)
    return Result(
        "mnist-figure", "A digit becomes another", conditions.quick, [table], figure=figure
    )


def _figure(pairs: CodePairs, history: Density, rows: dict[str, Tensor]) -> Figure:
    figure = Figure(figsize=(7.5, 2.2 + 1.5 * len(rows)), layout="constrained")
    heights = (2, 1.5 * len(rows))
    top, bottom = figure.subfigures(2, 1, height_ratios=heights)  # pyright: ignore[reportGeneralTypeIssues]
    curves, image = top.subplots(1, 2)
    for end, name in ((pairs.source, "t = 0"), (pairs.target, "t = 1")):
        curves.step(end.grid.axes()[0], end.tensor[0], where="mid", linewidth=1, label=name)
    curves.set(title="codes of both digits", ylim=(0, None))
    curves.legend(frameon=False, fontsize="small")
    image.imshow(history.numpy()[0].T, origin="lower", aspect="auto", cmap="viridis")
    image.set(title="their geodesic, geonet-mnist", xlabel="t", xticks=[], yticks=[])
    axes = bottom.subplots(len(rows), len(QUARTERS))
    for row, (name, frames) in zip(axes, rows.items(), strict=True):
        for axis, frame in zip(row, frames, strict=True):
            axis.imshow(frame.numpy(), cmap="gray_r", vmin=0)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, fontsize=7)
    for axis, time in zip(axes[0], TIME_LABELS, strict=True):
        axis.set_title(time, fontsize=8)
    return figure
