"""Paths in one to three dimensions, and what their pictures look like once they are drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import geonet


def bump(grid, *centre):
    width = 0.12 * max(grid.lengths)
    return geonet.GaussianMixture.isotropic([list(centre)], [width]).on(grid)


@pytest.fixture(scope="module")
def line():
    grid = geonet.Grid(60, 0, 2)
    return geonet.geodesic(bump(grid, 0.4), bump(grid, 1.5), "quantile")


@pytest.fixture(scope="module")
def plane():
    grid = geonet.Grid((32, 16), 0, (2, 1), drawn="plane")
    return geonet.geodesic(bump(grid, 0.4, 0.3), bump(grid, 1.6, 0.7), "linear")


@pytest.fixture(scope="module")
def shift():
    """A Gaussian that moves by (1, −0.5) and keeps its form."""
    grid = geonet.Grid((40, 30), 0, (4, 3), drawn="plane")
    ends = [
        geonet.GaussianMixture([mean], [[[0.05, 0], [0, 0.03]]]).on(grid)
        for mean in ([1, 2], [2, 1.5])
    ]
    return geonet.geodesic(*ends, "bures")


@pytest.fixture(scope="module")
def space():
    grid = geonet.Grid((10, 8, 6), 0, (5, 4, 3), drawn="plane")
    return geonet.geodesic(bump(grid, 1, 1, 1), bump(grid, 4, 3, 2), "linear")


@pytest.fixture(scope="module")
def batch():
    grid = geonet.Grid(20)
    values = torch.rand(3, 20, dtype=torch.float64)
    return geonet.geodesic(geonet.Density(values, grid), geonet.Density(values, grid), "quantile")


@pytest.fixture(scope="session")
def pixels() -> Callable[[Figure], np.ndarray]:
    """Draws a figure: (height, width, 3)."""

    def draw(figure):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3]

    return draw


@pytest.fixture(scope="session")
def inside(pixels) -> Callable[[Figure, Axes], np.ndarray]:
    """What is drawn within the frame of an axis: (height, width, 3)."""

    def cut(figure, axis):
        drawn = pixels(figure)
        box = axis.get_window_extent()
        top, bottom = len(drawn) - box.y1, len(drawn) - box.y0
        return drawn[int(top) + 3 : int(bottom) - 3, int(box.x0) + 3 : int(box.x1) - 3]

    return cut
