"""`geonet demo`: three geodesics, a figure and an animation within seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from geonet._files import atomic_write, ensure_dir

if TYPE_CHECKING:
    from geonet.density import Density
    from geonet.paths import Geodesic


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Output folder, created if it does not exist."
        ),
    ] = Path("geonet-demo"),
) -> None:
    """Solve three example pairs; print a table, write a figure and an animation.

    Example: geonet demo -o pictures
    """
    ensure_dir(output)
    from geonet._threads import one_thread
    from geonet.cli.output import print_table, run_interruptibly, show_status
    from geonet.plotting.figures import plot_together

    with show_status("solving three pairs") as show:
        plane, shapes, line = run_interruptibly(_solve_examples, show)
    with one_thread(), show_status("drawing"):
        figure_file, animation = output / "geodesics.png", output / "spiral-to-heart.gif"
        figure = plot_together(
            {
                "mixtures": plane.path,
                "shapes": shapes.path,
                "shapes, blended": shapes.blend,
                "1D": line.path,
            }
        )
        with atomic_write(figure_file) as temporary:
            figure.savefig(temporary, format="png")
        shapes.path.animate(animation)
    print_table(
        [example.table_row() for example in (plane, shapes, line)],
        ("pair", "solver", "W₂", "seconds", "error of linear blend"),
    )
    typer.echo(
        "\nThe error of the linear blend is ∫|blend − geodesic| at t = 1/2."
        f"\nwritten: {figure_file}\nwritten: {animation}"
    )


@dataclass(frozen=True)
class Example:
    """A solved pair.

    Attributes:
        name: name in the table.
        path: the geodesic.
        blend: the linear blend between the same ends.
        seconds: time to solve.
    """

    name: str
    path: Geodesic
    blend: Geodesic
    seconds: float

    def table_row(self) -> tuple[str, ...]:
        """Return name, solver, distance, seconds, and the error of the blend at t = 1/2."""
        geodesic, blend = self.path.density(0.5), self.blend.density(0.5)
        error = float((geodesic.tensor - blend.tensor).abs().sum() * geodesic.grid.cell_volume)
        distance = f"{float(self.path.distance):.4f}"
        return self.name, self.path.solver, distance, f"{self.seconds:.3f}", f"{error:.0%}"


def _solve_examples() -> list[Example]:
    from geonet._threads import one_thread

    with one_thread():
        return [
            _solve("mixtures, 2D", *_sample_mixtures_2d()),
            _solve("spiral to heart", *_read_shapes()),
            _solve("mixtures, 1D", *_sample_mixtures_1d()),
        ]


def _solve(name: str, source: Density, target: Density) -> Example:
    import geonet

    geonet.geodesic(source, target)  # the first call loads code and weights
    start = perf_counter()
    path = geonet.geodesic(source, target)
    seconds = perf_counter() - start
    return Example(name, path, geonet.geodesic(source, target, "linear"), seconds)


def _sample_mixtures_2d() -> tuple[Density, Density]:
    import torch

    from geonet.mixture import BOX_2D, mixtures_2d

    generator = torch.Generator().manual_seed(58)  # a pair that lies far apart
    first, second = mixtures_2d(2, generator).to_density(BOX_2D)
    return first, second


def _sample_mixtures_1d() -> tuple[Density, Density]:
    import torch

    from geonet.mixture import BOX_1D, mixtures_1d

    generator = torch.Generator().manual_seed(66)  # a pair that lies far apart
    first, second = mixtures_1d(2, generator, spread=(0.3, 0.4)).to_density(BOX_1D)
    return first, second


def _read_shapes() -> tuple[Density, Density]:
    from importlib.resources import as_file, files

    from geonet.io import from_image

    with as_file(files("geonet") / "demo_data") as folder:
        return from_image(folder / "spiral.png"), from_image(folder / "heart.png")
