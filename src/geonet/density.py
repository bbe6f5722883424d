"""Probability densities on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor

from geonet._format import choose_verb
from geonet._utils import import_object
from geonet._validation import as_number, check_choice, check_index, check_instance, short_repr
from geonet.errors import DensityError, GridError
from geonet.grid import Grid, check_grid
from geonet.numerics.interpolation import CubicSpline, gaussian_blur, resample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from geonet.mixture import GaussianMixture

# A torch tensor for a user of torch; else a NumPy array, or a float in place of a 0-d array.
Array = Any
Mass = Literal["one", "given"]
MASSES = get_args(Mass)
Missing = Literal["raise", "exclude"] | float


class Density:
    """Values at the cell centres of a grid, checked and normalised to mass one.

    Arrays come back in the type that was given: NumPy for NumPy and lists, torch for torch.
    `tensor` is always the torch tensor behind `values`.

    Args:
        values: (batch?, times?, *grid.shape), non-negative, of any mass.
        grid: the cells of the values.
        missing: treatment of cells without a value (NaN, `nodata`, masked in a NumPy masked array):
            "raise" an error, "exclude" them, which leaves them empty, or fill them with a number.
        nodata: a number that marks cells without a value, such as -9999.

    Attributes:
        grid: the cells of the values.
        tensor: the values as a torch tensor.
        is_torch: whether results are torch tensors.
        mass_tensor: the mass that was given, (batch?, times?), a float64 tensor.
        mixture: the Gaussian mixture that gave the values (see `GaussianMixture.to_density`), or
            None; points off the grid are then evaluated exactly instead of interpolated.
    """

    tensor: Tensor
    grid: Grid
    mass_tensor: Tensor
    mixture: GaussianMixture | None
    is_torch: bool

    def __init__(
        self,
        values: ArrayLike | Tensor,
        grid: Grid,
        missing: Missing = "raise",
        nodata: float | None = None,
    ):
        tensor = _fill_missing(values, missing, nodata)
        _check_shape(tensor, grid)
        _check_values(tensor)
        self.tensor, self.mass_tensor = _normalise(tensor, grid)
        self.grid = grid
        self.mixture = None
        self.is_torch = isinstance(values, Tensor)

    @classmethod
    def from_unnormalized(
        cls, values: Tensor, grid: Grid, mass: Tensor | None = None, is_torch: bool = True
    ) -> Density:
        """Return a density of computed values, neither checked nor normalised.

        The errors of a solver stay visible that way.

        Args:
            values: (batch?, times?, *grid.shape), of mass one but for errors.
            grid: the cells of the values.
            mass: the mass in the user's units, (batch?, times?); one by default.
            is_torch: whether results are torch tensors.
        """
        if mass is None:
            batch_shape = values.shape[: values.ndim - grid.dimension]
            mass = torch.ones(batch_shape, dtype=torch.float64)
        return cls._from_parts(values, grid, mass, None, is_torch)

    @classmethod
    def _from_parts(
        cls,
        values: Tensor,
        grid: Grid,
        mass: Tensor,
        mixture: GaussianMixture | None,
        is_torch: bool,
    ) -> Density:
        density = cls.__new__(cls)
        density.tensor, density.grid, density.mass_tensor = values, grid, mass
        density.mixture, density.is_torch = mixture, is_torch
        return density

    @property
    def values(self) -> Array:
        """The values, (batch?, times?, *grid.shape), with Σ values · cell volume = 1."""
        return to_user_array(self.tensor, self.is_torch)

    @property
    def mass(self) -> Array:
        """The mass that was given, (batch?, times?), float64: values · mass is the input again."""
        return to_user_array(self.mass_tensor, self.is_torch)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Sizes of the axes before the grid's: (), (batch,), (times,) or (batch, times)."""
        return tuple(self.tensor.shape[: self.tensor.ndim - self.grid.dimension])

    def numpy(self, mass: Mass = "one") -> np.ndarray:
        """Return the values as a NumPy array.

        Args:
            mass: "one" gives `values`, "given" gives `values` · `mass`, in the user's units.
        """
        check_choice(mass, MASSES, "mass")
        values = self.tensor.detach().cpu()
        if mass == "given":
            spread = (..., *(None,) * self.grid.dimension)
            values = (values.double() * self.mass_tensor.detach()[spread]).to(values.dtype)
        return values.numpy()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return the values of mass one, for np.asarray(density)."""
        if copy is None:  # NumPy 1 does not know this argument
            return np.asarray(self.numpy(), dtype=dtype)
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def at(self, points: ArrayLike | Tensor) -> Array:
        """Return the values (batch?, times?, ...) at points (..., d).

        They are cubic between the cells of the box; exact and anywhere for mixtures. Points are
        taken modulo the length of a periodic axis.
        """
        points = as_points(points, self.grid.dimension)
        values = self._at(points.reshape(-1, self.grid.dimension))
        values = values.reshape((*self.batch_shape, *points.shape[:-1]))
        return to_user_array(values, self.is_torch)

    def resample(self, grid: Grid) -> Density:
        """Return the density on other cells of the same box; the mass of every region is kept."""
        check_grid(grid)
        if grid == self.grid:
            return self
        return self._with_values(resample(self.tensor, self.grid, grid), grid)

    @property
    def requires_grad(self) -> bool:
        """True if the values require a gradient."""
        return self.tensor.requires_grad

    def detach(self) -> Density:
        """Return the density detached from the autograd graph."""
        mixture = None if self.mixture is None else self.mixture.detach()
        if not self.tensor.requires_grad and mixture is self.mixture:
            return self
        mass = self.mass_tensor.detach()
        return Density._from_parts(self.tensor.detach(), self.grid, mass, mixture, self.is_torch)

    def with_floor(self, fraction: float) -> Density:
        """Return (1 − fraction)·μ + fraction·uniform, which is positive everywhere."""
        fraction = as_number(fraction, "floor", "give a share of the mass in [0, 1)")
        if not 0 <= fraction < 1:
            raise DensityError(f"floor is {fraction:g}; give a share of the mass in [0, 1).")
        if fraction == 0:
            return self
        mixed = (1 - fraction) * self.tensor + fraction / self.grid.volume
        return self._with_values(mixed, self.grid)

    def gaussian_blur(self, cells: float) -> Density:
        """Return the density after a Gaussian blur, which keeps the mass.

        Walls reflect it, and it wraps around periodic axes.
        It suits counts and noise, whose detail of the size of a cell has no meaning.

        Args:
            cells: standard deviation of the blur, in cells.
        """
        width = as_number(cells, "cells", "give the standard deviation of the blur, in cells")
        most = max(self.grid.shape) / 4
        if not 0 <= width <= most:
            raise DensityError(f"cells is {short_repr(cells)}; give a blur of 0 to {most:g} cells.")
        if width == 0:
            return self
        values = self.tensor
        for axis, wraps in enumerate(self.grid.periodic, start=-self.grid.dimension):
            columns = values.movedim(axis, -1)
            values = gaussian_blur(columns, width, periodic=wraps).movedim(-1, axis)
        return self._with_values(values, self.grid)

    def mean(self) -> Array:
        """Return the centre of mass, (batch?, times?, d), float64."""
        return to_user_array(self._mean(), self.is_torch)

    def covariance(self) -> Array:
        """Return the covariance matrix, (batch?, times?, d, d), float64."""
        return to_user_array(self._covariance(), self.is_torch)

    def plot(self, **style: Any) -> Figure:
        """Return a figure of one density: a curve in 1D, an image in 2D, projections in 3D.

        Args:
            **style: colours and units, see `geonet.plotting.Style`.
        """
        figure = import_object("geonet.plotting.figures:plot_density")
        return figure(self, import_object("geonet.plotting.style:Style")(**style))

    def take(self, indices: Sequence[int]) -> Density:
        """Return some densities of a batch as a batch of values, without their mixtures."""
        check_instance(indices, Sequence, "indices", "give a list of integers")
        index = list(indices)
        for k in index or [None]:
            check_index(k, len(self))
        mass = self.mass_tensor[index]
        return Density._from_parts(self.tensor[index], self.grid, mass, None, self.is_torch)

    def __getitem__(self, index: int) -> Density:
        """Return one density of a batch."""
        check_index(index, len(self))
        mixture = None if self.mixture is None else self.mixture[index]
        mass = self.mass_tensor[index]
        return Density._from_parts(self.tensor[index], self.grid, mass, mixture, self.is_torch)

    def __len__(self) -> int:
        if not self.batch_shape:
            raise DensityError(
                "This density has no batch axis; use it without an index, or give values "
                "(n, *grid.shape)."
            )
        return self.batch_shape[0]

    def __iter__(self) -> Iterator[Density]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        batch = f"{self.batch_shape} of " if self.batch_shape else ""
        return f"Density({batch}{self.grid}, {self.tensor.dtype})"

    def _at(self, points: Tensor) -> Tensor:
        """Return the values (batch?, times?, N) at points (N, d)."""
        if self.mixture is not None:
            return self.mixture._pdf_on(self.grid, points) / self.mass_tensor[..., None]
        return CubicSpline(self.tensor, self.grid)(clip_to_box(points, self.grid))

    def _with_values(self, values: Tensor, grid: Grid) -> Density:
        return Density._from_parts(values, grid, self.mass_tensor, None, self.is_torch)

    def _mean(self) -> Tensor:
        """Return the mean, (batch?, d)."""
        marginals = [self._marginal(axis) for axis in range(self.grid.dimension)]
        return torch.stack([m @ x for m, x in zip(marginals, self.grid.axes(), strict=True)], -1)

    def _covariance(self) -> Tensor:
        """Return the covariance of atoms at the cell centres, (batch?, d, d)."""
        d, means = self.grid.dimension, self._mean().unbind(-1)
        centred = [x - m[..., None] for x, m in zip(self.grid.axes(), means, strict=True)]
        rows: list[list[Tensor]] = [[torch.empty(0)] * d for _ in range(d)]
        for i, x in enumerate(centred):
            rows[i][i] = (self._marginal(i) * x**2).sum(-1)
            for j in range(i):
                joint = self._marginal(j, i)
                product = (joint * centred[j][..., None] * x[..., None, :]).sum((-1, -2))
                rows[i][j] = rows[j][i] = product
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    def _marginal(self, *axes: int) -> Tensor:
        """Return the masses of cells, summed over all other axes of the grid."""
        d = self.grid.dimension
        masses = self.tensor.to(torch.float64) * self.grid.cell_volume
        others = [axis - d for axis in range(d) if axis not in axes]
        return masses.sum(others) if others else masses


def requires_grad(*ends: Density | GaussianMixture) -> bool:
    """Return whether autograd is enabled and any of the ends requires a gradient."""
    return torch.is_grad_enabled() and any(end.requires_grad for end in ends)


def check_density(density: Density, name: str = "density") -> None:
    """Raise DensityError if `density` is not a `Density`."""
    check_instance(density, Density, name, "give a geonet.Density(values, grid)", DensityError)


def to_user_array(tensor: Tensor, is_torch: bool) -> Array:
    """Return a result as the tensor itself, or as a NumPy array (a float if it is 0-d)."""
    if is_torch:
        return tensor
    tensor = tensor.detach()
    return tensor.numpy() if tensor.ndim else tensor.item()


def as_tensor(values: ArrayLike | Tensor) -> Tensor:
    """Return numbers as a floating torch tensor; float32 and float64 are kept.

    Masked entries raise: NumPy would drop the mask silently.
    """
    if not isinstance(values, Tensor):
        _check_unmasked(values)
        try:
            array = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            raise DensityError(
                f"The values are not an array ({error}); give rows of equal length."
            ) from error
        if array.dtype.kind not in "biuf":
            raise DensityError(
                f"{short_repr(values)} has the type {array.dtype}; give real numbers."
            )
        is_single = array.dtype.kind == "f" and array.dtype.itemsize == 4
        # astype copies: the caller may write into its array later
        with np.errstate(invalid="ignore", over="ignore"):  # values are checked later
            array = array.astype(np.float32 if is_single else np.float64, order="C")
        values = torch.from_numpy(array)
    if values.is_complex():
        raise DensityError("Values are complex; give real numbers.")
    if values.dtype not in (torch.float32, torch.float64):
        values = values.to(torch.float64)
    return values


def as_points(points: ArrayLike | Tensor, dimension: int) -> Tensor:
    """Return points as a float64 tensor (..., d); in 1D a number or (n,) becomes (..., 1)."""
    tensor = as_tensor(points).to(torch.float64)
    if dimension == 1 and (tensor.ndim < 2 or tensor.shape[-1] != 1):
        tensor = tensor[..., None]
    if tensor.numel() == 0:
        raise GridError("There are no points; give at least one.")
    if tensor.ndim == 0 or tensor.shape[-1] != dimension:
        is_transposed = tensor.ndim == 2 and len(tensor) == dimension
        raise GridError(
            f"Points of shape {tuple(tensor.shape)} do not lie in {dimension}D; "
            f"give an array (..., {dimension}){', such as points.T' if is_transposed else ''}."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise GridError("Points contain NaN or infinite coordinates; remove them first.")
    return tensor


def clip_to_box(points: Tensor, grid: Grid) -> Tensor:
    """Return points moved onto the box if rounding put them outside; raise if they are farther.

    Along periodic axes they are wrapped.
    """
    points = grid.wrap(points)
    lower, upper = grid.lower_tensor, grid.upper_tensor
    slack = 1e-9 * (upper - lower)
    outside = ((points < lower - slack) | (points > upper + slack)).any(-1)
    if bool(outside.any()):
        count = int(outside.sum())
        raise GridError(
            f"{count} of {outside.numel()} points {choose_verb(count, 'lies', 'lie')} outside the "
            f"box of {grid}; give points inside."
        )
    return points.clamp(lower, upper)


def check_nodata(nodata: float | None) -> None:
    """Raise InputError if `nodata` is neither None nor a number."""
    if nodata is not None:
        as_number(nodata, "nodata", "give the number that marks cells without a value")


def nodata_mask(values: np.ndarray | Tensor, nodata: float) -> np.ndarray | Tensor:
    """Return the mask of the cells that hold the marker `nodata`, of the shape of the values."""
    mask: Any = values != values if math.isnan(nodata) else values == float(nodata)
    return mask


def _fill_missing(values: ArrayLike | Tensor, missing: Missing, nodata: float | None) -> Tensor:
    """Return the values as a tensor in which cells without a value are filled.

    NaN stays if `missing` is "raise": the check of all values reports it.
    """
    check_nodata(nodata)
    fill = _fill_value(missing)
    mask = np.ma.getmask(values)
    tensor = as_tensor(np.ma.getdata(values) if mask is not np.ma.nomask else values)
    is_missing = torch.as_tensor(mask)
    if nodata is not None:
        # compared in the caller's own type, in which -9999.9 may be rounded
        given = values if isinstance(values, np.ndarray | Tensor) else tensor
        is_missing = is_missing | torch.as_tensor(np.ma.getdata(nodata_mask(given, nodata)))
    if fill is not None:
        is_missing = is_missing | torch.isnan(tensor)
    count = int(is_missing.sum())
    if count and fill is None:
        raise DensityError(
            f"{count} of {tensor.numel()} cells {choose_verb(count, 'has', 'have')} no value; give "
            "missing='exclude' to leave such cells empty, or missing=0 to fill them."
        )
    return torch.where(is_missing, fill or 0.0, tensor) if count else tensor


def _fill_value(missing: Missing) -> float | None:
    """Return the number for cells without a value, or None if they raise."""
    if isinstance(missing, str):
        check_choice(missing, ("raise", "exclude"), "missing")
        return None if missing == "raise" else 0.0
    number = as_number(missing, "missing", "give 'raise', 'exclude' or a number")
    if not 0 <= number < math.inf:
        raise DensityError(f"missing is {number:g}; give a finite number, at least 0.")
    return number


def _check_unmasked(values: ArrayLike) -> None:
    parts = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.count_masked(part)) for part in parts if np.ma.isMaskedArray(part))
    if masked:
        raise DensityError(
            f"{masked} {choose_verb(masked, 'number is', 'numbers are')} masked, and only "
            "values of a Density may be masked; remove the mask, or join masked arrays with "
            "np.ma.stack."
        )


def _normalise(values: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return values of mass one, and the mass; values of peak one keep the sums from overflow."""
    spread = (..., *(None,) * grid.dimension)
    axes = tuple(range(-grid.dimension, 0))
    peak = values.detach().to(torch.float64).amax(axes)  # it cancels, so no gradient is lost
    if bool((peak <= 0).any()):
        raise DensityError(
            f"{_name_first(peak <= 0)} zero everywhere, so there is no mass to transport; "
            "give at least one positive value."
        )
    scaled = values.to(torch.float64) / peak[spread]
    share = scaled.sum(dim=axes) * grid.cell_volume
    mass, normalised = peak * share, (scaled / share[spread]).to(values.dtype)
    is_bad = ~(_is_normal(mass) & _is_normal(normalised.amax(axes)))
    if bool(is_bad.any()):
        raise DensityError(
            f"{_name_first(is_bad)} beyond the range of {values.dtype}; "
            "use other units for the values or for the box."
        )
    return normalised, mass


def _is_normal(values: Tensor) -> Tensor:
    """Return a mask of finite values that keep all their digits; subnormal values do not."""
    return (values >= torch.finfo(values.dtype).tiny) & torch.isfinite(values)


def _check_shape(values: Tensor, grid: Grid) -> None:
    check_grid(grid)
    d = grid.dimension
    if not d <= values.ndim <= d + 2:  # at most (batch, times) in front
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
    for is_bad, name, remedy in (
        (torch.isnan(values), "NaN", "fill the gaps, or leave them empty with missing='exclude'"),
        (torch.isinf(values), "infinite", "replace every infinite value first"),
        (
            values < 0,
            "negative",
            "set noise to zero, values.clip(0), or mark missing cells with nodata",
        ),
    ):
        count = int(is_bad.sum())
        if count:
            verb = choose_verb(count, "is", "are")
            raise DensityError(f"{count} of {values.numel()} values {verb} {name}; {remedy}.")


def _name_first(is_bad: Tensor) -> str:
    if is_bad.ndim == 0:
        return "The density is"
    first = torch.nonzero(is_bad)[0].tolist()
    return f"Density {first[0] if len(first) == 1 else tuple(first)} of the batch is"
