import math

import pytest
import torch

from benchmarks.pairs import draw
from geonet import Density, Grid
from geonet.errors import ConfigError
from geonet.solvers.neural.cascade import (
    COARSEST,
    FOLDS,
    SMALL,
    CascadeSettings,
    _deficit,
    _folds,
    averaged,
    guesses_of,
    square_cells,
)
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import build
from geonet.solvers.neural.unet import halved
from geonet.solvers.newton.system import looked

TINY = CascadeSettings(sensors=32, whole=6, detail=2)


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


def potentials_of(model, source, target):
    return [guess.coefficients for guess in guesses_of(model, source, target)]


def ends_of(kind, cells, count=2):
    pairs = [draw(kind, cells, k) for k in range(count)]
    return [torch.stack([pair[end].tensor.float() for pair in pairs]) for end in (0, 1)]


def batch_of(source, target):
    nothing = torch.zeros(0)
    flat = source.flatten(1), target.flatten(1)
    return Batch(*flat, nothing, nothing, nothing, nothing, nothing, (torch.sin, torch.cos), False)


def test_it_answers_on_every_grid(model):
    answers = model(*ends_of("smooth", 64))
    assert [tuple(answer.shape) for answer in answers] == [(2, 16, 16), (2, 32, 32), (2, 64, 64)]


def test_densities_are_averaged_without_loss():
    source, target = ends_of("spots", 64)
    levels = averaged(source, target)
    assert [level[0].shape[-1] for level in levels] == [COARSEST[2], 32, 64]
    for first, second in levels:
        torch.testing.assert_close(first.mean((1, 2)), source.mean((1, 2)))
        torch.testing.assert_close(second.mean((1, 2)), target.mean((1, 2)))


def test_the_gradient_of_the_deficit_is_that_of_the_dual_value():
    """Along smooth directions, against differences; up to a positive factor of each pair."""
    source, target = (0.7 * end + 0.3 for end in ends_of("moderate", 32))
    generator = torch.Generator().manual_seed(0)
    coarse = 0.02 * torch.randn(4, 2, 8, 8, generator=generator)
    c, *directions = (halved(halved(own)) for own in coarse)
    start, h = c.clone().requires_grad_(), 0.1
    scale = torch.tensor([0.5, 2.0])
    _deficit(start, looked(c, source, target, 1), scale).sum().backward()
    factors = []
    for direction in directions:
        ahead, behind = (looked(c + s * h * direction, source, target, 1).dual for s in (1, -1))
        along = (start.grad * direction).sum((1, 2))
        factors.append(along / -(ahead - behind).float())
    first, *others = factors
    assert bool((first > 0).all())
    for other in others:
        # Sums over half-cells for integrals, differences for derivatives: good to a per cent.
        torch.testing.assert_close(other, first, rtol=0.03, atol=0)


def test_a_pair_far_off_does_not_outweigh_the_others():
    """Its gradient has about the size of that of a pair nearby."""
    source, target = (0.7 * end + 0.3 for end in ends_of("moderate", 32, 1))
    sizes = []
    for length in (0.3, 3.0):
        away = torch.zeros(1, 32, 32)
        away[:, 8:24, 8:24] = length
        start = away.clone().requires_grad_()
        _deficit(start, looked(away, source, target, 1), torch.tensor([0.01])).backward()
        sizes.append(float(start.grad.norm()))
    assert sizes[1] < 3 * sizes[0]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("steepest", "folds"), [(0.9, False), (1.5, True), (-1.5, True)])
def test_folds_are_where_second_derivatives_are_too_large(steepest, folds, turned):
    """½u'' of (4h/π)²·s·cos(πx/4h)… is s at most; the mean square of what is beyond is known."""
    x = torch.pi * (torch.arange(32.0) + 0.5) / 8
    wave = 2 * steepest * torch.cos(x) / (2 - 2 * math.cos(torch.pi / 8))
    u = wave[:, None].expand(32, 32) if not turned else wave.expand(32, 32)
    beyond = (abs(steepest) * torch.cos(x).abs() - FOLDS).clamp(min=0)
    expected = float((beyond.square().mean() + SMALL**2).sqrt() - SMALL)
    assert (expected > 0) is folds
    assert float(_folds(u[None])) == pytest.approx(expected, abs=1e-5)


def test_steps_lower_the_deficit_of_every_grid(model):
    objective = model.objective(LossSettings(), Grid((32, 32)))
    batch = batch_of(*ends_of("smooth", 32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = {name: float(term.detach()) for name, term in objective(batch).items()}
    for _ in range(30):
        optimizer.zero_grad()
        objective.total(objective(batch)).backward()
        optimizer.step()
    answers = model(*ends_of("smooth", 32, 4))
    duals = [
        looked(answer.detach(), *pair, 1).dual
        for answer, pair in zip(answers, averaged(*ends_of("smooth", 32, 4)), strict=True)
    ]
    assert set(first) == {"deficit_16", "folds_16", "deficit_32", "folds_32"}
    for n, dual in zip((16, 32), duals, strict=True):
        assert float(dual.mean()) > 0, f"on {n}² cells it is worse than doing nothing"


@pytest.mark.parametrize(
    ("shape", "upper", "cells"),
    [
        ((64, 64), (1, 1), 64),
        ((16, 16), (1, 1), 32),
        ((28, 28), (5, 5), 32),
        ((100, 40), (10, 4), 128),
        ((64, 64), (2, 1), 128),
        ((700, 500), (7, 5), 512),
    ],
)
def test_the_square_is_not_coarser_than_the_grid_if_it_can_be(shape, upper, cells):
    assert square_cells(Grid(shape, 0, upper)) == cells


@pytest.mark.parametrize(("shape", "upper"), [((32, 32), (1, 1)), ((20, 50), (2, 5))])
def test_potentials_follow_swaps_and_reflections(talkative, shape, upper):
    """On any grid: the box is in the middle of the square."""
    generator = torch.Generator().manual_seed(3)
    grid = Grid(shape, 0, upper)
    values = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.5
    source, target = (Density(v, grid) for v in values)
    (u,) = potentials_of(talkative, source, target)
    (swapped,) = potentials_of(talkative, target, source)
    mirrored = [Density(v.flip(0), grid) for v in values]
    (reflected,) = potentials_of(talkative, *mirrored)
    size = float((u - u.mean()).abs().max())
    assert size > 1e-6
    # Single precision, 1e-7, grows by some hundred where noise is squashed and differences taken.
    assert float((u + swapped).abs().max()) < 1e-3 * size
    assert float((u - reflected.flip(0)).abs().max()) < 1e-3 * size


def test_a_batch_is_its_pairs_one_by_one(talkative):
    source, target = (Density(v, Grid((32, 32))) for v in ends_of("moderate", 32, 3))
    together = potentials_of(talkative, source, target)
    for k, own in enumerate(together):
        (alone,) = potentials_of(talkative, source[k], target[k])
        assert own.shape == alone.shape
        torch.testing.assert_close(own, alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max()))


def test_a_guess_knows_finer_ones(talkative):
    """Until the finest square; each goes on from the one before."""
    source, target = draw("white-noise", 64)
    (guess,) = guesses_of(talkative, source, target)
    shapes = [guess.coefficients.shape]
    while (guess := guess.finer()) is not None:
        shapes.append(guess.coefficients.shape)
    assert shapes == [(64, 64), (128, 128), (256, 256), (512, 512)]


def test_the_path_of_the_network_is_exact_at_the_ends(talkative):
    source, target = draw("shapes", 32)
    path = talkative.path(source, target, "cascade", {})
    assert torch.equal(path.density(0).tensor, source.tensor)
    assert torch.equal(path.density(1).tensor, target.tensor)
    assert 0 < path.residual < 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 1}, "a cascade takes 2 or 3"),
        ({"sensors": 48}, "16 times a power of two"),
        ({"sensors": 8}, "16 times a power of two"),
        ({"whole": 0}, "whole is 0"),
        ({"detail": -1}, "detail is -1"),
    ],
)
def test_odd_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        CascadeSettings(**changes)
