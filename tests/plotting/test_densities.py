"""Pictures of one density."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import geonet
from geonet.errors import InputError


def test_a_line_is_a_curve():
    grid = geonet.Grid(30, 0, 3)
    density = geonet.Density(np.arange(30) + 1.0, grid)
    (axis,) = density.plot().axes
    (curve,) = axis.get_lines()
    x, y = (np.asarray(part) for part in curve.get_data())
    assert x == pytest.approx(grid.axes()[0].numpy())
    assert y == pytest.approx(density.numpy())
    assert axis.get_xlim() == (0, 3)


def test_a_plane_is_an_image_with_its_colours():
    density = geonet.Density(np.arange(12.0).reshape(3, 4), geonet.Grid((3, 4), 0, (3, 4)))
    axis, bar = density.plot(cmap="gray", vmax=0.5).axes
    (image,) = axis.images
    assert np.asarray(image.get_array()) == pytest.approx(density.numpy())
    assert (image.get_cmap().name, image.get_clim()) == ("gray", (0, 0.5))
    assert bar.get_ylabel() == "density"


def test_space_is_three_projections():
    values = np.random.default_rng(0).random((3, 4, 5))
    density = geonet.Density(values, geonet.Grid((3, 4, 5), 0, (3, 4, 5)))
    shown = [axis.images[0] for axis in density.plot().axes if axis.images]
    for image, hidden in zip(shown, (2, 1, 0), strict=True):
        assert np.asarray(image.get_array()) == pytest.approx(density.numpy().sum(hidden))


def test_batches_and_four_dimensions_are_refused():
    batch = geonet.Density(torch.rand(3, 5), geonet.Grid(5))
    with pytest.raises(InputError, match=r"are 3 densities; draw one .* density\[0\]\.plot\(\)"):
        batch.plot()
    batch[0].plot()
    frames = geonet.geodesic(batch, batch, "linear").density([0, 1])
    with pytest.raises(InputError, match=r"are 3 × 2 densities; .* density\[0\]\[0\]\.plot\(\)"):
        frames.plot()
    frames[0][1].plot()
    four = geonet.Density(torch.ones(2, 2, 2, 2), geonet.Grid((2, 2, 2, 2)))
    with pytest.raises(InputError, match="is 4D; pictures are made in one to three dimensions"):
        four.plot()
