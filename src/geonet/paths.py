"""Paths between two densities, the results of solvers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._threads import limit_threads, map_in_threads
from geonet._utils import import_object
from geonet._validation import as_path, check_index, check_instance, short_repr
from geonet.density import (
    Array,
    Density,
    Mass,
    as_points,
    as_tensor,
    clip_to_box,
    requires_grad,
    to_user_array,
)
from geonet.errors import GridError, InputError, UnavailableError
from geonet.grid import Grid
from geonet.mixture import GaussianMixture

Result = TypeVar("Result")

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from geonet.colours import ColourImage
    from geonet.report import Report

Times = float | Sequence[float] | np.ndarray | Tensor
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Geodesic(ABC):
    """The W2 geodesic {μ_t} from `source` to `target`, which can be evaluated at any time.

    Shapes are `(batch?, times?, ...)`: the batch axis is there if the solver was given a batch, the
    time axis if t is a sequence. Results have the array type of the densities: torch tensors if
    either end is one, else NumPy arrays, and floats for single numbers.

    A path class implements the methods with an underscore. These always have the time axis, take
    points as (N, d) and return tensors.

    Attributes:
        source: μ_0.
        target: μ_1.
        solver: name of the solver.
        info: values that the solver reports, such as the number of iterations; part of `report`.
        is_balanced: whether all mass is transported; with a reach it grows and fades as well.
        has_bounds: whether the path bounds W2 more closely than moments do.
        distance_is_lower_bound: whether `distance` is a lower bound of W2, perhaps a loose one.
        frames_are_slow: whether every frame is a computation of its own.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Geodesic]]] = {}
    is_balanced: bool = True
    has_bounds: bool = False
    distance_is_lower_bound: ClassVar[bool] = False
    frames_are_slow: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):  # classes without a kind are abstract
            Geodesic.kinds[cls.kind] = cls

    def __init__(self, source: Density, target: Density, solver: str, info: dict[str, Any]):
        self.source = source
        self.target = target
        self.solver = solver
        self.info = info

    # ---- Public interface

    @property
    def grid(self) -> Grid:
        """The grid of source and target."""
        return self.source.grid

    @property
    def batch(self) -> tuple[int, ...]:
        """() for a single pair, (B,) for a batch."""
        return self.source.batch_shape

    @property
    def is_torch(self) -> bool:
        """True if results are torch tensors."""
        return self.source.is_torch or self.target.is_torch

    @property
    def distance(self) -> Array:
        """W2(μ_0, μ_1), (batch?)."""
        with limit_threads(self._n_cells):
            return to_user_array(self._distance(), self.is_torch)

    def density(self, t: Times, grid: Grid | None = None) -> Density:
        """Return μ_t on `grid` (any grid on the same box; the source's by default).

        Its values have mass one. Its `mass` changes linearly from the source's to the target's, so
        `numpy(mass="given")` has the units of the source.
        """
        times, is_scalar = check_times(t)
        grid = self._output_grid(grid)
        with limit_threads(self._work_size(times, grid.size)):
            values = self._density(times, grid)
        mass = self._interpolate_mass(times)
        if is_scalar:
            values, mass = self._drop_time(values), self._drop_time(mass)
        return Density.from_unnormalized(values, grid, mass, self.is_torch)

    def velocity(self, t: Times, points: ArrayLike | Tensor) -> Array:
        """Return v_t = ∇u_t at points (..., d): (batch?, times?, ..., d).

        Points are taken modulo the length of a periodic axis, here and in the other methods.
        """
        return self._at_points(self._velocity, t, points, has_components=True)

    def potential(self, t: Times, points: ArrayLike | Tensor) -> Array:
        """Return u_t, with ∂_t u + ½|∇u|² = 0, at points (..., d): (batch?, times?, ...)."""
        return self._at_points(self._potential, t, points, has_components=False)

    def trajectories(self, times: Times, points: ArrayLike | Tensor) -> Array:
        """Return positions of particles that start at points (..., d): (batch?, times?, ..., d).

        Along periodic axes these are wrapped into the box, so a particle that crosses the seam
        appears at the other face.
        """

        def evaluate(times: Tensor, points: Tensor) -> Tensor:
            return self._wrap(self._trajectories(times, points))

        return self._at_points(evaluate, times, points, has_components=True)

    @cached_property
    @torch.no_grad()
    def report(self) -> Report:
        """Errors and bounds that are measured from the path itself."""
        with limit_threads(len(QUARTERS) * self._n_cells):
            return import_object("geonet.report:build_report")(self)

    @torch.no_grad()
    def plot(
        self,
        times: Times | None = None,
        grid: Grid | None = None,
        kind: str = "frames",
        **style: Any,
    ) -> Figure:
        """Return a figure of the path.

        Args:
            times: times of the frames; quarters by default.
            grid: grid of the frames, the path's own by default.
            kind: "frames" (in 1D curves and space × time, in 3D projections), "velocity" (2D),
                "slices" (3D), or, for all times, "history" (1D: space × time) and "tracks" (2D).
            **style: colours and units, see `geonet.plotting.Style`.
        """
        return import_object("geonet.plotting.figures:plot_kind")(
            self, kind, times, grid, _make_style(style)
        )

    @torch.no_grad()
    def animate(
        self,
        file: str | Path,
        frames: int = 31,
        grid: Grid | None = None,
        *,
        stamp: bool = True,
        size: int | None = None,
        colours: Sequence[ColourImage] | None = None,
        **style: Any,
    ) -> Path:
        """Write the path, forwards and backwards, as a .gif; with ffmpeg also as an .mp4.

        Args:
            file: the file to write.
            frames: number of times.
            grid: grid of the frames, the path's own by default.
            stamp: whether every frame shows its time.
            size: longest side of the frames in pixels, at most 4096. By default it is at least 256;
                in a .gif it is at most 512, or less for many frames, so that the file remains
                small.
            colours: source and target in colour, see `geonet.colours`, to show the path in colour.
            **style: colours and units, see `geonet.plotting.Style`.
        """
        return import_object("geonet.plotting.animation:animate_geodesics")(
            [self], as_path(file), frames, grid, _make_style(style), stamp, size, colours
        )

    @torch.no_grad()
    def explore(
        self, file: str | Path, frames: int = 33, grid: Grid | None = None, **style: Any
    ) -> Path:
        """Write the path as one interactive .html file: densities, particles, fields and report.

        Any browser opens it offline. In 3D it shows three projections, one along each axis.
        Notebooks show a path in the same way.

        Args:
            file: the file to write.
            frames: number of times; the page interpolates linearly between them.
            grid: grid of the frames, the path's own by default; more than 128² cells are averaged.
            **style: colours and units, see `geonet.plotting.Style`.
        """
        return import_object("geonet.plotting.explore:explore_geodesic")(
            self, as_path(file), frames, grid, _make_style(style)
        )

    @torch.no_grad()
    def save(
        self,
        file: str | Path,
        times: Times = tuple(k / 10 for k in range(11)),
        grid: Grid | None = None,
        mass: Mass = "one",
    ) -> Path:
        """Write an npz with frames for any reader, and all that `geonet.load` needs.

        Args:
            file: its name, which ends in .npz.
            times: times of the frames.
            grid: grid of the frames, the path's own by default.
            mass: mass of the frames in the array `density`: "one", or "given" for the units of the
                source. The array `mass`, (batch?, times), holds the mass of each frame.
        """
        from geonet.io import save_geodesic

        return save_geodesic(self, as_path(file), times, grid, mass)

    def __getitem__(self, index: int) -> Geodesic:
        """Return the path of one pair of a batch."""
        count = len(self)
        check_index(index, count, slices=False)
        return self._pair(int(index) % count)

    def __len__(self) -> int:
        """Return the number of pairs of a batch."""
        if not self.batch:
            raise InputError("This path holds a single pair; use it without an index.")
        return self.batch[0]

    def __iter__(self) -> Iterator[Geodesic]:
        return (self[k] for k in range(len(self)))

    def __bool__(self) -> bool:
        return True  # a path of a single pair has no length

    def __repr__(self) -> str:
        batch = f"{self.batch[0]} pairs, " if self.batch else ""
        return f"{type(self).__name__}({batch}{self.grid}, solver={self.solver!r})"

    def _repr_html_(self) -> str | None:
        """Return the page of `explore` for notebooks; None if it cannot be made quickly."""
        if self.batch or self.frames_are_slow or not isinstance(self.source, Density):
            return None
        with torch.no_grad():
            return import_object("geonet.plotting.explore:render_iframe")(self)

    # ---- Methods of path classes

    @abstractmethod
    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """Return μ_t at the cells, (batch?, T, *grid.shape)."""

    def _distance(self) -> Tensor:
        """Return W2, (batch?)."""
        raise self._make_unavailable_error("distance")

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        """Return v_t, (batch?, T, N, d), at points (N, d)."""
        raise self._make_unavailable_error("velocity")

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        """Return u_t, (batch?, T, N), at points (N, d)."""
        raise self._make_unavailable_error("potential")

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Return positions (batch?, T, N, d): straight lines at constant speed along a geodesic.

        Along periodic axes they need not be inside the box.
        """
        start = self._velocity(torch.zeros(1, dtype=torch.float64), points)
        return points + times[:, None, None] * start

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Return Kantorovich's φ = −u_0 and ψ = u_1 at the cells, (batch?, *grid.shape) each."""
        points = self.grid.points().reshape(-1, self._dimension)
        both = self._potential(torch.tensor([0.0, 1.0], dtype=torch.float64), points)
        first, second = both.reshape(*self.batch, 2, *self.grid.shape).unbind(len(self.batch))
        return -first, second

    @cached_property
    @torch.no_grad()
    def _moment_bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of W2 from means and covariances, (batch?) each.

        Those bounds do not hold along periodic axes. There they are zero and the largest distance
        of two points. With a reach they are zero and infinity.
        """
        if not self.is_balanced:
            lower = torch.zeros(self.batch, dtype=torch.float64)
            return lower, lower + torch.inf
        if self.grid.is_periodic:
            sides = zip(self.grid.lengths, self.grid.periodic, strict=True)
            farthest = math.hypot(*(side / 2 if wraps else side for side, wraps in sides))
            lower = torch.zeros(self.batch, dtype=torch.float64)
            return lower, lower + farthest
        return import_object("geonet.solvers.bures:moment_bounds")(self.source, self.target)

    def _final_positions(self, grid: Grid) -> Tensor:
        """Return where particles from cell centres end, (batch?, *grid.shape, d), up to a cell."""
        points = grid.points().reshape(-1, grid.dimension)
        ends = self._trajectories(torch.ones(1, dtype=torch.float64), points)
        return ends.reshape(*self.batch, *grid.shape, grid.dimension)

    def _diagnostics(self) -> dict[str, Tensor]:
        """Return the fields of `Report` that this class of paths computes, (batch?) each.

        NaN stands for a pair whose value is not known.
        """
        return {}

    def _pair(self, k: int) -> Geodesic:
        """Return the path of the k-th pair of a batch; by default rebuilt from its ends alone."""
        source, target = self.source[k], self.target[k]
        return self._from_state(source, target, self.solver, self._pair_info(k), {})

    def _pair_info(self, k: int) -> dict[str, Any]:
        """Return `info` on the k-th pair: lists have one entry per pair."""
        return {n: value[k] if isinstance(value, list) else value for n, value in self.info.items()}

    def _kernel_size(self) -> int:
        """Return the number of cells of a frame that C kernels compute; 0 if torch computes it."""
        return 0

    def _state(self) -> dict[str, np.ndarray]:
        """Return the arrays from which `_from_state` rebuilds the path, beside its ends."""
        return {}

    @classmethod
    @abstractmethod
    def _from_state(
        cls,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        state: dict[str, np.ndarray],
    ) -> Geodesic:
        """Rebuild the path from the arrays of `_state`."""

    # ---- Shared by all path classes

    def _at_points(
        self,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        t: Times,
        points: ArrayLike | Tensor,
        has_components: bool,
    ) -> Array:
        times, is_scalar = check_times(t)
        points = self._clip(as_points(points, self._dimension))
        flat = points.reshape(-1, self._dimension)
        with limit_threads(self._work_size(times, len(flat))):
            values = evaluate(times, flat)
        values = self._drop_time(values) if is_scalar else values
        leading = values.shape[: values.ndim - (2 if has_components else 1)]
        trailing = points.shape if has_components else points.shape[:-1]
        return to_user_array(values.reshape((*leading, *trailing)), self.is_torch)

    def _clip(self, points: Tensor) -> Tensor:
        return clip_to_box(points, self.grid)

    def _wrap(self, points: Tensor) -> Tensor:
        return self.grid.wrap(points) if isinstance(self.source, Density) else points

    @property
    def _n_cells(self) -> int:
        """Number of cells of one end, over all pairs."""
        return math.prod(self.batch) * self.grid.size

    def _work_size(self, times: Sized, points: int) -> int:
        """Return the number of output values: batch × times × points."""
        return math.prod(self.batch) * len(times) * points

    def _drop_time(self, values: Tensor) -> Tensor:
        return values.squeeze(len(self.batch))

    @property
    def _dimension(self) -> int:
        return self.grid.dimension

    def _output_grid(self, grid: Grid | None) -> Grid:
        if grid is None:
            return self.grid
        check_instance(grid, Grid, "grid", "give a Grid, e.g. path.grid.with_shape(128)", GridError)
        if not grid.same_box(self.grid):
            raise GridError(
                f"The path is defined on {self.grid}, and {grid} has another box; "
                "give a grid on the same box with the same periodic axes, e.g. "
                "path.grid.with_shape(128)."
            )
        return grid

    def _interpolate_mass(self, times: Tensor) -> Tensor:
        """Return (1 − t)·m_0 + t·m_1, (batch?, T)."""
        source, target = self.source.mass_tensor, self.target.mass_tensor
        return torch.lerp(source[..., None], target[..., None], times)

    def _make_unavailable_error(self, quantity: str) -> UnavailableError:
        return UnavailableError(
            f"The solver {self.solver!r} provides no {quantity}; choose another, such as "
            "solver='midpoint' (see geonet.list_solvers(), or the command geonet solvers)."
        )


def check_path(path: Geodesic, name: str = "path") -> None:
    """Raise InputError if `path` is not a `Geodesic`."""
    check_instance(path, Geodesic, name, "give the result of geonet.geodesic or geonet.load")


def check_times(t: Times) -> tuple[Tensor, bool]:
    """Return times as a float64 tensor (T,), and whether t was a single number."""
    if t is None or isinstance(t, str):
        raise InputError(f"t is {short_repr(t)}; give a number in [0, 1], or a list of them.")
    times = as_tensor(t).to(torch.float64)
    if times.ndim > 1 or times.numel() == 0:
        raise InputError(
            f"t has shape {tuple(times.shape)}; give a number or a non-empty list of numbers."
        )
    is_outside = ~((times >= 0) & (times <= 1))
    if bool(is_outside.any()):
        raise InputError(
            f"t = {float(times[is_outside][0] if times.ndim else times):g} is outside [0, 1]; "
            "the path starts at t = 0 and ends at t = 1."
        )
    return times.reshape(-1), times.ndim == 0


def _make_style(style: dict[str, Any]) -> Any:
    return import_object("geonet.plotting.style:Style")(**style)


class BatchedGeodesic(Geodesic):
    """A batch of paths of single pairs, for solvers that take one pair at a time."""

    kind = "stack"

    def __init__(self, paths: Sequence[Geodesic]):
        self.paths = list(paths)
        source = stack_densities([path.source for path in paths])
        target = stack_densities([path.target for path in paths])
        solvers = ", ".join(dict.fromkeys(path.solver for path in paths))
        keys = dict.fromkeys(key for path in paths for key in path.info)
        info = {key: [path.info.get(key) for path in paths] for key in keys}
        super().__init__(source, target, solvers, info)
        self.is_balanced = all(path.is_balanced for path in paths)

    def _pair(self, k: int) -> Geodesic:
        return self.paths[k]

    def _interpolate_mass(self, times: Tensor) -> Tensor:
        if self.is_balanced:
            return super()._interpolate_mass(times)
        return torch.stack([path._interpolate_mass(times) for path in self.paths])

    def _distance(self) -> Tensor:
        self.share_moment_bounds()
        return torch.stack(self.map_pairs(lambda path: path._distance()))

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        return torch.stack(self.map_pairs(lambda path: path._density(times, grid)))

    def share_moment_bounds(self) -> None:
        """Give every path its moment bounds, which are quicker to compute for all at once."""
        if not self.is_balanced:
            return
        lower, upper = self._moment_bounds
        for k, path in enumerate(self.paths):
            vars(path).setdefault("_moment_bounds", (lower[k], upper[k]))

    def map_pairs(self, function: Callable[[Geodesic], Result]) -> list[Result]:
        """Apply a function to every path, in several threads if C kernels do the work."""
        is_grad_enabled = torch.is_grad_enabled()

        def evaluate(k: int) -> Result:
            with torch.set_grad_enabled(is_grad_enabled):  # other threads do not inherit it
                return function(self.paths[k])

        sizes = [path._kernel_size() for path in self.paths]
        if requires_grad(self.source, self.target) or not all(sizes):
            return [evaluate(k) for k in range(len(self.paths))]
        return list(map_in_threads(evaluate, len(self.paths), max(sizes)))

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._velocity(times, points) for path in self.paths])

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._potential(times, points) for path in self.paths])

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._trajectories(times, points) for path in self.paths])

    def _diagnostics(self) -> dict[str, Tensor]:
        self.share_moment_bounds()
        each = self.map_pairs(lambda path: path._diagnostics())
        names = dict.fromkeys(name for diagnostics in each for name in diagnostics)
        unknown = torch.tensor(torch.nan, dtype=torch.float64)
        return {
            name: torch.stack([own.get(name, unknown).double() for own in each]) for name in names
        }

    def _state(self) -> dict[str, np.ndarray]:
        state = {}
        for i, path in enumerate(self.paths):
            state[f"{i}/kind"] = np.array(path.kind)
            state[f"{i}/solver"] = np.array(path.solver)
            state |= {f"{i}/{key}": value for key, value in path._state().items()}
        return state

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> BatchedGeodesic:
        paths = []
        for i in range(len(source)):
            own = {k.split("/", 1)[1]: v for k, v in state.items() if k.startswith(f"{i}/")}
            kind, name = Geodesic.kinds[str(own.pop("kind"))], str(own.pop("solver"))
            pair_info = {key: values[i] for key, values in info.items() if values[i] is not None}
            paths.append(kind._from_state(source[i], target[i], name, pair_info, own))
        return cls(paths)


def stack_densities(densities: Sequence[Density]) -> Density:
    """Return single densities on one grid as a batch."""
    values = torch.stack([density.tensor for density in densities])
    mass = torch.stack([density.mass_tensor for density in densities])
    each = [density.mixture.parameters() for density in densities if density.mixture is not None]
    mixture = None
    if len(each) == len(densities):
        mixture = GaussianMixture(**{key: torch.stack([p[key] for p in each]) for key in each[0]})
    is_torch = any(density.is_torch for density in densities)
    return Density._from_parts(values, densities[0].grid, mass, mixture, is_torch)
