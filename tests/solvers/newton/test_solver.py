"""The solver for any two densities: against exact paths, on any grid, and its options."""

import numpy as np
import pytest
import torch

import geonet
from benchmarks.pairs import KINDS, draw, exact_pair
from geonet import Density, Grid
from geonet.errors import ConvergenceWarning, GridError, SolverError
from geonet.metrics import l1, mass_error
from geonet.solvers.newton import compiled
from geonet.solvers.newton.solver import Midpoint

QUARTERS = (0.25, 0.5, 0.75)
with_loops = pytest.mark.skipif(not compiled.available(), reason="torch alone takes minutes")
# L1 at 64², in percent, at the quarters. Edges are as sharp as cells allow: what is off are the
# cells along a rim, or along the tear of a potential with a kink.
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


def sound(path):
    """Converged, with mass, sign and ends as they should be."""
    frames = path.density([0.0, 0.3, 0.5, 1.0])
    assert path.notes["converged"] is True and path.notes["residual"] <= 4e-3
    assert float(frames.tensor.min()) >= 0 and float(mass_error(frames).max()) < 1e-6
    assert torch.equal(frames.tensor[0], path.source.tensor.double())
    assert torch.equal(frames.tensor[-1], path.target.tensor.double())
    return path


# ---- against exact paths


@pytest.mark.parametrize("name", ALLOWED)
def test_exact_pairs(name):
    pair = exact_pair(name, 64)
    path = sound(solve(pair.source, pair.target))
    worst = max(float(l1(path.density(t), pair.truth(t))) for t in QUARTERS)
    assert 100 * worst < ALLOWED[name]
    assert float(path.distance) == pytest.approx(pair.distance, rel=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALLOWED)
def test_twice_as_fine_is_half_as_wrong(name):
    pair = exact_pair(name, 128)
    path = sound(solve(pair.source, pair.target))
    worst = max(float(l1(path.density(t), pair.truth(t))) for t in QUARTERS)
    assert 100 * worst < 0.6 * ALLOWED[name]
    assert float(path.distance) == pytest.approx(pair.distance, rel=1e-3)


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
    path, truth = sound(solve(*ends)), geonet.geodesic(*ends, "quantile")
    assert float(path.distance) == pytest.approx(float(truth.distance), rel=3e-3)
    for t in QUARTERS:
        assert float(l1(path.density(t), truth.density(t))) < 0.02


@with_loops
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_converges(kind):
    """The second pair of each, on 32 × 32 cells; spots of one cell may be too much for the grid."""
    source, target = draw(kind, 32, 1)
    if kind == "spots":
        path = solve(source, target, tolerance=0.03)
        assert path.notes["converged"]
    else:
        sound(solve(source, target))


def test_gaussians():
    """Against the formula."""
    grid = Grid((48, 48))
    ends = [
        Density((-(((grid.points() - torch.tensor(m)) / s) ** 2).sum(-1) / 2).exp(), grid)
        for m, s in (((0.4, 0.45), 0.07), ((0.6, 0.5), 0.09))
    ]
    exact = (0.2**2 + 0.05**2 + 2 * 0.02**2) ** 0.5
    assert float(sound(solve(*ends)).distance) == pytest.approx(exact, rel=3e-3)


# ---- grids


@pytest.mark.parametrize(
    "grid",
    [
        Grid(2),
        Grid(3, -1.0, 5.0),
        Grid((2, 2)),
        Grid((2, 17)),
        Grid((17, 2), 0.0, (1.0, 3.0)),
        Grid((40, 25), 0.0, (2.0, 1.0)),
        Grid((25, 40), (3.0, -1.0), (3.1, 1.0)),
        Grid((2, 2, 2)),
        Grid((12, 10, 8)),
        Grid((12, 3, 8), 0.0, (1.0, 0.2, 2.0)),
    ],
    ids=str,
)
def test_any_grid(grid):
    ends = [Density(noise(*grid.shape, seed=k) + 0.2, grid) for k in (1, 2)]
    path = sound(solve(*ends))
    if max(grid.shape) < 20 and grid.dimension < 3:  # bounds of fine cells take seconds
        report = path.report
        assert report.distance_lower_bound <= report.distance_upper_bound


def test_one_cell_is_no_grid():
    with pytest.raises(GridError, match="at least 2 whole cells"):
        Grid((1, 8))


def test_few_cells_against_quantiles():
    """Bounds hold where a distance cannot be exact."""
    for n in (2, 3, 4):
        ends = [Density(noise(n, seed=k) + 0.05, Grid(n)) for k in (0, 1)]
        report = sound(solve(*ends)).report
        truth = float(geonet.geodesic(*ends, "quantile").distance)
        assert report.distance_lower_bound <= truth <= report.distance_upper_bound


# ---- difficult ends


def test_equal_ends():
    density = Density(noise(16, 12), Grid((16, 12)))
    path = sound(solve(density, density))
    assert float(path.distance) == 0
    assert float(l1(path.density(0.4), density)) < 1e-6
    assert not bool(path.velocity(0.3, noise(5, 2)).any())


@pytest.mark.parametrize("d", [1, 2])
def test_atoms(d):
    """Single cells that move: by whole cells at the half, as one lump in between."""
    shape = (32,) if d == 1 else (16, 16)
    source, target = torch.zeros(2, *shape).double()
    first, last = ((6,), (26,)) if d == 1 else ((3, 4), (13, 10))
    source[first], target[last] = 1, 1
    path = sound(solve(Density(source, Grid(shape)), Density(target, Grid(shape))))
    exact = sum(((a - b) / shape[0]) ** 2 for a, b in zip(first, last, strict=True)) ** 0.5
    assert float(path.distance) == pytest.approx(exact, rel=2e-3)
    halfway = torch.zeros(shape).double()
    halfway[tuple((a + b) // 2 for a, b in zip(first, last, strict=True))] = 1
    assert float(l1(path.density(0.5), Density(halfway, Grid(shape)))) < 0.05


def test_contrast():
    """Plateaus a million times higher than what is around them, and of different size."""
    grid = Grid((32, 32))

    def disc(place, radius, floor):
        inside = (grid.points() - torch.tensor(place)).norm(dim=-1) < radius
        return Density(floor + inside.double(), grid)

    high, empty = (
        sound(solve(disc((0.3, 0.3), 0.2, floor), disc((0.7, 0.6), 0.15, floor)))
        for floor in (1e-6, 0.0)
    )
    assert float(high.distance) == pytest.approx(float(empty.distance), rel=2e-3)
    assert float(l1(high.density(0.5), empty.density(0.5))) < 0.03


def test_single_precision_ends():
    grid = Grid((16, 16))
    ends = [noise(16, 16, seed=k) + 0.2 for k in (1, 2)]
    double = sound(solve(*(Density(end, grid) for end in ends)))
    single = sound(solve(*(Density(end.float(), grid) for end in ends)))
    assert float(single.distance) == pytest.approx(float(double.distance), rel=1e-4)


def test_without_compiled_loops(monkeypatch):
    pair = exact_pair("torn-disc", 16)
    compiled = sound(solve(pair.source, pair.target))
    monkeypatch.setenv("GEONET_COMPILED", "0")
    plain = sound(solve(pair.source, pair.target))
    assert float(plain.distance) == pytest.approx(float(compiled.distance), rel=3e-3)
    assert float(l1(plain.density(0.5), compiled.density(0.5))) < 0.02


def test_swapped_ends_go_back():
    pair = exact_pair("ring-to-disc", 32)
    there, back = sound(solve(pair.source, pair.target)), sound(solve(pair.target, pair.source))
    assert float(there.distance) == pytest.approx(float(back.distance), rel=2e-3)
    for t in QUARTERS:
        assert float(l1(there.density(t), back.density(1 - t))) < 0.01


# ---- options


def smooth_pair(n=32):
    grid = Grid((n, n))
    x, y = grid.points().unbind(-1)
    return Density(1.2 + torch.cos(3 * (x + y)), grid), Density(1.5 + torch.sin(4 * x), grid)


def test_it_begins_with_a_network_or_with_coefficients():
    ends = smooth_pair()
    zero = sound(solve(*ends))
    starts = ["network", zero.coefficients, torch.zeros(5, 7), 1e-4 * noise(70, 50)]
    for start in starts:
        path = sound(solve(*ends, start=start))
        assert float(path.distance) == pytest.approx(float(zero.distance), rel=2e-3)
        assert float(l1(path.density(0.5), zero.density(0.5))) < 0.01
    again = solve(*ends, start=zero.coefficients)
    assert again.notes["newton steps"] == [0]
    assert torch.allclose(again.coefficients, zero.coefficients)
    assert Midpoint(start=np.zeros((6, 6)))(*ends).notes["converged"]  # an array will do


def test_the_tolerance_is_reached():
    ends = smooth_pair()
    for tolerance in (0.05, 1e-3, 1e-4):
        path = solve(*ends, tolerance=tolerance)
        assert path.notes["residual"] <= 2 * tolerance


def test_refine_can_be_turned_off():
    ends = [Density(noise(16, 16, seed=k) ** 4 + 1e-3, Grid((16, 16))) for k in (1, 2)]
    assert sound(solve(*ends)).notes["cells"] != [16, 16]
    assert solve(*ends, refine=False, tolerance=0.02).notes["cells"] == [16, 16]


def test_too_few_steps_are_told():
    pair = exact_pair("torn-disc", 32)
    with pytest.warns(
        ConvergenceWarning, match=r"The pair did not reach the tolerance of 0.2 % \("
    ):
        path = solve(pair.source, pair.target, max_steps=1, refine=False)
    assert path.report.notes["converged"] is False
    assert path.notes["residual"] > 4e-3
    frames = path.density([0.3, 0.5])
    assert float(mass_error(frames).max()) < 1e-6 and float(frames.tensor.min()) >= 0
    allowed = 0.3 / 32**2  # cells are means
    assert path.report.distance_lower_bound**2 - allowed < pair.distance**2
    assert path.report.distance_upper_bound**2 + allowed > pair.distance**2


def test_a_batch_says_which_pairs_did_not_converge():
    pair, grid = exact_pair("torn-disc", 32), Grid((32, 32))
    still, (first, second) = pair.source.tensor, (pair.source.tensor, pair.target.tensor)
    source = Density(torch.stack([still, first]), grid)
    target = Density(torch.stack([still, second]), grid)
    with pytest.warns(ConvergenceWarning, match="Pairs 1 of 2 did not reach the tolerance"):
        path = solve(source, target, max_steps=1, refine=False)
    assert [own.notes["converged"] for own in path.paths] == [True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, r"tolerance is 0; give a share of the mass in \(0, 1\)"),
        ({"tolerance": 1.5}, r"tolerance is 1.5; give a share of the mass in \(0, 1\)"),
        ({"tolerance": float("nan")}, "tolerance is nan; give a share"),
        ({"max_steps": 0}, "max_steps is 0; give at least 1"),
        ({"start": "guess"}, "start is 'guess'; give 'zero', 'network' or an array"),
        ({"start": 3}, "option start of 'midpoint' is 3; it takes a name or an array"),
        ({"start": torch.zeros(4)}, "start has 1 axes .* give finite coefficients with 2 axes"),
        ({"start": torch.full((4, 4), torch.nan)}, "not finite; give finite coefficients"),
        ({"steps": 3}, "no option 'steps'; did you mean 'max_steps'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(SolverError, match=message):
        solve(*smooth_pair(8), **options)


def test_every_dimension_has_a_network_to_begin_with():
    for d, n in ((1, 32), (2, 16), (3, 8)):
        grid = Grid((n,) * d)
        ends = [Density(noise(*grid.shape, seed=k) + 1, grid) for k in (1, 2)]
        assert solve(*ends, start="network").notes["converged"]


# ---- a limit on its time


def test_after_its_time_it_answers_with_the_best_so_far(monkeypatch):
    """Every look at the clock takes a second: after three no step begins."""
    from itertools import count

    from geonet.solvers.newton import iteration as walk

    ticks = count()
    monkeypatch.setattr(walk, "monotonic", lambda: float(next(ticks)))
    grid = geonet.Grid((32, 32))
    noise = torch.rand(2, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ends = [geonet.Density(values**4, grid) for values in noise]
    with pytest.warns(ConvergenceWarning, match="did not reach the tolerance"):
        path = geonet.geodesic(*ends, "midpoint", time_limit=3.0)
    assert path.notes["converged"] is False
    assert path.notes["stopped after"] == "time_limit, 3 s"
    assert sum(path.notes["newton steps"]) <= 3
    assert tuple(path.notes["cells"]) == grid.shape
    assert np.allclose(path.density(0.5).tensor.sum() * grid.cell_volume, 1)
    slower = geonet.geodesic(*ends, "auto", learned=False, time_limit=1e6)
    assert slower.notes["residual"] < path.notes["residual"]
    assert "stopped after" not in slower.notes


def test_a_limit_that_is_none_changes_nothing(pair_2d):
    first, second = (geonet.geodesic(*pair_2d, "midpoint", time_limit=t) for t in (None, 1e6))
    assert torch.equal(first.coefficients, second.coefficients)
    with pytest.raises(SolverError, match="time_limit is 0; give seconds above 0."):
        geonet.solver("midpoint", time_limit=0.0)


@pytest.mark.parametrize("solver", ["auto", "midpoint"])
def test_a_warning_is_at_the_line_that_asked(solver):
    atom = torch.zeros(16, 16)
    atom[2, 3] = 1
    ends = Density(atom, Grid((16, 16))), Density(torch.ones(16, 16), Grid((16, 16)))
    with pytest.warns(ConvergenceWarning) as seen:
        geonet.geodesic(*ends, solver, time_limit=1e-9)
    assert [one.filename for one in seen] == [__file__]
