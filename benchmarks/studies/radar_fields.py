"""Real radar images between others, by fading, geodesics, pysteps' motions and `da.geonet.interp`.

    make benchmark NAME=fields RADAR=folder   # of files TIME_….pgm.gz, see docs/fields.md
    python -m benchmarks study fields --radar folder --sections radar-128 --quick

The image in the middle between two others is left out and interpolated. Prints the tables and
writes benchmarks/results/fields.json and a picture. `python -m benchmarks.page` copies them to
docs/fields.md. Run it on an otherwise idle machine, with pysteps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, NamedTuple

import numpy as np
import typer
import xarray as xr
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from scipy.ndimage import map_coordinates

import geonet.xarray  # noqa: F401  registers da.geonet
from benchmarks.dotmark.images import read_rain
from benchmarks.measurement import run_study
from benchmarks.pages import RESULTS
from benchmarks.results import Cell, Table
from geonet.errors import InputError


@dataclass(frozen=True)
class Config:
    """Cases of the study; lengths are in cells, times in minutes.

    Attributes:
        cells: sizes of the images.
        gaps: times between the images that are kept.
        cases: pairs of images for each gap, at even steps over the sequence.
        reach: of the method "motion and reach".
        dry: rates in mm/h below which pysteps' methods see no rain.
        shown: gap of the picture.
    """

    cells: tuple[int, ...] = (128, 256)
    gaps: tuple[int, ...] = (10, 20, 40)
    cases: int = 8
    reach: float = 1.0
    dry: float = 0.1
    shown: int = 20


QUICK = Config(cells=(128, 256), gaps=(10,), cases=1, shown=10)
RATES = (0.1, 1.0)  # mm/h of the critical success index


class Case(NamedTuple):
    """Two neighbouring images of a sequence, and the image left out in the middle between them.

    Attributes:
        kept: the pair with the images before and after it, as a field.
        time: time of the image that is left out.
        truth: this image.
    """

    kept: xr.DataArray
    time: np.datetime64
    truth: np.ndarray

    @property
    def pair(self) -> np.ndarray:
        """The two images, (2, *cells)."""
        first = int((self.kept.time.values < self.time).sum()) - 1
        return self.kept.values[first : first + 2]


Method = Callable[[Case], np.ndarray]


def main(
    radar: Annotated[Path, typer.Option(help="Folder of radar images, *.pgm.gz.")],
    sections: Annotated[str, typer.Option(help="radar-128, radar-256.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Check with one pair of images.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Measure interpolations of rain between radar images."""
    config = QUICK if quick else Config()
    measurements = {
        f"radar-{cells}": partial(measure_methods, config, radar, cells) for cells in config.cells
    }
    run_study("fields", measurements, sections, quick, out)
    if not quick:
        case = next(list_cases(read_field(radar, config.cells[0]), config.shown, 1))
        draw_case(case, make_methods(config), out / "fields-radar.png")


def measure_methods(config: Config, radar: Path, cells: int) -> Table:
    """Return the mean scores of all methods for each gap, and their median time."""
    field = read_field(radar, cells)
    rows: list[list[Cell]] = []
    for gap in config.gaps:
        cases = list(list_cases(field, gap, config.cases))
        for name, method in make_methods(config).items():
            method(cases[0])  # not timed: imports
            scores, seconds = [], []
            for case in cases:
                start = perf_counter()
                frame = method(case)
                seconds.append(perf_counter() - start)
                scores.append(score(frame, case.truth))
            means = [fmean(column) for column in zip(*scores, strict=True)]
            rows.append([f"{gap} min", name, *means, 1e3 * median(seconds)])
    title = f"Images of {cells}² cells, means over {config.cases} cases for each gap"
    return Table(title, ("gap", "method", *SCORES, "ms a pair"), rows)


# ---- images


def read_field(folder: Path, cells: int) -> xr.DataArray:
    """Return the rain rates of all images of a folder."""
    times, rates = read_rain(folder, cells)
    coords = {"time": np.array(times, dtype="datetime64[ns]")}
    return xr.DataArray(rates, coords, ("time", "y", "x"), "rain", {"units": "mm h-1"})


def list_cases(field: xr.DataArray, gap: int, count: int) -> Iterator[Case]:
    """Yield pairs of images that are `gap` minutes apart, at even steps over the sequence."""
    steps = np.diff(field.time.values) / np.timedelta64(1, "m")
    stride = round(gap / float(steps[0]))
    if not (steps == steps[0]).all() or stride % 2 or stride * steps[0] != gap:
        raise InputError(f"The images need even steps of which {gap // 2} minutes is a multiple.")
    last = field.sizes["time"] - 1 - stride
    if last < 0:
        raise InputError(f"The images cover less than {gap} minutes.")
    for start in np.linspace(0, last, count).astype(int).tolist():
        kept = field[max(start - stride, start % stride) : start + 2 * stride + 1 : stride]
        left_out = field[start + stride // 2]
        yield Case(kept, left_out.time.values, left_out.values)


# ---- methods


def make_methods(config: Config) -> dict[str, Method]:
    """Return all methods by name."""
    return {
        "`rain.interp`, which fades": fade,
        "geodesic, `motion=None`": partial(interpolate, motion=None),
        "pysteps, Lucas–Kanade": partial(advect, "lucaskanade", config.dry),
        "pysteps, VET": partial(advect, "vet", config.dry),
        "pysteps, Proesmans": partial(advect, "proesmans", config.dry),
        "`rain.geonet.interp`": interpolate,
        f"with a reach of {config.reach:g} cell": partial(interpolate, reach=config.reach),
    }


def fade(case: Case) -> np.ndarray:
    """Return the mean of both images."""
    return case.pair.mean(0)


def interpolate(case: Case, **options) -> np.ndarray:
    """Return the frame of `da.geonet.interp`."""
    return case.kept.geonet.interp(time=case.time, **options).values


def advect(name: str, dry: float, case: Case) -> np.ndarray:
    """Return the mean of both images carried linearly along a motion of pysteps."""
    from pysteps import motion

    images = case.pair
    decibels = np.where(images >= dry, 10 * np.log10(np.maximum(images, dry)), -15.0)
    options = {} if name == "proesmans" else {"verbose": False}
    flow = motion.get_method(name)(decibels, **options)[::-1]  # cells along x and y
    cells = np.indices(images[0].shape).astype(float)
    ends = [
        map_coordinates(image, cells + sign * flow / 2, order=1, mode="nearest")
        for image, sign in zip(images, (-1, 1), strict=True)
    ]
    return (ends[0] + ends[1]) / 2


# ---- scores

SCORES = (
    "error, %",
    *(f"CSI at {rate:g} mm/h, %" for rate in RATES),
    "sharpness, %",
    "wet area, %",
    "total, %",
)


def score(frame: np.ndarray, truth: np.ndarray) -> list[float]:
    """Return the scores of a frame in per cent; all are relative to the truth."""

    def measure_variation(values: np.ndarray) -> float:
        return float(sum(np.abs(np.diff(values, axis=axis)).sum() for axis in (0, 1)))

    hits = []
    for rate in RATES:
        ours, theirs = frame >= rate, truth >= rate
        hits.append(float((ours & theirs).sum() / max(1, (ours | theirs).sum())))
    wet = [float((values >= RATES[0]).sum()) for values in (frame, truth)]
    values = (
        float(np.abs(frame - truth).sum() / truth.sum()),
        *hits,
        measure_variation(frame) / measure_variation(truth),
        wet[0] / wet[1],
        float(frame.sum() / truth.sum()),
    )
    return [100 * value for value in values]


# ---- picture


def draw_case(case: Case, methods: dict[str, Method], file: Path) -> None:
    """Draw the image that is left out, and what each method puts in its place."""
    frames = {"truth": case.truth} | {name: method(case) for name, method in methods.items()}
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    norm = PowerNorm(0.5, vmin=0, vmax=float(case.truth.max()))
    axes = figure.subplots(2, 4).ravel()
    for ax, (name, frame) in zip(axes, frames.items(), strict=True):
        drawn = ax.imshow(np.where(frame >= RATES[0], frame, np.nan), norm=norm, cmap="viridis")
        ax.set(title=name.replace("`", ""), xticks=[], yticks=[])
    figure.colorbar(drawn, ax=axes, label="mm/h", shrink=0.8)
    figure.savefig(file, dpi=90)
