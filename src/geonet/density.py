"""A probability density on a grid: what goes into a solver."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor

from geonet._advice import either
from geonet._utils import import_object
from geonet._validation import (
    as_number,
    check_choice,
    check_index,
    check_instance,
    is_number,
    short_repr,
)
from geonet.errors import DensityError, GridError
from geonet.grid import Grid, check_grid
from geonet.numerics.interpolation import CubicSpline, blurred, resample

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from geonet.mixture import GaussianMixture


# ---- The value that marks cells without data.


def check_nodata(nodata: float | None) -> None:
    """Refuse what is not a number."""
    if nodata is not None:
        as_number(nodata, "nodata", "give the number that marks cells without data")


def without_data(values: np.ndarray | Tensor, nodata: float) -> np.ndarray | Tensor:
    """Where an array of numbers says that there are no data, of the same shape."""
    missing: Any = values != values if math.isnan(nodata) else values == float(nodata)
    return missing


LEADING_AXES = 2  # at most (batch, times) before the axes of the grid
# What a package above this one does with a density, by location: imports point down.
PLOT, LOOK = "geonet.plotting.figures:plot_density", "geonet.plotting.style:Look"

Mass = Literal["one", "given"]
MASSES = ("one", "given")


class Density:
    """Values at the cell centres of a grid, checked and normalised to mass one.

    Args:
        values: (batch?, times?, *grid.shape), non-negative, of any mass. A masked cell of a NumPy
            masked array has no data and counts as empty.
        grid: where the values live.
        nodata: the value of cells without data, which count as empty as well; NaN may be one.

    Attributes:
        values: (batch?, times?, *grid.shape), non-negative, Σ values · cell volume = 1.
        grid: where the values live.
        mass: the mass that was given, (batch?, times?), float64: values · mass is the input again.
        mixture: the Gaussian mixture that gave the values (see `GaussianMixture.on`), or None;
            points off the grid are then evaluated exactly instead of interpolated.
    """

    def __init__(self, values: ArrayLike | Tensor, grid: Grid, nodata: float | None = None):
        tensor = _filled(values, nodata)
        _check_shape(tensor, grid)
        _check_values(tensor)
        normalised, mass = _normalise(tensor, grid)
        self._set(normalised, grid, mass, None)

    @classmethod
    def as_computed(cls, values: Tensor, grid: Grid, mass: Tensor | None = None) -> Density:
        """A solver's answer as it is, neither checked nor normalised: its errors stay visible.

        Args:
            values: (batch?, times?, *grid.shape), of mass one but for errors.
            grid: where they live.
            mass: the given mass that they stand for, (batch?, times?); one by default.
        """
        if mass is None:
            leading = values.shape[: values.ndim - grid.dimension]
            mass = torch.ones(leading, dtype=torch.float64)
        return cls._of(values, grid, mass, None)

    @classmethod
    def _of(
        cls, values: Tensor, grid: Grid, mass: Tensor, mixture: GaussianMixture | None
    ) -> Density:
        """A density from parts that are known to fit."""
        density = cls.__new__(cls)
        density._set(values, grid, mass, mixture)
        return density

    def _set(
        self, values: Tensor, grid: Grid, mass: Tensor, mixture: GaussianMixture | None
    ) -> None:
        self.tensor, self.grid, self.mass, self.mixture = values, grid, mass, mixture

    @property
    def values(self) -> Tensor:
        """The values, (batch?, times?, *grid.shape)."""
        return self.tensor

    @property
    def leading(self) -> tuple[int, ...]:
        """Sizes of the axes before the grid's: (), (batch,), (times,) or (batch, times)."""
        return tuple(self.tensor.shape[: self.tensor.ndim - self.grid.dimension])

    def numpy(self, mass: Mass = "one") -> np.ndarray:
        """The values as a NumPy array: of mass one, or of the mass that was given.

        Args:
            mass: "one" gives `values`, "given" gives `values` · `mass`, in the units that went in.
        """
        check_choice(mass, MASSES, "mass")
        values = self.tensor.detach().cpu()
        if mass == "given":
            spread = (..., *(None,) * self.grid.dimension)
            values = (values.double() * self.mass.detach()[spread]).to(values.dtype)
        return values.numpy()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """np.asarray(density) gives its values, of mass one."""
        if copy is None:  # NumPy 1 does not know this argument
            return np.asarray(self.numpy(), dtype=dtype)
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def at(self, points: ArrayLike | Tensor) -> Tensor:
        """Values (batch?, times?, ...) at points (..., d).

        Cubic between the cells of the box; exact and anywhere for mixtures.
        """
        where = as_points(points, self.grid.dimension)
        flat = where.reshape(-1, self.grid.dimension)
        if self.mixture is not None:
            values = self.mixture.pdf(flat) / self.mass[..., None]
        else:
            values = CubicSpline(self.tensor, self.grid)(inside(flat, self.grid))
        return values.reshape((*self.leading, *where.shape[:-1]))

    def resample(self, grid: Grid) -> Density:
        """The density on other cells of the same box; the mass of every region is kept exactly."""
        check_grid(grid)
        if grid == self.grid:
            return self
        return Density._of(resample(self.tensor, self.grid, grid), grid, self.mass, None)

    def detach(self) -> Density:
        """The same density, out of reach of autograd."""
        mixture = None if self.mixture is None else self.mixture.detach()
        if not self.tensor.requires_grad and mixture is self.mixture:
            return self
        return Density._of(self.tensor.detach(), self.grid, self.mass.detach(), mixture)

    def with_floor(self, fraction: float) -> Density:
        """(1 − fraction)·μ + fraction·uniform: the explicit way to make a density positive."""
        if not is_number(fraction) or not 0 <= fraction < 1:
            raise DensityError(
                f"floor is {short_repr(fraction)}; give a share of the mass, a number in [0, 1)."
            )
        if fraction == 0:
            return self
        mixed = (1 - fraction) * self.tensor + fraction / self.grid.volume
        return Density._of(mixed, self.grid, self.mass, None)

    def blurred(self, cells: float) -> Density:
        """The density after a Gaussian blur, whose standard deviation is so many cells.

        The walls reflect, so the mass stays. For counts and noise, whose detail of the size of a
        cell means nothing.
        """
        width = as_number(cells, "cells", "give the standard deviation of the blur, in cells")
        most = max(self.grid.shape) / 4
        if not 0 <= width <= most:
            raise DensityError(f"cells is {short_repr(cells)}; give a blur of 0 to {most:g} cells.")
        if width == 0:
            return self
        values = self.tensor
        for axis in range(-self.grid.dimension, 0):
            values = blurred(values.movedim(axis, -1), width).movedim(-1, axis)
        return Density._of(values, self.grid, self.mass, None)

    def mean(self) -> Tensor:
        """Centre of mass, (batch?, times?, d), float64."""
        return self._weights() @ self._centres()

    def covariance(self) -> Tensor:
        """Covariance matrix, (batch?, times?, d, d), float64."""
        centred = self._centres() - self.mean()[..., None, :]
        return (centred * self._weights()[..., None]).transpose(-1, -2) @ centred

    def plot(
        self,
        *,
        cmap: str | Colormap = "magma",
        norm: str = "linear",
        vmin: float | None = None,
        vmax: float | None = None,
        mass: Mass = "one",
    ) -> Figure:
        """A figure of one density: a curve in 1D, an image in 2D, projections in 3D.

        Args:
            cmap: a colour map of matplotlib, or its name.
            norm: how colours follow values: "linear", "sqrt" or "log".
            vmin: the value of the first colour; zero by default, or 1e-4 of `vmax` for "log".
            vmax: the value of the last colour; the highest by default.
            mass: of the values: "one", or "given" for the units that went in, those of `vmin` and
                `vmax` too.
        """
        return import_object(PLOT)(self, import_object(LOOK)(cmap, norm, vmin, vmax, mass))

    def __getitem__(self, index: int) -> Density:
        """One density of a batch."""
        if not self.leading:
            raise DensityError(
                "This density has no batch axis, it is a single one; use it without an index."
            )
        check_index(index, len(self))
        mixture = None if self.mixture is None else self.mixture[index]
        return Density._of(self.tensor[index], self.grid, self.mass[index], mixture)

    def chosen(self, which: Sequence[int]) -> Density:
        """Some densities of a batch, as a batch; of values alone, not of formulas."""
        check_instance(
            which, Sequence, "which", f"give a list of numbers from 0 to {len(self) - 1}"
        )
        index = list(which)
        for k in index or [None]:
            check_index(k, len(self))
        return Density._of(self.tensor[index], self.grid, self.mass[index], None)

    def __len__(self) -> int:
        if not self.leading:
            raise DensityError(
                "This density has no batch axis, it is a single one; give values (n, *grid.shape)."
            )
        return self.leading[0]

    def __iter__(self) -> Iterator[Density]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        leading = f"{tuple(self.leading)} of " if self.leading else ""
        return f"Density({leading}{self.grid}, {self.tensor.dtype})"

    def _weights(self) -> Tensor:
        values = self.tensor.to(torch.float64)
        return values.flatten(-self.grid.dimension) * self.grid.cell_volume

    def _centres(self) -> Tensor:
        return self.grid.points().reshape(-1, self.grid.dimension)


def check_density(density: Density, name: str = "density") -> None:
    """Refuse what is not a density."""
    check_instance(density, Density, name, "give a geonet.Density(values, grid)", DensityError)


def as_tensor(values: ArrayLike | Tensor) -> Tensor:
    """NumPy, list or torch in, floating torch out; float32 and float64 are kept.

    Masked entries are refused: NumPy would drop the mask without a word.
    """
    if not isinstance(values, Tensor):
        _check_unmasked(values)
        try:
            array = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            raise DensityError(f"Values are not an array ({error}); give equal rows.") from error
        if array.dtype.kind not in "biuf":
            if not array.ndim:
                raise DensityError(
                    f"{short_repr(values)} is not a number; give real ones, alone or in a list or array."
                )
            raise DensityError(
                f"Values of type {array.dtype} are not numbers; give an array of real numbers."
            )
        single = array.dtype.kind == "f" and array.dtype.itemsize == 4
        # astype copies: the caller may go on writing into its array
        with np.errstate(invalid="ignore", over="ignore"):  # a later check finds what is not finite
            values = torch.from_numpy(array.astype(np.float32 if single else np.float64, order="C"))
    if values.is_complex():
        raise DensityError("Values are complex; give an array of real numbers.")
    if values.dtype not in (torch.float32, torch.float64):
        values = values.to(torch.float64)
    return values


def as_points(points: ArrayLike | Tensor, dimension: int) -> Tensor:
    """Points as a float64 tensor (..., d); in 1D a number or (n,) is taken as (..., 1)."""
    tensor = as_tensor(points).to(torch.float64)
    if dimension == 1 and (tensor.ndim < 2 or tensor.shape[-1] != 1):
        tensor = tensor[..., None]
    if tensor.numel() == 0:
        raise GridError("There are no points; give at least one.")
    if tensor.ndim == 0 or tensor.shape[-1] != dimension:
        turned = tensor.ndim == 2 and len(tensor) == dimension
        raise GridError(
            f"Points of shape {tuple(tensor.shape)} do not lie in {dimension}D; "
            f"give an array (..., {dimension}){', as points.T is' if turned else ''}."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise GridError("Points contain NaN or infinite coordinates; remove them first.")
    return tensor


def inside(points: Tensor, grid: Grid) -> Tensor:
    """Points outside the box are refused; those that rounding put there go to its face."""
    lower, upper = grid.corner("lower"), grid.corner("upper")
    slack = 1e-9 * (upper - lower)
    outside = ((points < lower - slack) | (points > upper + slack)).any(-1)
    if bool(outside.any()):
        raise GridError(
            f"{int(outside.sum())} of {outside.numel()} points lie outside the box of {grid}; "
            "give points inside."
        )
    return points.clamp(lower, upper)


def _filled(values: ArrayLike | Tensor, nodata: float | None) -> Tensor:
    """The values, with zero in cells without data."""
    check_nodata(nodata)
    if isinstance(values, np.ma.MaskedArray):
        values = values.filled(0)
    tensor = as_tensor(values)
    if nodata is None:
        return tensor
    # compared in the caller's own type, in which -9999.9 may be rounded
    given = values if isinstance(values, np.ndarray | Tensor) else tensor
    return torch.where(torch.as_tensor(without_data(given, nodata)), 0.0, tensor)


def _check_unmasked(values: ArrayLike) -> None:
    parts = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.count_masked(part)) for part in parts if np.ma.isMaskedArray(part))
    if masked:
        raise DensityError(
            f"{masked} numbers are masked, and only the values of one density or batch may be; "
            "remove them, or join masked arrays with np.ma.stack."
        )


def _normalise(values: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Values of mass one, and the mass; through values of peak one, whose sums cannot overflow."""
    spread = (..., *(None,) * grid.dimension)
    axes = tuple(range(-grid.dimension, 0))
    peak = values.detach().to(torch.float64).amax(axes)  # it cancels, so no gradient is lost
    if bool((peak <= 0).any()):
        raise DensityError(
            f"{_which(peak <= 0)} zero everywhere, so there is no mass to transport; "
            "give at least one positive value."
        )
    scaled = values.to(torch.float64) / peak[spread]
    share = _integral(scaled, grid)
    mass, normalised = peak * share, (scaled / share[spread]).to(values.dtype)
    bad = ~(_in_range(mass) & _in_range(normalised.amax(axes)))
    if bool(bad.any()):
        raise DensityError(
            f"{_which(bad)} beyond the range of {str(values.dtype).removeprefix('torch.')}; "
            "use other units for the values or for the box."
        )
    return normalised, mass


def _in_range(values: Tensor) -> Tensor:
    """Whether values keep all their digits; subnormal values do not."""
    return (values >= torch.finfo(values.dtype).tiny) & torch.isfinite(values)


def _integral(values: Tensor, grid: Grid) -> Tensor:
    axes = tuple(range(-grid.dimension, 0))
    return values.sum(dim=axes) * grid.cell_volume


def _check_shape(values: Tensor, grid: Grid) -> None:
    check_grid(grid)
    d = grid.dimension
    if not d <= values.ndim <= d + LEADING_AXES:
        raise DensityError(
            f"Values have {values.ndim} axes but the grid has {d}; "
            f"give {d} axes, or one more in front for a batch."
        )
    if tuple(values.shape[-d:]) != grid.shape:
        raise DensityError(
            f"Values of shape {tuple(values.shape)} do not match the grid's {grid.shape}; "
            "give one value per cell or another grid."
        )
    if 0 in values.shape:
        raise DensityError("The batch is empty; give at least one density.")


def _check_values(values: Tensor) -> None:
    total, empty = values.numel(), 'fill them, or give nodata=float("nan") to count them as empty'
    marked = either("nodata, the value of cells without data", "--nodata VALUE")
    for bad, name, remedy in (
        (torch.isnan(values), "NaN", empty),
        (torch.isinf(values), "infinite", "fill or remove them first"),
        (values < 0, "negative", f"clip them at zero if they are noise, or give {marked}"),
    ):
        count = int(bad.sum())
        if count:
            raise DensityError(f"{count} of {total} values are {name}; {remedy}.")


def _which(bad: Tensor) -> str:
    if bad.ndim == 0:
        return "The density is"
    first = torch.nonzero(bad)[0].tolist()
    return f"Density {first[0] if len(first) == 1 else tuple(first)} of the batch is"
