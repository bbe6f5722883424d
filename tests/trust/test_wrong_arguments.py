"""Wrong shapes, ranges, units and NaN raise a typed error with a remedy at every entry point."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid, evaluation, metrics, plotting, samples, training
from geonet.errors import GeonetError

NAN = float("nan")
GRID = Grid((16, 16), 0, 5)
OTHER_BOX, OTHER_CELLS, LINE = Grid((16, 16)), Grid((8, 8), 0, 5), Grid(32, 0, 5)
A = Density(np.ones((16, 16)), GRID)
B = GaussianMixture.isotropic([[2.0, 3.0]], 0.8).to_density(GRID)
BATCH = Density(np.ones((3, 16, 16)), GRID)
ONE = Density(np.ones(32), LINE)
NOISE = torch.Generator()


@cache
def path() -> geonet.Geodesic:
    return geonet.geodesic(A, B, "linear-program")


@cache
def batch() -> geonet.Geodesic:
    return geonet.geodesic(BATCH, BATCH, "linear")


def enter(*arguments) -> None:
    with geonet.progress_callback(*arguments):
        pass


def method(name: str):
    def call(*arguments, **options):
        return getattr(path(), name)(*arguments, **options)

    return call


TIMES = [(2.0, "[0, 1]"), (NAN, "[0, 1]"), ([], "list"), ([[0.5]], "list"), ("half", "number")]
POINTS = [
    (0.5, "2D"),
    (np.ones((4, 3)), "2D"),
    (np.full((3, 2), NAN), "NaN"),
    (np.empty((0, 2)), "at least one"),
    ([["a", "b"]], "number"),
]
OUTSIDE = [([[9.0, 9.0]], "outside the box")]
GRIDS = [((64, 64), "Grid"), (OTHER_BOX, "box"), (LINE, "box")]
DENSITIES = [(np.ones((16, 16)), "Density"), ("a.png", "Density"), (None, "Density")]
FILES = [(3, "name of a file"), ("missing.npz", "There is no file"), ("\0.npz", "Cannot open")]
COUNTS = [(0, "at least"), (2.5, "integer"), ("10", "integer")]
SHARES = [(1.0, "[0, 1)"), (-0.1, "[0, 1)"), (NAN, "[0, 1)")]
MASSES = [("two", "'one' or 'given'"), (1, "'one' or 'given'")]
STYLES = [("vmin", "low", "vmin is"), ("vmax", NAN, "vmax is"), ("mass", "two", "'given'")]
STYLES += [("cmap", "virids", "viridis"), ("norm", "logs", "log"), ("vmax", -1, "zero")]


def at(place: int, mistakes, *others):
    """Return arguments with each mistake at that place."""
    return [((*others[:place], wrong, *others[place:]), {}, said) for wrong, said in mistakes]


def named(name: str, mistakes, *others):
    """Return arguments with each mistake as a keyword."""
    return [(others, {name: wrong}, said) for wrong, said in mistakes]


def styles(*others):
    return [(others, {name: wrong}, said) for name, wrong, said in STYLES]


ENTRY_POINTS = {
    "geodesic": (
        geonet.geodesic,
        [
            *at(0, DENSITIES, B),
            *at(1, [(Density(np.ones((16, 16)), OTHER_BOX), "corners")], A),
            *at(1, [(Density(np.ones((8, 8)), OTHER_CELLS), "resample"), (BATCH, "batch")], A),
            *at(
                2, [("quantil", "did you mean 'quantile'?"), ("quantile", "1D"), (3, "name")], A, B
            ),
            *named("epsilon", [(-1.0, "epsilon"), (NAN, "epsilon")], A, B, "schrodinger"),
            *named("time_limit", [(-1.0, "time_limit"), (NAN, "time_limit")], A, B, "midpoint"),
            *named("floor", [(0.1, "no option 'floor'")], A, B, "linear"),
            *named("grid", [(OTHER_CELLS, "resample"), ((16, 16), "Grid")], A, B),
        ],
    ),
    "solver": (geonet.solver, at(0, [("zzz", "choose from"), ("no.safetensors", "no file")])),
    "progress_callback": (enter, [((3,), {}, "function"), ((print, -1), {}, "at least 0")]),
    "load": (geonet.load, at(0, FILES)),
    "read": (
        geonet.read,
        [
            *at(0, FILES),
            *at(1, [((4, 4), "Grid")], "a.npy"),
            *named("nodata", [("0", "nodata is")], "a.npy"),
        ],
    ),
    "from_image": (geonet.from_image, at(0, [(A.values, "name of a file"), ("a.png", "no file")])),
    "from_samples": (
        geonet.from_samples,
        [
            *at(0, POINTS + OUTSIDE, GRID),
            *at(1, [((4, 4), "Grid")], [[1.0, 1.0]]),
            *at(2, [([-1.0], "negative"), ([1.0, 2.0], "one weight")], [[1.0, 1.0]], GRID),
            *named("outside", [("clip", "'drop'")], [[1.0, 1.0]], GRID),
            *named("kernel", [("cubic", "'linear'")], [[1.0, 1.0]], GRID),
        ],
    ),
    "from_function": (geonet.from_function, at(0, [(lambda x: x, "one value")], GRID)),
    "Grid": (
        Grid,
        [
            *at(0, [((1, 8), "at least 2"), ((), "axis"), ("8", "Axis")]),
            *at(2, [(0, "finite"), (NAN, "finite"), ((1, 2, 3), "one number")], (8, 8), 0),
            *named("orientation", [("lying", "'plane'")], (8, 8)),
        ],
    ),
    "Density": (
        Density,
        [
            *at(0, [(-A.values, "negative"), (NAN * A.values, "NaN")], GRID),
            *at(0, [(np.ones((4, 4)), "match"), (0 * A.values, "positive")], GRID),
            *at(1, [((16, 16), "Grid")], A.values),
            *named("missing", [("drop", "missing"), (NAN, "missing")], A.values, GRID),
        ],
    ),
    "Density.numpy": (A.numpy, at(0, MASSES)),
    "Density.at": (A.at, at(0, POINTS + OUTSIDE)),
    "Density.resample": (A.resample, at(0, GRIDS)),
    "Density.with_floor": (A.with_floor, at(0, SHARES)),
    "Density.gaussian_blur": (A.gaussian_blur, at(0, [(-1, "0 to 4"), (NAN, "0 to 4")])),
    "Density[]": (BATCH.__getitem__, at(0, [(3, "0 to 2"), ("a", "0 to 2")])),
    "Density.take": (BATCH.take, at(0, [([3], "0 to 2"), ([], "0 to 2")])),
    "Density.plot": (A.plot, styles()),
    "GaussianMixture": (
        GaussianMixture,
        [
            *at(0, [([0.0], "fit"), ([[NAN]], "finite")], [[[1.0]]]),
            *at(1, [([[[-1.0]]], "definite"), ([[1.0]], "fit")], [[0.0]]),
            *at(2, [([0.0], "positive"), ([1.0, 1.0], "fit")], [[0.0]], [[[1.0]]]),
        ],
    ),
    "GaussianMixture.isotropic": (
        GaussianMixture.isotropic,
        at(1, [(-1.0, "positive"), ([1.0, 2.0, 3.0], "component")], [[0.0, 0.0]]),
    ),
    "GaussianMixture.pdf": (B.mixture.pdf, at(0, POINTS)),
    "GaussianMixture.to_density": (B.mixture.to_density, at(0, [((64, 64), "Grid")])),
    "GaussianMixture.sample": (B.mixture.sample, at(0, COUNTS)),
    "Geodesic.density": (method("density"), [*at(0, TIMES), *at(1, GRIDS, 0.5)]),
    "Geodesic.velocity": (method("velocity"), [*at(0, TIMES, [1, 1]), *at(1, POINTS, 0.5)]),
    "Geodesic.potential": (method("potential"), [*at(0, TIMES, [1, 1]), *at(1, OUTSIDE, 0.5)]),
    "Geodesic.trajectories": (method("trajectories"), at(0, TIMES, [1, 1])),
    "Geodesic.plot": (method("plot"), [*at(0, TIMES), *at(1, GRIDS, 0.5), *styles()]),
    "Geodesic.animate": (method("animate"), [*at(1, COUNTS, "a.gif"), *styles("a.gif")]),
    "Geodesic.explore": (method("explore"), [*at(1, COUNTS, "a.html"), *styles("a.html")]),
    "Geodesic.save": (
        method("save"),
        [
            *at(0, [("a.txt", ".npz"), ("no/a.npz", "create it"), (3, "name of a file")]),
            *named("mass", MASSES, "a.npz"),
        ],
    ),
    "Geodesic[]": (lambda k: batch()[k], at(0, [(3, "0 to 2"), (slice(2), "0 to 2")])),
    "metrics.l1": (
        metrics.l1,
        [*at(0, DENSITIES, A), *at(1, [(ONE, "grid"), (BATCH, "batch")], A)],
    ),
    "metrics.block_l1": (metrics.block_l1, at(2, [(0, "at least 2")], A, B)),
    "metrics.w1": (metrics.w1, at(1, [(B, "1D")], A)),
    "metrics.sliced_w1": (metrics.sliced_w1, at(1, [(ONE, "2D")], ONE)),
    "metrics.constant_speed_defect": (
        lambda s, t: metrics.constant_speed_defect(path(), s, t),
        [*at(0, TIMES, 1.0), *at(1, [([0.1, 0.2], "one number")], 0.0)],
    ),
    "evaluation.reference_solution": (evaluation.reference_solution, at(0, DENSITIES, B)),
    "samples.sample_particles": (samples.sample_particles, at(1, COUNTS, A, NOISE)),
    "plotting.Style": (plotting.Style, styles()),
    "training.read_config": (training.read_config, at(0, [("missing.toml", "There is no file")])),
}
CASES = [
    pytest.param(function, *case, id=f"{name}-{k}")
    for name, (function, cases) in ENTRY_POINTS.items()
    for k, case in enumerate(cases)
]


@pytest.mark.parametrize(("function", "arguments", "options", "said"), CASES)
def test_wrong_arguments_raise(function, arguments, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GeonetError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert said in message
    assert re.search(r"; |[Gg]ive |[Uu]se |[Cc]hoose ", message), f"no remedy: {message}"
    assert not list(tmp_path.iterdir())  # no partial files
