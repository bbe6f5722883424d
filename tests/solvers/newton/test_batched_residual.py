"""The equation for batches, in cells and relative to the uniform density."""

import threading

import pytest
import torch

from benchmarks.pairs import draw
from geonet.solvers.newton import compiled
from geonet.solvers.newton.system import Totals, levels_on, looked

needs_loops = pytest.mark.skipif(not compiled.available(), reason="they are not compiled")


@pytest.fixture
def batch():
    """Potentials that move things by a cell or so, and three pairs, (3, 32, 32) each."""
    pairs = [draw(kind, 32) for kind in ("smooth", "shapes", "white-noise")]
    source, target = (torch.stack([pair[end].tensor.float() for pair in pairs]) for end in (0, 1))
    coarse = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bicubic")[:, 0]
    return 2 * wide, source, target


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_batch_is_what_the_equation_says_of_each_pair(batch, threads):
    found = looked(*batch, threads)
    equation = levels_on((32, 32), (1.0, 1.0), 1).at(0)
    for k, (c, source, target) in enumerate(zip(*batch, strict=True)):
        equation.between(source, target, 0.0)
        mean = float((c.double() * found.weight[k]).sum() / found.weight[k].sum())
        residual, totals = equation.look(c.double() / 32**2)
        # Single precision decides in which cell a half-cell is, and a constant rounds.
        assert float((found.residual[k] - residual * 32**2).abs().mean()) < 1e-4
        assert found.totals[k].tolist() == pytest.approx(totals, rel=1e-4, abs=1e-7)
        centred = Totals(*equation.look((c.double() - mean) / 32**2)[1])
        dual = centred.energy / 2 + 2 * centred.gain
        assert float(found.dual[k]) == pytest.approx(dual, rel=1e-3, abs=1e-6)


def test_a_constant_in_the_potential_changes_nothing(batch):
    """Although both ends' masses, sums over half-cells, are not quite equal."""
    c, source, target = batch
    peaks = [end * (end > 1.5) * 8 for end in (source, target)]  # which half-cells jump over
    found, moved = (looked(own, *peaks, 1) for own in (3 * c, 3 * c + 1000))
    apart = found.totals[:, 2] - found.totals[:, 1]
    assert float(apart.abs().max()) > 1e-3
    torch.testing.assert_close(moved.dual, found.dual, rtol=1e-4, atol=1e-6)
    assert float(found.gradient.mean((1, 2)).abs().max()) < 1e-5


def test_at_zero_it_shows_the_densities(batch):
    """Up to the splines' means over three cells an axis."""
    _, source, target = batch
    found = looked(torch.zeros_like(source), source, target, 1)
    weight = (source + target) / 2
    torch.testing.assert_close(found.weight, weight, rtol=1e-4, atol=1e-4)
    # Both have mass one; a thousand numbers of about one are summed in single precision.
    assert float(found.residual.sum((1, 2)).abs().max()) < 0.01
    assert bool((found.dual == 0).all())


@needs_loops
def test_a_single_large_pair_has_all_threads():
    """Every number is summed in the same order, however many there are."""
    c, source, target = torch.rand(3, 1, 160, 160, generator=torch.Generator().manual_seed(1))
    alone, together = (looked(5 * c, source, target, threads) for threads in (1, 3))
    assert torch.equal(alone.residual, together.residual)
    assert torch.equal(alone.weight, together.weight)


def test_no_pairs():
    found = looked(*torch.zeros(3, 0, 16, 16), 2)
    assert found.residual.shape == found.weight.shape == (0, 16, 16)
    assert found.dual.shape == (0,)


@needs_loops
@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_loops_look_as_the_plain_version_does(d, monkeypatch):
    """To rounding of single precision."""
    shape = (8, 6, 4)[:d]
    generator = torch.Generator().manual_seed(d)
    source, target = torch.rand(2, 3, *shape, generator=generator)
    c = 0.1 * torch.randn(3, *shape, generator=generator)
    found = []
    for loops in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", loops)
        found.append(looked(c, source, target, 2))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_threads_do_not_share_their_room(batch):
    """Each of several callers at once gets what it would get alone."""
    alone, found = looked(*batch, 1), {}

    def call(number):
        for _ in range(5):
            found[number] = looked(*batch, 1)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for own in found.values():
        assert torch.equal(own.residual, alone.residual)
