"""Gradients of results of paths with respect to the densities at both ends."""

from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import UnavailableError
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.solvers.neural import model
from geonet.solvers.registry import list_solver_names, load_solver_class

ROOT = Path(__file__).parents[1]
TIMES = [0.0, 0.3, 1.0]
SHAPES = {1: (16,), 2: (8, 8), 3: (6, 6, 6)}
FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
RESULTS = {
    "density": lambda path: path.density(TIMES).tensor,
    "distance": lambda path: path.distance,
    "velocity": lambda path: path.velocity(TIMES, inner_points(path.grid)),
    "potential": lambda path: path.potential(TIMES, inner_points(path.grid)),
    "trajectories": lambda path: path.trajectories([0.1], inner_points(path.grid)),
}
# The error of their distance is quadratic in the error of the potential, the error of its gradient
# is linear: the gradient of the envelope theorem is compared with exact ones below.
ENVELOPES = (
    "monge-ampere",
    "midpoint",
    *(name for name in list_solver_names() if name.startswith("transport")),
)
ALIKE = ("transport-cloud", "transport-mnist", "geonet-mnist")  # other weights of the same networks
OTHERWISE = (
    "auto",
    "bures",
    "schrodinger",
    "midpoint",
    "linear-program",
    "universal-2d",
    "universal-3d",
)
CASES = [
    (name, d)
    for name in list_solver_names()
    if name not in (*ALIKE, *OTHERWISE) and load_solver_class(name).info.differentiable
    for d in (1, 2, 3)
    if d in (load_solver_class(name).info.dimensions or (1, 2)) and (name, d) != ("monge-ampere", 3)
]


def shape_for(name: str, d: int) -> tuple[int, ...]:
    """Return few cells, but at least as many along each axis as the solver requires."""
    fewest = getattr(load_solver_class(name), "fewest_cells", (1, 1, 1))[d - 1]
    return tuple(max(n, fewest) for n in SHAPES[d])


def inner_points(grid: Grid) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    places = torch.rand(5, grid.dimension, dtype=torch.float64, generator=generator)
    return grid.lower_tensor + places * torch.tensor(grid.lengths)


def mixture_values(d: int, shape=None, count: int = 2) -> tuple[Grid, torch.Tensor, torch.Tensor]:
    """Return grid and values of `count` pairs of the training family of the models."""
    family, box = FAMILIES[d]
    grid = box.with_shape(shape or SHAPES[d])
    values = (
        family(2 * count, torch.Generator().manual_seed(4)).to_density(grid).with_floor(0.1).tensor
    )
    return grid, values[:count], values[count:]


def wave_values(d: int, shape=None) -> tuple[Grid, torch.Tensor, torch.Tensor]:
    """Return smooth positive densities, (2, *shape), with zero normal derivative."""
    grid = Grid(shape or SHAPES[d], 0.0, 2.0)
    waves = torch.cos(torch.pi / 2 * grid.points())
    ripple = torch.cos(torch.pi * grid.points()).prod(-1)
    logs = (0.3 * waves.sum(-1), -0.5 * waves[..., 0]), (0.3 * ripple, waves.prod(-1) * 0.4)
    first, second = (torch.stack(end).exp() for end in logs)
    return grid, first, second


def leaves(*values: torch.Tensor) -> list[torch.Tensor]:
    return [value.detach().clone().requires_grad_() for value in values]


def geodesic(source: torch.Tensor, target: torch.Tensor, grid: Grid, solver: str, **options):
    return geonet.geodesic(Density(source, grid), Density(target, grid), solver, **options)


def slopes(answer: torch.Tensor, *ends: torch.Tensor) -> torch.Tensor:
    gradients = torch.autograd.grad(answer, ends, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def relative_difference(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


# ---- Densities


@pytest.mark.parametrize(
    "operation",
    [
        lambda density: density.mass,
        lambda density: density.resample(density.grid.with_shape(11)).tensor,
        lambda density: density.with_floor(0.1).tensor,
        lambda density: density.at(inner_points(density.grid)),
        lambda density: density.mean(),
        lambda density: density.covariance(),
        lambda density: density[1].tensor,
    ],
)
def test_densities_stay_in_the_graph(operation, generator):
    grid = Grid((5, 4), 0.0, 2.0)
    values = torch.rand(2, *grid.shape, dtype=torch.float64, generator=generator).requires_grad_()
    assert gradcheck(lambda v: operation(Density(v, grid)), (values,))


@pytest.mark.parametrize(("solver", "shape"), [("quantile", (40,)), ("midpoint", (16, 16))])
def test_points_move_along_the_gradient_of_the_distance(solver, shape):
    """Compare the gradient of W2² of a point cloud with finite differences.

    On 16² cells they differ by one or two percent, since the envelope theorem gives the gradient
    of the exact W2².
    """
    grid = Grid(shape, 0.0, 1.0)
    points = 0.25 + 0.4 * random((400, grid.dimension), 3)
    wanted = Density(1 + torch.cos(torch.pi * grid.points()).prod(-1) / 2, grid)

    def square(points):
        cloud = geonet.from_samples(points, grid, kernel="linear").with_floor(0.2)
        return geonet.geodesic(cloud, wanted, solver).distance ** 2

    (slope,) = torch.autograd.grad(square(leaf := points.clone().requires_grad_()), leaf)
    step = 0.005 * slope / slope.abs().max()
    ahead, behind = (float(square(points + sign * step)) for sign in (1, -1))
    assert behind < float(square(points)) < ahead
    assert (ahead - behind) / 2 == pytest.approx(float((slope * step).sum()), rel=0.05)


# ---- All differentiable solvers


@pytest.mark.parametrize(("name", "d"), CASES)
def test_gradcheck(name, d):
    """Check both ends of a batch, without Newton steps, which are in single precision."""
    learned = "file" in load_solver_class(name).__dataclass_fields__
    grid, source, target = (mixture_values if learned else wave_values)(d, shape_for(name, d))
    options = {"max_iterations": 0} if name.startswith("transport") else {}
    names = set(load_solver_class(name).info.differentiable) - (
        {"distance"} if name in ENVELOPES else set()
    )

    def results(steps):
        """Return one number per result, along a line through both ends."""
        path = geodesic(
            source * (1 + steps * first), target * (1 + steps * second), grid, name, **options
        )
        return torch.stack([weighted(RESULTS[what](path)) for what in sorted(names)])

    first, second = (2 * random(source.shape, seed) - 1 for seed in (1, 2))
    quick = {"eps": 1e-5, "atol": 1e-5, "rtol": 1e-3, "check_undefined_grad": False}
    assert gradcheck(results, leaves(torch.zeros(1).double()), **quick)


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("d", "shape"), [(1, 12), (2, (6, 6)), pytest.param(3, (4, 4, 4), marks=pytest.mark.slow)]
)
def test_gradcheck_of_midpoint(d, shape, monkeypatch):
    """Check smooth pairs on few cells with the torch version, which the gradient belongs to.

    In 2D and 3D its residual stops at 1e-6 of the mass, above the tolerance.
    """
    monkeypatch.setenv("GEONET_COMPILED", "0")
    grid, sources, targets = wave_values(d, shape)
    source, target = (ends[0] ** (1.0 if d == 1 else 0.3) for ends in (sources, targets))
    first, second = (2 * random(source.shape, seed) - 1 for seed in (1, 2))

    def results(steps):
        ends = source * (1 + steps * first), target * (1 + steps * second)
        path = geodesic(*ends, grid, "midpoint", tolerance=1e-8, refine=False)
        return torch.stack([weighted(RESULTS[what](path)) for what in names])

    names = sorted(set(load_solver_class("midpoint").info.differentiable) - {"distance"})
    assert names == sorted(set(RESULTS) - {"distance"})
    quick = {"eps": 1e-5, "atol": 1e-5, "rtol": 3e-3, "check_undefined_grad": False}
    assert gradcheck(results, leaves(torch.zeros(1).double()), **quick)


def weighted(answer: torch.Tensor) -> torch.Tensor:
    return (answer * random(answer.shape, 3)).sum()


def random(shape, seed: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("std", [0.2, [[0.2, 0.3]]])
def test_bures_in_the_parameters_of_gaussians(std):
    """Include isotropic Gaussians, whose eigenvalues coincide."""
    grid = Grid((8, 8), 0.0, 2.0)
    means = torch.tensor([[[0.9, 1.0]], [[1.2, 0.8]]], dtype=torch.float64)
    spread = torch.diag_embed(torch.as_tensor(std, dtype=torch.float64).expand(1, 2) ** 2)

    def results(means, source, target):
        ends = [
            GaussianMixture(mean, (s + s.mT) / 2).to_density(grid)
            for mean, s in zip(means, (source, target), strict=True)
        ]
        path = geonet.geodesic(*ends, "bures")
        return tuple(RESULTS[what](path) for what in load_solver_class("bures").info.differentiable)

    assert gradcheck(results, leaves(means, spread, 1.7 * spread), fast_mode=True, atol=1e-4)


# ---- The envelope theorem


@pytest.mark.parametrize(
    ("name", "cells", "allowed"),
    [("monge-ampere", 64, 1e-3), ("transport-1d", 100, 0.01), ("midpoint", 64, 0.01)],
)
def test_slope_of_the_distance_in_1d(name, cells, allowed):
    """Compare with `quantile`, which is exact."""
    grid, source, target = wave_values(1, cells)
    for ends in zip(source, target, strict=True):
        a, b = leaves(*ends)
        found, truth = (
            slopes(geodesic(a, b, grid, solver).distance ** 2, a, b)
            for solver in (name, "quantile")
        )
        assert relative_difference(found, truth) < allowed


def test_slope_of_the_bridge_equals_the_linear_program():
    """Compare cells with mass only: elsewhere the dual variables are not unique."""
    grid = Grid((12, 12))
    values = torch.rand(2, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values[0, 6:] = values[1, :, :4] = 0
    found, exact = (
        torch.autograd.grad(geodesic(*ends, grid, name).distance ** 2, ends)
        for name in ("schrodinger", "linear-program")
        for ends in [leaves(*values)]
    )
    for one, other, value in zip(found, exact, values, strict=True):
        assert relative_difference((one * value)[value > 0], (other * value)[value > 0]) < 0.05


def test_slope_of_the_linear_program_equals_the_exact_one():
    values = random((2, 12), 0) + 0.2
    found, exact = (
        torch.autograd.grad(geodesic(*ends, Grid(12), name).distance ** 2, ends)
        for name in ("linear-program", "quantile")
        for ends in [leaves(*values)]
    )
    assert all(relative_difference(*pair) < 0.02 for pair in zip(found, exact, strict=True))


def test_gradient_in_empty_cells():
    """Compare with one-sided differences of `quantile`, with margins, holes and equal levels."""
    grid, step = Grid(14, 0.0, 2.0), 1e-7
    source, target = torch.zeros(2, 14, dtype=torch.float64)
    source[[3, 4, 5, 9]] = torch.tensor([1.0, 0.7, 1.3, 0.4]).double()
    target[[1, 7, 8, 9, 10]] = torch.tensor([0.3, 1.0, 1.0, 1.0, 1.0]).double()

    def squared(ends):
        return geodesic(*ends, grid, "quantile").distance ** 2

    for ends in ((source, target), (source.flip(0), target)):
        a, b = leaves(*ends)
        found = slopes(squared((a, b)), a, b)
        both = torch.cat(ends)
        raised = [squared((both + step * unit).chunk(2)) for unit in torch.eye(28).double()]
        differences = (torch.stack(raised) - squared(ends)) / step
        assert torch.allclose(found, differences, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["quantile", "monge-ampere", "midpoint", "linear-program", "transport-1d", "transport-2d"],
)
def test_equal_ends(name):
    """The gradient of the distance is zero instead of NaN; the gradient of its square is zero."""
    d = 2 if name == "transport-2d" else 1
    grid, source, _ = wave_values(d, shape_for(name, d))
    a, b = leaves(source, source)
    path = geodesic(a, b, grid, name)
    for answer in (path.distance.sum(), (path.distance**2).sum()):
        found = slopes(answer, a, b)
        assert bool(torch.isfinite(found).all())
    assert float(found.abs().max()) < 1e-6
    almost = leaves(source, source * (1 + 1e-4 * torch.sin(grid.points()[..., 0])))
    assert bool(torch.isfinite(slopes(geodesic(*almost, grid, name).distance.sum(), *almost)).all())


def test_second_derivatives_raise():
    grid, source, target = wave_values(1)
    a, b = leaves(source[0], target[0])
    with pytest.raises(UnavailableError, match="[Oo]nly first derivatives"):
        torch.autograd.grad(geodesic(a, b, grid, "quantile").distance, a, create_graph=True)


# ---- Iterative potentials


def test_scaled_potentials():
    """The scale that keeps the map injective is differentiated too."""
    grid = Grid((16, 16))
    source, target = torch.full((2, 16, 16), 0.02, dtype=torch.float64)
    source[:4, :4] += 1.0
    target[11:, 12:] += 1.0
    ends = leaves(source, target)
    point = torch.tensor([[0.4, 0.6]])
    path = geodesic(*ends, grid, "transport-2d", max_iterations=0)
    assert path.differentiable_coefficients is not None
    from geonet.solvers.neural.transport.potential import MAX_SPECTRAL_RADIUS, max_spectral_radius

    assert float(max_spectral_radius(path.coefficients)) == pytest.approx(
        MAX_SPECTRAL_RADIUS, rel=1e-4
    )
    assert gradcheck(
        lambda a, b: geodesic(a, b, grid, "transport-2d", max_iterations=0).velocity(0.5, point),
        ends,
        eps=1e-5,
        atol=1e-4,
        fast_mode=True,
    )


# ---- Results without gradients


@pytest.mark.parametrize("name", list_solver_names())
def test_other_results_are_detached(name):
    if name in ("auto", "bures"):
        pytest.skip("auto has the gradients of the chosen solver; bures takes mixtures")
    cls = load_solver_class(name)
    if not cls.__module__.startswith("geonet."):
        pytest.skip("a baseline of the benchmarks, trained for minutes")
    d = (cls.info.dimensions or (1,))[0]
    grid, source, target = wave_values(d, shape_for(name, d))
    ends = leaves(source[0], target[0])
    path = geodesic(*ends, grid, name)
    for what in cls.info.provides:
        assert RESULTS[what](path).requires_grad == (what in cls.info.differentiable), what
    with torch.no_grad():
        path = geodesic(*ends, grid, name)
    for what in cls.info.provides:  # solved without gradients
        assert not RESULTS[what](path).requires_grad, what


@pytest.mark.parametrize(
    "name", ["quantile", "monge-ampere", "midpoint", "transport-1d", "geonet-1d"]
)
def test_results_are_the_same_with_gradients(name):
    grid, source, target = mixture_values(1, 100)
    plain, followed = (
        geodesic(source, target, grid, name),
        geodesic(*leaves(source, target), grid, name),
    )
    for what in load_solver_class(name).info.differentiable:
        expected = RESULTS[what](plain)
        found = RESULTS[what](followed).detach()
        assert found.dtype == expected.dtype
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-3, what


@pytest.mark.parametrize("name", ["transport-1d", "geonet-1d", "monge-ampere", "midpoint"])
def test_gradients_after_inference_mode(name):
    model._load_frozen.cache_clear()
    grid, source, target = wave_values(1, 64)
    ends = leaves(source[0], target[0])
    followed = geodesic(*ends, grid, name)
    with torch.inference_mode():
        geodesic(source, target, grid, name).density(0.3)
        followed.density(0.35)
    for path in (followed, geodesic(*ends, grid, name)):
        assert bool(torch.isfinite(slopes(path.density(0.35).tensor[3], *ends)).all())


# ---- Reports, files and figures
