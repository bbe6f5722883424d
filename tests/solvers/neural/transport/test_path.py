"""Paths of the transport form against exact characteristics in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.metrics import mass_error
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.solvers.neural.transport.certificate import Calibration
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.splines import DensityPairs

TIMES = [0.0, 0.2, 0.5, 0.9, 1.0]
FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def mixtures(d: int, count: int, cells: int | None = None) -> tuple[Density, Density]:
    """Pairs that have nothing to do with the potential."""
    family, box = FAMILIES[d]
    grid = box if cells is None else box.with_shape(cells)
    both = family(2 * count, torch.Generator().manual_seed(d)).to_density(grid).tensor
    return Density(both[:count], grid), Density(both[count:], grid)


def path_of(ends, coefficients, **options) -> CosineGeodesic:
    return CosineGeodesic(*ends, "by hand", {}, coefficients, **options)


def exact_frame(source: Density, target: Density, coefficients, t: float, grid: Grid):
    """(1 − t)ρ0 + tρ1 on a grid, from formulas of both ends and in double precision."""
    d, length = grid.dimension, max(grid.lengths)
    cube = Grid((2,) * d, grid.lower, [a + length for a in grid.lower])
    lines = Characteristics(CosineSeries(coefficients.double() * length**2, cube))
    s = t - 0.5
    points = grid.points().reshape(-1, d)
    (origin,) = lines.trace_back(torch.tensor([s], dtype=torch.float64), points)
    frames = []
    for end, sign in ((source, -0.5), (target, 0.5)):
        there = origin.point + sign * origin.gradient
        lower, upper = grid.lower_tensor, grid.upper_tensor
        inside = ((there >= lower) & (there <= upper)).all(-1)
        carried = (
            end.at(there.clamp(lower, upper))
            * inside
            * origin.determinant(sign)
            / origin.determinant(s)
        )
        frames.append(carried.reshape(grid.shape))
    return torch.lerp(frames[0], frames[1], t)


def relative_l1(found, expected) -> float:
    return float((found - expected).abs().sum() / expected.sum())


@DIMENSIONS
def test_frames_follow_exact_characteristics(potentials, d):
    family, box = FAMILIES[d]
    both = family(2, torch.Generator().manual_seed(d)).to_density(box)
    source, target = both[0], both[1]  # by formula
    coefficients = potentials(d)
    frames = path_of((source, target), coefficients).density(TIMES).tensor
    for t, frame in zip(TIMES, frames, strict=True):
        assert relative_l1(frame, exact_frame(source, target, coefficients[0], t, box)) < 1e-3


@DIMENSIONS
def test_exact_potential_gives_the_geodesic(known_pair, d):
    """Also on grids that are not the grid of the ends."""
    known = known_pair(d, length=3.0)
    path = path_of((known.source, known.target), known.coefficients)
    other = path.grid.with_shape((20, 31, 17)[:d])
    for t, grid in ((0.0, path.grid), (0.2, path.grid), (0.3, other), (1.0, path.grid)):
        assert relative_l1(path.density(t, grid).tensor, known.density(t, grid)) < 1e-3
    assert float(path.distance) == pytest.approx(known.distance, rel=1e-3)


@pytest.mark.parametrize(
    "grid", [Grid((40, 20), 0.0, (2.0, 1.0)), Grid((20, 40), (-1.0, 3.0), (0.0, 5.0))], ids=str
)
def test_frames_in_a_rectangle(potentials, grid):
    """Points outside the box have no mass."""
    unit = (grid.points() - grid.lower_tensor) / max(grid.lengths)
    bump = torch.exp(-20 * ((unit - torch.tensor([0.3, 0.3])) ** 2).sum(-1))
    source, target = Density(bump, grid), Density(1 + unit[..., 0], grid)
    coefficients = potentials(2, radius=0.8)
    frames = path_of((source, target), coefficients).density([0.0, 0.3, 1.0]).tensor
    assert relative_l1(frames[0], source.tensor) < 1e-6
    assert relative_l1(frames[2], target.tensor) < 1e-6
    expected = exact_frame(source, target, coefficients[0], 0.3, grid)
    reach = 0.1  # of the cube, by which the jump of the target's density may be smeared
    clear = (grid.upper_tensor - grid.points()).amin(-1) > reach * max(grid.lengths)
    assert relative_l1(frames[1][clear], expected[clear]) < 2e-3


@DIMENSIONS
@pytest.mark.parametrize("radius", [0.5, 1.9])
def test_ends_are_exact_for_any_potential(potentials, d, radius):
    source, target = mixtures(d, 2)
    path = path_of((source, target), potentials(d, count=2, radius=radius))
    mixed = path.density([1.0, 0.4, 0.0])
    for frame, end in ((mixed.tensor[:, 0], target), (mixed.tensor[:, 2], source)):
        assert torch.allclose(frame, end.tensor, rtol=1e-5, atol=1e-6)
    if radius < 1:
        assert float(mass_error(mixed).max()) < 1e-3 and float(mixed.tensor.min()) >= 0


@pytest.mark.parametrize(("points", "kept"), [(1, 2**23), (600, 0), (2**19, 0)])
def test_chunks_change_nothing(potentials, monkeypatch, points, kept):
    """Pair by pair and time by time, with splines computed once or again for each chunk."""
    ends, coefficients = mixtures(2, 3, 20), potentials(2, count=3)
    whole = path_of(ends, coefficients)
    frames, checks = whole.density(TIMES).tensor, whole._diagnostics()
    monkeypatch.setattr(DensityPairs, "chunk_points", points)
    monkeypatch.setattr(DensityPairs, "max_stored", kept)
    parts = path_of(ends, coefficients)
    assert torch.allclose(parts.density(TIMES).tensor, frames, atol=1e-5)
    assert len(list(parts.pairs.chunks(1))) == (3 if points < 2**19 else 1)
    for name, check in parts._diagnostics().items():
        assert torch.allclose(check, checks[name], rtol=1e-3), name
    assert (parts.pairs._stored is None) == (kept == 0)


@DIMENSIONS
def test_fields_satisfy_hamilton_jacobi(potentials, d):
    """v = ∇u and ∂_t u = −½|v|² by differences; particles move along straight lines."""
    path, step = path_of(mixtures(d, 2, 8), potentials(d, count=2)), 1e-5
    length = path.box.length
    unit = torch.rand(20, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    points = length * (0.05 + 0.9 * unit)
    for t in (0.1, 0.8):
        velocity = path.velocity(t, points)
        assert velocity.shape == (2, 20, d) and float(velocity.abs().max()) > 0.01 * length
        for i in range(d):
            shift = step * torch.eye(d, dtype=torch.float64)[i]
            above, below = (path.potential(t, points + s * shift) for s in (1, -1))
            assert torch.allclose((above - below) / (2 * step), velocity[..., i], atol=1e-5)
        later, earlier = (path.potential(t + s * step, points) for s in (1, -1))
        residual = (later - earlier) / (2 * step) + 0.5 * (velocity**2).sum(-1)
        assert float(residual.abs().max()) < 1e-5
    first = path.velocity(0.0, points)[0]
    for t in (0.3, 1.0):
        there = path.trajectories(t, points)[0]
        assert torch.allclose(there, points + t * first, atol=1e-9)
        assert torch.allclose(path.velocity(t, there)[0], first, atol=1e-7)


def test_distance_is_at_least_the_distance_of_the_moments():
    """Without a potential the dual value is zero, but two densities apart are apart."""
    grid = Grid((20, 20), 0.0, 4.0)
    ends = [geonet.GaussianMixture.isotropic([[c, 2.0]], 0.4).to_density(grid) for c in (1.5, 2.5)]
    path = path_of(ends, torch.zeros(1, 4, 4))
    assert float(path.certificate.distance) == 0
    assert float(path.distance) == pytest.approx(1.0, rel=1e-3)
    assert path.report.distance_lower_bound == pytest.approx(float(path.distance))


@pytest.mark.parametrize("whole", [True, False])
def test_save_and_load(potentials, tmp_path, whole):
    """With and without calibration, a batch and its pairs."""
    options = {}
    if whole:
        options["in_distribution"] = torch.tensor([True, False])
        options["calibration"] = Calibration(0.25, 0.1)
    batch = path_of(mixtures(2, 2, 16), potentials(2, count=2), **options)
    assert bool(batch.estimate_error().isinf().all()) != whole  # unknown without calibration
    for path in (batch, batch[0]):
        loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.5]))
        assert isinstance(loaded, CosineGeodesic)
        assert loaded.report.to_dict() == path.report.to_dict()
        assert torch.equal(loaded.density(0.3).tensor, path.density(0.3).tensor)
        assert np.array_equal(loaded.velocity(0.3, [[1.0, 2.0]]), path.velocity(0.3, [[1.0, 2.0]]))
        assert np.array_equal(loaded.is_certified, path.is_certified)
