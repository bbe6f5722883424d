"""Geodesics in npz files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from geonet._advice import either
from geonet._files import atomic_write, read_arrays, wrap_read_errors
from geonet._validation import check_choice
from geonet.density import MASSES, Density, Mass
from geonet.errors import FileError, InputError
from geonet.grid import Grid
from geonet.mixture import GaussianMixture
from geonet.paths import Geodesic, Times, check_times

FORMAT = 1  # of saved geodesics; a reader refuses what it does not know


def save_geodesic(path: Geodesic, file: Path, times: Times, grid: Grid | None, mass: Mass) -> Path:
    """Write frames (times, density, mass, lower, upper) for any reader, and the state to load."""
    if file.suffix.lower() != ".npz":
        raise FileError(f"{file} does not end in .npz; a geodesic is saved as an npz file.")
    if not isinstance(path.source, Density):
        raise InputError("A path without a grid cannot be saved; give both ends on a grid.")
    check_choice(mass, MASSES, "mass")
    moments, _ = check_times(times)
    frames = path.density(moments, grid)
    header = {
        "format": FORMAT,
        "kind": path.kind,
        "solver": path.solver,
        "info": path.info,
        "orientation": path.grid.orientation,
    }
    arrays = {
        "times": moments.numpy(),
        "density": frames.numpy(mass),
        "mass": (
            frames.mass_tensor if mass == "given" else torch.ones_like(frames.mass_tensor)
        ).numpy(),
        "lower": np.array(frames.grid.lower),
        "upper": np.array(frames.grid.upper),
        "geonet": np.array(json.dumps(header)),
    }
    for end in ("source", "target"):
        arrays |= _density_arrays(end, getattr(path, end))
    arrays |= {f"state/{key}": value for key, value in path._state().items()}
    arrays["sha256"] = np.array(_digest(arrays))
    with atomic_write(file) as temporary:
        # Not compressed: that takes ten times as long as most paths, and saves a quarter.
        np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]  # of NumPy 2 alone
    return file


def load_geodesic(file: Path) -> Geodesic:
    """Read what `save_geodesic` wrote."""
    arrays = read_arrays(file, "a saved geodesic")
    if "geonet" not in arrays:
        raise FileError(
            f"{file} is an npz but no saved geodesic; "
            + either("write one with path.save().", "write one with geonet geodesic -o FILE.npz.")
        )
    with wrap_read_errors(file, "a saved geodesic"):
        return _rebuild(file, arrays)


def _rebuild(file: Path, arrays: dict[str, np.ndarray]) -> Geodesic:
    header = json.loads(str(arrays["geonet"]))
    if header["format"] != FORMAT or header["kind"] not in Geodesic.kinds:
        raise FileError(
            f"{file} has format {header['format']!r} and kind {header['kind']!r}, which this "
            "version does not know; load it with the version that wrote it."
        )
    if str(arrays.get("sha256")) != _digest(arrays):
        raise FileError(f"{file} was changed after it was written; save the geodesic again.")
    box = (arrays["lower"].tolist(), arrays["upper"].tolist(), header["orientation"])
    source, target = (_density_from(arrays, end, box) for end in ("source", "target"))
    state = {
        k.removeprefix("state/"): _aligned(v) for k, v in arrays.items() if k.startswith("state/")
    }
    kind = Geodesic.kinds[header["kind"]]
    return kind._from_state(source, target, header["solver"], header["info"], state)


def _aligned(array: np.ndarray) -> np.ndarray:
    """The array where torch puts its tensors, and not wherever NumPy found room.

    A product rounds otherwise where its factors lie otherwise: so a path answers as before.
    """
    return torch.from_numpy(array).clone().numpy() if array.dtype.kind in "biuf" else array


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Over all that `load` needs; the frames are for others."""
    digest = hashlib.sha256()
    for name in sorted(arrays.keys() - {"times", "density", "mass", "sha256"}):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _density_arrays(name: str, density: Density) -> dict[str, np.ndarray]:
    arrays = {name: density.numpy(), f"{name}/mass": density.mass_tensor.detach().numpy()}
    if density.mixture is not None:
        parts = density.mixture.parameters().items()
        arrays |= {f"{name}/{key}": value.detach().numpy() for key, value in parts}
    return arrays


def _density_from(arrays: dict[str, np.ndarray], name: str, box) -> Density:
    values, d = arrays[name], len(box[0])
    density = Density(values, Grid(values.shape[values.ndim - d :], *box))
    density.tensor = torch.from_numpy(_aligned(values))  # checked; normalising would round again
    density.mass_tensor = torch.from_numpy(_aligned(arrays[f"{name}/mass"]))
    if f"{name}/means" in arrays:
        parts = ("means", "covariances", "weights")
        density.mixture = GaussianMixture(*(arrays[f"{name}/{key}"] for key in parts))
    return density
