"""Pictures in colour: the luminance is transported, and the colours move with it.

The luminance of a picture is a density. Let m_t be its geodesic, in the units of the pictures, and
x₀(y) and x₁(y) the ends of the particle that is at y at time t. The frame in colour is

    c_t(y) = m_t(y) [(1 − t) c₀(x₀(y)) / m₀(x₀(y)) + t c₁(x₁(y)) / m₁(x₁(y))],

so that its luminance is m_t, and c_t is the source at t = 0 and the target at t = 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from geonet._images import LUMINANCE, read_picture
from geonet._validation import check_flag, check_instance
from geonet.density import Density
from geonet.errors import FileError, InputError
from geonet.grid import Grid
from geonet.io import to_path
from geonet.numerics.interpolation import resample
from geonet.paths import Geodesic, Times, check_path, check_times

EPSILON = 1e-6  # luminance below which a colour is grey, relative to white


@dataclass(frozen=True, eq=False)
class ColourImage:
    """A picture in colour on a grid.

    Attributes:
        values: colours (3, *grid.shape) in [0, 1] whose luminance is the mass; the complements of
            the colours if dark pixels hold the mass.
        grid: the pixels.
        is_inverted: whether dark pixels hold the mass.
    """

    values: Tensor
    grid: Grid
    is_inverted: bool = False

    def density(self) -> Density:
        """Return the density of the luminance."""
        density = Density(self._luminance(), self.grid)
        density.is_torch = False
        return density

    def resample(self, grid: Grid) -> ColourImage:
        """Return the picture on other pixels of the same box."""
        if grid == self.grid:
            return self
        return replace(self, values=resample(self.values, self.grid, grid), grid=grid)

    def pixels(self) -> np.ndarray:
        """Return the colours (*grid.shape, 3) in [0, 1] as they are seen."""
        return _show(self.values.movedim(0, -1), self.is_inverted).clamp(0, 1).numpy()

    def _luminance(self) -> Tensor:
        weights = torch.tensor(LUMINANCE, dtype=torch.float64) / sum(LUMINANCE)
        return torch.einsum("c,c...->...", weights, self.values)

    def _ratios(self, points: Tensor) -> Tensor:
        """Return colours over luminance, interpolated at points (n, m, 2): (n, m, 3)."""
        sides = torch.tensor(self.grid.lengths, dtype=torch.float64)
        places = 2 * (self.grid.wrap(points) - self.grid.lower_tensor) / sides - 1
        values = torch.cat([self.values, self._luminance()[None]])
        sampled = grid_sample(
            values[None], places.flip(-1)[None], padding_mode="border", align_corners=False
        )[0]
        return ((sampled[:3] + EPSILON) / (sampled[3] + EPSILON)).movedim(0, -1)


def read_colours(file: str | os.PathLike[str], invert: bool = False) -> ColourImage:
    """Read a picture with its colours; its `density()` is `from_image(file, invert)`.

    Args:
        file: an image, see `geonet.from_image`.
        invert: whether dark pixels hold the mass instead of bright ones.
    """
    path = to_path(file)
    check_flag(invert, "invert")
    picture = read_picture(path, invert, None)
    if picture.brightness.ndim != 2:
        raise FileError(f"{path} is a stack, and colours are for pictures; use geonet.from_image.")
    shape = picture.brightness.shape
    upper = [n / max(shape) for n in shape]
    if picture.voxel is not None:
        upper = [n * side for n, side in zip(shape, picture.voxel, strict=True)]
    values = torch.from_numpy(np.ascontiguousarray(picture.colours(), dtype=np.float64))
    return ColourImage(values, Grid(shape, 0.0, upper), invert)


@torch.no_grad()
def carry_colours(
    path: Geodesic,
    source: ColourImage,
    target: ColourImage,
    t: Times,
    grid: Grid | None = None,
) -> np.ndarray:
    """Return frames in colour, (times?, *grid.shape, 3) in [0, 1].

    Colours brighter than white keep their hue and get darker.

    Args:
        path: the geodesic from `source.density()` to `target.density()`, of any solver with a
            velocity.
        source: the picture at t = 0.
        target: the picture at t = 1.
        t: one time or several.
        grid: pixels of the frames, the path's own by default.
    """
    times, is_scalar = check_times(t)
    grid = check_colours(path, source, target, grid)
    frames = list(_draw_frames(path, source.resample(grid), target.resample(grid), times, grid))
    return frames[0] if is_scalar else np.stack(frames)


def check_colours(
    path: Geodesic, source: ColourImage, target: ColourImage, grid: Grid | None = None
) -> Grid:
    """Raise InputError if a path cannot carry these colours; return the grid of the frames."""
    check_path(path)
    for name, image in (("source", source), ("target", target)):
        check_instance(image, ColourImage, name, "give the result of geonet.colours.read_colours")
    if path.batch or path.grid.dimension != 2:
        raise InputError("Colours need the path of one pair in 2D; give such a path.")
    if not path.is_balanced:
        raise InputError("Colours need a path on which all mass moves; leave reach out.")
    return path._output_grid(grid)


def _draw_frames(
    path: Geodesic, source: ColourImage, target: ColourImage, times: Tensor, grid: Grid
) -> Iterator[np.ndarray]:
    points = grid.points()
    for t in times.tolist():
        velocity = torch.as_tensor(path.velocity(t, points)).detach().double()
        mass = torch.as_tensor(path.density(t, grid).numpy("given")).double().clamp(min=0)
        seen = torch.zeros(())
        for image, weight, elapsed in ((source, 1 - t, t), (target, t, t - 1)):
            if weight:
                colours = mass[..., None] * image._ratios(points - elapsed * velocity)
                colours = colours / colours.amax(-1, keepdim=True).clamp(min=1)
                seen = seen + weight * _show(colours, image.is_inverted)
        yield seen.clamp(0, 1).numpy()


def _show(colours: Tensor, is_inverted: bool) -> Tensor:
    return 1 - colours if is_inverted else colours
