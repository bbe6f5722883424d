"""Paths with a reach: closed forms, limits, laws, gradients, files and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import geonet
from benchmarks.problems import (
    SHOWERS,
    Gaussian,
    dirac_cost,
    draw_shape,
    draw_showers,
    gaussian_hellinger_cost,
)
from geonet import Density, Grid
from geonet.errors import InputError, SolverError
from geonet.metrics import l1

GROWTHS = ("hellinger", "wfr")
GRID = Grid((32, 32))
FIRST = Gaussian((0.42, 0.50), (0.0080, 0.0030, 0.0032), 1.0)
SECOND = Gaussian((0.56, 0.46), (0.0032, -0.0010, 0.0060), 1.8)
every_growth = pytest.mark.parametrize("growth", GROWTHS)


def as_arrays(*ends):
    """Return densities that hold NumPy arrays, as do their results."""
    return tuple(Density(end.numpy("given"), end.grid) for end in ends)


def gaussians(grid=GRID):
    return as_arrays(FIRST.to_density(grid), SECOND.to_density(grid))


def bumps(grid, seed, mass):
    """Return a positive density with a bump on every axis, smooth across periodic faces."""
    values, generator = torch.ones(grid.shape), torch.Generator().manual_seed(seed)
    lower, lengths = torch.tensor(grid.lower), torch.tensor(grid.lengths)
    for place in ((grid.points() - lower) / lengths).unbind(-1):
        centre = 0.3 + 0.4 * torch.rand(1, generator=generator).double()
        values = values * (0.3 + torch.exp(4 * torch.cos(2 * torch.pi * (place - centre)) - 4))
    return Density((values * (mass / values.sum() / grid.cell_volume)).numpy(), grid)


def fade_cost(source, target, reach):
    roots = (np.sqrt(end.numpy("given")) for end in (source, target))
    difference = np.subtract(*roots)
    return reach**2 / 2 * float(np.square(difference).sum()) * source.grid.cell_volume


@pytest.fixture(scope="module")
def paths():
    return {kind: geonet.geodesic(*gaussians(), reach=0.3, growth=kind) for kind in GROWTHS}


# ---- Problems with exact answers


@pytest.mark.parametrize("reach", [0.1, 0.3, 2.0])
def test_gaussians(reach):
    """Densities count as constant in cells of 1/64, a fourth of the smallest deviation."""
    path = geonet.geodesic(*gaussians(Grid((64, 64))), reach=reach)
    exact = gaussian_hellinger_cost(FIRST, SECOND, reach)
    assert path.info["converged"]
    assert path.cost == pytest.approx(exact, rel=8e-3)
    lower, upper = path.cost_bounds
    assert lower <= path.cost <= upper and upper - lower < 0.02 * exact


@pytest.mark.parametrize(("cells", "allowed"), [(1, 2e-3), (4, 8e-3), (8, 0.015), (20, 2e-3)])
def test_two_spots(cells, allowed):
    """Spots of a cell of 1/32 are close to Diracs; beyond ½π·reach, 12.6 cells, both fade."""
    values = np.zeros((2, 32, 32))
    values[0, 16, 6], values[1, 16, 6 + cells] = 32**2, 2 * 32**2
    path = geonet.geodesic(*(Density(own, GRID) for own in values), reach=0.25, growth="wfr")
    exact = dirac_cost((1.0, 2.0), cells / 32, 0.25)
    assert path.cost == pytest.approx(exact, rel=allowed)
    assert path.density(0.5).mass == pytest.approx(1.5 - 0.5 * exact / 0.25**2, rel=0.02)


@every_growth
def test_long_reach_is_balanced_transport(growth):
    source, target = as_arrays(*(draw_shape(name, Grid((48, 48))) for name in ("disc", "cross")))
    balanced = geonet.geodesic(source, target, "midpoint", tolerance=2e-4)
    path = geonet.geodesic(source, target, reach=100.0, growth=growth, tolerance=2e-4)
    assert path.cost == pytest.approx(balanced.distance**2 / 2, rel=1e-3)
    assert path.distance == pytest.approx(balanced.distance, rel=1e-3)
    assert path.transported_share > 1 - 1e-4
    for t in (0.25, 0.5):
        assert l1(path.density(t), balanced.density(t)) < 6e-3
    assert path.density(0.5).mass == pytest.approx(1, abs=2e-3)
    points = np.array([[0.3, 0.5], [0.55, 0.6]])
    assert np.allclose(path.velocity(0.3, points), balanced.velocity(0.3, points), atol=3e-3)


@every_growth
def test_short_reach_is_a_fade(growth):
    """The reach is a sixth of a cell; mass grows linearly, or with the square of time."""
    source, target = gaussians()
    path = geonet.geodesic(source, target, reach=0.005, growth=growth)
    assert path.cost == pytest.approx(fade_cost(source, target, 0.005), rel=0.02)
    first, last = (end.numpy("given") for end in (source, target))
    frame = 0.7 * first + 0.3 * last
    if growth == "wfr":
        frame = (0.7 * np.sqrt(first) + 0.3 * np.sqrt(last)) ** 2
    found = path.density(0.3).numpy("given")
    assert np.abs(found - frame).sum() / frame.sum() < 0.03


def test_showers_keep_their_own_masses():
    source, target = draw_showers(Grid((48, 48)))
    path = geonet.geodesic(source, target, reach=0.15)
    frame = path.density(0.5).numpy("given") / 48**2
    left = np.add.outer(np.arange(48), np.arange(48)) < 47  # the diagonal is far from both
    for shower, part in zip(SHOWERS, (left, ~left), strict=True):
        assert frame[part].sum() == pytest.approx(sum(shower.masses) / 2, rel=0.01)


# ---- Laws


@every_growth
def test_ends_and_totals(paths, growth):
    path, (source, target) = paths[growth], gaussians()
    frames, times = path.density([0.0, 0.25, 0.5, 1.0]), np.array([0, 0.25, 0.5, 1])
    assert np.allclose(frames.numpy()[0], source.numpy(), rtol=1e-12, atol=0)
    assert np.allclose(frames.numpy()[-1], target.numpy(), rtol=1e-12, atol=0)
    assert np.allclose(frames.numpy().sum((1, 2)) / 32**2, 1) and frames.numpy().min() >= 0
    masses = (1 - times) * source.mass + times * target.mass
    if growth == "wfr":  # masses along geodesics of the metric are quadratic in time
        masses = masses - 2 * times * (1 - times) * path.cost / path.reach**2
    assert frames.mass == pytest.approx(masses, rel=2e-3 if growth == "wfr" else 1e-12)
    fine = path.density(0.5, Grid((64, 64)))
    assert fine.mass == pytest.approx(frames.mass[2], rel=2e-3)
    assert l1(fine.resample(GRID), path.density(0.5)) < 0.01


@every_growth
def test_exchange_of_the_ends(paths, growth):
    path, back = paths[growth], geonet.geodesic(*gaussians()[::-1], reach=0.3, growth=growth)
    assert back.cost == pytest.approx(path.cost, rel=1e-4)
    assert l1(back.density(0.7), path.density(0.3)) < 1e-3
    points = np.array([[0.45, 0.5], [0.5, 0.45]])
    assert np.allclose(back.velocity(0.7, points), -path.velocity(0.3, points), atol=1e-3)
    rates = back.growth_rate(0.7, points), -path.growth_rate(0.3, points)
    assert np.allclose(*rates, atol=0.01)


@every_growth
def test_units(paths, growth):
    """Check x → 5x − 3 on a box of two lengths, and masses times seven."""
    path, moved = paths[growth], Grid((32, 32), -3, (2, 2))
    ends = (Density(7 / 25 * end.numpy("given"), moved) for end in gaussians())
    large = geonet.geodesic(*ends, reach=1.5, growth=growth)
    assert large.cost == pytest.approx(7 * 25 * path.cost, rel=1e-6)
    assert large.distance == pytest.approx((2 * large.cost) ** 0.5)
    assert large.cost_bounds == pytest.approx(np.array(path.cost_bounds) * 7 * 25, rel=1e-6)
    assert large.transported_share == pytest.approx(path.transported_share)
    frames = large.density(0.4), path.density(0.4)
    assert frames[0].mass == pytest.approx(7 * frames[1].mass)
    assert np.allclose(25 * frames[0].numpy(), frames[1].numpy(), atol=1e-4)
    points = np.array([[0.45, 0.5], [0.5, 0.45]])
    for quantity, factor in (("velocity", 5), ("potential", 25), ("growth_rate", 1)):
        here, there = getattr(path, quantity)(0.4, points), getattr(large, quantity)
        assert np.allclose(there(0.4, 5 * points - 3), factor * here, rtol=1e-4, atol=1e-6)
    ways = path.trajectories([0.4, 1.0], points), large.trajectories([0.4, 1.0], 5 * points - 3)
    assert np.allclose(5 * ways[0] - 3, ways[1], atol=1e-5)


@every_growth
def test_translation_by_whole_cells(paths, growth):
    ends = (Density(np.roll(end.numpy("given"), (2, -1), (0, 1)), GRID) for end in gaussians())
    moved = geonet.geodesic(*ends, reach=0.3, growth=growth)
    assert moved.cost == pytest.approx(paths[growth].cost, rel=1e-3)
    frame = np.roll(paths[growth].density(0.5).numpy(), (2, -1), (0, 1))
    assert np.abs(moved.density(0.5).numpy() - frame).mean() < 2e-3


@every_growth
def test_equal_ends_stand_still(growth):
    source, _ = gaussians()
    path = geonet.geodesic(source, source, reach=0.2, growth=growth)
    assert path.cost == pytest.approx(0, abs=1e-9) and path.distance == pytest.approx(0, abs=1e-4)
    assert path.transported_share == pytest.approx(1)
    assert l1(path.density(0.5), source) < 1e-6
    assert str(path.report.summary()) == (
        "Nothing moves: both densities are equal. Expect an L1 error of 0 % between the ends."
    )


@every_growth
def test_growth_in_place(growth):
    """If only the mass changes, from one to three, the cost is λ(√3 − 1)²."""
    source = bumps(GRID, 0, 1.0)
    path = geonet.geodesic(source, Density(3 * source.numpy(), GRID), reach=0.2, growth=growth)
    assert path.cost == pytest.approx(0.02 * (3**0.5 - 1) ** 2, rel=1e-4)
    assert l1(path.density(0.5), source) < 1e-3
    rate = path.growth_rate(0.5, np.array([[0.4, 0.6]]))
    root = 3**0.5
    exact = 2 / 2 if growth == "hellinger" else 2 * (root - 1) / (0.5 + 0.5 * root)
    assert rate == pytest.approx(np.array([exact]), rel=1e-3)


@every_growth
def test_mass_without_a_partner_fades_in_place(growth):
    """Two spots four reaches apart stay: halfway each has a half, with "wfr" a quarter."""
    points = GRID.points().numpy()
    spots = [np.exp(-((points - place) ** 2).sum(-1) / 0.002) for place in ([0.2, 0.5], [0.8, 0.5])]
    source, target = (Density(spot, GRID) for spot in spots)
    frame = geonet.geodesic(source, target, reach=0.15, growth=growth).density(0.5).numpy("given")
    share = 0.5 if growth == "hellinger" else 0.25
    expected = share * (source.numpy("given") + target.numpy("given"))
    # A share of exp(-8) is transported; half-cells beside steep flanks are wider than their images.
    assert np.abs(frame - expected).sum() < 0.1 * expected.sum()


BOXES = {
    "1D": Grid(128, 0, 2),
    "circle": Grid(128, -1, 1, periodic=True),
    "2D": Grid((40, 40), 0, (1.0, 1.5)),
    "torus": Grid((40, 40), 0, 2, periodic=True),
    "strip": Grid((40, 40), 0, 2, periodic=(False, True)),
    "3D": Grid((10, 10, 10), -1, 1),
}


@every_growth
def test_continuity_equation_with_still_mass(growth):
    """A spot moves beside one that fades; the velocity is a mean of moving and of still mass."""
    grid, step = Grid((64, 64)), 0.02
    points = grid.points().numpy()

    def draw(x: float, y: float, mass: float) -> np.ndarray:
        return mass * np.exp(-((points - [x, y]) ** 2).sum(-1) / 0.01)

    source = Density(draw(0.35, 0.4, 1.0) + draw(0.75, 0.75, 0.6), grid)
    target = Density(draw(0.45, 0.42, 1.3), grid)
    path = geonet.geodesic(source, target, reach=0.15, growth=growth)
    value, slope = np.sin(3 * points[..., 0]), 3 * np.cos(3 * points[..., 0])
    for t in (0.3, 0.6):
        frames = path.density([t - step, t, t + step]).numpy("given")
        velocity, rate = path.velocity(t, points), path.growth_rate(t, points)
        change = ((frames[2] - frames[0]) * value).sum() / (2 * step)
        terms = slope * velocity[..., 0], rate * value
        size = (frames[1] * sum(np.abs(term) for term in terms)).sum()
        assert abs(change - (frames[1] * sum(terms)).sum()) < 0.02 * size


@every_growth
@pytest.mark.parametrize("box", BOXES)
def test_continuity_equation(box, growth):
    """Integrals of smooth functions φ change by ∫(∇φ·v + αφ)dμ, and speeds are constant."""
    grid, step = BOXES[box], 0.02
    points, length = grid.points().numpy(), min(grid.lengths)
    path = geonet.geodesic(
        bumps(grid, 1, 1.0), bumps(grid, 2, 1.7), reach=0.5 * length, growth=growth
    )
    wave = 2 * np.pi / grid.lengths[-1]
    phase = wave * (points[..., -1] - grid.lower[-1]) + 0.4
    tests = ((np.ones(grid.shape), np.zeros(grid.shape)), (np.cos(phase), -wave * np.sin(phase)))
    energies, allowed = [], 0.02 if box == "3D" else 6e-3
    for t in (0.2, 0.5, 0.8):
        frames = path.density([t - step, t, t + step]).numpy("given") * grid.cell_volume
        velocity, rate = (getattr(path, name)(t, points) for name in ("velocity", "growth_rate"))
        for value, slope in tests:
            change = ((frames[2] - frames[0]) * value).sum() / (2 * step)
            terms = slope * velocity[..., -1], rate * value
            size = (frames[1] * sum(np.abs(term) for term in terms)).sum()
            assert abs(change - (frames[1] * sum(terms)).sum()) < allowed * size
        square = (velocity**2).sum(-1) + path.reach**2 / 4 * rate**2
        energies.append(float((frames[1] * square).sum()) / 2)
    if growth == "wfr":
        assert energies == pytest.approx([path.cost] * 3, rel=allowed)


def test_fisher_rao_is_a_metric():
    """It satisfies the triangle inequality, with equality along a geodesic."""
    grid = Grid((24, 24))
    ends = [bumps(grid, seed, mass) for seed, mass in enumerate((1.0, 1.5, 0.7))]
    solve = lambda a, b: geonet.geodesic(a, b, reach=0.3, growth="wfr")  # noqa: E731
    path = solve(*ends[:2])
    around = solve(ends[0], ends[2]).distance + solve(ends[2], ends[1]).distance
    assert path.distance < around
    for t in (0.3, 0.7):
        middle = Density(path.density(t).numpy("given"), grid)
        assert solve(ends[0], middle).distance == pytest.approx(t * path.distance, rel=0.01)
        assert solve(middle, ends[1]).distance == pytest.approx((1 - t) * path.distance, rel=0.01)


def test_particles_follow_the_velocity(paths):
    start, step = np.array([[0.4, 0.5], [0.45, 0.52]]), 1e-3
    for path in paths.values():
        places = path.trajectories([0.0, 0.3 - step, 0.3, 0.3 + step], start)
        assert np.allclose(places[0], start, atol=1e-9)
        speed = (places[3] - places[1]) / (2 * step)
        for k in range(2):
            assert np.allclose(path.velocity(0.3, places[2, k]), speed[k], atol=1e-4)


@every_growth
def test_periodic_axes_are_invariant_under_shifts(growth):
    grid = Grid((32, 24), 0, (1.0, 0.75), periodic=(True, False))
    source, target = bumps(grid, 3, 1.0), bumps(grid, 5, 1.4)
    options = {"reach": 0.2, "growth": growth, "tolerance": 1e-4}
    path = geonet.geodesic(source, target, **options)
    rolled = (Density(np.roll(end.numpy("given"), 13, 0), grid) for end in (source, target))
    moved = geonet.geodesic(*rolled, **options)
    assert moved.cost == pytest.approx(path.cost, rel=1e-3)
    frame = np.roll(path.density(0.5).numpy(), 13, 0)
    assert np.abs(moved.density(0.5).numpy() - frame).mean() * 0.75 < 1e-3


# ---- Gradients


@every_growth
@pytest.mark.parametrize("quantity", ["cost", "distance", "density"])
def test_gradients_are_those_of_finite_differences(growth, quantity):
    """Change both ends along a smooth direction that also changes their masses."""
    grid, step = Grid((16, 16)), 1e-3
    ends = [torch.from_numpy(bumps(grid, k, m).numpy("given")) for k, m in ((1, 1.0), (2, 1.6))]
    x = grid.points()
    ways = [0.3 + torch.cos(3 * x[..., 0]), 0.2 + torch.sin(4 * x[..., 1] + 1)]
    functional = 1 + x[..., 0] ** 2 + torch.cos(5 * x[..., 1])

    def evaluate(s):
        own = (Density(end + s * way, grid) for end, way in zip(ends, ways, strict=True))
        path = geonet.geodesic(*own, "midpoint", reach=0.3, growth=growth, tolerance=1e-5)
        if quantity != "density":
            return getattr(path, quantity)
        return (path.density(0.4).tensor * functional).sum() * grid.cell_volume

    s = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(evaluate(s), s)
    with torch.no_grad():
        difference = (evaluate(s + step) - evaluate(s - step)) / (2 * step)
    assert float(gradient) == pytest.approx(float(difference), rel=0.02)


@every_growth
def test_gradients_between_equal_ends_are_finite(growth):
    values = gaussians()[0].tensor.clone().requires_grad_()
    path = geonet.geodesic(Density(values, GRID), gaussians()[0], reach=0.3, growth=growth)
    (gradient,) = torch.autograd.grad(path.distance, values)
    assert bool(torch.isfinite(gradient).all())


# ---- Results


@every_growth
def test_array_types(paths, growth):
    path, points = paths[growth], np.full((4, 3, 2), 0.45)
    tensors = [FIRST.to_density(GRID), SECOND.to_density(GRID)]
    same = geonet.geodesic(*tensors, reach=0.3, growth=growth)
    for name, shape in (("growth_rate", (4, 3)), ("potential", (4, 3)), ("velocity", (4, 3, 2))):
        values, others = (getattr(own, name)([0.2, 0.6], points) for own in (path, same))
        assert isinstance(values, np.ndarray) and values.shape == (2, *shape)
        assert isinstance(others, torch.Tensor) and np.allclose(others, values)
        assert np.shape(getattr(path, name)(0.2, points)) == shape
    assert isinstance(same.cost, torch.Tensor) and isinstance(path.cost, float)
    assert isinstance(path.distance, float) and isinstance(path.density(0.5).values, np.ndarray)


@every_growth
def test_batches_save_and_load(tmp_path, growth):
    grid = Grid((16, 16))
    ends = gaussians(grid)
    values = np.stack([end.numpy("given") for end in ends])
    both = Density(values, grid), Density(values[::-1].copy(), grid)
    batch = geonet.geodesic(*both, reach=0.3, growth=growth)
    single = geonet.geodesic(*ends, reach=0.3, growth=growth)
    point = np.array([[0.45, 0.5]])
    loaded = geonet.load(batch.save(tmp_path / "batch.npz", times=[0, 0.5, 1]))
    one = geonet.load(single.save(tmp_path / "one.npz", mass="given"))
    assert type(one) is type(single) and type(loaded) is type(batch)
    assert (one.reach, one.growth, one.info) == (0.3, growth, single.info)
    for path in (batch, loaded):
        assert path.cost.shape == path.transported_share.shape == (2,)
        assert not path.is_balanced
        for first, second in ((path[0], single), (path, batch)):
            assert np.allclose(first.cost, second.cost)
            assert np.allclose(first.cost_bounds, second.cost_bounds)
            assert np.allclose(first.growth_rate(0.3, point), second.growth_rate(0.3, point))
            frames = first.density([0.3, 1.0]), second.density([0.3, 1.0])
            assert np.allclose(frames[0].numpy("given"), frames[1].numpy("given"), atol=1e-6)
    assert one.cost == single.cost and one.report == single.report
    with np.load(tmp_path / "one.npz") as arrays:
        assert arrays["mass"][[0, -1]] == pytest.approx([1.0, 1.8], rel=1e-3)
        assert np.allclose(arrays["density"][0], ends[0].numpy("given"))
    assert batch.report.cost == pytest.approx(list(batch.cost))
    assert "pairs" in str(batch.report.summary()) or "Worst" in str(batch.report.summary())


@every_growth
def test_report(paths, growth):
    report = paths[growth].report
    assert report.cost_lower_bound <= report.cost <= report.cost_upper_bound
    assert report.cost == paths[growth].cost
    assert 0.8 < report.transported_share == paths[growth].transported_share < 0.9
    labels = dict(report.rows())
    assert labels["growth"] == growth and labels["reach"] == "0.3" and "W2 distance" not in labels
    summary = str(report.summary())
    assert summary.startswith("Cost certified within ") and " % of the mass is transp" in summary
    assert report.to_dict()["transported_share"] == report.transported_share


# ---- Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reach": 0}, "reach is 0; give a finite length above 0, or leave it out for balanced"),
        ({"reach": -0.1}, "reach is -0.1; give a finite length above 0"),
        ({"reach": float("nan")}, "reach is nan; give a finite length"),
        ({"reach": float("inf")}, "reach is inf; give a finite length"),
        ({"reach": "far"}, "reach of 'midpoint' is 'far'; it takes a number or none"),
        ({"reach": True}, "reach of 'midpoint' is True; it takes a number"),
        ({"reach": [0.1, 0.2]}, r"reach of 'midpoint' is \[0.1, 0.2\]"),
        ({"reach": 0.1, "growth": "fast"}, "growth is 'fast'; give 'hellinger' or 'wfr'"),
        ({"reach": 0.1, "growth": None}, "growth of 'midpoint' is None"),
        ({"growth": "wfr"}, "growth is 'wfr' without a reach; give reach=.*, too"),
        ({"reach": 0.1, "start": "network"}, "with a reach give start='zero'"),
        ({"reach": 2e3}, "reach is 2000, more than 1000 times the longest side of the box"),
    ],
)
def test_bad_options_raise(options, message):
    with pytest.raises(SolverError, match=message):
        geonet.geodesic(*gaussians(), "midpoint", **options)
    if "start" not in options:
        with pytest.raises(SolverError, match=message.replace("midpoint", "auto")):
            geonet.geodesic(*gaussians(), **options)


@pytest.mark.parametrize(
    "name", ["back-and-forth", "schrodinger", "linear-program", "universal-2d"]
)
def test_solvers_without_a_reach_name_those_with_one(name):
    message = f"'{name}' is for balanced transport and takes no reach; choose one of auto, midpoint"
    with pytest.raises(SolverError, match=message):
        geonet.geodesic(*gaussians(), name, reach=0.1)


def test_points_outside_the_box_raise(paths):
    with pytest.raises(InputError, match="outside the box"):
        paths["wfr"].growth_rate(0.5, [[0.5, 1.5]])
