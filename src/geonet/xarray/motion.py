"""Motion between frames: optical flow, and frames carried along it from both sides.

A displacement field D belongs to the middle of the interval between two frames: the values at
y − D/2 in the first frame are those at y + D/2 in the second. A cell at the time t lies on the way
of one such y, and its value is a mean of both ends of this way, found by cubic splines. Means are
smoother than frames, so the values are then replaced by the quantiles of both frames, interpolated
linearly: the distribution of the values follows its own geodesic, and its mean is linear in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from geonet._progress import report_progress


@dataclass(frozen=True)
class FlowConfig:
    """Parameters of the optical flow, chosen on radar images; lengths are in cells of a level.

    Attributes:
        bend: values are compared as log(1 + value/s); s is this fraction of the mean positive one.
        blur: standard deviation of the Gaussian that smooths frames on each level.
        window: that of the Gaussian over which displacements are constant.
        smoothing: that of the Gaussian that smooths displacements, weighted by the texture.
        outlier: differences beyond this size count less.
        stabiliser: added to squared slopes, so that cells without texture do not move.
        neighbour: weight of the pairs before and after.
        smallest: fewest cells along an axis of the coarsest level.
        iterations: steps on each level.
        last_iterations: steps on the finest level.
        max_step: largest change of a displacement in one step.
    """

    bend: float = 0.2
    blur: float = 0.5
    window: float = 4.0
    smoothing: float = 3.0
    outlier: float = 0.3
    stabiliser: float = 0.01
    neighbour: float = 0.5
    smallest: int = 16
    iterations: int = 3
    last_iterations: int = 2
    max_step: float = 1.0


FLOW = FlowConfig()


@dataclass(frozen=True)
class Images:
    """Two frames of one resolution, to be compared.

    Attributes:
        first: values of the first frame, (*cells), single precision.
        second: values of the second frame, (*cells), single precision.
        known: weights of the cells of both, (2, *cells), zero for cells without a value.
        scale: duration of this pair relative to the pair whose motion is estimated.
        weight: weight of the pair.
    """

    first: np.ndarray
    second: np.ndarray
    known: np.ndarray
    scale: float
    weight: float

    @classmethod
    def from_frames(
        cls, frames: np.ndarray, known: np.ndarray, scale: float, weight: float
    ) -> Images:
        """Compress the contrast of two frames, (2, *cells)."""
        positive = frames[(frames > 0) & known]
        unit = FLOW.bend * float(positive.mean()) if positive.size else 1.0
        values = np.log1p(frames / unit).astype(np.float32)
        return cls(values[0], values[1], known.astype(np.float32), scale, weight)

    def halve(self, axes: Sequence[int]) -> Images:
        """Return means over two cells along some axes."""
        first, second = _halve(self.first, axes), _halve(self.second, axes)
        known = np.array([_halve(known, axes) for known in self.known])
        return Images(first, second, known, self.scale, self.weight)

    def blur(self, modes: Sequence[str]) -> Images:
        """Return the smoothed images; cells without a value have no weight."""
        values = []
        for image, known in zip((self.first, self.second), self.known, strict=True):
            smooth = _blur(image * known, FLOW.blur, modes)
            values.append(smooth / (_blur(known, FLOW.blur, modes) + np.float32(1e-6)))
        return Images(values[0], values[1], self.known, self.scale, self.weight)


def estimate_motion(pairs: Sequence[Images], periodic: Sequence[bool]) -> np.ndarray:
    """Estimate displacements by optical flow, (d, *cells), in cells.

    The method of Lucas and Kanade in symmetric form: both frames are carried to the middle with
    the current displacement, and the remaining difference is minimised in a Gaussian window. It
    proceeds from coarse to fine levels. Exchanged frames give the opposite displacement.

    Args:
        pairs: the pair itself, then pairs before and after with their weights, which contribute to
            all levels except the finest.
        periodic: whether the ends of each axis meet.
    """
    modes = ["wrap" if wraps else "nearest" for wraps in periodic]
    levels = [list(pairs)]
    while axes := _divisible(levels[-1][0].first.shape):
        levels.append([pair.halve(axes) for pair in levels[-1]])
    shape = levels[-1][0].first.shape
    motion = np.zeros((len(shape), *shape), np.float32)
    for number, level in reversed(list(enumerate(levels))):
        shape = level[0].first.shape
        report_progress(f"estimating motion on {'×'.join(map(str, shape))} cells")
        motion = _resize(motion, shape, modes)
        is_finest = number == 0 and len(levels) > 1
        used = [pair.blur(modes) for pair in (level[:1] if is_finest else level)]
        for _ in range(FLOW.last_iterations if is_finest else FLOW.iterations):
            motion = _improve(motion, used, modes)
    return motion


def _improve(motion: np.ndarray, pairs: Sequence[Images], modes: Sequence[str]) -> np.ndarray:
    """Return displacements after one Gauss–Newton step."""
    d, shape = len(motion), motion.shape[1:]
    tensor = np.zeros((*shape, d, d), np.float32)
    force = np.zeros((*shape, d), np.float32)
    cells = _cell_indices(shape)
    for pair in pairs:
        half = np.float32(0.5 * pair.scale) * motion
        first, known_first = _sample([pair.first, pair.known[0]], cells - half, modes)
        second, known_second = _sample([pair.second, pair.known[1]], cells + half, modes)
        difference, middle = second - first, 0.5 * (first + second)
        weight = pair.weight * known_first * known_second
        weight = weight / np.sqrt(1 + (difference / FLOW.outlier) ** 2)
        slope = np.stack(
            [pair.scale * _slope(middle, axis, mode) for axis, mode in enumerate(modes)], -1
        )
        tensor += weight[..., None, None] * slope[..., :, None] * slope[..., None, :]
        force -= (weight * difference)[..., None] * slope
    for i in range(d):
        force[..., i] = _blur(force[..., i], FLOW.window, modes)
        for j in range(i + 1):
            tensor[..., i, j] = tensor[..., j, i] = _blur(tensor[..., i, j], FLOW.window, modes)
    texture = np.trace(tensor, axis1=-2, axis2=-1) + np.float32(FLOW.stabiliser)
    tensor += np.float32(FLOW.stabiliser) * np.eye(d, dtype=np.float32)
    step = np.linalg.solve(tensor, force[..., None])[..., 0]
    length = np.linalg.norm(step, axis=-1, keepdims=True)
    step *= FLOW.max_step / np.maximum(length, FLOW.max_step)
    total = _blur(texture, FLOW.smoothing, modes)
    moved = [
        _blur(texture * (motion[k] + step[..., k]), FLOW.smoothing, modes) / total for k in range(d)
    ]
    return np.array(moved, np.float32)


def _divisible(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes that have enough cells for a coarser level."""
    return tuple(axis for axis, n in enumerate(shape) if n >= 2 * FLOW.smallest)


def _halve(values: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return means over two cells; the last one of an odd number counts twice."""
    for axis in axes:
        n = values.shape[axis]
        if n % 2:
            values = np.concatenate([values, values.take([n - 1], axis)], axis)
        even, odd = (values.take(range(k, values.shape[axis], 2), axis) for k in (0, 1))
        values = (even + odd) / 2
    return values


def _resize(motion: np.ndarray, shape: tuple[int, ...], modes: Sequence[str]) -> np.ndarray:
    """Interpolate displacements linearly to a finer level."""
    coarse = motion.shape[1:]
    if coarse == shape:
        return motion
    ratios = [2 if fine > n else 1 for fine, n in zip(shape, coarse, strict=True)]
    places = np.meshgrid(
        *((np.arange(n) + 0.5) / ratio - 0.5 for n, ratio in zip(shape, ratios, strict=True)),
        indexing="ij",
    )
    found = _sample(list(motion), np.array(places, np.float32), modes)
    return np.array([ratio * values for ratio, values in zip(ratios, found, strict=True)])


def _slope(values: np.ndarray, axis: int, mode: str) -> np.ndarray:
    """Return central differences."""
    return ndimage.correlate1d(values, [-0.5, 0.0, 0.5], axis, mode=mode)


def _blur(values: np.ndarray, width: float, modes: Sequence[str]) -> np.ndarray:
    return ndimage.gaussian_filter(values, width, mode=list(modes), truncate=3.0)  # pyright: ignore[reportArgumentType]


def _cell_indices(shape: tuple[int, ...]) -> np.ndarray:
    return np.indices(shape, dtype=np.float32)


def _sample(
    arrays: Sequence[np.ndarray], places: np.ndarray, modes: Sequence[str]
) -> list[np.ndarray]:
    """Interpolate arrays (*cells) linearly at places (d, *any) in cells, repeated beyond edges."""
    places = _wrap(places, arrays[0].shape, modes)
    padded = [_pad_wrapped(array, modes, 1) for array in arrays]
    shift = _shift(modes, 1, places.ndim - 1)
    return [
        ndimage.map_coordinates(array, places + shift, order=1, mode="nearest", output=array.dtype)
        for array in padded
    ]


def _wrap(places: np.ndarray, shape: tuple[int, ...], modes: Sequence[str]) -> np.ndarray:
    """Return places modulo the period of wrapping axes."""
    if "wrap" not in modes:
        return places
    wrapped = [
        np.mod(place, n) if mode == "wrap" else place
        for place, n, mode in zip(places, shape, modes, strict=True)
    ]
    return np.array(wrapped)


def _pad_wrapped(values: np.ndarray, modes: Sequence[str], width: int) -> np.ndarray:
    """Repeat cells at both ends of wrapping axes."""
    if "wrap" not in modes:
        return values
    return np.pad(values, [(width, width) if m == "wrap" else (0, 0) for m in modes], "wrap")


def _shift(modes: Sequence[str], width: int, dimension: int) -> np.ndarray:
    """Return the shift of places in padded arrays, (d, 1, …)."""
    shift = [width if mode == "wrap" else 0 for mode in modes]
    return np.array(shift, np.float32).reshape(-1, *(1,) * dimension)


# ---- Frames along a displacement


@dataclass(frozen=True)
class BlendConfig:
    """Parameters of the blend of both carried frames.

    Attributes:
        power: the mean of powers of the values: 1 for the arithmetic mean, near 0 the geometric
            mean. Without distinct values on both sides it decides the order of the results only.
        order: degree of the splines that carry frames.
        margin: cells that are added to the edges of a frame for the splines.
        iterations: fixed-point steps for the middle of the way through a cell.
        min_known: a place is known if cells with a value have this share of its linear weights.
        max_lost: given motions raise an error if they take more than this share of the cells out of
            the map on both sides.
    """

    power: float = 0.4
    order: int = 3
    margin: int = 12
    iterations: int = 3
    min_known: float = 0.999
    max_lost: float = 0.25


BLEND = BlendConfig()


class CarriedFrame:
    """A frame that can be evaluated between its cells.

    Args:
        values: values, (*cells), not negative.
        known: cells with a value, (*cells).
        periodic: whether the ends of each axis meet.
    """

    def __init__(self, values: np.ndarray, known: np.ndarray, periodic: Sequence[bool]):
        self.modes = ["wrap" if wraps else "nearest" for wraps in periodic]
        self.values, self.known = values, known
        if not known.all() and known.any():
            nearest = ndimage.distance_transform_edt(
                ~known, return_distances=False, return_indices=True
            )
            values = values[tuple(np.asarray(nearest))]
        padded = values
        for axis, mode in enumerate(self.modes):
            width = [(0, 0)] * values.ndim
            width[axis] = (BLEND.margin, BLEND.margin)
            padded = np.pad(padded, width, "wrap" if mode == "wrap" else "edge")
        self._coefficients = ndimage.spline_filter(padded, BLEND.order, mode="mirror")

    def evaluate(self, places: np.ndarray) -> np.ndarray:
        """Return values at places (d, *any) in cells; beyond the edges those at the edges."""
        shape = self.values.shape
        places = _wrap(places, shape, self.modes)
        inside = [
            np.clip(place, -BLEND.margin, n - 1 + BLEND.margin)
            for place, n in zip(places, shape, strict=True)
        ]
        found = ndimage.map_coordinates(
            self._coefficients,
            np.array(inside) + BLEND.margin,
            order=BLEND.order,
            mode="mirror",
            prefilter=False,
        )
        return np.maximum(found, 0.0)

    def nearest(self, places: np.ndarray) -> np.ndarray:
        """Return the values of the nearest cells."""
        places = _wrap(np.rint(places), self.values.shape, self.modes)
        cells = [
            np.clip(place, 0, n - 1).astype(int)
            for place, n in zip(places, self.values.shape, strict=True)
        ]
        return self.values[tuple(cells)]

    def lies_in_gap(self, places: np.ndarray) -> np.ndarray:
        """Return where the value depends on cells without one."""
        if self.known.all():
            return np.zeros(places.shape[1:], bool)
        (share,) = _sample([self.known.astype(np.float32)], places, self.modes)
        return share < BLEND.min_known

    def lies_inside(self, places: np.ndarray) -> np.ndarray:
        """Return where places lie inside the box."""
        return lies_inside(places, self.values.shape, [mode == "wrap" for mode in self.modes])


def blend_carried(
    first: CarriedFrame, second: CarriedFrame, motion: np.ndarray, t: float, areas: np.ndarray
) -> np.ndarray:
    """Return the frame at time t in (0, 1), (*cells).

    Values whose way begins or ends outside of the box or in a gap are taken from the other end. If
    both ends are outside of the box, both frames are blended linearly in this cell. Cells are NaN
    if neither end has a value, or if they have none in one of the frames. The mean over the cells
    with a value in both frames is linear in time.

    Args:
        first: the frame at 0.
        second: the frame at 1.
        motion: displacements from the first to the second, (d, *cells), in cells.
        t: the time.
        areas: areas of the cells, (n_1 or 1, …).
    """
    moved = _displacement_at(motion, t, first.modes)
    cells = np.indices(motion.shape[1:], dtype=np.float64)
    places = cells - t * moved, cells + (1 - t) * moved
    frames = first, second
    gaps = [f.lies_in_gap(place) for f, place in zip(frames, places, strict=True)]
    inside = [f.lies_inside(place) for f, place in zip(frames, places, strict=True)]
    usable = [is_inside & ~gap for is_inside, gap in zip(inside, gaps, strict=True)]
    weight = np.where(usable[0] == usable[1], t, np.where(usable[0], 0.0, 1.0))
    ends = [f.evaluate(place) ** BLEND.power for f, place in zip(frames, places, strict=True)]
    mean = (1 - weight) * ends[0] + weight * ends[1]
    is_known = usable[0] | usable[1] | ~(gaps[0] | gaps[1])
    common = first.known & second.known
    lost = common & ~(inside[0] | inside[1])
    result = np.full(mean.shape, np.nan)
    result[lost] = (1 - t) * first.values[lost] + t * second.values[lost]
    is_known &= common & ~lost
    if not is_known.any():
        return result
    area = np.broadcast_to(areas, mean.shape)
    carried = common & ~lost
    shares = [(f.values[carried], area[carried]) for f in frames]
    result[is_known] = match_values(mean[is_known], area[is_known], shares, (1 - t, t))
    return result


def share_lost(motion: np.ndarray, periodic: Sequence[bool]) -> float:
    """Return the share of cells with both ends outside of the box in the middle of the interval.

    Args:
        motion: displacements, (d, *cells), in cells.
        periodic: whether the ends of each axis meet.
    """
    shape = motion.shape[1:]
    cells = np.indices(shape, dtype=np.float64)
    first, second = (lies_inside(cells + s * motion, shape, periodic) for s in (-0.5, 0.5))
    return float(np.mean(~(first | second)))


def lies_inside(places: np.ndarray, shape: Sequence[int], periodic: Sequence[bool]) -> np.ndarray:
    """Return whether places (d, *any) in cells lie inside the box, (*any)."""
    inside = np.ones(places.shape[1:], bool)
    for place, n, wraps in zip(places, shape, periodic, strict=True):
        if not wraps:
            inside &= (place >= -0.5) & (place <= n - 0.5)
    return inside


def extrapolate(last: CarriedFrame, motion: np.ndarray, t: float) -> np.ndarray:
    """Return the last frame carried on to t > 1; NaN in cells reached from outside of the box."""
    steps = max(1, int(np.ceil(t - 1)))
    places = np.indices(motion.shape[1:], dtype=np.float64)
    cells = places
    for _ in range(steps):
        places = places - (t - 1) / steps * np.array(_sample(list(motion), places, last.modes))
    is_known = last.lies_inside(places) & ~last.lies_in_gap(places) & last.known
    result = np.full(cells.shape[1:], np.nan)
    if is_known.any():
        area = np.ones(int(is_known.sum()))
        own = last.nearest(places)[is_known]
        result[is_known] = match_values(last.evaluate(places)[is_known], area, [(own, area)], (1,))
    return result


def match_values(
    values: np.ndarray,
    areas: np.ndarray,
    references: Sequence[tuple[np.ndarray, np.ndarray]],
    weights: Sequence[float],
) -> np.ndarray:
    """Replace values (N,) by those of the same rank of a mean of distributions.

    Zeros stay zero, and equal values stay equal. The mean is the weighted mean of the references'.

    Args:
        values: values, not negative.
        areas: their areas, (N,).
        references: values and areas of each distribution.
        weights: weights of the distributions.
    """
    order = np.argsort(values, kind="stable")
    ranks = _ranks(areas[order])
    matched, mean = np.zeros(len(values)), 0.0
    for (own, area), weight in zip(references, weights, strict=True):
        own_order = np.argsort(own, kind="stable")
        matched += weight * np.interp(ranks, _ranks(area[own_order]), own[own_order])
        mean += weight * float((own * area).sum() / area.sum())
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(starts, len(values)))
    matched = np.repeat(np.add.reduceat(matched, starts) / counts, counts)
    matched[ordered == 0] = 0.0
    result = np.empty(len(values))
    result[order] = matched
    total = float((result * areas).sum())
    return result * (mean * float(areas.sum()) / total) if total > 0 else result


def _ranks(areas: np.ndarray) -> np.ndarray:
    """Return the middle of every area in their cumulative sum, relative to the total."""
    ends = np.cumsum(areas, dtype=np.float64)
    return (ends - 0.5 * areas) / ends[-1]


def _displacement_at(motion: np.ndarray, t: float, modes: Sequence[str]) -> np.ndarray:
    """Return the displacements of the ways that pass the cells at time t, (d, *cells)."""
    if t == 0.5:
        return motion.astype(np.float64)
    cells = np.indices(motion.shape[1:], dtype=np.float64)
    moved = motion
    for _ in range(BLEND.iterations):
        moved = np.array(_sample(list(motion), cells - (t - 0.5) * moved, modes))
    return moved.astype(np.float64)
