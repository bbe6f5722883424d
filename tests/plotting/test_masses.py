"""Pictures show mass one, and say so where it matters, or the masses that were given."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.errors import InputError
from geonet.plotting import Look

LIGHT, HEAVY = 2.0, 14.0


def weighed(path, *masses):
    """The path between the same ends with other masses."""
    ends = [
        geonet.Density(mass * end.tensor, end.grid)
        for mass, end in zip(masses, (path.source, path.target), strict=True)
    ]
    solver = "midpoint" if path.solver == "bures" else path.solver  # which wants formulas
    return geonet.geodesic(*ends, solver)


def images_of(figure):
    return [np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images]


def names_of(figure):
    """What the colour bars and the axes of curves call the values."""
    labels = {axis.get_ylabel() for axis in figure.axes}
    return {label for label in labels if label.startswith("density")}


@pytest.mark.parametrize(
    ("kind", "where", "name"),
    [
        ("frames", "line", "density"),
        ("frames", "plane", "density"),
        ("frames", "space", "density over"),
        ("history", "line", "density"),
        ("velocity", "shift", "density"),
        ("slices", "space", "density"),
    ],
)
def test_given_masses_are_drawn_and_mass_one_is_named(kind, where, name, request):
    even = request.getfixturevalue(where)
    path = weighed(even, LIGHT, HEAVY)
    times = None if kind == "history" else (0, 0.5, 1)
    one, given = (path.plot(times, kind=kind, mass=mass) for mass in ("one", "given"))
    assert names_of(one) and all(label.endswith("mass one") for label in names_of(one))
    assert names_of(given) and all(label.startswith(name) for label in names_of(given))
    assert not any("mass" in label for label in names_of(given))
    if where == "line":  # rows of space × time
        (first,), (second,) = images_of(one), images_of(given)
        masses = np.linspace(LIGHT, HEAVY, len(first))[:, None]
        assert second == pytest.approx(first * masses)
    else:
        rows = len(images_of(one)) // 3  # projections have three
        masses = np.tile([LIGHT, (LIGHT + HEAVY) / 2, HEAVY], rows)
        for first, second, mass in zip(images_of(one), images_of(given), masses, strict=True):
            assert second == pytest.approx(first * mass)


def test_curves_have_the_given_masses(line):
    path = weighed(line, LIGHT, HEAVY)
    curves = path.plot((0, 1), mass="given").axes[0].lines
    for curve, t in zip(curves, (0, 1), strict=True):
        assert curve.get_ydata() == pytest.approx(path.density(t).numpy(mass="given"))


def test_limits_are_in_the_units_that_are_drawn(plane):
    path = weighed(plane, LIGHT, HEAVY)
    highest = path.density(1).numpy(mass="given").max()
    figure = path.plot((0, 1), mass="given", vmin=0.5, vmax=0.9 * highest)
    assert figure.axes[0].images[0].get_clim() == pytest.approx((0.5, 0.9 * highest))
    limit = 2 * path.density(1).numpy().max()  # above all values of mass one
    path.plot(1, mass="given", vmin=limit)
    with pytest.raises(InputError, match="give a smaller vmin"):
        path.plot(1, vmin=limit)


def test_masses_that_nearly_agree_are_not_mentioned(plane):
    for mass, name in ((1.004, "density"), (1.006, "density, mass one")):
        for masses in ((1, mass), (mass, 1)):
            assert names_of(weighed(plane, *masses).plot(0.5)) == {name}


def test_a_density_is_drawn_with_the_mass_that_was_given():
    values = np.arange(12.0).reshape(3, 4)
    density = geonet.Density(values, geonet.Grid((3, 4), 0, (3, 4)))
    figure = density.plot(mass="given")
    assert images_of(figure)[0] == pytest.approx(values)
    assert figure.axes[0].images[0].get_clim() == (0, pytest.approx(11))
    assert names_of(figure) == {"density"}
    (curve,) = geonet.Density(values[1], geonet.Grid(4)).plot(mass="given").axes[0].lines
    assert curve.get_ydata() == pytest.approx(values[1])


def test_the_lighter_end_of_tracks_is_paler(shift):
    path = weighed(shift, LIGHT, HEAVY)

    def peaks(mass):
        source, target = path.plot(kind="tracks", mass=mass).axes[0].images
        return [float(np.asarray(end.get_array())[..., 3].max()) for end in (source, target)]

    highest = [path.density(t).numpy(mass="given").max() for t in (0, 1)]
    assert peaks("one")[0] == pytest.approx(peaks("one")[1])
    light, heavy = peaks("given")
    assert heavy == pytest.approx(peaks("one")[1])
    assert light / heavy == pytest.approx(highest[0] / highest[1])


def test_an_animation_grows_with_the_mass(plane, tmp_path):
    """In mass one both ends are as bright; of the given masses the lighter end is darker."""
    path = weighed(plane, LIGHT, HEAVY)
    for mass, ratio in (("one", (0.9, 1.1)), ("given", (3.0, 100.0))):
        file = path.animate(tmp_path / f"{mass}.gif", 2, mass=mass, cmap="gray", stamp=False)
        first, last = (frame.astype(float).sum() for frame in shown(file))
        assert ratio[0] < last / first < ratio[1]


def test_an_animation_says_that_its_mass_is_one(plane, line, tmp_path):
    """An image after its time, a curve at its axis."""
    uneven = weighed(plane, LIGHT, HEAVY)

    def width(path, mass):
        stamped = next(shown(path.animate(tmp_path / "path.gif", 2, mass=mass)))
        bare = next(shown(path.animate(tmp_path / "bare.gif", 2, mass=mass, stamp=False)))
        return np.argwhere((stamped != bare).any(-1))[:, 1].max()

    assert width(uneven, "one") > 110 > 70 > width(uneven, "given")
    assert width(weighed(plane, LIGHT, LIGHT), "one") < 70
    frames = [
        next(shown(weighed(line, LIGHT, mass).animate(tmp_path / "line.gif", 2, stamp=False)))
        for mass in (LIGHT, HEAVY)
    ]
    assert not np.array_equal(frames[0][:, :40], frames[1][:, :40])  # where the name of the axis is


def test_other_words_are_refused(line):
    with pytest.raises(InputError, match="mass is 'two'; give 'one' or 'given'"):
        line.plot(mass="two")
    with pytest.raises(InputError, match="mass is 1; give 'one' or 'given'"):
        Look(mass=1)  # pyright: ignore[reportArgumentType]


def shown(file):
    with Image.open(file) as gif:
        for number in range(gif.n_frames):
            gif.seek(number)
            yield np.asarray(gif.convert("RGB"))
