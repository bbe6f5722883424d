"""SOAP and Adam, learning rates, balancing of terms, weight decay."""

import copy

import pytest
import torch
from torch.nn import Parameter

from geonet.training.config import OptimizerSettings
from geonet.training.loop import Processes, balance_weights
from geonet.training.optim import SOAP, decay_weights, learning_rate, make_optimizer


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthogonal(n, seed):
    return torch.linalg.qr(random(n, n, seed=seed))[0]


def walk(optimizer, parameters, gradient, steps):
    for k in range(steps):
        for i, p in enumerate(parameters):
            p.grad = gradient(i, p, k)
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def pull(i, p, k):
    """Return a noisy gradient towards a matrix, stiffer along some entries than others."""
    shape, seed = p.shape, 100 * i + 1
    stiffness = random(*shape, seed=seed).exp()
    noise = 0.1 * random(*shape, seed=seed + 7919 * (k + 1))
    return (stiffness * (p - random(*shape, seed=seed + 1)) + noise).detach()


SHAPES = [(4, 3), (5,), (4, 3), (2, 6), (5,), (4, 3), (1, 4), ()]


def starts(shapes=SHAPES):
    return [Parameter(random(*shape, seed=50 + i)) for i, shape in enumerate(shapes)]


def quadratic_after(make, steps=300, n=10):
    """Return ½|A(W − W*)B|² after some steps from 0; A and B have condition 100."""
    spectrum = torch.logspace(0, -2, n, dtype=torch.float64)
    A, B = (orthogonal(n, k) * spectrum @ orthogonal(n, k + 1) for k in (1, 3))
    W, goal = Parameter(torch.zeros(n, n, dtype=torch.float64)), random(n, n, seed=5)
    optimizer = make([W])
    for _ in range(steps):
        optimizer.zero_grad()
        loss = 0.5 * (A @ (W - goal) @ B).square().sum()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_soap_is_faster_than_adam_on_an_ill_conditioned_matrix():
    rates = (0.03, 0.1)
    soap = min(quadratic_after(lambda p, lr=lr: SOAP(p, lr=lr)) for lr in rates)
    adam = min(quadratic_after(lambda p, lr=lr: torch.optim.Adam(p, lr=lr)) for lr in rates)
    assert soap < 0.1 * adam


def test_stacking_does_not_change_the_updates():
    together, alone = starts(), starts()
    walk(SOAP(together, lr=0.02), together, pull, 25)
    for i, p in enumerate(alone):
        walk(SOAP([p], lr=0.02), [p], lambda _, p, k, i=i: pull(i, p, k), 25)
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_soap_is_rotation_equivariant_and_adam_is_not():
    left, right, start = orthogonal(4, 11), orthogonal(4, 12), random(4, 4, seed=13)

    def gradient(W, k):
        return random(4, 4, seed=14).exp() * (W - 1) + 0.1 * random(4, 4, seed=20 + k)

    def rotated(_, p, k):
        return left @ gradient(left.T @ p.detach() @ right, k) @ right.T

    ends = {}
    for name, make in (("soap", SOAP), ("adam", torch.optim.Adam)):
        plain, image = Parameter(start.clone()), Parameter(left @ start @ right.T)
        walk(make([plain], lr=0.02), [plain], lambda _, p, k: gradient(p.detach(), k), 25)
        walk(make([image], lr=0.02), [image], rotated, 25)
        ends[name] = float((left @ plain.detach() @ right.T - image.detach()).abs().max())
    assert ends["soap"] < 1e-9
    assert ends["adam"] > 1e-3


@pytest.mark.parametrize(("shape", "largest"), [((5,), 400), ((), 400), ((4, 3), 2)])
def test_vectors_and_large_matrices_get_adam(shape, largest):
    """After the first step, which only measures the gradients."""
    ours, theirs = starts([shape]), starts([shape])
    walk(SOAP(ours, lr=0.02, largest=largest), ours, pull, 1)
    assert torch.equal(ours[0], theirs[0])
    optimizer = SOAP(ours, lr=0.02, largest=largest)
    walk(optimizer, ours, pull, 20)
    adam = torch.optim.Adam(theirs, lr=0.02, betas=(0.95, 0.95))
    walk(adam, theirs, lambda i, p, k: pull(i, p, k + 1), 19)
    assert torch.allclose(ours[0], theirs[0], atol=1e-6)


@pytest.mark.parametrize("name", ["soap", "adam"])
@pytest.mark.parametrize("before", [1, 13])
def test_a_restored_state_continues_identically(name, before):
    settings = OptimizerSettings(name=name, learning_rate=0.02)
    whole, part = starts(), starts()
    walk(make_optimizer(settings, whole), whole, pull, 30)

    first = make_optimizer(settings, part)
    walk(first, part, pull, before)
    saved = copy.deepcopy(first.state_dict())
    resumed = [Parameter(p.detach().clone()) for p in part]
    second = make_optimizer(settings, resumed)
    second.load_state_dict(saved)
    walk(second, resumed, lambda i, p, k: pull(i, p, k + before), 30 - before)
    for a, b in zip(whole, resumed, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("schedule", "start", "middle", "end"),
    [
        ("cosine", 2.0, 2.0 * 0.505, 0.02),
        ("exponential", 2.0, 0.2, 0.02),
        ("constant", 2.0, 2.0, 2.0),
    ],
)
def test_schedules_without_warmup(schedule, start, middle, end):
    settings = OptimizerSettings("soap", 2.0, schedule, final=0.01, warmup=0)
    found = [learning_rate(settings, step, 1000) for step in (0, 500, 1000)]
    assert found == pytest.approx([start, middle, end])
    rates = [learning_rate(settings, step, 1000) for step in range(1001)]
    assert rates == sorted(rates, reverse=True)


def test_warmup_is_linear():
    warm, cold = (OptimizerSettings("soap", 2.0, "cosine", warmup=n) for n in (100, 0))
    share = [learning_rate(warm, k, 1000) / learning_rate(cold, k, 1000) for k in range(1000)]
    assert share[:3] == pytest.approx([0.01, 0.02, 0.03])
    assert share[49] == pytest.approx(0.5)
    assert share[99:] == pytest.approx([1.0] * 901)


def balance(given, start=None, calls=1):
    """Balance terms with gradients (3, 4), (0.1) and (20) of two parameters."""
    a, b = Parameter(torch.ones(2).double()), Parameter(torch.ones(1).double())
    terms = {
        "first": (torch.tensor([3.0, 4.0]) * a).sum() + 0 * b.sum(),
        "second": 0.1 * b.sum(),
        "third": (b**2).sum() * 10,
    }
    weights = dict(start or given)
    for _ in range(calls):
        weights = balance_weights(terms, weights, given, [a, b], Processes())
    return weights


NORMS = {"first": 5.0, "second": 0.1, "third": 20.0}


@pytest.mark.parametrize("start", [None, {"first": 9.0, "second": 0.0, "third": 100.0}])
def test_balancing_makes_the_weighted_gradients_equal(start):
    given = {"first": 1.0, "second": 30.0, "third": 0.5}
    weights = balance(given, start, calls=400)
    sizes = [weights[name] * NORMS[name] for name in NORMS]
    total = sum(given[name] * NORMS[name] for name in NORMS)
    assert sizes == pytest.approx([total / 3] * 3)


def test_weight_decay_applies_to_trainable_matrices():
    matrix, vector = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    decay_weights([matrix, vector, frozen], 0.25)
    assert torch.equal(matrix, torch.full((2, 3), 0.75))
    assert torch.equal(vector, torch.ones(3)) and torch.equal(frozen, torch.ones(2, 2))
