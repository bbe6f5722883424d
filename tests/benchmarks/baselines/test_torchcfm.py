"""Our flow matching against that of its authors, `torchcfm`: the same pairs, lines and loss."""

import numpy as np
import pytest
import torch

from benchmarks.baselines import flow_matching as learned_flow
from benchmarks.baselines.flow_matching import (
    FlowMatching,
    RectifiedFlow,
    pair_optimally,
    sample_on_lines,
)
from geonet._utils import fork_rng

pytestmark = pytest.mark.slow
SMALL = {"steps": 300, "batch": 128, "width": 32, "depth": 2}
SEEDS = 24


@pytest.fixture(scope="module")
def torchcfm():
    reason = "torchcfm is not installed; make test-all installs it"
    return pytest.importorskip("torchcfm", reason=reason)


@pytest.fixture
def both_seeded():
    """torchcfm draws from the global streams of NumPy and PyTorch."""
    before = np.random.get_state()
    np.random.seed(0)
    with fork_rng(0):
        yield
    np.random.set_state(before)


@pytest.fixture
def batch(generator):
    """Particles in the plane; their optimal plan is one permutation, almost surely."""
    return torch.randn(64, 2, generator=generator), 2 * torch.rand(64, 2, generator=generator)


def test_the_same_pairs_as_often(torchcfm, batch, generator, both_seeded):
    sampler = torchcfm.ExactOptimalTransportConditionalFlowMatcher(sigma=0.0).ot_sampler
    found, distinct = [], []
    for draw in (lambda: pair_optimally(*batch, generator), lambda: sampler.sample_plan(*batch)):
        draws = [{tuple(row) for row in torch.cat(draw(), 1).tolist()} for _ in range(200)]
        found.append(set.union(*draws))
        distinct.append(np.mean([len(pairs) for pairs in draws]) / 64)
    assert found[0] == found[1] and len(found[0]) == 64
    # Drawn with replacement, 63 % are met; the standard error is 0.003.
    assert distinct[0] == pytest.approx(distinct[1], abs=0.015)


def test_the_same_lines(torchcfm, batch, generator):
    t, where, velocity = sample_on_lines(*batch, generator)
    matcher = torchcfm.ConditionalFlowMatcher(sigma=0.0)
    _, theirs, their_velocity = matcher.sample_location_and_conditional_flow(*batch, t)
    assert torch.equal(where, theirs)
    assert torch.equal(velocity, their_velocity)


def test_the_same_loss(torchcfm, generator, monkeypatch, both_seeded):
    sides = torch.tensor([[-2.0, 0.0], [2.0, 0.0]]).repeat(200, 1)
    source, target = sides + 0.4 * torch.randn(2, 400, 2, generator=generator)
    target = target + torch.tensor([0.0, 3.0])

    def losses(solver):
        return [solver(**SMALL, seed=seed).fit(source, target).loss for seed in range(SEEDS)]

    ours = losses(FlowMatching)
    random = RectifiedFlow(**SMALL, rounds=0).fit(source, target).loss
    sampler = torchcfm.ExactOptimalTransportConditionalFlowMatcher(sigma=0.0).ot_sampler
    matcher = torchcfm.ConditionalFlowMatcher(sigma=0.0)
    monkeypatch.setattr(learned_flow, "paired_optimally", lambda a, b, _: sampler.sample_plan(a, b))
    monkeypatch.setattr(
        learned_flow, "on_lines", lambda a, b, _: matcher.sample_location_and_conditional_flow(a, b)
    )
    theirs = losses(FlowMatching)
    # Four standard errors of the difference.
    margin = 4 * np.hypot(np.std(ours, ddof=1), np.std(theirs, ddof=1)) / SEEDS**0.5
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=margin)
    assert margin < 0.1 * (random - np.mean(ours)), "the margin would let random pairs pass"
