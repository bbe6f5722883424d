"""Tests of the bounds of unbalanced transport: valid for any potential, tight for good ones."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import fsolve, minimize

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.numerics.splines import interpolate_centres
from geonet.solvers.newton.unbalanced_bounds import bound_unbalanced


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def find_quadratic(ends, reach):
    """Return α, β, γ of u = α + βx + ½γx² between two Gaussians (mass, mean, deviation)."""
    rate = reach**2 / 2
    (m0, x0, s0), (m1, x1, s1) = ends

    def mismatch(p, y):
        u, slope = p[0] + p[1] * y + p[2] * y**2 / 2, p[1] + p[2] * y
        first = math.log(m0 / s0) - (y - slope / 2 - x0) ** 2 / 2 / s0**2
        first += (u - slope**2 / 4) / rate + np.log(1 - p[2] / 2)
        second = math.log(m1 / s1) - (y + slope / 2 - x1) ** 2 / 2 / s1**2
        return first - second + (u + slope**2 / 4) / rate - np.log(1 + p[2] / 2)

    start = [0.0, x1 - x0, 0.0]
    return fsolve(lambda p: [mismatch(p, y) for y in (x0, (x0 + x1) / 2, x1)], start, xtol=1e-12)


def solve_gaussians(ends, reach, n):
    """Return coefficients, densities, and the cost of Gaussians on a line."""
    rate = reach**2 / 2
    p = find_quadratic(ends, reach)
    y = np.linspace(-1, 2, 30001)
    u, slope = p[0] + p[1] * y + p[2] * y**2 / 2, p[1] + p[2] * y
    (m0, x0, s0), _ = ends
    matched = m0 / s0 * np.exp(-((y - slope / 2 - x0) ** 2) / 2 / s0**2 + (u - slope**2 / 4) / rate)
    matched = matched.sum() * (1 - p[2] / 2) / math.sqrt(2 * math.pi) * (y[1] - y[0])
    cost = rate * (ends[0][0] + ends[1][0] - 2 * matched)
    x = (torch.arange(n).double() + 0.5) / n
    values = [
        m * torch.exp(-((x - a) ** 2) / 2 / s**2) / s / math.sqrt(2 * math.pi) for m, a, s in ends
    ]
    return interpolate_centres(p[0] + p[1] * x + p[2] * x**2 / 2), values, cost


GAUSSIANS = (1.0, 0.45, 0.05), (1.8, 0.6, 0.07)


@pytest.mark.parametrize("reach", [0.1, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("is_plane", [False, True])
def test_bounds_of_gaussians(reach, is_plane):
    """The product with a common factor of mass one costs the same; nothing moves along it."""
    c, (source, target), cost = solve_gaussians(GAUSSIANS, reach, 64)
    sides = (1.0, 0.5) if is_plane else (1.0,)
    if is_plane:
        factor = noise(8) + 0.1
        factor = factor / factor.mean() / 0.5
        source, target = source[:, None] * factor, target[:, None] * factor
        c = c[:, None].expand(64, 8)
    lower, upper = bound_unbalanced(c, source, target, sides, None, reach)
    assert lower <= cost * 1.002 and upper >= cost * 0.998  # densities are sampled, not averaged
    assert upper - lower < 0.02 * cost


def solve_on_parts(source, target, reach, growth, parts):
    """Return the cost on a line between masses at the centres of parts of cells, an upper bound."""
    n, rate = parts * len(source), reach**2 / 2
    x = (np.arange(n) + 0.5) / n
    a, b = (values.numpy().repeat(parts) / n for values in (source, target))
    distance = np.abs(x[:, None] - x)
    if growth == "wfr":
        kernel = np.cos(np.minimum(distance / reach, np.pi / 2)) ** 2
        cost = -rate * np.log(np.maximum(kernel, 1e-100))
    else:
        cost = distance**2 / 2
    keep = np.ix_(a > 0, b > 0)
    cost, a, b = cost[keep], a[a > 0], b[b > 0]
    allowed = cost < 50 * rate

    def evaluate(logs):
        plan = np.zeros_like(cost)
        plan[allowed] = np.exp(logs)
        rows, columns = plan.sum(1) + 1e-300, plan.sum(0) + 1e-300
        logs_of_rows, logs_of_columns = np.log(rows / a), np.log(columns / b)
        value = (plan * cost)[allowed].sum()
        value += rate * (rows @ logs_of_rows - rows.sum() + a.sum())
        value += rate * (columns @ logs_of_columns - columns.sum() + b.sum())
        slope = cost + rate * (logs_of_rows[:, None] + logs_of_columns)
        return value, (plan * slope)[allowed]

    start = np.log(np.outer(a, b) / b.sum() * np.exp(-cost / rate))[allowed]
    return minimize(evaluate, start, jac=True, options={"maxiter": 3000, "gtol": 1e-10}).fun


def lines(n):
    source, target = noise(n, seed=1) ** 2, 1.5 * noise(n, seed=2) ** 2
    target[1] = 0
    return source, target


@pytest.mark.parametrize("growth", ["hellinger", "wfr"])
@pytest.mark.parametrize("reach", [0.1, 0.3, 1.0])
def test_bounds_of_wrong_potentials(reach, growth):
    source, target = lines(5)
    coarse, fine = (solve_on_parts(source, target, reach, growth, k) for k in (1, 2))
    truth, slack = fine - (coarse - fine) / 3, (coarse - fine) / 3
    for seed, size in enumerate((0.0, 1e-3, 0.01, 0.1)):
        u = size * (noise(5, seed=seed) - 0.5)
        lower, upper = bound_unbalanced(u, source, target, (1.0,), None, reach, growth)
        assert lower <= truth + slack and upper >= truth - slack
        assert lower >= reach**2 / 2 * (math.sqrt(source.mean()) - math.sqrt(target.mean())) ** 2


@pytest.mark.parametrize("shape", [(6,), (5, 4), (3, 4, 2)], ids=str)
@pytest.mark.parametrize("reach", [0.003, 0.3, 1e4])
@pytest.mark.parametrize("growth", ["hellinger", "wfr"])
def test_growth_in_place(shape, reach, growth):
    """If only the mass changes, the cost is λ(√m0 − √m1)²."""
    density = noise(*shape) + 0.1
    cost = reach**2 / 2 * float(density.mean()) * (math.sqrt(3) - 1) ** 2
    sides = [1.0] * len(shape)
    for u in (torch.zeros(shape).double(), 0.1 * noise(*shape, seed=1)):
        lower, upper = bound_unbalanced(u, density, 3 * density, sides, None, reach, growth)
        assert lower <= cost * (1 + 1e-9) and upper >= cost * (1 - 1e-9)
        if not bool(u.any()):
            assert lower == pytest.approx(cost, rel=1e-6) == upper


@pytest.mark.parametrize("growth", ["hellinger", "wfr"])
@pytest.mark.parametrize("reach", [1e2, 1e5])
def test_far_reach_is_balanced_transport(reach, growth):
    source, target = noise(24, seed=1) + 0.2, noise(24, seed=2) + 0.2
    ends = [Density(values / values.mean(), Grid(24)) for values in (source, target)]
    path = geonet.geodesic(*ends, "midpoint")
    lower, upper = bound_unbalanced(
        path.coefficients, *(end.tensor for end in ends), (1.0,), None, reach, growth
    )
    cost = float(geonet.geodesic(*ends, "quantile").distance) ** 2 / 2
    assert (
        0.9 * cost < lower < cost * (1 + 1 / reach) and cost * (1 - 1 / reach) < upper < 1.1 * cost
    )


def test_missing_mass():
    density = noise(4, 3)
    for ends in ((density, 0 * density), (0 * density, density)):
        bounds = bound_unbalanced(noise(4, 3), *ends, (1.0, 2.0), None, 0.2)
        assert bounds == pytest.approx((0.02 * 2 * float(density.mean()),) * 2)


def test_mass_far_apart_fades():
    source, target = torch.zeros(2, 16).double()
    source[:2], target[-3:] = 1.0, 2.0
    lower, upper = bound_unbalanced(torch.zeros(16), source, target, (1.0,), None, 0.05)
    assert lower <= 0.05**2 / 2 * (2 + 6) / 16 * (1 + 1e-9) and upper >= lower
    assert upper == pytest.approx(0.05**2 / 2 * (2 + 6) / 16)
    assert lower > 0.99 * upper


@pytest.mark.parametrize("seed", range(3))
def test_short_reach_fades(seed):
    """For reach → 0 nothing moves."""
    source, target = noise(9, 8, seed=seed), 2 * noise(9, 8, seed=seed + 9)
    source[2:4] = 0
    cost = float(((source.sqrt() - target.sqrt()) ** 2).mean())
    u = noise(9, 8, seed=seed)
    for growth in ("hellinger", "wfr"):
        for periodic in (None, (True, False)):
            for reach, close in ((0.05, 0.2), (1e-3, 0.95), (1e-5, 0.999)):
                own = (1.0, 1.0), periodic, reach, growth
                lower, upper = bound_unbalanced(reach**2 * u, source, target, *own)
                assert close * cost < lower / (reach**2 / 2) <= upper / (reach**2 / 2)
                assert upper <= cost * reach**2 / 2 * (1 + 1e-9)


def push_both_ways(n, reach):
    """Return u, both ends and the cost of WFR transport with a lump at t = ½ on a line.

    Ends are densities of T_± for the mass |z_±|²ρ; the cost is ∫(½|u′|² + 2u²/reach²)ρ.
    """
    size = min(0.3, 0.06 / reach**2)  # |u″| < 1.2, so that no path crosses another
    y = (np.arange(4000 * n) + 0.5) / (4000 * n)
    u = size * reach**2 * np.sin(2 * np.pi * y) / 2
    slope = size * reach**2 * np.pi * np.cos(2 * np.pi * y)
    mass = np.exp(-((y - 0.4) ** 2) / 0.02)
    mass /= mass.sum()
    ends = []
    for sign in (-1, 1):
        z = 1 + sign * (u / reach**2 + 1j * np.abs(slope) / (2 * reach))
        x = y + reach * np.angle(z) * np.sign(slope)
        cells = np.clip((x * n).astype(int), 0, n - 1)
        ends.append(torch.from_numpy(np.bincount(cells, mass * np.abs(z) ** 2, n) * n))
    x = (torch.arange(n).double() + 0.5) / n
    values = size * reach**2 * torch.sin(2 * torch.pi * x) / 2
    c = values - (values.roll(1) - 2 * values + values.roll(-1)) / 8
    return c, ends, float((mass * (slope**2 / 2 + 2 * u**2 / reach**2)).sum())


@pytest.mark.parametrize("reach", [0.1, 0.3, 0.6])
def test_curved_paths_are_bounded_closely(reach):
    c, ends, cost = push_both_ways(64, reach)
    lower, upper = bound_unbalanced(c, *ends, (1.0,), None, reach, "wfr")
    assert lower <= cost + 0.15 / 64**2 and upper >= cost - 0.15 / 64**2
    assert upper - lower < 0.03 * cost
    wide = [values[:, None].expand(64, 6) for values in (c, *ends)]
    plane = bound_unbalanced(*wide, (1.0, 0.1), None, reach, "wfr")
    assert plane[0] <= 0.1 * upper and plane[1] >= 0.1 * lower
    assert plane[1] - plane[0] < 0.05 * 0.1 * cost


def test_curved_paths_cross_periodic_faces():
    c, ends, cost = push_both_ways(64, 0.6)
    for shift in (0, 38):
        own = [values.roll(shift) for values in (c, *ends)]
        lower, upper = bound_unbalanced(*own, (1.0,), (True,), 0.6, "wfr")
        assert upper - lower < 0.03 * cost and lower <= cost * 1.01 and upper >= cost * 0.99


@pytest.mark.parametrize("distance", [1, 3, 7])
def test_single_cells(distance):
    """Moving one cell as a whole costs λ(m0 + m1 − 2√(m0·m1)cos(d/reach)), an upper bound."""
    source, target = torch.zeros(2, 12).double()
    source[2], target[2 + distance] = 1.0, 2.5
    reach, angle = 0.5, distance / 12 / 0.5
    move = max(0.0, math.cos(angle)) if angle < math.pi / 2 else 0.0
    above = reach**2 / 2 * (1 + 2.5 - 2 * math.sqrt(2.5) * move) / 12
    for seed, size in enumerate((0.0, 0.01, 0.1)):
        u = size * (noise(12, seed=seed) - 0.5)
        lower, upper = bound_unbalanced(u, source, target, (1.0,), None, reach, "wfr")
        assert lower <= above * (1 + 1e-9) and lower <= upper
        assert bound_unbalanced(u, source, target, (1.0,), None, reach)[0] <= upper


def test_bounds_without_kernels(monkeypatch):
    source, target, results = *lines(20), []
    for choice in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", choice)
        u = 0.01 * noise(20, seed=3)
        for growth in ("hellinger", "wfr"):
            results.append(bound_unbalanced(u, source, target, (1.0,), None, 0.3, growth))
    assert results[0] == pytest.approx(results[2], rel=1e-5)
    assert results[1] == pytest.approx(results[3], rel=1e-5)
