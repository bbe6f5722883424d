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
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.numerics.splines import evaluate_at_points
from geonet.solvers.neural.cascade import (
    CONFIG,
    CascadeSettings,
    _fold_penalty,
    _relative_dual_gap,
    build_pyramid,
    choose_resolution,
    fit_recentring,
    initial_potentials,
    predict,
)
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import build_model, load_model, save_model
from geonet.solvers.neural.solver import CascadeSolver
from geonet.solvers.neural.unet import prolong
from geonet.solvers.newton.system import evaluate_residual
from geonet.synthetic import CUBE
from geonet.synthetic import KINDS as KINDS_3D
from geonet.training.synthetic_pairs import random_densities

SETTINGS = {
    2: CascadeSettings(sensors=32, whole=6, detail=2),
    3: CascadeSettings(dimension=3, sensors=16, whole=3, detail=2),
}
DIMENSIONS = pytest.mark.parametrize("d", [2, 3])


@pytest.fixture
def model(d):
    """An untrained model whose potentials are not negligible but do not fold either."""
    made = build_model(SETTINGS[d], 0)
    with torch.no_grad():
        for network in (made.whole, made.detail):
            for head in network.head:
                head.weight.mul_(5)
    return made


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


def potential(model, source, target):
    with torch.no_grad():
        (guess,) = predict(model, source, target)
    return guess.coefficients


@pytest.mark.parametrize(("d", "kind", "cells"), [(2, "spots", 64), (3, "spots", 32)])
def test_potentials_and_densities_on_every_grid(model, d, kind, cells):
    source, target = draw_ends(d, kind, cells)
    levels = build_pyramid(source, target)
    sizes = [cells >> k for k in (2, 1, 0)]
    assert [tuple(u.shape) for u in model(source, target)] == [(2, *(n,) * d) for n in sizes]
    assert [level[0].shape[-1] for level in levels] == sizes
    axes = tuple(range(1, d + 1))
    for level in levels:
        for coarse, end in zip(level, (source, target), strict=True):
            torch.testing.assert_close(coarse.mean(axes), end.mean(axes))
    shapes = {(16,) * d: 32 if d == 2 else 16, (100, 40, 30)[:d]: 128 if d == 2 else 64}
    for shape, resolution in shapes.items():  # a power of two, at least as fine
        assert choose_resolution(Grid(shape, 0, shape)) == resolution


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


@pytest.mark.parametrize(("d", "kind", "cells"), [(2, "smooth", 32), (3, "fields", 16)])
def test_training_raises_the_dual_value_on_every_grid(model, d, kind, cells):
    loss = model.build_loss(LossSettings(), Grid((cells,) * d))
    ends = draw_ends(d, kind, cells, 4, floor=0.2 * (d - 2))
    none = [torch.zeros(0)] * 5
    batch = Batch(*(end.flatten(1) for end in ends), *none, (torch.sin, torch.cos), False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    names = {f"{term}_{n}" for term in ("deficit", "folds") for n in (cells // 2, cells)}
    assert set(loss(batch)) == names
    for _ in range(30):
        optimizer.zero_grad()
        loss.total(loss(batch)).backward()
        optimizer.step()
    for u, pair in zip(model(*ends), build_pyramid(*ends), strict=True):
        assert float(evaluate_residual(u.detach(), *pair, 1).dual.mean()) > 0


@pytest.mark.parametrize(
    ("d", "shape", "upper"),
    [(2, (32, 32), (1, 1)), (2, (20, 50), (2, 5)), (3, (8, 14, 10), (4, 7, 5))],
)
def test_potentials_follow_swap_reflections_and_permutations(model, d, shape, upper):
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    source, target = (Density(v, Grid(shape, 0, upper)) for v in values)
    u = potential(model, source, target)
    size = float((u - u.mean()).abs().max())
    assert size > 1e-6
    close = 1e-3 * size  # quotients amplify single-precision rounding by some hundred
    assert float((u + potential(model, target, source)).abs().max()) < close
    for axis in range(d):
        mirrored = [Density(v.flip(axis), source.grid) for v in values]
        assert float((u - potential(model, *mirrored).flip(axis)).abs().max()) < close
    for order in permutations(range(d)):
        grid = Grid([shape[k] for k in order], 0, [upper[k] for k in order])
        permuted = potential(model, *(Density(v.permute(order), grid) for v in values))
        assert float((u.permute(order) - permuted).abs().max()) < close
    assert float(potential(model, source, source).abs().max()) == 0


@pytest.mark.parametrize(
    ("d", "kind", "sizes"), [(2, "white-noise", (64, 128, 256, 512)), (3, "noise", (16, 32, 64))]
)
def test_guesses_refine_up_to_the_finest_grid(model, d, kind, sizes):
    ends = draw_ends(d, kind, sizes[0], 1)
    densities = (Density(v[0], Grid(v[0].shape)) for v in ends)
    (guess,) = predict(model.requires_grad_(False), *densities)
    shapes = [tuple(guess.coefficients.shape)]
    while (guess := guess.refine()) is not None:
        shapes.append(tuple(guess.coefficients.shape))
    assert shapes == [(n,) * d for n in sizes]


@pytest.mark.parametrize("d", [3])
def test_model_files_are_solvers(model, d, tmp_path):
    """The ends are exact on any grid; Newton steps reduce the residual."""
    saved = save_model(tmp_path / "model.safetensors", model, {"name": "tiny"})
    assert load_model(saved)[0].settings == SETTINGS[d]
    file = str(saved)
    shape = (12, 16, 10)
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    ends = [Density(v, Grid(shape, 0, [n / 16 for n in shape])) for v in values]
    alone, few = CascadeSolver(file=file, max_iterations=0)(*ends), CascadeSolver(file=file)(*ends)
    for path in (alone, model.requires_grad_(False).build_path(*ends, "cascade", {})):
        for t, end in enumerate(ends):
            assert torch.equal(path.density(t).tensor, end.tensor)
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
    with pytest.raises(SolverError, match="max_iterations"):
        geonet.solver("universal-2d", max_iterations=-1)


N = 24


def block(*corners, side=4):
    """A block of ones at a corner, (1, N, …, N)."""
    values = torch.zeros((N,) * len(corners))
    values[tuple(slice(c, c + side) for c in corners)] = 1
    return values[None]


def cells(shift):
    return (shift.steps * N).round().int().tolist()


@pytest.mark.parametrize(("first", "second"), [((12, 8), (2, 4)), ((2, 4, 9), (8, 16, 9))])
def test_recentring_makes_translates_equal(first, second):
    source, target = block(*first), block(*second)
    shift = fit_recentring(source, target)
    assert cells(shift) == [[(b - a) // 2 for a, b in zip(first, second, strict=True)]]
    assert torch.equal(*shift.apply(source, target))
    centre = [(a + b + 4) / 2 / N for a, b in zip(first, second, strict=True)]
    assert shift.centre[0].tolist() == pytest.approx(centre, abs=1e-12)


def test_recentring_does_not_fold():
    """Second derivatives of the potential stay within [−2, 2], also next to the faces."""
    for first, second, size in ((1, 15, 8), (2, 3, 20), (0, 20, 4)):
        shift = fit_recentring(block(first, 4, side=size), block(second, 4, side=size))
        for n in (N, 37):
            c = shift.potential(0, n, 1.0)[0] * n**2  # in squared cells
            padded = torch.cat([c[:1], c, c[-1:]])  # flat at the faces
            assert float(padded.diff(n=2).abs().max()) <= 2 + 1e-9


def test_recentring_of_a_batch():
    source = torch.cat([block(2, 4), block(12, 8), block(6, 6) + 1])
    target = torch.cat([block(12, 8), block(2, 4), block(2, 4)])
    shift = fit_recentring(source, target)
    assert cells(shift) == [[5, 2], [-5, -2], [0, 0]]
    assert cells(shift[1:2]) == [[-5, -2]]
    first, second = shift.apply(source, target)
    assert torch.equal(first[:2], second[:2]) and torch.equal(first[2], source[2])


@pytest.mark.parametrize("shape", [(32, 24), (20, 48)])
def test_translations_are_exact_without_newton_steps(shape):
    """On any grid: recentring alone makes both ends equal."""
    grid, values = Grid(shape), torch.zeros(3, *shape, dtype=torch.float64)
    values[0, 2:7, 3:8], values[1, 12:17, 9:14], values[2, 7:12, 6:11] = 1, 1, 1
    ends = (Density(v, grid) for v in values[:2])
    path = geonet.geodesic(*ends, "universal-2d", max_iterations=0)
    h0, h1 = grid.spacing
    assert path.info["residual"] < 1e-3
    assert float(path.distance) == pytest.approx(math.hypot(10 * h0, 6 * h1), rel=1e-3)
    result = path.density(0.5).tensor
    assert float((result / result.sum() - values[2] / 25).abs().sum()) < 1e-3


@pytest.mark.parametrize("d", [1, 2])
def test_initial_potentials_are_accurate_in_distribution(d):
    """Velocities halfway, where the mass is: networks have errors of some per cent."""
    generator = torch.Generator().manual_seed(7)
    grid = BOX_1D.with_shape(64) if d == 1 else BOX_2D.with_shape(32)
    values = (mixtures_1d, mixtures_2d)[d - 1](4, generator).to_density(grid).tensor
    batch = Density(values[:2], grid), Density(values[2:], grid)
    source, target = (end[0] for end in batch)
    guess, together = (initial_potentials(*e)[0].coefficients for e in ((source, target), batch))
    assert torch.allclose(guess, together, atol=1e-3 * float(guess.std()))  # single precision
    path = geonet.geodesic(source, target, "midpoint")
    box = unit_box(grid)
    points = torch.rand(400, d, dtype=torch.float64, generator=generator) * torch.tensor(box.sides)
    weight = path.density(0.5).at(box.from_points(points))[:, None]
    step = [side / n for side, n in zip(box.sides, guess.shape, strict=True)]
    result = evaluate_at_points(guess, step, points).gradient
    truth = evaluate_at_points(path.coefficients, path.step, points).gradient
    error = (weight * (result - truth).square()).sum() / (weight * truth.square()).sum()
    assert float(error.sqrt()) < 0.1


QUICK = ("smooth", "shapes", "spots")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in QUICK else pytest.mark.slow) for k in KINDS]
)
def test_solver_accuracy_on_every_kind_of_pair(kind):
    """W2 within a few per cent alone and a fraction of one with three Newton steps."""
    source, target = draw(kind, 64)
    exact = geonet.geodesic(source, target, "midpoint")
    alone = geonet.geodesic(source, target, "universal-2d", max_iterations=0)
    few = geonet.geodesic(source, target, "universal-2d")
    assert float(alone.distance) == pytest.approx(float(exact.distance), rel=0.03)
    assert float(few.distance) == pytest.approx(float(exact.distance), rel=0.01)
    linear = geonet.geodesic(source, target, "linear")
    errors = [float(l1(path.density(0.5), exact.density(0.5))) for path in (linear, alone, few)]
    assert errors[1] < (0.5 if kind == "spots" else 0.25) * errors[0]
    if kind != "spots":  # which potentials on 64² cells cannot balance, with any number of steps
        assert errors[2] <= errors[1] + 1e-3


@pytest.mark.parametrize("shape", [(20, 14, 18)])
def test_solver_in_3d(shape):
    """Smooth pairs, which are easy; docs/universal.md has the others."""
    grid = Grid(shape)
    ends = [
        Density(torch.exp(-20 * (grid.points() - torch.tensor(mean)).square().sum(-1)) + 0.2, grid)
        for mean in ([0.35, 0.4, 0.5], [0.6, 0.55, 0.5])
    ]
    exact, linear = (geonet.geodesic(*ends, solver) for solver in ("midpoint", "linear"))
    alone = geonet.geodesic(*ends, "universal-3d", max_iterations=0)
    assert float(alone.distance) == pytest.approx(float(exact.distance), rel=0.02)
    truth = exact.density(0.5)
    assert float(l1(alone.density(0.5), truth)) < 0.25 * float(l1(linear.density(0.5), truth))
    started = geonet.geodesic(*ends, "midpoint", start="network")
    assert started.info["converged"] and started.info["start"] == "network"
    assert float(l1(started.density(0.5), truth)) < 0.005
    assert sum(started.info["newton steps"]) < sum(exact.info["newton steps"])
