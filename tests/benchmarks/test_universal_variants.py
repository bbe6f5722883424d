"""The networks that are compared with the cascade: they learn, and have its symmetries."""

import math
from importlib import import_module
from pathlib import Path

import pytest
import torch

from geonet.solvers.newton.iteration import MultilevelNewton

PAGES = Path(__file__).resolve().parents[2] / "studies" / "pages"
LABELS = (
    "MLP on 32² modes, once",
    "Fourier layers, once",
    "convolutions, once",
    "cascade",
    "cascade, one network for all grids",
)
# Of the largest coefficient: single precision is good to 6e-8, through a dozen layers and, in a
# cascade, three looks. A layer that breaks a symmetry shows in the first digits.
ROUNDING = 1e-5


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(PAGES))
    return import_module("universal_variants")


@pytest.fixture
def ends(module):
    """Two pairs of the family."""
    return module.random_pairs(module.seeded(3), 2, module.SQUARE)


def test_all_are_compared(module):
    assert tuple(module.VARIANTS) == LABELS


@pytest.mark.parametrize("label", LABELS)
def test_a_variant_learns_and_keeps_its_symmetries(module, ends, label):
    network = module.built(label)
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    optimizer = module.SOAP(network.parameters(), module.RATE)
    losses = [module.take_step(network, optimizer, *ends) for _ in range(3)]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]  # of the same two pairs; the first step only measures
    moved = dict(network.requires_grad_(False).named_parameters())
    assert [name for name in before if torch.equal(before[name], moved[name])] == []

    source, target = ends
    answers = network(source, target)
    assert answers[-1].shape == (2, 64, 64)
    there = {axis: network(source.flip(axis), target.flip(axis)) for axis in (1, 2)}
    swapped = network(target, source)
    for level, answer in enumerate(answers):
        largest = float(answer.abs().max())
        assert largest > 1  # squared cells: it says something
        limits = {"rtol": 0, "atol": ROUNDING * largest}
        for axis, reflected in there.items():
            torch.testing.assert_close(reflected[level].flip(axis), answer, **limits)
        torch.testing.assert_close(swapped[level], -answer, **limits)


def test_the_learning_rate_stays_and_falls_to_zero(module):
    rates = [module.learning_rate(share) for share in (0, 0.2, 0.3, 0.65, 1)]
    expected = [module.RATE] * 3 + [module.RATE / 2, 0]
    assert rates == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def pairs(module, monkeypatch):
    """Two pairs of two kinds each, which are quick to draw, with their references."""
    monkeypatch.setattr(module, "KINDS", ("moderate", "shapes"))
    return module.known_pairs(2)


def test_a_row_of_the_table(module, pairs):
    """Without any training, since that is by the clock."""
    label, weights, seen, *measured = module.row("cascade", pairs, minutes=0)
    assert (label, weights, seen) == ("cascade", "133", "0")
    assert len(measured) == 4


def test_errors_of_nothing_and_of_the_solution(module, pairs):
    """A potential of zero leaves the linear mixture; Newton's own has hardly an error."""
    nothing = module.errors_of(lambda source, target: [torch.zeros_like(source)], pairs)
    assert nothing.distance == 1
    # The frame is the mixture, but for rounding; densities are in single precision.
    assert nothing.relative == pytest.approx(1, abs=1e-5)
    assert nothing.unbalanced > 0.5

    def solved(source, target):
        newton = MultilevelNewton(module.TOLERANCE, refine=False)
        found = [
            newton.solved(a.double(), b.double(), (1.0, 1.0))
            for a, b in zip(source, target, strict=True)
        ]
        return [torch.stack([own.coefficients.float() for own in found]) * 64**2]

    own = module.errors_of(solved, pairs)
    assert own.unbalanced < 2 * module.TOLERANCE  # which `midpoint` takes for converged
    # It is the reference, but that coefficients and densities are in single precision.
    assert own.distance < 1e-5 and own.relative < 1e-3
