"""Paths of the transport form against exact characteristics in double precision."""

from __future__ import annotations

import json
import subprocess
import sys

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
    both = family(2 * count, torch.Generator().manual_seed(d)).to_density(
        box if cells is None else box.with_shape(cells)
    )
    return Density(both.tensor[:count], both.grid), Density(both.tensor[count:], both.grid)


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
    known = known_pair(d, length=3.0)
    path = path_of((known.source, known.target), known.coefficients)
    for t in TIMES:
        assert relative_l1(path.density(t).tensor, known.density(t, path.grid)) < 1e-3
    assert float(path.distance) == pytest.approx(known.distance, rel=1e-3)


@pytest.mark.parametrize("cells", [(20, 31), (100, 60)])
def test_frames_on_other_grids(known_pair, cells):
    known = known_pair(2)
    grid = known.source.grid.with_shape(cells)
    path = path_of((known.source, known.target), known.coefficients)
    assert relative_l1(path.density(0.3, grid).tensor, known.density(0.3, grid)) < 1e-3


@pytest.mark.parametrize(
    "grid",
    [
        Grid((40, 20), 0.0, (2.0, 1.0)),
        Grid((20, 40), (-1.0, 3.0), (0.0, 5.0)),
        Grid((32, 27), 0.0, (1.0, 0.7)),
    ],
    ids=str,
)
def test_frames_in_a_rectangle(potentials, grid):
    """Points outside the box have no mass."""
    where = (grid.points() - grid.lower_tensor) / max(grid.lengths)
    bump = torch.exp(-20 * ((where - torch.tensor([0.3, 0.3])) ** 2).sum(-1))
    source, target = Density(bump, grid), Density(1 + where[..., 0], grid)
    coefficients = potentials(2, radius=0.8)
    frames = path_of((source, target), coefficients).density([0.0, 0.3, 1.0]).tensor
    assert (
        relative_l1(frames[0], source.tensor) < 1e-6
        and relative_l1(frames[2], target.tensor) < 1e-6
    )
    expected = exact_frame(source, target, coefficients[0], 0.3, grid)
    reach = 0.1  # of the cube, by which the jump of the target's density may be smeared
    clear = (grid.upper_tensor - grid.points()).amin(-1) > reach * max(grid.lengths)
    assert relative_l1(frames[1][clear], expected[clear]) < 2e-3


@DIMENSIONS
@pytest.mark.parametrize("radius", [0.5, 1.9])
def test_ends_are_exact_for_any_potential(potentials, d, radius):
    source, target = mixtures(d, 2)
    path = path_of((source, target), potentials(d, count=2, radius=radius))
    frames = path.density([0.0, 1.0]).tensor
    assert torch.allclose(frames[:, 0], source.tensor, rtol=1e-5, atol=1e-6)
    assert torch.allclose(frames[:, 1], target.tensor, rtol=1e-5, atol=1e-6)
    mixed = path.density([1.0, 0.4, 0.0]).tensor
    assert torch.equal(mixed[:, 0], frames[:, 1]) and torch.equal(mixed[:, 2], frames[:, 0])


@DIMENSIONS
def test_mass_and_sign_are_kept(potentials, d):
    path = path_of(mixtures(d, 2), potentials(d, count=2))
    frames = path.density(TIMES)
    assert float(mass_error(frames).max()) < 1e-3
    assert float(frames.tensor.min()) >= 0
    coarse = path.density(0.5, path.grid.with_shape(path.grid.shape[0] // 2))
    assert float(mass_error(coarse).max()) < 5e-3


@DIMENSIONS
def test_batch_equals_single_pairs(potentials, d):
    source, target = mixtures(d, 3, {1: 100, 2: 24, 3: 10}[d])
    coefficients = potentials(d, count=3)
    together = path_of((source, target), coefficients)
    assert together.density(TIMES).tensor.shape == (3, len(TIMES), *source.grid.shape)
    for k in range(3):
        alone = path_of((source[k], target[k]), coefficients[k : k + 1])
        assert alone.density(TIMES).tensor.shape == (len(TIMES), *source.grid.shape)
        assert torch.allclose(
            together.density(TIMES).tensor[k], alone.density(TIMES).tensor, atol=1e-4
        )
        assert torch.allclose(together.distance[k], alone.distance, rtol=1e-5)


def test_indexing_a_batch(potentials):
    source, target = mixtures(2, 2, 16)
    calibration, in_distribution = Calibration(0.5, 0.1), torch.tensor([True, False])
    info = {"model": "by hand", "corrected": [False, True]}
    coefficients = potentials(2, count=2)
    path = CosineGeodesic(source, target, "name", info, coefficients, calibration, in_distribution)
    for k in range(2):
        own = path[k]
        assert (own.batch, own.solver, own.calibration) == ((), "name", calibration)
        assert own.info == {"model": "by hand", "corrected": bool(k)}
        assert own.report.in_distribution is not bool(k)
        assert own.report.mismatch == pytest.approx(path.report.mismatch[k], rel=1e-4)
        assert torch.allclose(own.density(0.3).tensor, path.density(0.3).tensor[k], atol=1e-5)


@pytest.mark.parametrize(
    ("points", "kept"), [(1, 2**23), (600, 2**23), (1, 0), (600, 0), (2**19, 0)]
)
def test_chunks_change_nothing(potentials, monkeypatch, points, kept):
    """Pair by pair, time by time, with ends made ready again and again."""
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts memory as Linux does")
def test_memory_is_bounded():
    code = """
import json, resource, torch
from geonet import Density, Grid
from geonet.metrics import mass_error
from geonet.solvers.neural.transport.path import CosineGeodesic

def held():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

grid = Grid((256, 256))
wave = torch.cos(3 * grid.points()).sum(-1)
coefficients = torch.zeros(1, 4, 4)
coefficients[0, 1, 0] = coefficients[0, 1, 2] = 0.02
ends = Density(2.5 + wave, grid), Density(2.5 - wave, grid)
path = CosineGeodesic(*ends, "by hand", {}, coefficients)
before = held()
frames = path.density(torch.linspace(0, 1, 21))
print(json.dumps([list(frames.tensor.shape), held() - before]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shape, megabytes = json.loads(done.stdout)
    assert shape == [21, 256, 256]
    assert megabytes < 250


@DIMENSIONS
def test_hamilton_jacobi_equation(potentials, d):
    path, step = path_of(mixtures(d, 2, 8), potentials(d, count=2)), 1e-5
    length = path.box.length
    unit = torch.rand(20, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    points = length * (0.05 + 0.9 * unit)
    for t in (0.1, 0.5, 0.8):
        velocity = path.velocity(t, points)
        assert velocity.shape == (2, 20, d) and float(velocity.abs().max()) > 0.01 * length
        for i in range(d):
            shift = step * torch.eye(d, dtype=torch.float64)[i]
            above, below = (path.potential(t, points + s * shift) for s in (1, -1))
            assert torch.allclose((above - below) / (2 * step), velocity[..., i], atol=1e-5)
        later, earlier = (path.potential(t + s * step, points) for s in (1, -1))
        residual = (later - earlier) / (2 * step) + 0.5 * (velocity**2).sum(-1)
        assert float(residual.abs().max()) < 1e-5


@DIMENSIONS
def test_particles_move_along_straight_lines(potentials, d):
    path = path_of(mixtures(d, 1, 8), potentials(d))
    start = path.box.length * torch.rand(
        10, d, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    first = path.velocity(0.0, start)[0]
    for t in (0.3, 1.0):
        there = path.trajectories(t, start)[0]
        assert torch.allclose(there, start + t * first, atol=1e-9)
        assert torch.allclose(path.velocity(t, there)[0], first, atol=1e-7)


CHECKS = {
    "distance_lower_bound",
    "distance_upper_bound",
    "mismatch",
    "hamilton_jacobi",
    "smallest_determinant",
}


def test_report_with_and_without_calibration(potentials):
    path = path_of(mixtures(2, 2, 16), potentials(2, count=2))
    report = path.report
    assert set(path._diagnostics()) == CHECKS
    assert report.error_estimate is None and report.in_distribution is None
    assert not bool(path.is_certified.any())
    assert bool(path.estimate_error().isinf().all())
    path = path_of(
        mixtures(2, 2, 16),
        potentials(2, count=2),
        calibration=Calibration(0.5, 10.0),
        in_distribution=torch.tensor([True, False]),
    )
    report = path.report
    expected = path.calibration.estimate_error(torch.tensor(report.mismatch)).tolist()
    assert report.error_estimate == pytest.approx(expected)
    assert report.in_distribution == [True, False]
    assert bool(path.is_certified.all())
    path.calibration = Calibration(0.5, sum(report.mismatch) / 2)
    assert sorted(path.is_certified.tolist()) == [False, True]


def test_distance_is_at_least_the_distance_of_the_moments():
    """Without a potential the dual value is zero, but two densities apart are apart."""
    grid = Grid((20, 20), 0.0, 4.0)
    ends = [geonet.GaussianMixture.isotropic([[c, 2.0]], 0.4).to_density(grid) for c in (1.5, 2.5)]
    path = path_of(ends, torch.zeros(1, 4, 4))
    assert float(path.certificate.distance) == 0
    assert float(path.distance) == pytest.approx(1.0, rel=1e-3)
    assert path.report.distance_lower_bound == pytest.approx(float(path.distance))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("single", [True, False])
def test_save_and_load(potentials, tmp_path, single, whole):
    source, target = mixtures(2, 2, 16)
    ends = (source[0], target[0]) if single else (source, target)
    count = 1 if single else 2
    options = {}
    if whole:
        in_distribution = torch.tensor([True, False])[:count]
        options = {"calibration": Calibration(0.25, 0.1), "in_distribution": in_distribution}
    path = path_of(ends, potentials(2, count=count), **options)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.5]))
    assert isinstance(loaded, CosineGeodesic)
    assert loaded.report.to_dict() == path.report.to_dict()
    assert torch.equal(loaded.density(0.3).tensor, path.density(0.3).tensor)
    assert np.array_equal(loaded.velocity(0.3, [[1.0, 2.0]]), path.velocity(0.3, [[1.0, 2.0]]))
    assert np.array_equal(loaded.is_certified, path.is_certified)
