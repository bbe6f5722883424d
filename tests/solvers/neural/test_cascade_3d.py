"""The cascade in space: what test_cascade.py has in the plane."""

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from geonet import Density, Grid
from geonet.errors import ConfigError
from geonet.solvers.neural.cascade import (
    COARSEST,
    FOLDS,
    SMALL,
    CascadeSettings,
    _deficit,
    _folds,
    _least,
    averaged,
    guesses_of,
    square_cells,
)
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import build, load_model, save_model
from geonet.solvers.neural.solver import CascadeSolver
from geonet.solvers.neural.unet import halved
from geonet.solvers.newton.system import looked
from geonet.training.synthetic import CUBE, random_densities

TINY = CascadeSettings(dimension=3, sensors=16, whole=3, detail=2)
ORDERS = list(permutations(range(3)))[1:]


@pytest.fixture
def model():
    return build(TINY, 0)


@pytest.fixture
def talkative(model):
    """A model whose untrained answers are not next to nothing, but do not fold either."""
    with torch.no_grad():
        for network in (model.whole, model.detail):
            for head in network.head:
                head.weight.mul_(5)
    return model.requires_grad_(False)


def potential_of(model, source, target):
    (guess,) = guesses_of(model, source, target)
    return guess.coefficients


def ends_of(kind, cells, count=2, floor=0.0):
    """Densities of one kind, (count, cells, cells, cells) each."""
    generator = torch.Generator().manual_seed(3)
    kinds = torch.full((2 * count,), list(CUBE.kinds).index(kind))
    values = random_densities(generator, kinds, replace(CUBE, cells=cells))
    return ((1 - floor) * values + floor).chunk(2)


def batch_of(source, target):
    nothing = torch.zeros(0)
    flat = source.flatten(1), target.flatten(1)
    return Batch(*flat, nothing, nothing, nothing, nothing, nothing, (torch.sin, torch.cos), False)


def test_it_answers_on_every_grid(model):
    answers = model(*ends_of("fields", 32))
    assert [tuple(answer.shape) for answer in answers] == [(2, n, n, n) for n in (8, 16, 32)]


def test_densities_are_averaged_without_loss():
    source, target = ends_of("spots", 32)
    levels = averaged(source, target)
    assert [level[0].shape[-1] for level in levels] == [COARSEST[3], 16, 32]
    for first, second in levels:
        torch.testing.assert_close(first.mean((1, 2, 3)), source.mean((1, 2, 3)))
        torch.testing.assert_close(second.mean((1, 2, 3)), target.mean((1, 2, 3)))


def test_the_gradient_of_the_deficit_is_that_of_the_dual_value():
    """Along smooth directions, against differences; up to a positive factor of each pair."""
    source, target = ends_of("textures", 16, floor=0.3)
    generator = torch.Generator().manual_seed(0)
    coarse = 0.02 * torch.randn(4, 2, 4, 4, 4, generator=generator)
    c, *directions = (halved(halved(own)) for own in coarse)
    start, h = c.clone().requires_grad_(), 0.1
    scale = torch.tensor([0.5, 2.0])
    _deficit(start, looked(c, source, target, 1), scale).sum().backward()
    factors = []
    for direction in directions:
        ahead, behind = (looked(c + s * h * direction, source, target, 1).dual for s in (1, -1))
        along = (start.grad * direction).sum((1, 2, 3))
        factors.append(along / -(ahead - behind).float())
    first, *others = factors
    assert bool((first > 0).all())
    for other in others:
        # Sums over half-cells for integrals, differences for derivatives: good to a per cent.
        torch.testing.assert_close(other, first, rtol=0.03, atol=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("steep", "folds"), [(0.9, False), (1.5, True), (-1.5, True)])
def test_folds_are_where_second_derivatives_are_too_large(steep, folds, axis):
    """½u'' of a wave along an axis is known, and the mean square of what is beyond."""
    x = torch.pi * (torch.arange(32.0) + 0.5) / 8
    wave = 2 * steep * torch.cos(x) / (2 - 2 * math.cos(torch.pi / 8))
    u = wave[:, None, None].expand(32, 32, 32).movedim(0, axis)
    beyond = (abs(steep) * torch.cos(x).abs() - FOLDS).clamp(min=0)
    expected = float((beyond.square().mean() + SMALL**2).sqrt() - SMALL)
    assert (expected > 0) is folds
    assert float(_folds(u[None])) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_shift_is_at_least_its_length(axis):
    """Of a box by three of 16 cells: squared, and next to nothing more."""
    source = torch.zeros(1, 16, 16, 16)
    source[:, 4:10, 4:10, 4:10] = (16 / 6) ** 3
    target = source.roll(3, axis)
    assert float(_least(source, target)) == pytest.approx((3 / 16) ** 2, rel=1e-3)


def test_steps_make_every_grid_better_than_nothing(model):
    objective = model.objective(LossSettings(), Grid((16, 16, 16)))
    ends = ends_of("fields", 16, 4, floor=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    assert set(objective(batch_of(*ends))) == {"deficit_8", "folds_8", "deficit_16", "folds_16"}
    for _ in range(30):
        optimizer.zero_grad()
        objective.total(objective(batch_of(*ends))).backward()
        optimizer.step()
    for answer, pair in zip(model(*ends), averaged(*ends), strict=True):
        dual = looked(answer.detach(), *pair, 1).dual
        assert float(dual.mean()) > 0, f"on {answer.shape[-1]}³ cells it is worse than nothing"


@pytest.mark.parametrize(
    ("shape", "upper", "cells"),
    [
        ((32, 32, 32), (1, 1, 1), 32),
        ((8, 8, 8), (1, 1, 1), 16),
        ((20, 24, 18), (10, 12, 9), 32),
        ((32, 32, 32), (2, 1, 1), 64),
        ((100, 80, 70), (10, 8, 7), 64),
    ],
)
def test_the_cube_is_not_coarser_than_the_grid_if_it_can_be(shape, upper, cells):
    assert square_cells(Grid(shape, 0, upper)) == cells


@pytest.mark.parametrize(("shape", "upper"), [((16, 16, 16), (1, 1, 1)), ((8, 14, 10), (4, 7, 5))])
def test_potentials_follow_the_symmetries(talkative, shape, upper):
    """Swap, reflections and exchanges of axes, on any grid: the box is in the cube's middle."""
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    source, target = (Density(v, Grid(shape, 0, upper)) for v in values)
    u = potential_of(talkative, source, target)
    size = float((u - u.mean()).abs().max())
    assert size > 1e-6
    close = 1e-3 * size  # single precision, 1e-7, grows by some hundred in quotients
    assert float((u + potential_of(talkative, target, source)).abs().max()) < close
    for axis in range(3):
        mirrored = [Density(v.flip(axis), source.grid) for v in values]
        there = potential_of(talkative, *mirrored)
        assert float((u - there.flip(axis)).abs().max()) < close
    for order in ORDERS:
        grid = Grid([shape[k] for k in order], 0, [upper[k] for k in order])
        there = potential_of(talkative, *(Density(v.permute(order), grid) for v in values))
        assert float((u.permute(order) - there).abs().max()) < close


def test_equal_ends_stay(talkative):
    (values,) = ends_of("shapes", 16, 1)[:1]
    density = Density(values[0].double(), Grid((16, 16, 16)))
    assert float(potential_of(talkative, density, density).abs().max()) == 0


def test_a_batch_is_its_pairs_one_by_one(talkative):
    source, target = (Density(v, Grid((16,) * 3)) for v in ends_of("mixtures", 16, 3))
    together = guesses_of(talkative, source, target)
    for k, own in enumerate(together):
        alone = potential_of(talkative, source[k], target[k])
        close = 1e-3 * float(alone.abs().max())
        torch.testing.assert_close(own.coefficients, alone, rtol=1e-3, atol=close)


def test_a_guess_knows_finer_ones(talkative):
    """Until the finest cube; each goes on from the one before."""
    source, target = (Density(v[0], Grid((16,) * 3)) for v in ends_of("noise", 16))
    (guess,) = guesses_of(talkative, source, target)
    shapes = [tuple(guess.coefficients.shape)]
    while (guess := guess.finer()) is not None:
        shapes.append(tuple(guess.coefficients.shape))
    assert shapes == [(16,) * 3, (32,) * 3, (64,) * 3]


def test_a_file_of_it_is_a_solver(talkative, tmp_path):
    """Exact ends, also on a grid that is no cube; the steps of Newton's method lower the rest."""
    file = tmp_path / "model.safetensors"
    save_model(file, talkative, {"name": "tiny"})
    assert load_model(file)[0].settings == TINY
    shape = (12, 16, 10)
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    source, target = (Density(v, Grid(shape, 0, [n / 16 for n in shape])) for v in values)
    alone = CascadeSolver(file=str(file), corrections=0)(source, target)
    few = CascadeSolver(file=str(file))(source, target)
    assert torch.equal(alone.density(0).tensor, source.tensor)
    assert torch.equal(alone.density(1).tensor, target.tensor)
    assert few.notes["residual"] < 0.1 * alone.notes["residual"] < 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 1}, "a cascade takes 2 or 3"),
        ({"sensors": 24}, "8 times a power of two"),
        ({"sensors": 4}, "8 times a power of two"),
    ],
)
def test_odd_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        CascadeSettings(**{"dimension": 3, "sensors": 16, **changes})
