"""The Monge–Ampère solver against prescribed maps, closed forms and other solvers."""

from dataclasses import replace

import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, DensityError, SolverError
from geonet.evaluation import prescribed_map_geodesic, random_potential
from geonet.metrics import l1, mass_error
from geonet.mixture import BOX_2D, mixtures_2d
from geonet.solvers.monge_ampere import MongeAmpere

TIMES = [0.0, 0.25, 0.5, 0.75, 1.0]


def on_cells(mixture, grid):
    """Return the density without the formula of the mixture."""
    return Density(mixture.to_density(grid).tensor, grid)


@pytest.mark.slow
def test_all_fifty_pairs_of_the_paper_converge(generator):
    source, target = mixtures_2d(50, generator), mixtures_2d(50, generator)
    path = geonet.geodesic(on_cells(source, BOX_2D), on_cells(target, BOX_2D), "monge-ampere")
    assert max(path.info["residual"]) <= 1e-3


@pytest.mark.slow
def test_solutions_on_64_and_96_cells_agree(generator):
    source, target = mixtures_2d(5, generator), mixtures_2d(5, generator)
    paths = [
        geonet.geodesic(on_cells(source, g), on_cells(target, g), "monge-ampere")
        for g in (BOX_2D, BOX_2D.with_shape(96))
    ]
    frames = [path.density(TIMES, BOX_2D) for path in paths]
    assert float(l1(*frames).max()) < 3e-3
    assert torch.allclose(paths[0].distance, paths[1].distance, rtol=1e-3)


@pytest.mark.parametrize(
    ("d", "n"), [(1, 100), (2, 64), pytest.param(3, 20, marks=pytest.mark.slow)]
)
def test_prescribed_maps_are_found(d, n, generator):
    grid = Grid((n,) * d, 0.0, 2.0)
    means = 0.4 + 1.2 * torch.rand(3, d, dtype=torch.float64, generator=generator)
    truth = prescribed_map_geodesic(
        GaussianMixture.isotropic(means, 0.5).to_density(grid), random_potential(grid, generator)
    )
    path = geonet.geodesic(Density(truth.source.tensor, grid), truth.target, "monge-ampere")
    assert float(l1(path.density(TIMES), truth.density(TIMES)).max()) < 3e-3
    assert float(path.distance) == pytest.approx(float(truth.distance), rel=2e-3)
    points = 0.3 + 1.4 * torch.rand(30, d, dtype=torch.float64, generator=generator)
    assert torch.allclose(path.velocity(0.5, points), truth.velocity(0.5, points), atol=2e-3)
    values = [p.potential(0.5, points) for p in (path, truth)]
    assert torch.allclose(*(v - v.mean() for v in values), atol=2e-3)  # up to a constant


def test_gaussians_inside_the_box_agree_with_bures(generator):
    ends = (
        GaussianMixture.isotropic([[2.2, 2.4]], 0.6),
        GaussianMixture.isotropic([[2.8, 2.5]], 0.7),
    )
    path = geonet.geodesic(*ends, "monge-ampere", grid=BOX_2D)
    exact = geonet.geodesic(*ends, "bures", grid=BOX_2D)
    assert float(l1(path.density(0.5), exact.density(0.5))) < 1e-2  # the box cuts off the tails
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-2)


@pytest.mark.slow
def test_distance_agrees_with_the_linear_program(generator):
    source, target = mixtures_2d(3, generator), mixtures_2d(3, generator)
    smooth = geonet.geodesic(source, target, "monge-ampere", grid=BOX_2D).distance
    plans = geonet.geodesic(source, target, "linear-program", grid=BOX_2D.with_shape(24))
    assert torch.allclose(smooth, plans.distance, rtol=5e-3)


def test_densities_that_are_constant_along_an_axis_have_the_1d_path():
    grid = Grid((40, 24), (0.0, -1.0), (2.0, 3.0))
    profiles = [torch.exp(s * torch.cos(torch.pi / 2 * grid.axes()[0])) for s in (0.6, -0.4)]
    ends = [Density(p[:, None].expand(40, 24), grid) for p in profiles]
    path = geonet.geodesic(*ends, "monge-ampere")
    flat = geonet.geodesic(*(Density(p, Grid(40, 0.0, 2.0)) for p in profiles), "quantile")
    assert float(path.distance) == pytest.approx(float(flat.distance), rel=1e-3)
    assert torch.allclose(path.density(0.5).tensor[:, 7] * 4, flat.density(0.5).tensor, atol=5e-3)


def test_zeros_are_an_error_without_a_floor():
    grid = Grid((32, 32))
    bump = torch.cos(torch.pi * (grid.points() - 0.5)).prod(-1) - 0.5
    ends = Density(bump.clamp(min=0), grid), Density(bump.clamp(min=0).roll(2, 0), grid)
    with pytest.raises(DensityError, match="zero in .* of 1024 cells .* floor=0.01"):
        geonet.geodesic(*ends, "monge-ampere")
    path = geonet.geodesic(*ends, "monge-ampere", floor=0.5, tolerance=2e-2)
    assert path.report.info["floor"] == 0.5
    assert torch.allclose(path.source.tensor, ends[0].with_floor(0.5).tensor)


def test_failure_to_converge_is_an_error():
    corner = [GaussianMixture.isotropic([[c, c]], 0.25).to_density(BOX_2D) for c in (1.0, 4.0)]
    with pytest.raises(ConvergenceError, match="stopped at residual .* > tolerance") as caught:
        geonet.geodesic(*corner, "monge-ampere", floor=0.01)
    assert caught.value.residual > 1e-3


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_invalid_options_are_an_error(options):
    with pytest.raises(SolverError, match="needs tolerance > 0 and max_iterations"):
        geonet.solver("monge-ampere", **options)


def test_overshooting_between_the_cells_is_an_error():
    """The cubic through the logarithm of a line one cell wide gains mass between the cells."""
    grid = Grid((8, 8))
    values = torch.ones(8, 8, dtype=torch.float64)
    values[1] = 1e-2
    with pytest.raises(ConvergenceError):
        geonet.geodesic(*[Density(values, grid)] * 2, "monge-ampere")


def test_solutions_conserve_mass_and_sign_between_the_cells(generator):
    """Random rough fields either raise an error or are accurate on a finer grid."""
    grid = Grid((24, 24))
    x = grid.axes()[0]
    waves = torch.stack([torch.cos(k * torch.pi * x + k) for k in range(5)], 1)
    solved = 0
    for strength in torch.linspace(0.5, 2.5, 16).tolist():
        noise = torch.randn(2, 5, 5, dtype=torch.float64, generator=generator)
        ends = [Density((strength / 5 * waves @ part @ waves.T).exp(), grid) for part in noise]
        try:
            path = geonet.geodesic(*ends, "monge-ampere")
        except ConvergenceError:
            continue
        solved += 1
        frames = path.density([0.0, 0.5, 1.0], grid.with_shape(72))
        assert float(mass_error(frames).max()) < 0.03
        assert float(frames.tensor.min()) > 0
    assert solved >= 4


def test_gradients_without_convergence_are_an_error(pair_2d, monkeypatch):
    ends = [Density(end.tensor.requires_grad_(), end.grid) for end in pair_2d]
    strict = replace(MongeAmpere.config, max_adjoint_residual=1e-30)
    monkeypatch.setattr(MongeAmpere, "config", strict)
    path = geonet.geodesic(*ends, "monge-ampere")
    with pytest.raises(ConvergenceError, match="gradient of monge-ampere stopped"):
        path.density(0.5).tensor[3, 4].backward()
    path.distance.backward()  # needs no linear system


def test_faces_stay_in_place(pair_2d):
    """The normal velocity vanishes on the faces, so no particle leaves the box."""
    path = geonet.geodesic(*pair_2d, "monge-ampere")
    along = torch.linspace(0, 5, 50, dtype=torch.float64)
    for face in (0.0, 5.0):
        points = torch.stack([torch.full_like(along, face), along], -1)
        assert float(path.velocity([0.0, 0.5], points)[..., 0].abs().max()) < 1e-6
    inside = path.grid.with_shape(100).points()
    moved = path.trajectories(1.0, inside)
    assert float(moved.min()) >= 0 and float(moved.max()) <= 5
