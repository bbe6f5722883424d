"""The cascade: symmetries, dual gap, recentring, initial guesses and the solver."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch

import geonet
from benchmarks.pairs import KINDS, draw
from geonet import Density, Grid
from geonet.errors import ConfigError, SolverError
from geonet.grid import unit_box
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.numerics.cosine import CosineSeries
from geonet.numerics.splines import evaluate_at_points
from geonet.solvers.neural.cascade import (
    CONFIG,
    CascadeSettings,
    _fold_penalty,
    _relative_dual_gap,
    _w2_squared_estimate,
    build_pyramid,
    choose_resolution,
    fit_recentring,
    initial_potentials,
    predict,
)
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import build_model, load_model, save_model
from geonet.solvers.neural.solver import CascadeSolver
from geonet.solvers.neural.transport.solver import choose_start_shape, to_splines
from geonet.solvers.neural.unet import prolong
from geonet.solvers.newton import compiled
from geonet.solvers.newton.system import evaluate_residual
from geonet.synthetic import CUBE
from geonet.synthetic import KINDS as KINDS_3D
from geonet.training.synthetic_pairs import random_densities

SETTINGS = {
    2: CascadeSettings(sensors=32, whole=6, detail=2),
    3: CascadeSettings(dimension=3, sensors=16, whole=3, detail=2),
}
DIMENSIONS = pytest.mark.parametrize("d", [2, 3])
needs_kernels = pytest.mark.skipif(not compiled.is_available(), reason="torch takes minutes")


@pytest.fixture
def model(d):
    return build_model(SETTINGS[d], 0)


@pytest.fixture
def scaled_model(model):
    """An untrained model whose potentials are not negligible but do not fold either."""
    with torch.no_grad():
        for network in (model.whole, model.detail):
            for head in network.head:
                head.weight.mul_(5)
    return model.requires_grad_(False)


def draw_ends(d, kind, cells, count=2, floor=0.0):
    """Densities of one kind, (count, cells, …) each."""
    if d == 2:
        pairs = [draw(kind, cells, k) for k in range(count)]
        ends = [torch.stack([pair[end].tensor.float() for pair in pairs]) for end in (0, 1)]
    else:
        kinds = torch.full((2 * count,), list(KINDS_3D).index(kind))
        generator = torch.Generator().manual_seed(3)
        ends = random_densities(generator, kinds, replace(CUBE, cells=cells)).chunk(2)
    return [(1 - floor) * end + floor for end in ends]


def batch_of(source, target):
    empty = torch.zeros(0)
    flat = source.flatten(1), target.flatten(1)
    return Batch(*flat, empty, empty, empty, empty, empty, (torch.sin, torch.cos), False)


def potential(model, source, target):
    (guess,) = predict(model, source, target)
    return guess.coefficients


@pytest.mark.parametrize(("d", "kind", "cells"), [(2, "spots", 64), (3, "spots", 32)])
def test_potentials_and_densities_on_every_grid(model, d, kind, cells):
    source, target = draw_ends(d, kind, cells)
    levels = build_pyramid(source, target)
    sizes = [cells >> k for k in (2, 1, 0)]
    assert sizes[0] == CONFIG.coarsest[d - 2]
    assert [tuple(u.shape) for u in model(source, target)] == [(2, *(n,) * d) for n in sizes]
    assert [level[0].shape[-1] for level in levels] == sizes
    axes = tuple(range(1, d + 1))
    for first, second in levels:
        torch.testing.assert_close(first.mean(axes), source.mean(axes))
        torch.testing.assert_close(second.mean(axes), target.mean(axes))


@pytest.mark.parametrize(("d", "kind", "cells"), [(2, "moderate", 32), (3, "textures", 16)])
def test_gradient_of_the_gap_is_the_gradient_of_the_dual_value(d, kind, cells):
    """Along smooth directions, by finite differences, up to a positive factor of each pair."""
    source, target = draw_ends(d, kind, cells, floor=0.3)
    generator = torch.Generator().manual_seed(0)
    coarse = 0.02 * torch.randn(4, 2, *(cells // 4,) * d, generator=generator)
    c, *directions = (prolong(prolong(own)) for own in coarse)
    start, h = c.clone().requires_grad_(), 0.1
    scale = torch.tensor([0.5, 2.0])
    _relative_dual_gap(start, evaluate_residual(c, source, target, 1), scale).sum().backward()
    factors = []
    for direction in directions:
        ahead, behind = (
            evaluate_residual(c + s * h * direction, source, target, 1).dual for s in (1, -1)
        )
        derivative = (start.grad * direction).flatten(1).sum(1)
        factors.append(derivative / -(ahead - behind).float())
    first, *others = factors
    assert bool((first > 0).all())
    for other in others:  # quadrature and differences are accurate to about a per cent
        torch.testing.assert_close(other, first, rtol=0.03, atol=0)


@DIMENSIONS
@pytest.mark.parametrize(("steep", "folds"), [(0.9, False), (1.5, True), (-1.5, True)])
def test_fold_penalty_of_waves(d, steep, folds):
    """The half Hessian of a wave along an axis is known, and so is the penalty."""
    x = torch.pi * (torch.arange(32.0) + 0.5) / 8
    wave = 2 * steep * torch.cos(x) / (2 - 2 * math.cos(torch.pi / 8))
    excess = (abs(steep) * torch.cos(x).abs() - CONFIG.fold_limit).clamp(min=0)
    small = CONFIG.small_error
    expected = float((excess.square().mean() + small**2).sqrt() - small)
    assert (expected > 0) is folds
    for axis in range(d):
        u = wave.reshape(32, *(1,) * (d - 1)).expand((32,) * d).movedim(0, axis)
        assert float(_fold_penalty(u[None])) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_w2_estimate_of_a_shift(axis):
    source = torch.zeros(1, 16, 16, 16)
    source[:, 4:10, 4:10, 4:10] = (16 / 6) ** 3
    target = source.roll(3, axis)
    estimate = float(_w2_squared_estimate(source, target))
    assert estimate == pytest.approx((3 / 16) ** 2, rel=1e-3)


@pytest.mark.parametrize(("d", "kind", "cells"), [(2, "smooth", 32), (3, "fields", 16)])
def test_training_raises_the_dual_value_on_every_grid(model, d, kind, cells):
    loss = model.build_loss(LossSettings(), Grid((cells,) * d))
    ends = draw_ends(d, kind, cells, 4, floor=0.2 * (d - 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    names = {f"{term}_{n}" for term in ("deficit", "folds") for n in (cells // 2, cells)}
    assert set(loss(batch_of(*ends))) == names
    for _ in range(30):
        optimizer.zero_grad()
        loss.total(loss(batch_of(*ends))).backward()
        optimizer.step()
    for u, pair in zip(model(*ends), build_pyramid(*ends), strict=True):
        assert float(evaluate_residual(u.detach(), *pair, 1).dual.mean()) > 0


@pytest.mark.parametrize(
    ("shape", "upper", "cells"),
    [
        ((64, 64), (1, 1), 64),
        ((16, 16), (1, 1), 32),
        ((100, 40), (10, 4), 128),
        ((64, 64), (2, 1), 128),
        ((700, 500), (7, 5), 512),
        ((8, 8, 8), (1, 1, 1), 16),
        ((20, 24, 18), (10, 12, 9), 32),
        ((100, 80, 70), (10, 8, 7), 64),
    ],
)
def test_resolution_is_a_power_of_two_at_least_as_fine(shape, upper, cells):
    assert choose_resolution(Grid(shape, 0, upper)) == cells


@pytest.mark.parametrize(
    ("d", "shape", "upper"),
    [
        (2, (32, 32), (1, 1)),
        (2, (20, 50), (2, 5)),
        (3, (16, 16, 16), (1, 1, 1)),
        (3, (8, 14, 10), (4, 7, 5)),
    ],
)
def test_potentials_follow_swap_reflections_and_permutations(scaled_model, d, shape, upper):
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    source, target = (Density(v, Grid(shape, 0, upper)) for v in values)
    u = potential(scaled_model, source, target)
    size = float((u - u.mean()).abs().max())
    assert size > 1e-6
    close = 1e-3 * size  # quotients amplify single-precision rounding by some hundred
    assert float((u + potential(scaled_model, target, source)).abs().max()) < close
    for axis in range(d):
        mirrored = [Density(v.flip(axis), source.grid) for v in values]
        assert float((u - potential(scaled_model, *mirrored).flip(axis)).abs().max()) < close
    for order in permutations(range(d)):
        grid = Grid([shape[k] for k in order], 0, [upper[k] for k in order])
        permuted = potential(scaled_model, *(Density(v.permute(order), grid) for v in values))
        assert float((u.permute(order) - permuted).abs().max()) < close
    assert float(potential(scaled_model, source, source).abs().max()) == 0


@pytest.mark.parametrize(("d", "kind", "cells"), [(2, "moderate", 32), (3, "mixtures", 16)])
def test_predictions_of_a_batch_equal_single_pairs(scaled_model, d, kind, cells):
    source, target = (Density(v, Grid((cells,) * d)) for v in draw_ends(d, kind, cells, 3))
    for k, guess in enumerate(predict(scaled_model, source, target)):
        alone = potential(scaled_model, source[k], target[k])
        close = 1e-3 * float(alone.abs().max())
        torch.testing.assert_close(guess.coefficients, alone, rtol=1e-3, atol=close)


@pytest.mark.parametrize(
    ("d", "kind", "sizes"), [(2, "white-noise", (64, 128, 256, 512)), (3, "noise", (16, 32, 64))]
)
def test_guesses_refine_up_to_the_finest_grid(scaled_model, d, kind, sizes):
    ends = draw_ends(d, kind, sizes[0], 1)
    source, target = (Density(v[0], Grid((sizes[0],) * d)) for v in ends)
    (guess,) = predict(scaled_model, source, target)
    shapes = [tuple(guess.coefficients.shape)]
    while (guess := guess.refine()) is not None:
        shapes.append(tuple(guess.coefficients.shape))
    assert shapes == [(n,) * d for n in sizes]


@pytest.mark.parametrize("d", [3])
def test_model_files_are_solvers(scaled_model, d, tmp_path):
    """The ends are exact on any grid; Newton steps reduce the residual."""
    file = save_model(tmp_path / "model.safetensors", scaled_model, {"name": "tiny"})
    assert load_model(file)[0].settings == SETTINGS[d]
    shape = (12, 16, 10)
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    source, target = (Density(v, Grid(shape, 0, [n / 16 for n in shape])) for v in values)
    alone = CascadeSolver(file=str(file), max_iterations=0)(source, target)
    few = CascadeSolver(file=str(file))(source, target)
    for path in (alone, scaled_model.build_path(source, target, "cascade", {})):
        assert torch.equal(path.density(0).tensor, source.tensor)
        assert torch.equal(path.density(1).tensor, target.tensor)
    assert few.info["residual"] < 0.1 * alone.info["residual"] < 0.2


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"dimension": 1}, "2 or 3"),
        ({"sensors": 48}, "16 times"),
        ({"dimension": 3, "sensors": 24}, "8 times"),
        ({"whole": 0}, "whole"),
        ({"detail": -1}, "detail"),
    ],
)
def test_invalid_settings(settings, word):
    with pytest.raises(ConfigError, match=word):
        CascadeSettings(**settings)


N = 24


def block(*corners, side=4, n=N):
    """A block of ones at a corner, (1, n, …, n)."""
    values = torch.zeros((n,) * len(corners))
    values[tuple(slice(c, c + side) for c in corners)] = 1
    return values[None]


def cells(shift):
    return (shift.steps * N).round().int().tolist()


@pytest.mark.parametrize(
    ("first", "second"), [((2, 4), (12, 8)), ((12, 8), (2, 4)), ((2, 4, 9), (8, 16, 9))]
)
def test_recentring_makes_translates_equal(first, second):
    source, target = block(*first), block(*second)
    shift = fit_recentring(source, target)
    assert cells(shift) == [[(b - a) // 2 for a, b in zip(first, second, strict=True)]]
    assert torch.equal(*shift.apply(source, target))
    centre = [(a + b + 4) / 2 / N for a, b in zip(first, second, strict=True)]
    assert shift.centre[0].tolist() == pytest.approx(centre, abs=1e-12)


@pytest.mark.parametrize(("distance", "step"), [(1, 0), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_recentring_rounds_towards_zero(distance, step):
    """Odd distances leave a cell between the ends, whether one looks from left or from right."""
    source, target = block(5, 10), block(5 + distance, 10)
    assert cells(fit_recentring(source, target)) == [[step, 0]]
    assert cells(fit_recentring(target, source)) == [[-step, 0]]
    mirrored = fit_recentring(source.flip(1), target.flip(1))
    assert cells(mirrored) == [[-step, 0]]


def test_recentring_keeps_the_border():
    """The second end fills most of the box, so that it can go back by four cells less the border.

    Where both can meet, four cells from the upper face at least, there is room for it.
    """
    source, target = block(3, 10), torch.zeros(1, N, N)
    target[:, 4:22, 10:14] = 1
    assert cells(fit_recentring(source, target)) == [[4 - CONFIG.border, 0]]
    assert cells(fit_recentring(target, source)) == [[CONFIG.border - 4, 0]]


def test_recentring_does_not_fold():
    """Second derivatives of the potential stay within [−2, 2], also where it bends at the faces."""
    for first, second, size in ((1, 15, 8), (0, 12, 12), (2, 3, 20), (0, 20, 4)):
        shift = fit_recentring(block(first, 4, side=size), block(second, 4, side=size))
        for n in (N, 2 * N, 37):
            c = shift.potential(0, n, 1.0)[0] * n**2  # in squared cells
            padded = torch.cat([c[:1], c, c[-1:]])  # flat at the faces
            assert float(padded.diff(n=2).abs().max()) <= 2 + 1e-9
            middle = shift.centre[0, 0] * n - 0.5
            k = int(middle)
            between = c[k] + (middle - k) * (c[min(k + 1, n - 1)] - c[k])
            assert abs(float(between)) < 1e-6 * n**2


def test_recentring_of_a_batch():
    source = torch.cat([block(2, 4), block(12, 8), block(6, 6) + 1])
    target = torch.cat([block(12, 8), block(2, 4), block(2, 4)])
    shift = fit_recentring(source, target)
    assert cells(shift) == [[5, 2], [-5, -2], [0, 0]]
    assert cells(shift[1:2]) == [[-5, -2]]
    first, second = shift.apply(source, target)
    assert torch.equal(first[:2], second[:2]) and torch.equal(first[2], source[2])


@pytest.mark.parametrize("shape", [(32, 32), (32, 24), (20, 48)])
def test_translations_are_exact_without_newton_steps(shape):
    """On any grid: the network has nothing to do, and the linear part does all."""
    grid, values = Grid(shape), torch.zeros(2, *shape, dtype=torch.float64)
    values[0, 2:7, 3:8], values[1, 12:17, 9:14] = 1, 1
    path = geonet.geodesic(*(Density(v, grid) for v in values), "universal-2d", max_iterations=0)
    h0, h1 = grid.spacing
    assert path.info["residual"] < 1e-3
    assert float(path.distance) == pytest.approx(((10 * h0) ** 2 + (6 * h1) ** 2) ** 0.5, rel=1e-3)
    middle = torch.zeros(shape, dtype=torch.float64)
    middle[7:12, 6:11] = 1
    found = path.density(0.5).tensor
    assert float((found / found.sum() - middle / 25).abs().sum()) < 1e-3


FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
SHAPES = {1: (64,), 2: (32, 32), 3: (12, 12, 12)}


def mixture_pairs(d, count=2):
    family, box = FAMILIES[d]
    grid = box.with_shape(SHAPES[d])
    values = family(2 * count, torch.Generator().manual_seed(4)).to_density(grid).tensor
    return Density(values[:count], grid), Density(values[count:], grid)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_to_splines_matches_the_cosine_series(d):
    """The error is of third order in h; a wave of four half-periods turns by ⅜ in a cell of 32."""
    generator = torch.Generator().manual_seed(d)
    modes = 0.1 * torch.rand((4,) * d, dtype=torch.float64, generator=generator)
    sides = (1.0, 0.7, 0.5)[:d]
    shape = tuple(round(32 * side) for side in sides)
    c = to_splines(modes, shape, sides)
    assert c.shape == shape and c.dtype == torch.float64
    step = [side / n for side, n in zip(sides, shape, strict=True)]
    points = torch.rand(200, d, dtype=torch.float64, generator=generator)
    points = (0.1 + 0.8 * points) * torch.tensor(sides, dtype=torch.float64)
    jet = evaluate_at_points(c, step, points)
    value, gradient = CosineSeries(modes, Grid((4,) * d)).at(points)[:2]
    assert float((jet.value - value).abs().max()) < 1e-3 * float(modes.sum())
    assert float((jet.gradient - gradient).abs().max()) < 0.02 * float(gradient.abs().max())


@pytest.mark.parametrize("d", [1, 2, 3])
def test_initial_potentials_of_a_batch(d):
    source, target = mixture_pairs(d)
    together = initial_potentials(source, target)
    assert len(together) == 2
    for k, own in enumerate(start.coefficients for start in together):
        shape = source.grid.shape if d == 2 else choose_start_shape(source.grid)
        assert own.shape == shape and not own.requires_grad
        (start,) = initial_potentials(source[k], target[k])
        alone = start.coefficients
        assert torch.allclose(own, alone, atol=1e-3 * float(alone.std()))  # single precision


@pytest.mark.parametrize("d", [1, 2])
def test_initial_potentials_are_accurate_in_distribution(d):
    """Velocities halfway: networks are some percent off."""
    source, target = (end[0] for end in mixture_pairs(d))
    guess = initial_potentials(source, target)[0].coefficients
    path = geonet.geodesic(source, target, "midpoint")
    box = unit_box(source.grid)
    generator = torch.Generator().manual_seed(7)
    points = torch.rand(400, d, dtype=torch.float64, generator=generator)
    halfway = path.density(0.5)
    weight = halfway.at(box.from_points(points * torch.tensor(box.sides)))
    points = points * torch.tensor(box.sides, dtype=torch.float64)
    step = [side / n for side, n in zip(box.sides, guess.shape, strict=True)]
    found = evaluate_at_points(guess, step, points).gradient
    truth = evaluate_at_points(path.coefficients, path.step, points).gradient
    off = (weight * (found - truth).square().sum(-1)).sum() / (
        weight * truth.square().sum(-1)
    ).sum()
    assert float(off.sqrt()) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_solver_accuracy_on_every_kind_of_pair(kind):
    """W2 within a few per cent alone and a fraction of one with three steps.

    The documentation has medians ten times smaller; one pair of the hardest kinds may be worse.
    """
    source, target = draw(kind, 64)
    exact = geonet.geodesic(source, target, solver="midpoint")
    alone = geonet.geodesic(source, target, solver="universal-2d", max_iterations=0)
    few = geonet.geodesic(source, target, solver="universal-2d")
    assert float(alone.distance) == pytest.approx(float(exact.distance), rel=0.03)
    assert float(few.distance) == pytest.approx(float(exact.distance), rel=0.01)
    linear = geonet.geodesic(source, target, solver="linear").density(0.5)
    truth = exact.density(0.5)
    least = 0.5 if kind == "spots" else 0.25
    assert float(l1(alone.density(0.5), truth)) < least * float(l1(linear, truth))
    if kind != "spots":  # which potentials on 64² cells cannot balance, however many the steps
        assert float(l1(few.density(0.5), truth)) <= float(l1(alone.density(0.5), truth)) + 1e-3


def test_solver_batch_equals_single_pairs():
    pairs = [draw(kind, 32) for kind in ("smooth", "shapes", "white-noise")]
    source, target = (
        Density(torch.stack([pair[end].tensor for pair in pairs]), Grid((32, 32))) for end in (0, 1)
    )
    path = geonet.geodesic(source, target, solver="universal-2d")
    for k, ends in enumerate(pairs):
        alone = geonet.geodesic(*ends, solver="universal-2d")
        # Sums are taken in another order, in single precision, and steps go on from there.
        assert float(l1(path[k].density(0.5), alone.density(0.5))) < 1e-3


@pytest.mark.parametrize("shape", [(16, 16), (28, 28), (40, 100), (12, 50), (130, 130)])
def test_solver_on_any_grid(shape):
    grid = Grid(shape, 0.0, [0.1 * n for n in shape])
    x, y = grid.points().unbind(-1)
    ends = [
        Density(torch.exp(-((x - a * shape[0] * 0.1) ** 2 + (y - 0.05 * shape[1]) ** 2)), grid)
        for a in (0.35, 0.6)
    ]
    path = geonet.geodesic(*ends, solver="universal-2d")
    exact = geonet.geodesic(*ends, solver="midpoint")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=5e-3)
    assert path.density(0.5).grid == grid


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iterations": -1}, "max_iterations is -1; give 0 or more"),
        ({"tolerance": 0.0}, "tolerance is 0; give a share"),
    ],
)
def test_solver_rejects_invalid_options(options, message):
    with pytest.raises(SolverError, match=message):
        geonet.solver("universal-2d", **options)


@pytest.mark.parametrize("shape", [(16, 16, 16), (20, 14, 18)])
def test_solver_in_3d(shape):
    """Smooth pairs, which are easy; docs/universal.md has the others."""
    grid = Grid(shape)
    x = grid.points()
    first, second = ([0.35, 0.4, 0.5], [0.6, 0.55, 0.5])
    source, target = (
        Density(torch.exp(-20 * (x - torch.tensor(middle)).square().sum(-1)) + 0.2, grid)
        for middle in (first, second)
    )
    exact = geonet.geodesic(source, target, solver="midpoint")
    alone = geonet.geodesic(source, target, solver="universal-3d", max_iterations=0)
    assert float(alone.distance) == pytest.approx(float(exact.distance), rel=0.02)
    linear = geonet.geodesic(source, target, solver="linear").density(0.5)
    truth = exact.density(0.5)
    assert float(l1(alone.density(0.5), truth)) < 0.25 * float(l1(linear, truth))
    started = geonet.geodesic(source, target, solver="midpoint", start="network")
    assert started.info["converged"] and started.info["start"] == "network"
    assert float(l1(started.density(0.5), truth)) < 0.005
    assert sum(started.info["newton steps"]) < sum(exact.info["newton steps"])
