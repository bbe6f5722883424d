"""Tests of the solver "midpoint": exact paths, any grid, difficult densities, options."""

from itertools import count

import numpy as np
import pytest
import torch

import geonet
from benchmarks.pairs import KINDS, draw, exact_pair
from geonet import Density, Grid
from geonet.errors import ConvergenceWarning, SolverError
from geonet.metrics import l1, mass_error
from geonet.solvers.newton import compiled, iteration
from geonet.solvers.newton.solver import Midpoint

QUARTERS = (0.25, 0.5, 0.75)
# L1 at 64², in percent, at the quarters: cells along a rim or along a kink of the potential.
ALLOWED = {
    "torn-disc": 3.5,
    "ring-to-disc": 2.5,
    "texture-shift": 1.0,
    "known-map": 1.0,
    "torn-mixture": 2.5,
    "torn-and-squeezed": 3.0,
}


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def solve(source, target, **options):
    return geonet.geodesic(source, target, "midpoint", **options)


def solve_checked(source, target, **options):
    """Solve and check convergence, mass, sign and ends."""
    path = solve(source, target, **options)
    frames = path.density([0.0, 0.3, 0.5, 1.0])
    assert path.info["converged"] is True and path.info["residual"] <= 4e-3
    assert float(frames.tensor.min()) >= 0 and float(mass_error(frames).max()) < 1e-6
    assert torch.equal(frames.tensor[0], path.source.tensor.double())
    assert torch.equal(frames.tensor[-1], path.target.tensor.double())
    return path


# ---- exact paths


@pytest.mark.parametrize(
    ("cells", "factor", "rel"),
    [(64, 1.0, 3e-3), pytest.param(128, 0.6, 1e-3, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", ALLOWED)
def test_exact_pairs(name, cells, factor, rel):
    pair = exact_pair(name, cells)
    path = solve_checked(pair.source, pair.target)
    worst = max(float(l1(path.density(t), pair.truth(t))) for t in QUARTERS)
    assert 100 * worst < factor * ALLOWED[name]
    assert float(path.distance) == pytest.approx(pair.distance, rel=rel)


@pytest.mark.parametrize("kind", ["waves", "holes", "steps"])
def test_lines_against_quantiles(kind):
    grid = Grid(128, -1.0, 3.0)
    x = grid.points()[..., 0]
    values = [1.2 + torch.cos(2 * x), 1.1 + torch.sin(3 * x)]
    if kind == "holes":
        values = [values[0] * (x < 1), values[1] * ((x - 1).abs() > 0.5)]
    if kind == "steps":
        values = [noise(8, seed=k).repeat_interleave(16) + 0.05 for k in (1, 2)]
    ends = [Density(own, grid) for own in values]
    path, truth = solve_checked(*ends), geonet.geodesic(*ends, "quantile")
    assert float(path.distance) == pytest.approx(float(truth.distance), rel=3e-3)
    for t in QUARTERS:
        assert float(l1(path.density(t), truth.density(t))) < 0.02


def test_gaussians_against_the_closed_form():
    grid = Grid((48, 48))
    ends = [
        Density((-(((grid.points() - torch.tensor(m)) / s) ** 2).sum(-1) / 2).exp(), grid)
        for m, s in (((0.4, 0.45), 0.07), ((0.6, 0.5), 0.09))
    ]
    exact = (0.2**2 + 0.05**2 + 2 * 0.02**2) ** 0.5
    assert float(solve_checked(*ends).distance) == pytest.approx(exact, rel=3e-3)


@pytest.mark.skipif(not compiled.is_available(), reason="torch takes minutes")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pair(kind):
    """On 32 × 32 cells; spots of one cell may be too small for the grid."""
    source, target = draw(kind, 32, 1)
    if kind == "spots":
        assert solve(source, target, tolerance=0.03).info["converged"]
    else:
        solve_checked(source, target)


# ---- grids


@pytest.mark.parametrize(
    "grid",
    [
        Grid(2),
        Grid((2, 2)),
        Grid((17, 2), 0.0, (1.0, 3.0)),
        Grid((40, 25), 0.0, (2.0, 1.0)),
        Grid((2, 2, 2)),
        Grid((12, 3, 8), 0.0, (1.0, 0.2, 2.0)),
    ],
    ids=str,
)
def test_any_grid(grid):
    ends = [Density(noise(*grid.shape, seed=k) + 0.2, grid) for k in (1, 2)]
    path = solve_checked(*ends)
    factors = np.array(path.info["cells"]) / grid.shape
    assert set(factors.tolist()) <= {1.0, 2.0, 4.0}
    if max(grid.shape) < 20 and grid.dimension < 3:  # bounds of fine cells take seconds
        lower, upper = path.report.distance_lower_bound, path.report.distance_upper_bound
        assert lower <= upper
        if grid.dimension == 1:
            assert lower <= float(geonet.geodesic(*ends, "quantile").distance) <= upper


# ---- difficult densities


@pytest.mark.parametrize("d", [1, 2])
def test_atoms(d):
    shape = (32,) if d == 1 else (16, 16)
    source, target = torch.zeros(2, *shape).double()
    first, last = ((6,), (26,)) if d == 1 else ((3, 4), (13, 10))
    source[first], target[last] = 1, 1
    path = solve_checked(Density(source, Grid(shape)), Density(target, Grid(shape)))
    exact = sum(((a - b) / shape[0]) ** 2 for a, b in zip(first, last, strict=True)) ** 0.5
    assert float(path.distance) == pytest.approx(exact, rel=2e-3)
    middle = torch.zeros(shape).double()
    middle[tuple((a + b) // 2 for a, b in zip(first, last, strict=True))] = 1
    assert float(l1(path.density(0.5), Density(middle, Grid(shape)))) < 0.05


def test_contrast_of_a_million():
    grid = Grid((32, 32))

    def disc(centre, radius, floor):
        inside = (grid.points() - torch.tensor(centre)).norm(dim=-1) < radius
        return Density(floor + inside.double(), grid)

    high, empty = (
        solve_checked(disc((0.3, 0.3), 0.2, floor), disc((0.7, 0.6), 0.15, floor))
        for floor in (1e-6, 0.0)
    )
    assert float(high.distance) == pytest.approx(float(empty.distance), rel=2e-3)
    assert float(l1(high.density(0.5), empty.density(0.5))) < 0.03


def test_torch_agrees_with_the_kernels(monkeypatch):
    pair = exact_pair("torn-disc", 16)
    fast = solve_checked(pair.source, pair.target)
    monkeypatch.setenv("GEONET_COMPILED", "0")
    reference = solve_checked(pair.source, pair.target)
    assert float(fast.distance) == pytest.approx(float(reference.distance), rel=3e-3)
    assert float(l1(fast.density(0.5), reference.density(0.5))) < 0.02


# ---- options


def smooth_pair(n=32):
    grid = Grid((n, n))
    x, y = grid.points().unbind(-1)
    return Density(1.2 + torch.cos(3 * (x + y)), grid), Density(1.5 + torch.sin(4 * x), grid)


def test_start_from_a_network_or_from_coefficients():
    ends = smooth_pair()
    zero = solve_checked(*ends)
    for start in ("network", zero.coefficients, torch.zeros(5, 7), 1e-4 * noise(70, 50)):
        path = solve_checked(*ends, start=start)
        assert float(path.distance) == pytest.approx(float(zero.distance), rel=2e-3)
        assert float(l1(path.density(0.5), zero.density(0.5))) < 0.01
    again = solve(*ends, start=zero.coefficients)
    assert again.info["newton steps"] == [0]
    assert torch.allclose(again.coefficients, zero.coefficients)
    assert Midpoint(start=np.zeros((6, 6)))(*ends).info["converged"]


def test_tolerance():
    for tolerance in (0.05, 1e-3, 1e-4):
        assert solve(*smooth_pair(), tolerance=tolerance).info["residual"] <= tolerance


def test_max_iterations():
    """A path that has not converged has frames of mass one and valid bounds."""
    pair = exact_pair("torn-disc", 32)
    with pytest.warns(ConvergenceWarning, match=r"did not reach the tolerance of 0.2 % \("):
        path = solve(pair.source, pair.target, max_iterations=1, refine=False)
    assert path.report.info["converged"] is False and path.info["residual"] > 4e-3
    frames = path.density([0.3, 0.5])
    assert float(mass_error(frames).max()) < 1e-6 and float(frames.tensor.min()) >= 0
    allowed = 0.3 / 32**2  # cells are means
    assert path.report.distance_lower_bound**2 - allowed < pair.distance**2
    assert path.report.distance_upper_bound**2 + allowed > pair.distance**2
    ends = [torch.stack([pair.source.tensor, end.tensor]) for end in (pair.source, pair.target)]
    source, target = (Density(values, pair.source.grid) for values in ends)
    with pytest.warns(ConvergenceWarning, match="Pairs 1 of 2 did not reach the tolerance"):
        solve(source, target, max_iterations=1, refine=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, "tolerance is 0"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"time_limit": 0.0}, "time_limit is 0"),
        ({"start": "guess"}, "start is 'guess'"),
        ({"start": torch.zeros(4)}, "start has 1 axes"),
        ({"start": torch.full((4, 4), torch.nan)}, "not finite"),
        ({"reach": 0.0}, "reach is 0.0; give a finite length above 0"),
        ({"reach": 0.1, "growth": "fast"}, "give 'hellinger' or 'wfr'"),
        ({"growth": "wfr"}, "growth is 'wfr' without a reach"),
        ({"reach": 0.1, "start": "network"}, "solves balanced problems"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(SolverError, match=message):
        solve(*smooth_pair(8), **options)


def test_time_limit(monkeypatch):
    """With a clock that advances a second per reading, no step begins after three."""
    ticks = count()
    monkeypatch.setattr(iteration, "monotonic", lambda: float(next(ticks)))
    grid = Grid((32, 32))
    ends = [Density(values**4, grid) for values in noise(2, 32, 32, seed=0)]
    with pytest.warns(ConvergenceWarning, match="did not reach the tolerance"):
        path = solve(*ends, time_limit=3.0)
    assert path.info["converged"] is False
    assert path.info["stopped after"] == "time_limit, 3 s"
    assert sum(path.info["newton steps"]) <= 3 and path.info["cells"] == [32, 32]
    slower = solve(*ends, time_limit=1e6)
    assert slower.info["residual"] < path.info["residual"]
    assert "stopped after" not in slower.info
    assert torch.equal(slower.coefficients, solve(*ends).coefficients)


@pytest.mark.parametrize("solver", ["auto", "midpoint"])
def test_warnings_point_to_the_calling_line(solver):
    atom = torch.zeros(16, 16)
    atom[2, 3] = 1
    ends = Density(atom, Grid((16, 16))), Density(torch.ones(16, 16), Grid((16, 16)))
    with pytest.warns(ConvergenceWarning) as record:
        geonet.geodesic(*ends, solver, time_limit=1e-9)
    assert [warning.filename for warning in record] == [__file__]
