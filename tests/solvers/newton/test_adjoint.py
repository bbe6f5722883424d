"""Gradients of paths in quadratic splines against finite differences."""

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.solvers.newton.path import SplineGeodesic, followed

GRIDS = {1: Grid(16, 0.0, 2.0), 2: Grid((8, 7), 0.0, (2.0, 1.5))}
TIGHT = 1e-6  # of the residual: finite differences are of solutions


def random(shape, seed):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ends_on(grid):
    waves = torch.cos(torch.pi * grid.points() / torch.tensor(grid.lengths, dtype=torch.float64))
    return (0.4 * waves[..., 0]).exp(), (0.3 * waves[..., -1] - 0.3 * waves[..., 0]).exp()


def changes_on(grid):
    waves = torch.cos(torch.pi * grid.points() / torch.tensor(grid.lengths, dtype=torch.float64))
    return 2 * waves[..., 0] ** 2 - 1 + 0.3 * waves[..., -1], waves.prod(-1)


def solve(source, target, grid, **options):
    ends = Density(source, grid), Density(target, grid)
    return geonet.geodesic(*ends, "midpoint", tolerance=TIGHT, refine=False, **options)


def answers(path):
    """One number of each answer. A potential is free up to a constant, which weighs nothing."""
    grid = path.grid
    lengths = torch.tensor(grid.lengths, dtype=torch.float64)
    points = (0.1 + 0.8 * random((5, grid.dimension), 2)) * lengths
    frames = path.density([0.3, 0.6]).tensor
    finer = path.density(0.4, grid.with_shape([n + 3 for n in grid.shape])).tensor
    velocity, potential = path.velocity([0.2, 0.8], points), path.potential([0.2, 0.8], points)
    places = path.trajectories([0.0, 0.7], points)
    weights = random(potential.shape, 5)
    return {
        "frames": (frames * random(frames.shape, 3)).sum(),
        "finer frames": (finer * random(finer.shape, 3)).sum(),
        "velocity": (velocity * random(velocity.shape, 4)).sum(),
        "potential": (potential * (weights - weights.mean(-1, keepdim=True))).sum(),
        "trajectories": (places * random(places.shape, 6)).sum(),
        "squared distance": path.distance**2,
    }


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
@pytest.mark.parametrize("d", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_gradients_are_those_of_finite_differences(d, monkeypatch):
    """In double precision, so without the compiled loops.

    Small ones: frames have kinks where the side of a box passes a face.
    """
    monkeypatch.setenv("GEONET_COMPILED", "0")
    grid = GRIDS[d]
    ends, changes, h = ends_on(grid), changes_on(grid), 1e-4
    leaves = [end.clone().requires_grad_() for end in ends]
    found = answers(solve(*leaves, grid))
    for k in (0, 1):
        ahead, behind = (
            answers(
                solve(*(end + s * h * changes[k] * (i == k) for i, end in enumerate(ends)), grid)
            )
            for s in (1, -1)
        )
        for name, value in found.items():
            (gradient,) = torch.autograd.grad(value, leaves[k], retain_graph=True)
            expected = float(ahead[name] - behind[name]) / (2 * h)
            # The distance's is that of the continuous problem; on these cells h² of it is missing.
            allowed = 0.03 if name == "squared distance" else 2e-3
            assert float((gradient * changes[k]).sum()) == pytest.approx(
                expected, rel=allowed, abs=allowed * 0.01
            ), name


def test_compiled_and_plain_gradients_agree(monkeypatch):
    grid = Grid((16, 12), 0.0, (1.0, 0.75))
    slopes = []
    for compiled in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", compiled)
        leaves = [end.clone().requires_grad_() for end in ends_on(grid)]
        path = geonet.geodesic(*(Density(end, grid) for end in leaves), "midpoint", tolerance=1e-4)
        weights = random(grid.shape, 3)
        value = (path.density(0.5).tensor * weights).sum()
        slopes.append(torch.cat([s.flatten() for s in torch.autograd.grad(value, leaves)]))
    # Potentials within 1e-4 of the mass, and steps in single precision.
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 0.01


def test_the_coefficients_are_the_same_and_in_the_graph():
    grid = GRIDS[2]
    leaves = [end.clone().requires_grad_() for end in ends_on(grid)]
    path = geonet.geodesic(*(Density(end, grid) for end in leaves), "midpoint")
    assert isinstance(path, SplineGeodesic)
    c = followed(path)
    assert c.requires_grad and torch.equal(c.detach(), path.coefficients)
    gradients = torch.autograd.grad(c[2, 3] - c[4, 1], leaves, retain_graph=True)
    for gradient in gradients:
        assert bool(torch.isfinite(gradient).all()) and bool(gradient.any())
    constant = torch.autograd.grad(followed(path).sum(), leaves)  # which is free: it has none
    for gradient, other in zip(constant, gradients, strict=True):
        assert float(gradient.abs().max()) < 1e-6 * float(other.abs().max())


def test_holes_and_jumps_have_finite_gradients():
    """Where there is no mass the potential is free; the gradient must not blow up for that."""
    grid = Grid((16, 16))
    source, target = torch.zeros(2, 16, 16).double()
    source[2:8, 3:9], target[8:14, 6:12] = 1.0, 1.0
    leaves = [end.requires_grad_() for end in (source, target)]
    path = geonet.geodesic(*(Density(end, grid) for end in leaves), "midpoint")
    value = (path.density(0.5).tensor * random((16, 16), 1)).sum() + path.distance
    for gradient in torch.autograd.grad(value, leaves):
        assert bool(torch.isfinite(gradient).all()) and float(gradient.abs().max()) < 1e3
