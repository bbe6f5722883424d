"""Valid files of every kind that geonet reads, and the readers that take them."""

from __future__ import annotations

import csv
import gzip
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mutations import (
    Mutation,
    gzip_inside,
    json_inside,
    npy_inside,
    npz_inside,
    png_inside,
    toml_inside,
    weights_inside,
)
from PIL import Image

import geonet
from benchmarks.records import FILE as BENCHMARK
from benchmarks.records import read_benchmark
from experiments.autoencoder import Autoencoder, load_autoencoder
from experiments.mnist import read_idx
from geonet._toml import from_table, to_toml
from geonet.cli.batch import COLUMNS, _read_summary, read_pair_list
from geonet.density import Density
from geonet.grid import Grid
from geonet.io import parse_file
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model, save_model, write_tensors
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from geonet.training.config import TrainingConfig, read_config
from geonet.training.user_data import read_dataset

RNG = np.random.default_rng(0)
CLOUD = Grid((6, 6), -1.0, 2.0)
WAVE = torch.cos(torch.pi * Grid(16).axes()[0])  # flat at the faces
ENDS = Density(1 + 0.3 * WAVE, Grid(16)), Density(1 - 0.4 * WAVE, Grid(16))
SQUARES = tuple(Density(end.tensor[:, None] * end.tensor, Grid((16, 16))) for end in ENDS)
SMALL = {"width": 4, "depth": 3}
CONFIG = {
    "name": "tiny",
    "problem": {"file": "pairs.npz"},
    "steps": 12,
    "model": {"dimension": 1, "sensors": 6, "rank": 3, "branch": SMALL, "trunk": SMALL},
    "sampling": {"pairs": 4, "points": 6, "places": 5},
    "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
    "validation": {"pairs": 2, "every": 6},
}


@dataclass(frozen=True)
class Reader:
    """A reader with valid files.

    Attributes:
        name: for the table of results.
        read: reads the file and checks the result.
        files: contents of valid files by name.
        inside: mutation that keeps checksums valid.
    """

    name: str
    read: Callable[[Path], object]
    files: dict[str, bytes]
    inside: Mutation | None = None


def readers(folder: Path) -> list[Reader]:
    """Return all readers; valid files are written to an empty folder."""
    return [Reader(*row) for make in (_measures, _learned, _texts) for row in make(folder)]


def _measures(folder: Path) -> Iterator[tuple]:
    images = {suffix: dict(_images(folder, suffix)) for suffix in IMAGES}
    for suffix, files in images.items():
        yield suffix, _density, files, png_inside if suffix == "png" else None
    np.save(folder / "a.npy", RNG.uniform(0, 1, (5, 6)))
    np.save(folder / "b.npy", RNG.integers(0, 9, 40).astype(np.uint16))
    yield "npy", _density, _bytes(folder, "*.npy"), npy_inside
    np.savez(folder / "box.npz", values=RNG.uniform(0, 1, (5, 6)), lower=[0, 0], upper=[1, 2])
    np.savez_compressed(folder / "one.npz", anything=RNG.uniform(0, 1, 9).astype(np.float32))
    yield "npz", _density, _bytes(folder, "*.npz"), npz_inside
    yield "geodesic", _geodesic, dict(_geodesics(folder)), npz_inside
    pairs = {"source": RNG.uniform(1, 2, (5, 9)), "target": RNG.uniform(1, 2, (5, 9))}
    np.savez(folder / "own-pairs.npz", **pairs, lower=0.0, upper=2.0)
    np.savez(folder / "own-pool.npz", values=RNG.uniform(1, 2, (5, 4, 4)))
    yield "own", _own, _bytes(folder, "own-*.npz"), npz_inside
    digits = RNG.integers(0, 256, (3, 4, 5)).astype(np.uint8).tobytes()
    idx = struct.pack(">BBBB3I", 0, 0, 8, 3, 3, 4, 5) + digits
    yield "idx", read_idx, {"digits-idx3-ubyte": idx}
    yield "idx.gz", read_idx, {"digits-idx3-ubyte.gz": gzip.compress(idx)}, gzip_inside


def _learned(folder: Path) -> Iterator[tuple]:
    small = {"branch": Branch(**SMALL), "trunk": Trunk(**SMALL)}
    settings = (
        GeONetSettings(sensors=6, rank=3, **small),
        DeepONetSettings(sensors=6, rank=3, **small),
        TransportSettings(sensors=6, seen=4, modes=4, width=3, depth=2),
    )
    models = {}
    for own in settings:
        file = folder / f"{own.kind}.safetensors"
        measured = {"test": {"mean": [1.0, 2.0], "sd": [0.1, 0.2]}}
        if own.kind == "transport":
            measured = {"calibration": {"slope": 0.5, "limit": 0.1}}
        save_model(file, build_model(own, seed=0), {"name": own.kind, "measured": measured})
        models[file.name] = file.read_bytes()
    yield "model", _model, models, weights_inside
    file = folder / "autoencoder.safetensors"
    write_tensors(file, Autoencoder(width=3).state_dict(), {"kind": "autoencoder"})
    yield "autoencoder", _autoencoder, {file.name: file.read_bytes()}, weights_inside
    file = folder / "checkpoint.safetensors"
    config, model, optimizer = _training()
    save_checkpoint(
        file, config, Progress(3, 1.5, 2.0, {}), model, optimizer, [torch.get_rng_state()]
    )
    yield "checkpoint", _checkpoint, {file.name: file.read_bytes()}, weights_inside


def _texts(folder: Path) -> Iterator[tuple]:
    table = "\n".join(",".join(f"{x:.4g}" for x in row) for row in RNG.uniform(0, 1, (5, 4)))
    yield "table", _density, {"table.csv": table.encode()}
    cloud = folder / "cloud.csv"
    with cloud.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["x", "y", "weight"])
        rows.writerows(RNG.uniform(0, 1, (8, 3)).round(3).tolist())
    yield "cloud", _cloud, {"cloud.csv": cloud.read_bytes()}
    rows = RNG.uniform(0, 1, (8, 2)).round(3).tolist()
    plain = {
        f"{k}.csv": "\n".join(f"{x}{mark}{y}" for x, y in rows) for k, mark in enumerate(",; ")
    }
    yield "points", _points, {name: text.encode() for name, text in plain.items()}
    listed = 'source, target\na.png,b.png\n"c,d.npy",a.png\n'
    yield "pair list", read_pair_list, {"pairs.csv": listed.encode()}
    summary = ",".join(COLUMNS) + "\n" + ",".join("1" for _ in COLUMNS) + "\n"
    yield "summary", _read_summary, {"summary.csv": summary.encode()}
    yield "config", read_config, {"config.toml": to_toml(CONFIG).encode()}, toml_inside
    results = Path(__file__).parents[2] / "benchmarks" / "results" / BENCHMARK
    whole = json.loads(results.read_text(encoding="utf-8"))
    short = {key: value[:3] if isinstance(value, list) else value for key, value in whole.items()}
    yield "benchmark", _benchmark, {BENCHMARK: json.dumps(short).encode()}, json_inside


# ---- Valid files

IMAGES = ("png", "jpg", "gif", "bmp", "tif", "webp", "pgm", "ppm")


def _images(folder: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield images in several modes and options of a format."""
    grey = Image.fromarray(RNG.integers(0, 256, (9, 7), dtype=np.uint8))
    colour = Image.fromarray(RNG.integers(0, 256, (9, 7, 4), dtype=np.uint8), "RGBA")
    fine = Image.fromarray(RNG.integers(0, 2**16, (9, 7), dtype=np.uint16))
    exif = grey.getexif()
    exif[0x0112] = 6  # rotated by a camera
    kinds: dict[str, list[tuple[Image.Image, dict]]] = {
        "png": [(grey, {}), (colour, {"exif": exif}), (fine, {}), (grey.convert("P"), {})],
        "jpg": [(grey, {"exif": exif}), (colour.convert("RGB"), {"progressive": True})],
        "gif": [(grey, {}), (colour.convert("P"), {})],
        "bmp": [(grey, {}), (colour, {}), (grey.convert("1"), {})],
        "tif": [
            (grey, {}),
            *((colour, {"compression": c}) for c in ("tiff_lzw", "tiff_deflate", "packbits")),
            (grey.convert("F"), {}),
            (colour.convert("RGB"), {"compression": "jpeg"}),
            (grey.convert("1"), {"compression": "group4"}),
        ],
        "webp": [(colour, {"lossless": True}), (colour.convert("RGB"), {"exif": exif})],
        "pgm": [(grey, {}), (fine, {})],
        "ppm": [(colour.convert("RGB"), {})],
    }
    for k, (image, options) in enumerate(kinds[suffix]):
        file = folder / f"{k}.{suffix}"
        image.save(file, **options)
        yield file.name, file.read_bytes()
    if suffix == "pgm":
        yield "plain.pgm", b"P2\n# by hand\n3 2\n255\n0 10 20\n30 40 255\n"


def _geodesics(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a saved path of every fast solver."""
    names = ("linear", "quantile", "geonet-1d", "schrodinger", "monge-ampere", "linear-program")
    paths = {name: geonet.geodesic(*ENDS, name) for name in names}
    paths |= {name: geonet.geodesic(*SQUARES, name) for name in ("transport-2d",)}
    both = [Density(torch.stack([end.tensor, end.tensor.flip(0)]), end.grid) for end in ENDS]
    paths["stack"] = geonet.geodesic(both[0], both[1], "linear-program")
    bumps = [geonet.GaussianMixture.isotropic([[c]], 0.1).to_density(Grid(12)) for c in (0.4, 0.6)]
    paths["bures"] = geonet.geodesic(bumps[0], bumps[1], "bures")
    for name, path in paths.items():
        yield f"{name}.npz", path.save(folder / f"{name}-path.npz", times=[0.0, 1.0]).read_bytes()


def _bytes(folder: Path, pattern: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob(pattern)}


def _training() -> tuple[TrainingConfig, torch.nn.Module, torch.optim.Optimizer]:
    config = from_table(TrainingConfig, CONFIG)
    model = build_model(config.model, seed=0)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return config, model, optimizer


# ---- Readers with checks of their results


def _density(file: Path) -> None:
    _check(geonet.read(file))


def _cloud(file: Path) -> None:
    assert bool(torch.isfinite(parse_file(file).points()[0]).all())
    _check(geonet.read(file, CLOUD))


def _points(file: Path) -> None:
    """Read a table without header as values and as points."""
    for nodata in (None, 0.5, float("nan")):
        _check(geonet.read(file, kind="values", missing="exclude", nodata=nodata))
    assert bool(torch.isfinite(parse_file(file).with_kind("points").points()[0]).all())
    _check(geonet.read(file, CLOUD, kind="points"))


def _check(density: Density) -> None:
    assert bool(torch.isfinite(density.tensor).all() and (density.tensor >= 0).all())
    cells = density.tensor.double().flatten(-density.grid.dimension)
    assert bool(((cells.sum(-1) * density.grid.cell_volume - 1).abs() < 1e-4).all())


def _geodesic(file: Path) -> None:
    path = geonet.load(file)
    assert bool(torch.isfinite(path.density(0.5).tensor).all())
    str(path.report)


def _own(file: Path) -> None:
    problem = read_dataset(file)
    generator = torch.Generator().manual_seed(0)
    for density in (*problem.draw_densities(2, generator), *problem.test_pairs(2)):
        _check(density)
    problem.draw(2, generator)


def _model(file: Path) -> None:
    solver = geonet.solver(str(file))
    str(solver(*ENDS).report)


def _autoencoder(file: Path) -> None:
    load_autoencoder.cache_clear()
    load_autoencoder(file)


def _checkpoint(file: Path) -> None:
    load_checkpoint(file, *_training())


def _benchmark(file: Path) -> None:
    read_benchmark(file.parent)
