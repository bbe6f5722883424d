"""Paths in one to three dimensions, and the pixels of their figures."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import geonet


def bump(grid, *centre):
    width = 0.12 * max(grid.lengths)
    return geonet.GaussianMixture.isotropic([list(centre)], [width]).to_density(grid)


@pytest.fixture(scope="module")
def line():
    grid = geonet.Grid(60, 0, 2)
    return geonet.geodesic(bump(grid, 0.4), bump(grid, 1.5), "quantile")


@pytest.fixture(scope="module")
def plane():
    grid = geonet.Grid((32, 16), 0, (2, 1), orientation="plane")
    return geonet.geodesic(bump(grid, 0.4, 0.3), bump(grid, 1.6, 0.7), "linear")


@pytest.fixture(scope="module")
def shift():
    """A Gaussian that moves by (1, −0.5) and keeps its shape."""
    grid = geonet.Grid((40, 30), 0, (4, 3), orientation="plane")
    ends = [
        geonet.GaussianMixture([mean], [[[0.05, 0], [0, 0.03]]]).to_density(grid)
        for mean in ([1, 2], [2, 1.5])
    ]
    return geonet.geodesic(*ends, "bures")


@pytest.fixture(scope="module")
def space():
    grid = geonet.Grid((10, 8, 6), 0, (5, 4, 3), orientation="plane")
    return geonet.geodesic(bump(grid, 1, 1, 1), bump(grid, 4, 3, 2), "linear")


@pytest.fixture(scope="module")
def batch():
    grid = geonet.Grid(20)
    values = torch.rand(3, 20, dtype=torch.float64)
    return geonet.geodesic(geonet.Density(values, grid), geonet.Density(values, grid), "quantile")


@pytest.fixture(scope="session")
def pixels() -> Callable[[Figure], np.ndarray]:
    """Renders a figure: (height, width, 3)."""

    def render(figure):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3]

    return render


@pytest.fixture(scope="session")
def inside(pixels) -> Callable[[Figure, Axes], np.ndarray]:
    """Renders the area within the frame of an axis: (height, width, 3)."""

    def crop(figure, axis):
        picture = pixels(figure)
        box = axis.get_window_extent()
        top, bottom = len(picture) - box.y1, len(picture) - box.y0
        return picture[int(top) + 3 : int(bottom) - 3, int(box.x0) + 3 : int(box.x1) - 3]

    return crop


@pytest.fixture(scope="session")
def scale_masses() -> Callable[..., geonet.Geodesic]:
    """Solves a pair again with other masses of the ends."""

    def solve(path, *masses):
        ends = [
            geonet.Density(mass * end.tensor, end.grid)
            for mass, end in zip(masses, (path.source, path.target), strict=True)
        ]
        solver = "midpoint" if path.solver == "bures" else path.solver  # which needs mixtures
        return geonet.geodesic(*ends, solver)

    return solve


@pytest.fixture(scope="session")
def read_gif() -> Callable[..., list[tuple[np.ndarray, dict]]]:
    """Reads the frames (height, width, 3) of a GIF with their metadata."""

    def read(file):
        with Image.open(file) as gif:
            frames = []
            for number in range(gif.n_frames):
                gif.seek(number)
                frames.append((np.asarray(gif.convert("RGB"), dtype=float), dict(gif.info)))
        return frames

    return read
