"""The path between two densities: what comes out of a solver."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._advice import either, setting
from geonet._threads import limit_threads, map_in_threads
from geonet._utils import import_object
from geonet._validation import as_path, check_index, check_instance, short_repr
from geonet.density import Density, Mass, as_points, as_tensor, inside
from geonet.errors import GridError, InputError, UnavailableError
from geonet.grid import Grid
from geonet.mixture import GaussianMixture
from geonet.numerics.autograd import wanted

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from geonet.report import Report

Times = float | Sequence[float] | np.ndarray | Tensor
ENDS = ("source", "target")
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
# What packages above this one do with a path, by location: imports point down.
PLOT = "geonet.plotting.figures:plot_kind"
ANIMATE = "geonet.plotting.animation:animate_geodesic"
EXPLORE = "geonet.plotting.explore:explore_geodesic"
FRAMED = "geonet.plotting.explore:framed_html"
LOOK = "geonet.plotting.style:Look"
LOAD = "geonet.api:load"  # which imports every solver: some of them have paths of their own


class Geodesic(ABC):
    """The W2 geodesic {μ_t} from `source` to `target`, to be asked at any time.

    Shapes are `(batch?, times?, ...)`: the batch axis is there if the solver was given a batch, the
    time axis if t is a sequence. A path class subclasses this and implements the methods with an
    underscore, which always have the time axis and take points as (N, d).

    Attributes:
        source: μ_0.
        target: μ_1.
        solver: name of the solver that answered.
        notes: what the solver has to say about its answer; goes into `report`.
        distance_is_lower_bound: whether `distance` is W2 from below, and may be much less.
        frames_are_slow: whether every frame is a computation of its own.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Geodesic]]] = {}
    distance_is_lower_bound: ClassVar[bool] = False
    frames_are_slow: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):  # others are there to be subclassed
            Geodesic.kinds[cls.kind] = cls

    def __init__(self, source: Density, target: Density, solver: str, notes: dict[str, Any]):
        self.source = source
        self.target = target
        self.solver = solver
        self.notes = notes

    # ---- the public contract

    @property
    def grid(self) -> Grid:
        """The grid of source and target."""
        return self.source.grid

    @property
    def batch(self) -> tuple[int, ...]:
        """() for a single pair, (B,) for a batch."""
        return self.source.leading

    @property
    def distance(self) -> Tensor:
        """W2(μ_0, μ_1), (batch?)."""
        with limit_threads(self._cells):
            return self._distance()

    def density(self, t: Times, grid: Grid | None = None) -> Density:
        """μ_t on `grid` (any grid on the same box; the source's by default).

        Its values have mass one. Its `mass` goes evenly from the source's to the target's, so
        `numpy(mass="given")` is in the units that went in.
        """
        times, scalar = check_times(t)
        where = self._output_grid(grid)
        with limit_threads(self._numbers(times, where.size)):
            values = self._density(times, where)
        mass = self._given_mass(times)
        if scalar:
            values, mass = self._drop_time(values), self._drop_time(mass)
        return Density.as_computed(values, where, mass)

    def velocity(self, t: Times, points: ArrayLike | Tensor) -> Tensor:
        """v_t = ∇u_t at points (..., d): (batch?, times?, ..., d)."""
        return self._at_points(self._velocity, t, points, vector=True)

    def potential(self, t: Times, points: ArrayLike | Tensor) -> Tensor:
        """u_t, with ∂_t u + ½|∇u|² = 0, at points (..., d): (batch?, times?, ...)."""
        return self._at_points(self._potential, t, points, vector=False)

    def trajectories(self, times: Times, points: ArrayLike | Tensor) -> Tensor:
        """Where the flow carries particles from points (..., d): (batch?, times?, ..., d)."""
        return self._at_points(self._trajectories, times, points, vector=True)

    @property
    @torch.no_grad()
    def report(self) -> Report:
        """How far the answer can be trusted, measured from the answer itself."""
        from geonet.report import report_on

        with limit_threads(len(QUARTERS) * self._cells):
            return report_on(self)

    @torch.no_grad()
    def plot(
        self,
        times: Times | None = None,
        grid: Grid | None = None,
        kind: str = "frames",
        *,
        cmap: str | Colormap = "magma",
        norm: str = "linear",
        vmin: float | None = None,
        vmax: float | None = None,
        mass: Mass = "one",
    ) -> Figure:
        """A figure of the path.

        Args:
            times: of the frames; quarters by default.
            grid: on which the densities are drawn, the path's own by default.
            kind: "frames" (in 1D curves and space × time, in 3D projections), "velocity" (2D),
                "slices" (3D), or, of all times, "history" (1D: space × time) and "tracks" (2D).
            cmap: a colour map of matplotlib, or its name.
            norm: how colours follow values: "linear", "sqrt" or "log".
            vmin: the value of the first colour; zero by default, or 1e-4 of `vmax` for "log".
            vmax: the value of the last colour; the highest that is drawn by default.
            mass: of the densities: "one", or "given" for the units that went in, those of `vmin`
                and `vmax` too.
        """
        look = import_object(LOOK)(cmap, norm, vmin, vmax, mass)
        return import_object(PLOT)(self, kind, times, grid, look)

    @torch.no_grad()
    def animate(
        self,
        file: str | Path,
        frames: int = 31,
        grid: Grid | None = None,
        *,
        cmap: str | Colormap = "magma",
        norm: str = "linear",
        vmin: float | None = None,
        vmax: float | None = None,
        mass: Mass = "one",
        stamp: bool = True,
    ) -> Path:
        """Write the path, forwards and backwards, as a .gif; with ffmpeg also as an .mp4.

        Args:
            file: what to write.
            frames: how many moments.
            grid: on which the densities are drawn, the path's own by default.
            cmap: the colours; see `plot`.
            norm: see `plot`.
            vmin: see `plot`.
            vmax: see `plot`.
            mass: see `plot`.
            stamp: whether every frame says its time.
        """
        look = import_object(LOOK)(cmap, norm, vmin, vmax, mass)
        return import_object(ANIMATE)(self, as_path(file), frames, grid, look, stamp)

    @torch.no_grad()
    def explore(
        self,
        file: str | Path,
        frames: int = 33,
        grid: Grid | None = None,
        *,
        cmap: str | Colormap = "magma",
        norm: str = "linear",
        vmin: float | None = None,
        vmax: float | None = None,
        mass: Mass = "one",
    ) -> Path:
        """Write the path as one .html file: time to drag, particles, velocity, potential, report.

        A browser opens it by a double click, without a network. In 3D it shows the mass projected
        onto the first two axes. Notebooks show a path the same way.

        Args:
            file: what to write.
            frames: how many moments; what lies between them is mixed from the two nearest.
            grid: on which the densities are drawn, the path's own by default; what is finer than
                128² cells is averaged.
            cmap: the colours; see `plot`.
            norm: see `plot`.
            vmin: see `plot`.
            vmax: see `plot`.
            mass: see `plot`.
        """
        look = import_object(LOOK)(cmap, norm, vmin, vmax, mass)
        return import_object(EXPLORE)(self, as_path(file), frames, grid, look)

    @torch.no_grad()
    def save(
        self,
        file: str | Path,
        times: Times = tuple(k / 10 for k in range(11)),
        grid: Grid | None = None,
        mass: Mass = "one",
    ) -> Path:
        """Write an npz: the frames at `times` for any reader, and all that `load` needs.

        Args:
            file: its name, which ends in .npz.
            times: of the frames.
            grid: of the frames, the path's own by default.
            mass: of the frames in the array `density`: "one", or "given" for the units that went
                in. The array `mass`, (batch?, times), says which mass each frame has.
        """
        from geonet._serialization import save_geodesic

        return save_geodesic(self, as_path(file), times, grid, mass)

    @staticmethod
    def load(file: str | Path) -> Geodesic:
        """The path that `save` wrote, able to answer at any time again."""
        return import_object(LOAD)(file)

    def __getitem__(self, index: int) -> Geodesic:
        """The path of one pair of a batch; a negative index counts from the last."""
        count = len(self)
        check_index(index, count, slices=False)
        return self._pair(int(index) % count)

    def __len__(self) -> int:
        """The number of pairs of a batch."""
        if not self.batch:
            raise InputError("This path holds a single pair; use it as it is, without an index.")
        return self.batch[0]

    def __iter__(self) -> Iterator[Geodesic]:
        return (self[k] for k in range(len(self)))

    def __bool__(self) -> bool:
        return True  # a path of a single pair cannot be counted

    def __repr__(self) -> str:
        batch = f"{self.batch[0]} pairs, " if self.batch else ""
        return f"{type(self).__name__}({batch}{self.grid}, solver={self.solver!r})"

    def _repr_html_(self) -> str | None:
        """What a notebook shows: a single pair as `explore` does, None for what it cannot."""
        if self.batch or self.frames_are_slow or not isinstance(self.source, Density):
            return None
        with torch.no_grad():
            return import_object(FRAMED)(self)

    # ---- what a path class implements

    @abstractmethod
    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """(batch?, T, *grid.shape)."""

    def _distance(self) -> Tensor:
        raise self._unavailable("distance")

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        """(batch?, T, N, d) at points (N, d)."""
        raise self._unavailable("velocity")

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        """(batch?, T, N) at points (N, d)."""
        raise self._unavailable("potential")

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """(batch?, T, N, d): along a geodesic every particle moves straight at constant speed."""
        start = self._velocity(torch.zeros(1, dtype=torch.float64), points)
        return points + times[:, None, None] * start

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Kantorovich's φ = −u_0 and ψ = u_1 at the cells, (batch?, *grid.shape) each."""
        points = self.grid.points().reshape(-1, self._dimension)
        both = self._potential(torch.tensor([0.0, 1.0], dtype=torch.float64), points)
        first, second = both.reshape(*self.batch, 2, *self.grid.shape).unbind(len(self.batch))
        return -first, second

    def _checks(self) -> dict[str, Tensor]:
        """What the path can tell about its own trustworthiness, for `report`: names of `Report`.

        (batch?) each; NaN for a pair of which it is not known.
        """
        return {}

    def _pair(self, k: int) -> Geodesic:
        """The path of the k-th pair of a batch; as it stands for paths that their ends decide."""
        ends = self.source[k], self.target[k]
        return self._from_state(*ends, self.solver, self._notes_of(k), {})

    def _notes_of(self, k: int) -> dict[str, Any]:
        """The notes on the k-th pair: lists have an entry for each."""
        return {n: note[k] if isinstance(note, list) else note for n, note in self.notes.items()}

    def _loops_over(self) -> int:
        """Cells that compiled loops go over to make a frame; 0 where torch makes it."""
        return 0

    def _state(self) -> dict[str, np.ndarray]:
        """Arrays from which `_from_state` rebuilds the path, beside source and target."""
        return {}

    @classmethod
    @abstractmethod
    def _from_state(
        cls,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        state: dict[str, np.ndarray],
    ) -> Geodesic:
        """Rebuild what `_state` wrote."""

    # ---- shared plumbing

    def _at_points(self, method, t: Times, points: ArrayLike | Tensor, vector: bool) -> Tensor:
        times, scalar = check_times(t)
        where = self._inside(as_points(points, self._dimension))
        flat = where.reshape(-1, self._dimension)
        with limit_threads(self._numbers(times, len(flat))):
            answer = method(times, flat)
        answer = self._drop_time(answer) if scalar else answer
        leading = answer.shape[: answer.ndim - (2 if vector else 1)]
        return answer.reshape((*leading, *(where.shape if vector else where.shape[:-1])))

    def _inside(self, points: Tensor) -> Tensor:
        return inside(points, self.grid)

    @property
    def _cells(self) -> int:
        """Of one end of every pair."""
        return math.prod(self.batch) * self.grid.size

    def _numbers(self, times: Sized, places: int) -> int:
        """How many are computed at so many places of every pair."""
        return math.prod(self.batch) * len(times) * places

    def _drop_time(self, answer: Tensor) -> Tensor:
        return answer.squeeze(len(self.batch))

    @property
    def _dimension(self) -> int:
        return self.grid.dimension

    def _output_grid(self, grid: Grid | None) -> Grid:
        if grid is None:
            return self.grid
        check_instance(grid, Grid, "grid", "give a Grid, e.g. path.grid.with_shape(128)", GridError)
        if not grid.same_box(self.grid):
            raise GridError(
                f"The path lives on {self.grid}, the grid asked for is {grid}: the boxes differ; "
                "give a grid on the same box, e.g. path.grid.with_shape(128)."
            )
        return grid

    def _given_mass(self, times: Tensor) -> Tensor:
        """(1 − t)·m_0 + t·m_1, (batch?, T)."""
        return torch.lerp(self.source.mass[..., None], self.target.mass[..., None], times)

    def _unavailable(self, what: str) -> UnavailableError:
        return UnavailableError(
            f"The solver {self.solver!r} gives no {what}; choose one that does, such as "
            f"{setting('solver', 'midpoint')} "
            f"({either('geonet.list_solvers()', 'geonet solvers')} lists what each gives)."
        )


def check_path(path: Geodesic, name: str = "path") -> None:
    """Refuse what is not a path."""
    remedy = "give what geonet.geodesic(source, target) or geonet.load(file) gives"
    check_instance(path, Geodesic, name, remedy)


def check_times(t: Times) -> tuple[Tensor, bool]:
    """Times as a float64 tensor (T,), and whether t was a single number."""
    if t is None or isinstance(t, str):
        raise InputError(f"t is {short_repr(t)}; give a number in [0, 1], or a list of them.")
    times = as_tensor(t).to(torch.float64)
    if times.ndim > 1 or times.numel() == 0:
        raise InputError(
            f"t has shape {tuple(times.shape)}; give a number or a non-empty list of numbers."
        )
    outside = ~((times >= 0) & (times <= 1))
    if bool(outside.any()):
        raise InputError(
            f"t = {float(times[outside][0] if times.ndim else times):g} is outside [0, 1]; "
            "the path starts at t = 0 and ends at t = 1."
        )
    return times.reshape(-1), times.ndim == 0


# ---- Paths of single pairs, answered side by side.


class BatchedGeodesic(Geodesic):
    """Paths of single pairs, answered side by side: for solvers that take one pair at a time."""

    kind = "stack"

    def __init__(self, paths: Sequence[Geodesic]):
        self.paths = list(paths)
        source, target = (_stack_densities([getattr(p, end) for p in paths]) for end in ENDS)
        names = ", ".join(dict.fromkeys(path.solver for path in paths))
        super().__init__(source, target, names, _stack_notes([p.notes for p in paths]))

    def _pair(self, k: int) -> Geodesic:
        return self.paths[k]

    def _distance(self) -> Tensor:
        return torch.stack([path._distance() for path in self.paths])

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        def frames(k: int) -> Tensor:
            with torch.set_grad_enabled(traced):  # which other threads do not know
                return self.paths[k]._density(times, grid)

        traced = torch.is_grad_enabled()
        cells = [path._loops_over() for path in self.paths]
        if wanted(self.source, self.target) or not all(cells):
            return torch.stack([frames(k) for k in range(len(self.paths))])
        return torch.stack(list(map_in_threads(frames, len(self.paths), max(cells))))

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._velocity(times, points) for path in self.paths])

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._potential(times, points) for path in self.paths])

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._trajectories(times, points) for path in self.paths])

    def _checks(self) -> dict[str, Tensor]:
        found = [path._checks() for path in self.paths]
        names = dict.fromkeys(name for checks in found for name in checks)
        unknown = torch.tensor(torch.nan, dtype=torch.float64)
        return {
            name: torch.stack([checks.get(name, unknown).to(torch.float64) for checks in found])
            for name in names
        }

    def _state(self) -> dict[str, np.ndarray]:
        state = {}
        for i, path in enumerate(self.paths):
            state[f"{i}/kind"] = np.array(path.kind)
            state[f"{i}/solver"] = np.array(path.solver)
            state |= {f"{i}/{key}": value for key, value in path._state().items()}
        return state

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> BatchedGeodesic:
        paths = []
        for i in range(len(source)):
            own = {k.split("/", 1)[1]: v for k, v in state.items() if k.startswith(f"{i}/")}
            kind, name = Geodesic.kinds[str(own.pop("kind"))], str(own.pop("solver"))
            note = {key: values[i] for key, values in notes.items() if values[i] is not None}
            paths.append(kind._from_state(source[i], target[i], name, note, own))
        return cls(paths)


def _stack_densities(densities: Sequence[Density]) -> Density:
    values, mass = (torch.stack([getattr(d, key) for d in densities]) for key in ("values", "mass"))
    parts = [d.mixture.parts() for d in densities if d.mixture is not None]
    mixture = None
    if len(parts) == len(densities):
        mixture = GaussianMixture(**{key: torch.stack([p[key] for p in parts]) for key in parts[0]})
    return Density._of(values, densities[0].grid, mass, mixture)


def _stack_notes(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for note in notes for key in note)
    return {key: [note.get(key) for note in notes] for key in keys}
