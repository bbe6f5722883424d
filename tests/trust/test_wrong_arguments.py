"""What people give by mistake: every public function says in a sentence what to give instead.

Each function of `geonet`, its classes and its public packages is called with ten or more plausible
mistakes. What Python itself refuses, such as an unknown keyword, is left to Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import geonet
from experiments import mnist
from geonet import evaluation, export, plotting, training
from geonet import io as readers
from geonet import samples as particles
from geonet.errors import GeonetError
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.training.config import ProblemSettings

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Mistakes = list[tuple[Any, str]]  # a value, and a part of what is said of it
TEN = 10
LONGEST = 500  # characters of a message; one lists all solvers


class Frame:
    """Like a table of pandas whose columns hold words and numbers."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array([["rain", 1.0], ["wind", 2.0]], dtype=object)


def numbers() -> Iterator[float]:
    yield from (0.0, 0.5, 1.0)


@cache
def ends(dimension: int = 2) -> tuple[geonet.Density, geonet.Density]:
    """Two mixtures; in 1D on 32 cells, in 2D on 16 × 16, in 3D on 6 × 6 × 6."""
    grid = geonet.Grid(({1: 32, 2: 16, 3: 6}[dimension],) * dimension, 0, 5)
    means = [[2.0] * dimension, [3.0] * dimension]
    first, second = (geonet.GaussianMixture.isotropic([mean], 0.8).on(grid) for mean in means)
    return first, second


@cache
def path(dimension: int = 2) -> geonet.Geodesic:
    """One that gives everything."""
    return geonet.geodesic(*ends(dimension), solver="quantile" if dimension == 1 else "midpoint")


def mixture() -> geonet.GaussianMixture:
    return geonet.GaussianMixture.isotropic([[2.0, 2.0], [3.0, 3.0]], 0.8)


def batch() -> geonet.Density:
    return geonet.Density(np.ones((3, 16, 16)), geonet.Grid((16, 16), 0, 5))


def digits() -> np.ndarray:
    return np.ones((2, 28, 28))


def settings(**others: Any) -> training.TrainingConfig:
    problem = ProblemSettings(family="mixtures-1d")
    known = {
        "name": "mine",
        "problem": problem,
        "steps": 2,
        "model": TransportSettings(dimension=1),
    }
    return training.TrainingConfig(**(known | others))


def no_file() -> Path:
    return Path("missing") / "nothing.npz"


# ---- mistakes, by what is asked for

NOT_ARRAYS: Mistakes = [
    (None, "number"),
    ("0.5", "number"),
    ([[1.0, 2.0], [3.0]], "equal rows"),
    (np.array([1 + 2j, 3.0]), "real"),
    (torch.tensor([1j]), "real"),
    (np.array([1.0, None]), "number"),
    (["0.1", "0.2"], "number"),
    (Frame(), "number"),
    (numbers(), "list"),
    ({0.5: 1.0}, "number"),
    (np.datetime64("2026-01-01"), "number"),
    (Path("values.npy"), "number"),
]
WRONG_TIMES: Mistakes = [
    *NOT_ARRAYS,
    (2.0, "[0, 1]"),
    (-0.1, "[0, 1]"),
    (float("nan"), "[0, 1]"),
    ([[0.0, 0.5]], "list"),
    ([], "list"),
    ([0.0, float("inf")], "[0, 1]"),
]
WRONG_POINTS: Mistakes = [
    *NOT_ARRAYS,
    (0.5, "2D"),
    ([0.5], "2D"),
    (np.ones((4, 3)), "2D"),
    ([], "give"),
    (np.full((3, 2), np.nan), "NaN"),
    (np.empty((0, 2)), "at least one"),
]
OUTSIDE: Mistakes = [([[9.0, 9.0]], "outside the box")]
WRONG_GRIDS: Mistakes = [
    (64, "Grid"),
    ((64, 64), "Grid"),
    ("64x64", "Grid"),
    (np.ones((4, 4)), "Grid"),
    ([], "Grid"),
    (geonet.Grid, "Grid"),
]
OTHER_BOXES: Mistakes = [
    (geonet.Grid((8, 8), 0, 1), "box"),
    (geonet.Grid(8, 0, 5), "box"),
]
NO_GRID: Mistakes = [(None, "Grid")]
WRONG_FILES: Mistakes = [
    (None, "name of a file"),
    (3, "name of a file"),
    (np.ones((4, 4)), "name of a file"),
    (["a.npz"], "name of a file"),
    (b"a.npz", "name of a file"),
    (0.5, "name of a file"),
    ({"file": "a.npz"}, "name of a file"),
]
WRONG_FOLDERS: Mistakes = [(wrong, "name of a folder") for wrong, _ in WRONG_FILES]
UNREADABLE: Mistakes = [
    (no_file(), "There is no file"),
    ("missing.npz", "There is no file"),
    (".", "; "),
    ("", "; "),
    ("\0.npz", "check"),
]
NOT_DENSITIES: Mistakes = [
    (None, "Density"),
    (0.5, "Density"),
    ("a.png", "Density"),
    (np.ones((16, 16)), "Density"),
    (torch.ones(16, 16), "Density"),
    ([[1.0, 2.0], [3.0, 4.0]], "Density"),
    (geonet.Grid((16, 16), 0, 5), "Density"),
    (Frame(), "Density"),
    (numbers(), "Density"),
    (geonet.Density, "Density"),
]
NOT_PATHS: Mistakes = [
    (None, "geodesic"),
    ("path.npz", "geodesic"),
    (Path("path.npz"), "geodesic"),
    (np.ones((5, 16, 16)), "geodesic"),
    (0.5, "geodesic"),
    ([], "geodesic"),
    (geonet.Grid((16, 16)), "geodesic"),
    (geonet.Geodesic, "geodesic"),
    (numbers(), "geodesic"),
]
WRONG_COUNTS: Mistakes = [
    (None, "whole number"),
    ("10", "whole number"),
    (2.5, "whole number"),
    (-1, "at least"),
    (0, "at least"),
    ([3], "whole number"),
    (float("nan"), "whole number"),
    (1j, "whole number"),
    (np.ones(2), "whole number"),
    (True, "whole number"),
]
WRONG_SHARES: Mistakes = [
    (None, "number"),
    ("0.1", "number"),
    (1.0, "[0, 1)"),
    (-0.1, "[0, 1)"),
    (float("nan"), "[0, 1)"),
    (5, "[0, 1)"),
    (1j, "number"),
    ([0.1, 0.2], "number"),
    (np.ones(2), "number"),
    (numbers(), "number"),
]
WRONG_NAMES: Mistakes = [
    (None, "name"),
    (3, "name"),
    ("quantil", "did you mean 'quantile'?"),
    ("", "choose from"),
    (["quantile"], "name"),
    (b"quantile", "name"),
    (np.ones(2), "name"),
    ("nothing.safetensors", "There is no file"),
    (np.array("quantile"), "name"),
    (0.5, "name"),
]
NOT_NAMES: tuple[Any, ...] = (3, "zzz", "", b"log", ["log"], 1j, np.ones(2), numbers())
WRONG_LOOKS: list[tuple[dict[str, Any], str]] = [
    *(({"cmap": wrong}, "cmap is") for wrong in (None, *NOT_NAMES)),
    *(({"norm": wrong}, "norm is") for wrong in (None, *NOT_NAMES)),
    *(
        ({name: wrong}, f"{name} is")
        for name in ("vmin", "vmax")
        for wrong in ("1", "low", True, [1.0], 1j, np.ones(2), torch.ones(2), float("nan"), 10**400)
    ),
    *(({"mass": wrong}, "'one' or 'given'") for wrong in (None, *NOT_NAMES)),
    ({"cmap": "virids"}, "did you mean 'viridis'?"),
    ({"norm": "logs"}, "did you mean 'log'?"),
    ({"vmin": 2, "vmax": 1}, "above vmin=2.0"),
    ({"vmax": -1}, "above zero"),
    ({"vmin": 0, "norm": "log"}, "above zero"),
    ({"vmin": -1, "norm": "sqrt"}, "at zero or above"),
]
NOT_LOOKS: Mistakes = [
    (wrong, "geonet.plotting.Look(")
    for wrong in (None, "magma", {"cmap": "gray"}, 3, plotting.Look, plotting.DENSITY_MAP)
]
WRONG_NODATA: Mistakes = [
    (wrong, "nodata is")
    for wrong in ("nan", "-9999", True, [255], 1j, np.ones(2), torch.ones(1), numbers(), 10**400)
]
WRONG_MASSES: Mistakes = [
    (wrong, "'one' or 'given'")
    for wrong in (None, 1, 2.5, "two", "", b"one", True, ["given"], np.ones(2), torch.ones(2), {})
]
WRONG_KINDS: Mistakes = [
    (wrong, "'points' or 'values'")
    for wrong in (1, "point", "", b"points", True, ["points"], np.ones(2), 1j, readers, {})
]
NO_FLAGS: Mistakes = [(wrong, "True or False") for wrong in (None, 1, "no", [], 0.5, np.ones(2))]
WRONG_INDICES: Mistakes = [
    (wrong, "0 to 2")
    for wrong in (
        *(99, 3, -4, "a", "0", 1.5, None, True, 1j, [0], np.ones(2), slice(0, 2), numbers()),
        (0, 1),
    )
]
WRONG_LIMITS: list[tuple[Any, str]] = [
    *((wrong, "takes a number") for wrong in ("5", True, [5.0], 1j, np.ones(2), "1 min")),
    *((wrong, "give seconds above 0") for wrong in (0, -1.0, float("nan"))),
]


def at(
    place: int, mistakes: Iterable[tuple[Any, str]], *others: Any
) -> list[tuple[Arguments, str]]:
    """Each mistake at that place among arguments that are right."""
    return [(((*others[:place], wrong, *others[place:]), {}), said) for wrong, said in mistakes]


def given(said: str, *arguments: Any, **options: Any) -> tuple[Arguments, str]:
    return (arguments, options), said


def named(name: str, mistakes: Mistakes, *others: Any) -> list[tuple[Arguments, str]]:
    """Each mistake as the argument of that name, after arguments that are right."""
    return [given(said, *others, **{name: wrong}) for wrong, said in mistakes]


def looking(*others: Any) -> list[tuple[Arguments, str]]:
    """Each wrong look, after arguments that are right."""
    return [given(said, *others, **look) for look, said in WRONG_LOOKS]


def many() -> geonet.Geodesic:
    return geonet.geodesic(batch(), batch(), "linear")


def heard(*arguments: Any, **options: Any) -> None:
    with geonet.listening(*arguments, **options):
        pass


def of_path(method: str) -> Callable[..., Any]:
    return lambda *arguments, **options: getattr(path(), method)(*arguments, **options)


A, B = ends()
A1, B1 = ends(1)
GRID = A.grid
POINTS = [[1.0, 1.0], [2.0, 2.0]]
NOISE = torch.Generator()
WRONG_CONFIGS = (None, {}, "a.toml", 3, Path("a.toml"), [], A, np.ones(2))

# ---- the functions

TABLE: dict[str, tuple[Callable[..., Any], list[tuple[Arguments, str]]]] = {
    "geonet.paths": (
        geonet.geodesic,
        [
            *at(0, NOT_DENSITIES, B),
            *at(1, NOT_DENSITIES, A),
            *at(2, WRONG_NAMES, A, B),
            given("different boxes", A, geonet.Density(np.ones((16, 16)), geonet.Grid((16, 16)))),
            given("resample", A, geonet.Density(np.ones((8, 8)), geonet.Grid((8, 8), 0, 5))),
            given("batches", A, batch()),
            given("different boxes", A, B1),
            given("takes 1D", A, B, "quantile"),
            given("no option 'floor'", A, B, "linear", floor=0.1),
            given("no option 'epsilon'", A, B, "midpoint", epsilon=0.1),
            given("takes a number", A, B, "schrodinger", epsilon="small"),
            given("already has its own", A, B, geonet.solver("linear"), epsilon=0.1),
            given("give grid=", mixture(), mixture(), "linear"),
            given("resample", A, B, grid=geonet.Grid((8, 8), 0, 5)),
            given("Grid", A, B, grid=(16, 16)),
            given("Grid", mixture(), mixture(), grid=64),
            given("Solver", A, B, type(geonet.solver("linear"))),
            *named("time_limit", WRONG_LIMITS, A, B, "midpoint"),
            *named("time_limit", WRONG_LIMITS, A, B),
            given("no option 'time_limit'", A, B, "linear", time_limit=5),
        ],
    ),
    "geonet.solver": (
        geonet.solver,
        [
            *at(0, WRONG_NAMES),
            given("no option", "linear", floor=1),
            given("takes", "schrodinger", epsilon=[0.1]),
            *named("time_limit", WRONG_LIMITS, "midpoint"),
            *named("time_limit", WRONG_LIMITS, "auto"),
            given("share of the mass", "auto", tolerance=2.0),
        ],
    ),
    "geonet.listening": (
        heard,
        [
            *at(
                0,
                [
                    (wrong, "function")
                    for wrong in (None, 3, "print", [], {}, 1j, A, numbers(), True, b"print")
                ],
            ),
            *at(
                1,
                [(wrong, "seconds") for wrong in (None, "2", True, [2], 1j, -1, float("nan"))],
                print,
            ),
        ],
    ),
    "geonet.Solver.__call__": (
        lambda *pair: geonet.solver("linear")(*pair),
        [*at(0, NOT_DENSITIES, B), *at(1, NOT_DENSITIES, A), given("Density", mixture(), B)],
    ),
    "geonet.load": (geonet.load, [*at(0, [*WRONG_FILES, *UNREADABLE])]),
    "geonet.Geodesic.load": (geonet.Geodesic.load, [*at(0, [*WRONG_FILES, *UNREADABLE])]),
    "geonet.read": (
        geonet.read,
        [
            *at(0, [*WRONG_FILES, *UNREADABLE]),
            *at(1, WRONG_GRIDS, "missing.npy"),
            given("suffix", "a.docx"),
            *named("kind", WRONG_KINDS, "missing.csv"),
            *named("nodata", WRONG_NODATA, "missing.npy"),
        ],
    ),
    "geonet.io.read_points": (
        readers.read_points,
        [*at(0, [*WRONG_FILES, *UNREADABLE]), *at(1, WRONG_KINDS, "missing.csv")],
    ),
    "geonet.from_image": (
        geonet.from_image,
        [
            *at(0, [*WRONG_FILES, *UNREADABLE]),
            given("Density", np.ones((8, 8))),
            given("Density", torch.ones(8, 8)),
            *named("invert", NO_FLAGS, "missing.png"),
            *named("nodata", WRONG_NODATA, "missing.png"),
        ],
    ),
    "geonet.from_samples": (
        geonet.from_samples,
        [
            *at(0, WRONG_POINTS, GRID),
            *at(1, [*NO_GRID, *WRONG_GRIDS], POINTS),
            *at(2, [wrong for wrong in NOT_ARRAYS if wrong[0] is not None], POINTS, GRID),
            given("one weight per point", POINTS, GRID, [1.0]),
            given("negative", POINTS, GRID, [1.0, -1.0]),
            given("outside='drop'", [[9.0, 9.0]], GRID),
            given("'error' or 'drop'", POINTS, GRID, None, "clip"),
            *(
                given("'cell' or 'linear'", POINTS, GRID, kernel=wrong)
                for wrong in (None, 1, "gaussian", "", b"cell", ["cell"], np.ones(2), True)
            ),
            given("one cloud", np.ones((2, 3, 2)), GRID),
            given("Grid", GRID, POINTS),
        ],
    ),
    "geonet.from_function": (
        geonet.from_function,
        [
            *at(1, [*NO_GRID, *WRONG_GRIDS], lambda x: x[..., 0]),
            *at(
                0,
                [(wrong, "function") for wrong in (None, 3, "exp", np.ones((16, 16)), A, [], 1j)],
                GRID,
            ),
            given("one value per point", lambda x: 1.0, GRID),
            given("one value per point", lambda x: x, GRID),
            given("number", lambda x: None, GRID),
            given("number", lambda x: "rain", GRID),
            given("negative", lambda x: -x[..., 0], GRID),
            given("NaN", lambda x: x[..., 0] * float("nan"), GRID),
            given("real", lambda x: x[..., 0] * 1j, GRID),
        ],
    ),
    "geonet.register": (
        geonet.register,
        [
            *at(0, [(None, "name"), (3, "name"), ("", "name"), (["x"], "name")], "module:Class"),
            *at(1, [(None, "module:Class"), (3, "module:Class"), ("module", "module:Class")], "x"),
            *at(1, [(geonet.Solver, "module:Class"), ("", "module:Class")], "x"),
            given("exists already", "linear", "module:Class"),
        ],
    ),
    "geonet.Grid": (
        geonet.Grid,
        [
            given("shape", None),
            given("cells", "64"),
            given("at least 2", 1),
            given("at least 2", (64, 0)),
            given("at least 2", (64, -3)),
            given("whole", 64.5),
            given("whole", (64, float("nan"))),
            given("cells", (64, None)),
            given("at least one axis", ()),
            given("cells", np.ones((2, 2))),
            given("shape", 1j),
            given("cells", True),
            given("cells", numbers()),
            given("shape", A),
            given("lower", (8, 8), None),
            given("lower", (8, 8), "0"),
            given("lower < upper", (8, 8), 5, 0),
            given("lower < upper", (8, 8), 0, float("nan")),
            given("one per axis", (8, 8), (0, 0, 0), 5),
            given("upper", (8, 8), 0, "5"),
            given("upper", (8, 8), 0, 1j),
            given("upper", (8, 8), 0, [None, None]),
            given("upper", (8, 8), 0, np.ones((2, 2))),
            *(
                given("'image' or 'plane'", (8, 8), drawn=wrong)
                for wrong in (None, 1, "up", "", b"image", ["image"], np.ones(2), True)
            ),
        ],
    ),
    "geonet.Grid.with_shape": (
        GRID.with_shape,
        [
            given("shape", None),
            given("cells", "64"),
            given("at least 2", 1),
            given("whole", 2.5),
            given("one per axis", (8, 8, 8)),
            given("at least 2", (8, 0)),
            given("at least one axis", []),
            given("shape", 1j),
            given("shape", A),
            given("shape", GRID),
            given("cells", True),
        ],
    ),
    "geonet.Grid.same_box": (
        GRID.same_box,
        at(0, [*NO_GRID, *WRONG_GRIDS, (A, "Grid"), (1j, "Grid"), ({}, "Grid")]),
    ),
    "geonet.Grid.corner": (
        GRID.corner,
        at(
            0,
            [
                (wrong, "'lower' or 'upper'")
                for wrong in (None, 0, "left", "shape", [], 1j, b"lower", GRID, "", 0.5)
            ],
        ),
    ),
    "geonet.Density": (
        geonet.Density,
        [
            *at(0, NOT_ARRAYS, GRID),
            *at(1, [*NO_GRID, *WRONG_GRIDS], np.ones((16, 16))),
            given("one value per cell", np.ones((8, 8)), GRID),
            given("axes", 0.5, GRID),
            given("axes", [], GRID),
            given("negative", -np.ones((16, 16)), GRID),
            given("NaN", np.full((16, 16), np.nan), GRID),
            given("infinite", np.full((16, 16), np.inf), GRID),
            given("positive value", np.zeros((16, 16)), GRID),
            given("batch is empty", np.ones((0, 16, 16)), GRID),
            given("Grid", GRID, np.ones((16, 16))),
            *named("nodata", WRONG_NODATA, np.ones((16, 16)), GRID),
            given("positive value", np.ones((16, 16)), GRID, 1),
            given('nodata=float("nan")', np.full((16, 16), np.nan), GRID, -9999),
        ],
    ),
    "geonet.Density.numpy": (A.numpy, at(0, WRONG_MASSES)),
    "geonet.Density.plot": (A.plot, [*looking(), given("smaller vmin", vmin=1e9)]),
    "geonet.Density.at": (A.at, at(0, WRONG_POINTS)),
    "geonet.Density.resample": (
        A.resample,
        at(0, [*NO_GRID, *WRONG_GRIDS, *OTHER_BOXES, (B, "Grid")]),
    ),
    "geonet.Density.with_floor": (A.with_floor, at(0, WRONG_SHARES)),
    "geonet.Density.blurred": (
        A.blurred,
        at(
            0,
            [
                (wrong, "cells")
                for wrong in (None, "1", -1, float("nan"), 1j, True, [1], {}, 1e9, A)
            ],
        ),
    ),
    "geonet.Density.__getitem__": (
        lambda index: batch()[index],
        at(
            0,
            [
                *((wrong, "0 to 2") for wrong in (3, -4, None, "0", 0.5, 1j, [0, 9], numbers())),
                (np.ones(2), "0 to 2"),
                ({}, "0 to 2"),
            ],
        ),
    ),
    "geonet.Density.chosen": (
        lambda which: batch().chosen(which),
        at(
            0,
            [
                *((wrong, "0 to 2") for wrong in (3, None, "0", [0.5], 1j, [0, 9], [None])),
                (["a"], "0 to 2"),
                ([[0], [1]], "0 to 2"),
                ([], "0 to 2"),
            ],
        ),
    ),
    "geonet.GaussianMixture": (
        geonet.GaussianMixture,
        [
            *at(0, NOT_ARRAYS, [np.eye(2)]),
            *at(1, NOT_ARRAYS, [[1.0, 2.0]]),
            given("do not fit", [1.0, 2.0], np.eye(2)),
            given("do not fit", [[1.0, 2.0]], 0.5),
            given("positive definite", [[1.0, 2.0]], [-np.eye(2)]),
            given("positive definite", [[1.0, 2.0]], [[[1, 2], [0, 1]]]),
            given("finite", [[np.nan, 2.0]], [np.eye(2)]),
            given("positive", [[1.0, 2.0]], [np.eye(2)], [0.0]),
            given("do not fit", [[1.0, 2.0]], [np.eye(2)], [1.0, 2.0]),
            given("number", [[1.0, 2.0]], [np.eye(2)], ["a"]),
        ],
    ),
    "geonet.GaussianMixture.isotropic": (
        geonet.GaussianMixture.isotropic,
        [
            *at(0, NOT_ARRAYS, 0.5),
            *at(1, NOT_ARRAYS, POINTS),
            given("positive", POINTS, 0.0),
            given("positive", POINTS, -1),
            given("do not fit", POINTS, [0.5, 0.5, 0.5]),
            given("give", 1.0, 0.5),
            given("give", [1.0, 2.0], 0.5),
            given("give", [], 0.5),
        ],
    ),
    "geonet.GaussianMixture.pdf": (mixture().pdf, at(0, WRONG_POINTS)),
    "geonet.GaussianMixture.on": (
        mixture().on,
        at(0, [*NO_GRID, *WRONG_GRIDS, (A, "Grid"), (geonet.Grid(8), "2D"), (1j, "Grid")]),
    ),
    "geonet.GaussianMixture.sample": (mixture().sample, at(0, WRONG_COUNTS)),
    "geonet.GaussianMixture.__getitem__": (
        lambda index: geonet.GaussianMixture.isotropic(np.ones((3, 2, 2)), 0.5)[index],
        at(
            0,
            [
                *((wrong, "0 to 2") for wrong in (3, -4, None, "0", 0.5, 1j, [0, 9], numbers())),
                (np.ones(2), "0 to 2"),
                ({}, "0 to 2"),
            ],
        ),
    ),
    "geonet.Geodesic.density": (
        of_path("density"),
        [*at(0, WRONG_TIMES), *at(1, [*WRONG_GRIDS, *OTHER_BOXES], 0.5), given("number", GRID)],
    ),
    **{
        f"geonet.Geodesic.{method}": (
            of_path(method),
            [
                *at(0, WRONG_TIMES, POINTS),
                *at(1, [*WRONG_POINTS, *OUTSIDE], 0.5),
                given("list", POINTS, 0.5),  # swapped
                given("number", 0.5, GRID),
            ],
        )
        for method in ("velocity", "potential", "trajectories")
    },
    "geonet.Geodesic.plot": (
        of_path("plot"),
        [
            *at(0, [wrong for wrong in WRONG_TIMES if wrong[0] is not None]),
            *at(1, [*WRONG_GRIDS, *OTHER_BOXES], 0.5),
            *at(2, [(wrong, "choose one of") for wrong in (None, 3, "film", [], 1j)], 0.5, None),
            given("shows all times", 0.5, kind="tracks"),
            given("3D", kind="slices"),
            *looking(0.5),
            given("smaller vmin", 0.5, vmin=1e9),
            given("colours of time", kind="tracks", cmap="gray"),
        ],
    ),
    "geonet.Geodesic.animate": (
        of_path("animate"),
        [
            *at(0, WRONG_FILES),
            *at(1, WRONG_COUNTS, "film.gif"),
            *at(2, [*WRONG_GRIDS, *OTHER_BOXES], "film.gif", 3),
            given(".gif", "film.avi"),
            given("folder", "missing/film.gif"),
            given(".gif", ""),
            *looking("film.gif", 3),
            given("smaller vmin", "film.gif", 3, vmin=1e9),
            *named("stamp", NO_FLAGS, "film.gif", 3),
        ],
    ),
    "geonet.Geodesic.explore": (
        of_path("explore"),
        [
            *at(0, WRONG_FILES),
            *at(1, WRONG_COUNTS, "page.html"),
            *at(2, [*WRONG_GRIDS, *OTHER_BOXES], "page.html", 3),
            given(".html", "page.gif"),
            given("folder", "missing/page.html"),
            given(".html", ""),
            *looking("page.html", 3),
            given("smaller vmin", "page.html", 3, vmin=1e9),
        ],
    ),
    "geonet.Geodesic.save": (
        of_path("save"),
        [
            *at(0, WRONG_FILES),
            *at(1, WRONG_TIMES, "path.npz"),
            *at(2, [*WRONG_GRIDS, *OTHER_BOXES], "path.npz", 0.5),
            given(".npz", "path.png"),
            given("folder", "missing/path.npz"),
            *named("mass", WRONG_MASSES, "path.npz", 0.5),
        ],
    ),
    "geonet.Geodesic.__getitem__": (
        lambda index, of=many: of()[index],
        [*at(0, WRONG_INDICES), *(given("without an index", k, path) for k in (0, -1, "a", None))],
    ),
    **{
        f"geonet.evaluation.{name}": (
            getattr(evaluation, name),
            [
                *at(0, NOT_DENSITIES, B),
                *at(1, NOT_DENSITIES, A),
                given("box" if name == "w2" else "grid", A, B1),
            ],
        )
        for name in ("l1", "l2", "w2")
    },
    "geonet.evaluation.block_l1": (
        evaluation.block_l1,
        [
            *at(0, NOT_DENSITIES, B),
            *at(1, NOT_DENSITIES, A),
            *at(2, [(None, "shape"), ("16", "cells"), (0, "at least 2"), (2.5, "whole")], A, B),
        ],
    ),
    "geonet.evaluation.w1": (
        evaluation.w1,
        [*at(0, NOT_DENSITIES, B1), *at(1, NOT_DENSITIES, A1), given("sliced_w1", A, B)],
    ),
    "geonet.evaluation.sliced_w1": (
        evaluation.sliced_w1,
        [*at(0, NOT_DENSITIES, B), *at(1, NOT_DENSITIES, A), given("use w1", A1, B1)],
    ),
    "geonet.evaluation.mass_error": (evaluation.mass_error, at(0, NOT_DENSITIES)),
    "geonet.evaluation.negativity": (evaluation.negativity, at(0, NOT_DENSITIES)),
    "geonet.evaluation.truth_of": (
        evaluation.truth_of,
        [
            *at(0, NOT_DENSITIES, B),
            *at(1, NOT_DENSITIES, A),
            given("batches", A, batch()),
            given("batches", batch(), batch()[0]),
            given("different boxes", A, B1),
            given("different boxes", A1, B),
        ],
    ),
    "geonet.evaluation.measure": (
        lambda *arguments: evaluation.measure(*arguments),
        [
            *at(
                0,
                [(wrong, "Solver") for wrong in (None, 3, "linear", [], A)],
                batch(),
                batch(),
                batch(),
                torch.ones(3),
            ),
            *at(1, NOT_DENSITIES, geonet.solver("linear"), batch(), batch(), torch.ones(3)),
            *at(2, NOT_DENSITIES, geonet.solver("linear"), batch(), batch(), torch.ones(3)),
            *at(3, NOT_DENSITIES, geonet.solver("linear"), batch(), batch(), torch.ones(3)),
            given("batch", geonet.solver("linear"), A, B, A, torch.ones(1)),
        ],
    ),
    "geonet.evaluation.end_point_errors": (
        evaluation.end_point_errors,
        at(0, [*NOT_PATHS, (A, "geodesic")]),
    ),
    "geonet.evaluation.constant_speed_defect": (
        evaluation.constant_speed_defect,
        [
            *at(0, NOT_PATHS, 0.2, 0.5),
            *(
                (((path(), wrong, 0.5), {}), said)
                for wrong, said in WRONG_TIMES
                if not isinstance(wrong, list)
            ),
            given("one number", path(), [0.1, 0.2], 0.5),
        ],
    ),
    "geonet.export.export_onnx": (
        export.export_onnx,
        [
            *at(0, WRONG_NAMES, "models"),
            *at(1, WRONG_FOLDERS, "deeponet-1d"),
            given("trained network", "linear", "models"),
            given("name", A, "models"),
        ],
    ),
    "experiments.mnist.mnist": (
        mnist.mnist,
        at(
            0,
            [
                (wrong, "'train' or 'test'")
                for wrong in (None, 3, "all", [], b"test", 1j, True, {}, "", np.ones(2))
            ],
        ),
    ),
    "experiments.mnist.as_densities": (
        mnist.as_densities,
        [
            *at(0, NOT_ARRAYS, 1.0, 0.1),
            *at(
                1,
                [(None, "blur"), ("1", "blur"), (-1, "blur"), (99, "blur"), (1j, "blur")],
                digits(),
                0.1,
            ),
            *at(1, [(float("nan"), "blur"), ([1, 1], "blur")], digits(), 0.1),
            *at(2, WRONG_SHARES, digits(), 1.0),
            given("28, 28", np.ones((2, 14, 14)), 1.0, 0.1),
            given("28, 28", np.ones((28, 28)), 1.0, 0.1),
        ],
    ),
    "geonet.samples.sampled": (
        particles.sampled,
        [
            *at(0, NOT_DENSITIES, 10, NOISE),
            *at(1, WRONG_COUNTS, A, NOISE),
            *at(2, [(wrong, "Generator") for wrong in (0, "0", np.random.default_rng(0))], A, 10),
            given("single", batch(), 10, NOISE),
        ],
    ),
    "geonet.samples.rounded": (
        particles.rounded,
        [*at(0, NOT_DENSITIES, 10), *at(1, WRONG_COUNTS, A), given("single", batch(), 10)],
    ),
    "geonet.samples.histogram": (
        particles.histogram,
        [*at(0, WRONG_POINTS, GRID), *at(1, [*NO_GRID, *WRONG_GRIDS], torch.ones(3, 2))],
    ),
    "geonet.training.read_config": (training.read_config, at(0, [*WRONG_FILES, *UNREADABLE])),
    "geonet.training.config_for": (
        training.config_for,
        [
            *at(0, [*WRONG_FILES, *UNREADABLE]),
            *at(2, [wrong for wrong in WRONG_COUNTS if wrong[0] is not None], no_file(), None),
        ],
    ),
    "geonet.training.TrainingConfig": (
        settings,
        [
            given("string", name=None),
            given("string", name=3),
            given("letters", name="a/b"),
            given("whole number", steps="100"),
            given("whole number", steps=2.5),
            given("at least 1", steps=0),
            given("whole number", seed=None),
            given("0 to 2³¹", seed=-1),
            given("true or false", compile=1),
            given("ProblemSettings", problem=None),
            given("ProblemSettings", problem={"family": "mixtures-1d"}),
            given("ModelSettings", model="transport"),
            given("LossSettings", loss=0.5),
            given("model.dimension", model=TransportSettings(dimension=2)),
        ],
    ),
    "geonet.training.train": (
        training.train,
        [
            *at(0, [(wrong, "TrainingConfig") for wrong in WRONG_CONFIGS], "runs"),
            *at(1, WRONG_FOLDERS, settings()),
            *(given(said, settings(), "runs", stop_at=wrong) for wrong, said in WRONG_COUNTS[1:]),
            *(given("seconds", settings(), "runs", time_limit=wrong) for wrong in ("1", 1j, [])),
        ],
    ),
    **{
        f"geonet.plotting.{name}": (
            getattr(plotting, name),
            [
                *at(0, NOT_PATHS),
                *at(1, [wrong for wrong in WRONG_TIMES], path(dimension)),
                *at(2, WRONG_GRIDS, path(dimension), 0.5),
                *at(3, NOT_LOOKS, path(dimension), 0.5, None),
                *more,
            ],
        )
        for name, dimension, more in (
            ("plot_geodesic", 2, []),
            ("plot_velocity", 2, named("arrows", WRONG_COUNTS, path())),
            (
                "plot_slices",
                3,
                [
                    *(given("axis is", path(3), axis=k) for k in (None, "x", 3, 1.0, [0], True)),
                    *(given("at is", path(3), at=k) for k in (None, "0.5", 2, [0.5], np.ones(2))),
                ],
            ),
        )
    },
    "geonet.plotting.Look": (plotting.Look, looking()),
    "geonet.plotting.plot_density": (
        plotting.plot_density,
        [
            *at(0, NOT_DENSITIES),
            *at(1, NOT_LOOKS, A),
            given("geonet.Density(", path()),
            given("one of them", batch()),
            given("smaller vmin", A, plotting.Look(vmin=1e9)),
        ],
    ),
    "geonet.plotting.plot_history": (
        plotting.plot_history,
        [
            *at(0, NOT_PATHS),
            *at(1, WRONG_GRIDS, path(1)),
            *at(2, NOT_LOOKS, path(1), None),
            given("1D", path()),
        ],
    ),
    "geonet.plotting.plot_tracks": (
        plotting.plot_tracks,
        [
            *at(0, NOT_PATHS),
            *at(1, WRONG_GRIDS, path()),
            *at(2, WRONG_COUNTS, path(), None),
            *at(3, [(None, "seed"), ("0", "seed"), (0.5, "seed"), (-1, "seed")], path(), None, 3),
            *named("mass", WRONG_MASSES, path()),
            given("2D", path(1)),
        ],
    ),
    "geonet.plotting.plot_error": (
        plotting.plot_error,
        [
            *at(0, NOT_PATHS, path()),
            *at(1, NOT_PATHS, path()),
            *at(2, WRONG_TIMES, path(), path()),
            *at(3, WRONG_GRIDS, path(), path(), 0.5),
            given("same box", path(), path(1)),
        ],
    ),
    "geonet.plotting.plot_together": (
        plotting.plot_together,
        [
            *at(0, [(wrong, "path") for wrong in (None, "a", 3, [], {}, path(), [path()], 1j)]),
            *at(0, [({"a": wrong}, "geodesic") for wrong, _ in NOT_PATHS]),
            *at(1, WRONG_TIMES, {"a": path()}),
            given("3D", {"a": path(3)}),
        ],
    ),
    "geonet.plotting.plot_kind": (
        plotting.plot_kind,
        [
            *at(0, NOT_PATHS, "frames"),
            *at(1, [(wrong, "choose one of") for wrong in (None, 3, "film", [], 1j)], path()),
            *at(2, [wrong for wrong in WRONG_TIMES if wrong[0] is not None], path(), "frames"),
            *at(3, WRONG_GRIDS, path(), "frames", 0.5),
            *at(4, NOT_LOOKS, path(), "frames", 0.5, None),
        ],
    ),
    "geonet.plotting.animate_geodesic": (
        plotting.animate_geodesic,
        [
            *at(0, NOT_PATHS, "film.gif"),
            *at(1, WRONG_FILES, path()),
            *at(2, WRONG_COUNTS, path(), "film.gif"),
            *at(3, WRONG_GRIDS, path(), "film.gif", 3),
            *at(4, NOT_LOOKS, path(), "film.gif", 3, None),
            *at(5, NO_FLAGS, path(), "film.gif", 3, None, plotting.Look()),
        ],
    ),
}
CASES = [
    pytest.param(function, arguments, said, id=f"{name}-{k}")
    for name, (function, mistakes) in TABLE.items()
    for k, (arguments, said) in enumerate(mistakes)
]
# Public names without a row, each with the reason.
OTHERS = {
    "geonet.Geodesic": "made by solvers; its methods are in the table",
    "geonet.Solver": "subclassed, not called",
    "geonet.list_solvers": "takes no arguments",
    "geonet.Density.as_computed": "for solvers: it takes their answers unchecked",
    "geonet.evaluation.Accuracy": "an answer",
    "geonet.evaluation.Truth": "an answer",
    "geonet.training.TrainingOutcome": "an answer",
    "geonet.plotting.DENSITY_MAP": "a colour map",
    "geonet.plotting.FAINT": "a colour",
    "geonet.plotting.INK": "a colour",
    "geonet.plotting.quieten": "takes axes of matplotlib",
}


@pytest.mark.parametrize(("function", "arguments", "said"), CASES)
def test_mistake_is_explained(function, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GeonetError) as caught:
        function(*arguments[0], **arguments[1])
    message = str(caught.value)
    assert said in message
    assert len(message) < LONGEST and message.endswith((".", "?")), message
    assert re.search(r"; |[Gg]ive |[Uu]se |[Cc]hoose ", message), f"no remedy: {message}"
    assert not list(tmp_path.iterdir())  # nothing half-written


def public_names() -> set[str]:
    """Every name in an `__all__` of a public package, and every method that takes arguments."""
    packages = (geonet, evaluation, export, plotting, training)
    names = {f"{package.__name__}.{name}" for package in packages for name in package.__all__}
    for cls in (geonet.Grid, geonet.Density, geonet.GaussianMixture, geonet.Geodesic):
        for name, member in vars(cls).items():
            function = getattr(member, "__func__", member)
            takes = isfunction(function) and len(signature(getattr(cls, name)).parameters) > 1
            if takes and not name.startswith("_"):
                names.add(f"geonet.{cls.__name__}.{name}")
    return names


def test_every_public_function_is_in_the_table():
    assert public_names() - set(TABLE) == set(OTHERS)


def test_a_single_pair_cannot_be_counted():
    with pytest.raises(GeonetError, match="a single pair; use it as it is"):
        len(path())


@pytest.mark.parametrize("name", TABLE)
def test_ten_mistakes_of_each(name):
    assert len(TABLE[name][1]) >= TEN
