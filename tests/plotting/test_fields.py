"""Arrows follow the velocity, tracks the trajectories."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.quiver import Quiver

import geonet
from geonet.errors import InputError, UnavailableError
from geonet.plotting import plot_tracks, plot_velocity
from geonet.plotting.figures import ARROW, KNOTS, THIN
from geonet.plotting.style import TIME_MAP
from geonet.samples import sampled


def arrows_of(figure):
    """For each frame where the arrows are and what they are, (n, 2) each."""
    found = [c for axis in figure.axes for c in axis.collections if isinstance(c, Quiver)]
    return [(np.asarray(q.get_offsets()), np.stack([q.U, q.V], axis=-1)) for q in found]


# ---- velocity


def test_arrows_point_along_the_translation(shift):
    figure = plot_velocity(shift, (0, 0.5, 1), arrows=20)
    frames = arrows_of(figure)
    assert len(frames) == 3
    longest = ARROW * 4 / 20  # 4 is the longer side
    for _, arrows in frames:
        assert len(arrows) > 5
        assert arrows / longest == pytest.approx(
            np.tile(np.array([1, -0.5]) / np.hypot(1, 0.5), (len(arrows), 1))
        )
    assert "longest arrow |v| = 1.12" in figure.get_suptitle()


def test_arrows_are_where_the_mass_is(shift):
    for t, (points, _) in zip((0, 1), arrows_of(plot_velocity(shift, (0, 1))), strict=True):
        mean = np.array([1, 2]) + t * np.array([1, -0.5])
        assert points.mean(0) == pytest.approx(mean, abs=0.15)
        assert (np.abs(points - mean) < (1, 0.7)).all()
        values = shift.density(t).at(points).numpy()
        assert values.min() > 0.5 * THIN * float(shift.density(t).tensor.max())


def test_arrows_are_in_proportion_to_the_speed():
    """A Gaussian that grows: arrows lead away from its mean, by one measure in all frames."""
    grid = geonet.Grid((30, 30), 0, 3)
    ends = [geonet.GaussianMixture.isotropic([[1.5, 1.5]], [s]).on(grid) for s in (0.2, 0.4)]
    path = geonet.geodesic(*ends, "bures")
    frames = arrows_of(plot_velocity(path, (0, 1)))
    pairs = [
        (np.linalg.norm(path.velocity(t, points).numpy(), axis=-1), np.linalg.norm(arrows, axis=-1))
        for t, (points, arrows) in zip((0, 1), frames, strict=True)
    ]
    speeds, lengths = (np.concatenate(part) for part in zip(*pairs, strict=True))
    assert np.ptp(speeds) > 0.3
    assert lengths == pytest.approx(speeds * lengths.max() / speeds.max())
    for points, arrows in frames:
        assert ((points - 1.5) * arrows).sum(-1).min() >= 0


def test_arrows_stand_on_the_density(shift):
    figure = plot_velocity(shift, (0, 1))
    image = figure.axes[1].images[0]
    assert np.asarray(image.get_array()) == pytest.approx(shift.density(1.0).numpy().T[::-1])
    assert image.get_extent() == [0, 4, 0, 3]


def test_arrows_are_seen(shift, inside):
    """White stands only where arrows are: the brightest density is a pale yellow."""
    figure = plot_velocity(shift, 0.5)
    white = (inside(figure, figure.axes[0]) > 250).all(-1)
    rows, columns = np.nonzero(white)
    assert 50 < len(rows) < 0.2 * white.size
    assert columns.mean() / white.shape[1] == pytest.approx(1.5 / 4, abs=0.05)
    assert 1 - rows.mean() / white.shape[0] == pytest.approx(1.75 / 3, abs=0.05)


def test_a_path_at_rest_has_arrows_of_no_length(shift):
    path = geonet.geodesic(shift.source, shift.source, "bures")
    for _, arrows in arrows_of(plot_velocity(path, (0, 1))):
        assert np.abs(arrows).max() == pytest.approx(0, abs=1e-6)


# ---- tracks


def test_tracks_lead_from_the_source_to_where_trajectories_end(shift):
    figure = plot_tracks(shift, particles=30, seed=4)
    axis = figure.axes[0]
    starts = sampled(shift.density(0.0), 30, torch.Generator().manual_seed(4)).numpy()
    lines, first, last = axis.collections
    assert isinstance(lines, LineCollection)
    assert np.asarray(first.get_offsets()) == pytest.approx(starts)
    assert np.asarray(last.get_offsets()) == pytest.approx(starts + np.array([1, -0.5]))
    pieces = np.asarray(lines.get_segments()).reshape(KNOTS - 1, 30, 2, 2)
    assert pieces[0, :, 0] == pytest.approx(starts)
    assert pieces[-1, :, 1] == pytest.approx(shift.trajectories(1.0, starts).numpy())
    assert pieces[1:, :, 0] == pytest.approx(pieces[:-1, :, 1])  # without a gap


def test_tracks_have_the_colours_of_time(shift, pixels):
    figure = plot_tracks(shift, particles=5)
    pixels(figure)
    lines, first, last = figure.axes[0].collections
    assert lines.get_cmap() == TIME_MAP
    assert lines.get_clim() == (0, 1)
    times = np.asarray(lines.get_array()).reshape(KNOTS - 1, 5)
    assert (np.diff(times[:, 0]) > 0).all()
    assert np.ptp(times, axis=1).max() == 0
    assert tuple(first.get_facecolor()[0]) == TIME_MAP(0.0)
    assert tuple(last.get_facecolor()[0]) == TIME_MAP(1.0)
    assert figure.axes[1].get_ylabel() == "t"


def test_ends_are_faint_behind_tracks(shift):
    source, target = (im.get_array() for im in plot_tracks(shift).axes[0].images)
    for picture, t in ((source, 0.0), (target, 1.0)):
        density = shift.density(t).numpy().T[::-1]
        opacity = np.asarray(picture)[..., 3]
        assert opacity.max() < 0.6
        assert opacity / opacity.max() == pytest.approx(density / density.max())
        assert np.asarray(picture)[0, 0, :3] == pytest.approx(TIME_MAP(t)[:3])


def test_the_seed_decides_the_particles(shift):
    def starts(seed):
        return np.asarray(
            plot_tracks(shift, particles=8, seed=seed).axes[0].collections[1].get_offsets()
        )

    assert np.array_equal(starts(0), starts(0))
    assert not np.array_equal(starts(0), starts(1))


def test_the_box_is_the_frame(shift):
    axis = plot_tracks(shift).axes[0]
    assert (axis.get_xlim(), axis.get_ylim()) == ((0, 4), (0, 3))
    assert axis.get_aspect() == 1


def test_gaussians_without_a_grid_are_drawn_on_the_one_given(shift):
    path = geonet.geodesic(shift.source.mixture, shift.target.mixture, "bures")
    figure = plot_tracks(path, shift.grid, particles=3)
    assert len(figure.axes[0].collections[1].get_offsets()) == 3


# ---- refusals


@pytest.mark.parametrize("draw", [plot_velocity, plot_tracks])
def test_what_the_solver_does_not_give_is_said(draw, plane):
    with pytest.raises(UnavailableError, match="'linear' gives no velocity"):
        draw(plane)


@pytest.mark.parametrize(("draw", "what"), [(plot_velocity, "velocities"), (plot_tracks, "tracks")])
def test_other_dimensions_are_refused(draw, what, line, space):
    with pytest.raises(InputError, match=f"is 1D and {what} are drawn in 2D; use path.plot"):
        draw(line)
    with pytest.raises(InputError, match=f"is 3D and {what} are drawn in 2D"):
        draw(space)


def test_too_few_are_refused(shift):
    with pytest.raises(InputError, match="arrows is 1; give a whole number, at least 2"):
        plot_velocity(shift, arrows=1)
    with pytest.raises(InputError, match=r"particles is 2\.5; give a whole number, at least 1"):
        plot_tracks(shift, particles=2.5)  # pyright: ignore[reportArgumentType]
