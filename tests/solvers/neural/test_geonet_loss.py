"""The loss of the form "geonet" against autograd in the units of the box."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap

from geonet import Grid
from geonet.solvers.neural.geonet import (
    GeONetLoss,
    GeONetSettings,
)
from geonet.solvers.neural.losses import Batch, LossSettings, pseudo_huber
from geonet.solvers.neural.model import Branch, Trunk, build_model

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


TERMS = ("continuity", "hamilton_jacobi", "source", "target")
SLOPES = ("continuity_gradient", "hamilton_jacobi_gradient")
ALL = LossSettings(0.5, 0.25, 1.5, 2.0, 0.3, 0.7)
PAIRS, POINTS, PLACES = 2, 3, 4
NO_ENDS = (None, None)  # not used by this loss


def loss_model(
    d, symmetry="density", network="modified-mlp", features="coordinates", ends="learned"
):
    settings = GeONetSettings(
        dimension=d,
        sensors=2,
        rank=5,
        swap_symmetry=symmetry,
        ends=ends,
        branch=Branch("mlp", 5, 3),
        trunk=Trunk(network, 4, 3, features, 2, 0.5),
    )
    model = build_model(settings, 1)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():  # biases of a new network are zero, and its potential is small
        for p in model.parameters():
            if p.requires_grad:
                p += 0.5 * torch.randn(p.shape, generator=noise)
    return model


def make_batch(d, paired=False, seed=3):
    generator = torch.Generator().manual_seed(seed)
    points, places = (PAIRS, PAIRS) if paired else (POINTS, PLACES)
    there = (PAIRS,) if paired else (PAIRS, PLACES)
    shapes = [(PAIRS, 2**d)] * 2 + [(points, d), (points,), (places, d), there, there]
    tensors = (torch.rand(*shape, generator=generator) for shape in shapes)
    return Batch(*tensors, ends=NO_ENDS, is_paired=paired)


def residuals_in_the_box(model, batch, box, epsilon):
    """Residuals (pairs, points) and their gradients (pairs, points, d), all by autograd.

    In the units of the box: μ(x, t) = C(y, t)/L^d and u(x, t) = L²H(y, t) with x = lower + Ly.
    """
    d, length, lower = box.dimension, max(box.lengths), box.lower_tensor
    coefficients = model.coefficients(batch.source, batch.target)
    answers = []
    for c, h in zip(*coefficients, strict=True):

        def row(x, t):
            return torch.cat([(x - lower) / length, t[None]])

        def density(x, t, c=c):
            return c @ model.density.basis(row(x, t)) / length**d

        def potential(x, t, h=h):
            return h @ model.potential.basis(row(x, t)) * length**2

        def flux(x, t, density=density, potential=potential):
            return density(x, t) * grad(potential)(x, t) + epsilon * grad(density)(x, t)

        def continuity(x, t, density=density, flux=flux):
            return grad(density, 1)(x, t) + jacrev(flux)(x, t).trace()

        def hamilton_jacobi(x, t, potential=potential):
            velocity = grad(potential)(x, t)
            spreading = epsilon * hessian(potential)(x, t).trace()
            return grad(potential, 1)(x, t) + 0.5 * velocity @ velocity - spreading

        points = lower + length * batch.points
        functions = (continuity, hamilton_jacobi, jacrev(continuity), jacrev(hamilton_jacobi))
        answers.append([vmap(f)(points, batch.times) for f in functions])
    return [torch.stack(found) for found in zip(*answers, strict=True)]


def density_at(model, batch, where, times):
    """C in the unit box at (x, t): (pairs, points)."""
    basis = model.density.basis(torch.cat([where, times[:, None]], dim=1))
    return model.coefficients(batch.source, batch.target)[0] @ basis.T


def terms_in_the_box(model, batch, box, epsilon):
    residuals = residuals_in_the_box(model, batch, box, epsilon)
    squares = [(r**2).mean() if r.ndim == 2 else (r**2).sum(-1).mean() for r in residuals]
    terms = dict(zip(("continuity", "hamilton_jacobi", *SLOPES), squares, strict=True))
    volume = max(box.lengths) ** box.dimension
    for name, t, given in (("source", 0, batch.source_values), ("target", 1, batch.target_values)):
        there = density_at(model, batch, batch.endpoint_points, torch.full((PLACES,), float(t)))
        terms[name] = (((there - given) / volume) ** 2).mean()
    return terms


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (-1.0, 2.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.8])
def test_loss_equals_the_papers_in_the_units_of_the_box(d, lower, upper, epsilon):
    """Up to L^2d in front of all; with the gradients of every pair's residual."""
    model, batch, box = loss_model(d), make_batch(d), Grid((4,) * d, lower, upper)
    settings = replace(ALL, epsilon=epsilon)
    objective = GeONetLoss(model, settings, box)
    terms, expected = objective(batch), terms_in_the_box(model, batch, box, epsilon)
    factor = (upper - lower) ** (2 * d)
    assert terms.keys() == expected.keys() == {*TERMS, *SLOPES}
    for name, term in terms.items():
        wanted = factor * getattr(settings, name) * expected[name]
        assert (objective.weights[name] * term).item() == pytest.approx(wanted.item(), rel=1e-9)
        assert wanted > 1e-6
    total = factor * sum(getattr(settings, name) * expected[name] for name in terms)
    assert objective.total(terms).item() == pytest.approx(total.item(), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("ends", ["learned", "given"])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("weigh", [False, True])
def test_gradient_by_jets_equals_forward_mode(d, ends, paired, weigh):
    """Σ_i (∂_i of the Hamilton–Jacobi residual)², where nothing but the jets is differentiated."""
    settings = replace(ALL, continuity_gradient=0.0, weigh_by_density=weigh)
    objective = GeONetLoss(loss_model(d, ends=ends), settings, Grid((4,) * d))
    assert objective.differentiated == []
    batch = make_batch(d, paired)
    coefficients = objective.model.coefficients(batch.source, batch.target)
    expected = 0.0
    for direction in torch.eye(d):
        _, along = jvp(
            lambda points: objective._residuals(coefficients, batch, points),
            (batch.points,),
            (direction.expand_as(batch.points),),
        )
        expected = expected + (along["hamilton_jacobi"] ** 2).mean()
    found = objective(batch)["hamilton_jacobi_gradient"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    assert found > 1e-6


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("robust", [0.01, 0.1])
def test_robust_continuity_term(d, robust):
    """Those of the unit box, and in this term alone."""
    model, batch, box = loss_model(d), make_batch(d), Grid((4,) * d)
    plain = GeONetLoss(model, ALL, box)(batch)
    terms = GeONetLoss(model, replace(ALL, robust=robust), box)(batch)
    residual, *_ = residuals_in_the_box(model, batch, box, 0.0)
    expected = pseudo_huber(residual, robust).mean()
    assert terms["continuity"].item() == pytest.approx(expected.item(), rel=1e-9)
    assert terms["continuity"] < 0.999 * plain["continuity"]
    assert all(torch.equal(terms[name], plain[name]) for name in plain if name != "continuity")


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_triples_equal_the_diagonal(d, weigh, epsilon):
    """Each pair with its own point alone, as a batch of the other kind."""
    settings = replace(ALL, weigh_by_density=weigh, epsilon=epsilon)
    objective = GeONetLoss(loss_model(d), settings, Grid((4,) * d))
    batch = make_batch(d, paired=True)
    together = objective(batch)
    alone = [
        objective(
            Batch(
                *(values[n : n + 1] for values in (batch.source, batch.target)),
                *(
                    values[n : n + 1]
                    for values in (batch.points, batch.times, batch.endpoint_points)
                ),
                *(values[n : n + 1, None] for values in (batch.source_values, batch.target_values)),
                ends=NO_ENDS,
                is_paired=False,
            )
        )
        for n in range(PAIRS)
    ]
    for name, term in together.items():
        assert torch.allclose(term, torch.stack([terms[name] for terms in alone]).mean()), name


def test_density_weights():
    """Squares times max(C, 0) + floor; a weight, so that it is not differentiated in x."""
    model, batch, box = loss_model(2), make_batch(2), Grid((4, 4))
    plain = GeONetLoss(model, ALL, box)(batch)
    terms = GeONetLoss(model, replace(ALL, weigh_by_density=True, floor=0.2), box)(batch)
    _, residual, _, slope = residuals_in_the_box(model, batch, box, 0.0)
    density = density_at(model, batch, batch.points, batch.times)
    assert density.min() < 0 < density.max()
    weight = density.clamp(min=0) + 0.2
    assert torch.allclose(terms["hamilton_jacobi"], (weight * residual**2).mean())
    expected = (weight * (slope**2).sum(-1)).mean()
    assert torch.allclose(terms["hamilton_jacobi_gradient"], expected)
    for name in {*TERMS, *SLOPES} - {"hamilton_jacobi", "hamilton_jacobi_gradient"}:
        assert torch.equal(terms[name], plain[name])


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("features", ["coordinates", "cosines", "fourier"])
@pytest.mark.parametrize("symmetry", ["none", "density", "both"])
@pytest.mark.parametrize(("paired", "settings"), [(False, LossSettings()), (True, ALL)])
def test_gradients_reach_every_weight(network, features, symmetry, paired, settings):
    model = loss_model(1, symmetry, network, features)
    objective = GeONetLoss(model, settings, Grid(4))
    objective.total(objective(make_batch(1, paired))).backward()
    constant = model.potential.trunk.output.bias  # no equation sees it
    for name, p in model.named_parameters():
        if not p.requires_grad:
            assert p.grad is None, name
        elif p is constant:
            assert not p.grad.any()
        else:
            assert p.grad is not None and p.grad.abs().max() > 1e-12, name


def smooth_ends(strength):
    """Two densities of each pair, as functions of points (N, d) or (B, N, d)."""
    waves = (1 + strength * torch.tensor([0.3, 0.8]), 1 - strength * torch.tensor([0.5, 0.2]))

    def end(wave):
        return lambda x: 1 + wave[:, None] * torch.cos(torch.pi * x).prod(-1) / 2

    return tuple(map(end, waves))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("bent", [0.0, 0.7])
def test_characteristics_term_by_autograd(d, bent):
    """(ρ0 − ρ1)² + 2(C − ρ)², over ρ0 + ρ1 + floor; with and without ω the same."""
    model, batch = loss_model(d, ends="given"), replace(make_batch(d), ends=smooth_ends(1.0))
    settings = replace(ALL, characteristics=2.0, floor=0.3, hamilton_jacobi_gradient=bent)
    objective = GeONetLoss(model, settings, Grid((4,) * d))
    assert objective.weights["characteristics"] == 2.0
    _, coefficients = model.coefficients(batch.source, batch.target)
    total = 0.0
    density = density_at(model, batch, batch.points, batch.times)
    for b, own in enumerate(coefficients):
        for q, (x, t) in enumerate(zip(batch.points, batch.times, strict=True)):

            def potential(x, t=t, own=own):
                return own @ model.potential.basis(torch.cat([x, t[None]]))

            sides = []
            for end, s in zip(batch.ends, (-t, 1 - t), strict=True):
                there = x + s * grad(potential)(x)
                bent_by = torch.eye(d) + s * hessian(potential)(x)
                sides.append(end(there)[b] * torch.linalg.det(bent_by))
            mean = (1 - t) * sides[0] + t * sides[1]
            square = (sides[0] - sides[1]) ** 2 + 2 * (density[b, q] - mean) ** 2
            total += square / (sides[0].abs() + sides[1].abs() + 0.3)
    expected = (total / density.numel()).item()
    assert objective(batch)["characteristics"].item() == pytest.approx(expected, rel=1e-9)


def test_characteristics_do_not_move_the_potential():
    """An error of C has no gradient in H."""
    model = loss_model(1)
    settings = replace(ALL, characteristics=1.0)
    batch = replace(make_batch(1), ends=smooth_ends(1.0))
    moving = [p for p in model.potential.parameters() if p.requires_grad]

    def slopes():
        terms = GeONetLoss(model, settings, Grid(4))(batch)
        return torch.autograd.grad(terms["characteristics"], moving, allow_unused=True)

    before = slopes()
    with torch.no_grad():
        for p in model.density.parameters():
            p += 0.3
    after = slopes()
    seen = [(a, b) for a, b in zip(before, after, strict=True) if a is not None]
    assert any(a.any() for a, _ in seen)
    assert all(torch.equal(a, b) for a, b in seen)
