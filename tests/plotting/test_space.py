"""Slices are layers of the density."""

from __future__ import annotations

import numpy as np
import pytest

from geonet.errors import InputError
from geonet.plotting import plot_slices


def images(figure):
    return [a.images[0] for a in figure.axes if a.images and a.get_label() != "<colorbar>"]


@pytest.mark.parametrize(
    ("axis", "extent", "names", "where"),
    [
        (0, [0, 4, 0, 3], ("y", "z"), "x = 2.75"),
        (1, [0, 5, 0, 3], ("x", "z"), "y = 2.25"),
        (2, [0, 5, 0, 4], ("x", "y"), "z = 1.75"),
    ],
)
def test_slices_are_layers_of_the_density(axis, extent, names, where, space):
    figure = plot_slices(space, (0, 0.5, 1), axis=axis)
    middle = space.grid.shape[axis] // 2
    for image, t in zip(images(figure), (0, 0.5, 1), strict=True):
        layer = space.density(t).numpy().take(middle, axis=axis)
        assert np.asarray(image.get_array()) == pytest.approx(layer.T[::-1])
        assert list(image.get_extent()) == extent
    first = figure.axes[0]
    assert (first.get_xlabel(), first.get_ylabel()) == names
    assert figure.get_suptitle().endswith(f"at {where}")


@pytest.mark.parametrize(("at", "layer"), [(0, 0), (0.2, 1), (0.99, 5), (1, 5)])
def test_the_layer_is_the_one_asked_for(at, layer, space):
    (image,) = images(plot_slices(space, 0.5, at=at))
    expected = space.density(0.5).numpy()[:, :, layer]
    assert np.asarray(image.get_array()) == pytest.approx(expected.T[::-1])


def test_slices_have_one_colour_scale(space):
    scales = {image.norm for image in images(plot_slices(space, (0, 0.5, 1)))}
    assert len(scales) == 1
    highest = space.density((0, 0.5, 1)).numpy()[..., 3].max()
    assert scales.pop().vmax == pytest.approx(highest)


def test_bad_slices_are_refused(space, plane):
    with pytest.raises(InputError, match="axis is 3; cut across axis 0, 1 or 2"):
        plot_slices(space, axis=3)
    with pytest.raises(InputError, match=r"at is 1\.5; give a share of the side, from 0 to 1"):
        plot_slices(space, at=1.5)
    with pytest.raises(InputError, match="is 2D and slices are drawn in 3D"):
        plot_slices(plane)
