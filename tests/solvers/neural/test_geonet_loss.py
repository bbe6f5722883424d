"""The loss of the form "geonet" against autograd in the units of the box."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import grad, hessian, jacrev, vmap

from geonet import Grid
from geonet.solvers.neural.geonet import GeONetLoss, GeONetSettings
from geonet.solvers.neural.losses import Batch, LossSettings, pseudo_huber
from geonet.solvers.neural.model import Branch, Trunk, build_model

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]
EQUATIONS = ("continuity", "hamilton_jacobi", "continuity_gradient", "hamilton_jacobi_gradient")
ALL = LossSettings(0.5, 0.25, 1.5, 2.0, 0.3, 0.7)
PAIRS, POINTS, PLACES = 2, 3, 4
NO_ENDS = (None, None)  # not used by this loss


def loss_model(d, symmetry="density", features="coordinates", ends="learned", kind="modified-mlp"):
    branch, trunk = Branch("mlp", 5, 3), Trunk(kind, 4, 3, features, 2, 0.5)
    sizes = {"dimension": d, "sensors": 2, "rank": 5, "swap_symmetry": symmetry, "ends": ends}
    model = build_model(GeONetSettings(**sizes, branch=branch, trunk=trunk), 1)
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
    terms = dict(zip(EQUATIONS, squares, strict=True))
    volume = max(box.lengths) ** box.dimension
    for name, t, given in (("source", 0, batch.source_values), ("target", 1, batch.target_values)):
        there = density_at(model, batch, batch.endpoint_points, torch.full((PLACES,), float(t)))
        terms[name] = (((there - given) / volume) ** 2).mean()
    return terms


@pytest.mark.parametrize(("d", "lower", "upper"), [(1, 0.0, 1.0), (2, -1.0, 2.0), (3, -1.0, 2.0)])
@pytest.mark.parametrize(("epsilon", "slope"), [(0.0, 0.3), (0.0, 0.0), (0.8, 0.3)])
def test_loss_equals_the_papers_in_the_units_of_the_box(d, lower, upper, epsilon, slope):
    """Up to L^2d in front of all; gradients of residuals are by jets alone without `slope`."""
    model, batch, box = loss_model(d), make_batch(d), Grid((4,) * d, lower, upper)
    settings = replace(ALL, epsilon=epsilon, continuity_gradient=slope)
    objective = GeONetLoss(model, settings, box)
    assert (objective.differentiated == []) == (slope == 0)
    terms, expected = objective(batch), terms_in_the_box(model, batch, box, epsilon)
    factor = (upper - lower) ** (2 * d)
    assert expected.keys() - terms.keys() == (set() if slope else {"continuity_gradient"})
    total = 0.0
    for name, term in terms.items():
        value = factor * getattr(settings, name) * expected[name].item()
        assert (objective.weights[name] * term).item() == pytest.approx(value, rel=1e-9)
        assert value > 1e-6
        total += value
    assert objective.total(terms).item() == pytest.approx(total, rel=1e-9)


def test_robust_and_weighted_terms():
    """Pseudo-Huber in the continuity, squares times max(C, 0) + floor in Hamilton–Jacobi.

    The weight is not differentiated in x; all other terms are unchanged.
    """
    model, batch, box = loss_model(2), make_batch(2), Grid((4, 4))
    settings = replace(ALL, robust=0.1, weigh_by_density=True, floor=0.2)
    plain, terms = (GeONetLoss(model, own, box)(batch) for own in (ALL, settings))
    continuity, hamilton_jacobi, _, slope = residuals_in_the_box(model, batch, box, 0.0)
    density = density_at(model, batch, batch.points, batch.times)
    assert density.min() < 0 < density.max()
    weight = density.clamp(min=0) + 0.2
    expected = plain | {
        "continuity": pseudo_huber(continuity, 0.1).mean(),
        "hamilton_jacobi": (weight * hamilton_jacobi**2).mean(),
        "hamilton_jacobi_gradient": (weight * (slope**2).sum(-1)).mean(),
    }
    for name, term in terms.items():
        assert term.item() == pytest.approx(expected[name].item(), rel=1e-9), name
    assert terms["continuity"] < 0.999 * plain["continuity"]


@pytest.mark.parametrize(
    ("kind", "features", "symmetry", "paired", "settings"),
    [
        ("mlp", "coordinates", "none", False, LossSettings()),
        ("modified-mlp", "cosines", "density", True, ALL),
        ("separable", "fourier", "both", False, ALL),
        ("separable", "cosines", "none", True, LossSettings()),
    ],
)
def test_gradients_reach_every_weight(kind, features, symmetry, paired, settings):
    model = loss_model(1, symmetry, features, kind=kind)
    objective = GeONetLoss(model, settings, Grid(4))
    objective.total(objective(make_batch(1, paired))).backward()
    constant = model.potential.trunk.output.bias  # no equation contains it
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert p.grad.abs().max() == 0 if p is constant else p.grad.abs().max() > 1e-12, name
        else:
            assert p.grad is None, name


def smooth_ends():
    """Two densities of each pair, as functions of points (N, d) or (B, N, d)."""
    waves = torch.tensor([1.3, 1.8]), torch.tensor([0.5, 0.8])
    return tuple(
        lambda x, w=wave: 1 + w[:, None] * torch.cos(torch.pi * x).prod(-1) / 2 for wave in waves
    )


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("bent", [0.0, 0.7])
def test_characteristics_term_by_autograd(d, bent):
    """(ρ0 − ρ1)² + 2(C − ρ)², over ρ0 + ρ1 + floor; with and without the gradient term."""
    model, batch = loss_model(d, ends="given"), replace(make_batch(d), ends=smooth_ends())
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
                jacobian = torch.eye(d) + s * hessian(potential)(x)
                sides.append(end(there)[b] * torch.linalg.det(jacobian))
            mean = (1 - t) * sides[0] + t * sides[1]
            square = (sides[0] - sides[1]) ** 2 + 2 * (density[b, q] - mean) ** 2
            total += square / (sides[0].abs() + sides[1].abs() + 0.3)
    expected = (total / density.numel()).item()
    assert objective(batch)["characteristics"].item() == pytest.approx(expected, rel=1e-9)
