"""`geonet demo`: three pairs, a picture and an animation, in seconds."""

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

SEED_2D, SEED_1D = 58, 66  # pairs that lie far apart
SHAPES = ("spiral.png", "heart.png")


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write to; created if missing.")
    ] = Path("geonet-demo"),
) -> None:
    """Show three geodesics within seconds: a table, a picture and an animation.

    For example: geonet demo -o pictures
    """
    ensure_dir(output)
    from geonet.cli.output import one_thread, print_table, waited_for, working
    from geonet.plotting import plot_together

    with one_thread(), working("solving three pairs") as show:
        stories = waited_for(_stories, show)
    with one_thread(), working("drawing"):
        picture, animation = output / "geodesics.png", output / "spiral-to-heart.gif"
        figure = plot_together(_rows(stories))
        with atomic_write(picture) as temporary:
            figure.savefig(temporary, format="png")
        stories[1].path.animate(animation)
    print_table(
        [story.row() for story in stories],
        ("pair", "solver", "W₂", "seconds", "linear mixture"),
    )
    typer.echo(
        "\nThe linear mixture fades in place: its error is ∫|mixture − geodesic| at t = ½."
        f"\nwritten: {picture}\nwritten: {animation}"
    )


@dataclass(frozen=True)
class Story:
    """A pair that was solved.

    Attributes:
        name: what it is.
        path: the geodesic.
        seconds: what it took.
    """

    name: str
    path: Geodesic
    seconds: float

    def row(self) -> tuple[str, ...]:
        """Name, solver, distance, seconds, and how far off the linear mixture is midway."""
        middle, mixed = (path.density(0.5) for path in (self.path, self.mixture()))
        off = float((middle.tensor - mixed.tensor).abs().sum() * middle.grid.cell_volume)
        distance = f"{float(self.path.distance):.4f}"
        return self.name, self.path.solver, distance, f"{self.seconds:.3f}", f"{off:.0%} off"

    def mixture(self) -> Geodesic:
        """The linear mixture between the same ends."""
        import geonet

        return geonet.geodesic(self.path.source, self.path.target, "linear")


def _stories() -> list[Story]:
    return [
        _solve("mixtures, 2D", _mixtures_2d()),
        _solve("spiral to heart", _shapes()),
        _solve("mixtures, 1D", _mixtures_1d()),
    ]


def _solve(name: str, pair: tuple[Density, Density]) -> Story:
    import geonet

    geonet.geodesic(*pair)  # the first call loads code and weights
    began = perf_counter()
    path = geonet.geodesic(*pair)
    return Story(name, path, perf_counter() - began)


def _rows(stories: list[Story]) -> dict[str, Geodesic]:
    """The paths of the picture, with the linear mixture of the shapes below their geodesic."""
    plane, shapes, line = stories
    return {
        "mixtures": plane.path,
        "shapes": shapes.path,
        "shapes, faded": shapes.mixture(),
        "1D": line.path,
    }


def _mixtures_2d() -> tuple[Density, Density]:
    import torch

    from geonet.mixture import BOX_2D, mixtures_2d

    first, second = mixtures_2d(2, torch.Generator().manual_seed(SEED_2D)).on(BOX_2D)
    return first, second


def _mixtures_1d() -> tuple[Density, Density]:
    import torch

    from geonet.mixture import BOX_1D, mixtures_1d

    first, second = mixtures_1d(2, torch.Generator().manual_seed(SEED_1D), spread=(0.3, 0.4)).on(
        BOX_1D
    )
    return first, second


def _shapes() -> tuple[Density, Density]:
    from importlib.resources import as_file, files

    from geonet.io import from_image

    with as_file(files("geonet") / "demo_data") as folder:
        first, second = (from_image(folder / name) for name in SHAPES)
    return first, second
