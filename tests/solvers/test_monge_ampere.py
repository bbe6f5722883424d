import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, DensityError, SolverError
from geonet.evaluation import known_map_geodesic, random_potential
from geonet.metrics import l1, mass_error
from geonet.mixture import BOX_2D, mixtures_2d
from geonet.solvers import monge_ampere

TIMES = [0.0, 0.25, 0.5, 0.75, 1.0]


def gridded(mixture, grid):
    return Density(mixture.on(grid).tensor, grid)


@pytest.mark.slow
def test_fifty_of_fifty_paper_pairs_at_64(generator):
    source, target = mixtures_2d(50, generator), mixtures_2d(50, generator)
    path = geonet.geodesic(gridded(source, BOX_2D), gridded(target, BOX_2D), "monge-ampere")
    assert max(path.notes["residual"]) <= 1e-3


def test_64_and_96_cells_agree(generator):
    source, target = mixtures_2d(5, generator), mixtures_2d(5, generator)
    paths = [
        geonet.geodesic(gridded(source, g), gridded(target, g), "monge-ampere")
        for g in (BOX_2D, BOX_2D.with_shape(96))
    ]
    frames = [path.density(TIMES, BOX_2D) for path in paths]
    assert float(l1(*frames).max()) < 3e-3
    assert torch.allclose(paths[0].distance, paths[1].distance, rtol=1e-3)


@pytest.mark.parametrize(("d", "n"), [(1, 100), (2, 64), (3, 20)])
def test_finds_known_maps(d, n, generator):
    grid = Grid((n,) * d, 0.0, 2.0)
    means = 0.4 + 1.2 * torch.rand(3, d, dtype=torch.float64, generator=generator)
    truth = known_map_geodesic(
        GaussianMixture.isotropic(means, 0.5).on(grid), random_potential(grid, generator)
    )
    path = geonet.geodesic(Density(truth.source.tensor, grid), truth.target, "monge-ampere")
    assert float(l1(path.density(TIMES), truth.density(TIMES)).max()) < 3e-3
    assert float(path.distance) == pytest.approx(float(truth.distance), rel=2e-3)
    points = 0.3 + 1.4 * torch.rand(30, d, dtype=torch.float64, generator=generator)
    assert torch.allclose(path.velocity(0.5, points), truth.velocity(0.5, points), atol=2e-3)
    values = [p.potential(0.5, points) for p in (path, truth)]
    assert torch.allclose(*(v - v.mean() for v in values), atol=2e-3)  # up to a constant


def test_gaussians_inside_the_box_are_bures(generator):
    ends = (
        GaussianMixture.isotropic([[2.2, 2.4]], 0.6),
        GaussianMixture.isotropic([[2.8, 2.5]], 0.7),
    )
    path = geonet.geodesic(*ends, "monge-ampere", grid=BOX_2D)
    exact = geonet.geodesic(*ends, "bures", grid=BOX_2D)
    assert float(l1(path.density(0.5), exact.density(0.5))) < 1e-2  # the box cuts off the tails
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-2)


def test_distance_is_the_linear_programs_without_its_lattice(generator):
    """Atoms at cell centres add c·h² to W2²; two grids tell c, and without it the two agree."""
    source, target = mixtures_2d(3, generator), mixtures_2d(3, generator)
    smooth = geonet.geodesic(source, target, "monge-ampere", grid=BOX_2D).distance
    coarse, fine = (
        geonet.geodesic(source, target, "linear-program", grid=BOX_2D.with_shape(n)).distance ** 2
        for n in (16, 32)
    )
    assert torch.allclose(smooth, ((4 * fine - coarse) / 3).sqrt(), rtol=5e-3)


def test_a_box_that_is_no_cube(generator):
    """Stretched along one axis where nothing happens, the path is the 1D one."""
    grid = Grid((40, 24), (0.0, -1.0), (2.0, 3.0))
    profiles = [torch.exp(s * torch.cos(torch.pi / 2 * grid.axes()[0])) for s in (0.6, -0.4)]
    ends = [Density(p[:, None].expand(40, 24), grid) for p in profiles]
    path = geonet.geodesic(*ends, "monge-ampere")
    flat = geonet.geodesic(*(Density(p, Grid(40, 0.0, 2.0)) for p in profiles), "quantile")
    assert float(path.distance) == pytest.approx(float(flat.distance), rel=1e-3)
    assert torch.allclose(path.density(0.5).tensor[:, 7] * 4, flat.density(0.5).tensor, atol=5e-3)


def test_zeros_are_refused_unless_a_floor_is_given():
    grid = Grid((32, 32))
    bump = torch.cos(torch.pi * (grid.points() - 0.5)).prod(-1) - 0.5
    ends = Density(bump.clamp(min=0), grid), Density(bump.clamp(min=0).roll(2, 0), grid)
    with pytest.raises(DensityError, match="zero in .* of 1024 cells .* give floor=0.01"):
        geonet.geodesic(*ends, "monge-ampere")
    path = geonet.geodesic(*ends, "monge-ampere", floor=0.5, tolerance=2e-2)
    assert path.report.notes["floor"] == 0.5
    assert torch.allclose(path.source.tensor, ends[0].with_floor(0.5).tensor)


def test_says_when_it_did_not_converge():
    corner = [GaussianMixture.isotropic([[c, c]], 0.25).on(BOX_2D) for c in (1.0, 4.0)]
    with pytest.raises(
        ConvergenceError, match="stopped at residual .* above its tolerance"
    ) as caught:
        geonet.geodesic(*corner, "monge-ampere", floor=0.01)
    assert caught.value.residual > 1e-3


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(SolverError, match="needs tolerance > 0 and max_iterations"):
        geonet.solver("monge-ampere", **options)


def test_what_overshoots_between_the_cells_is_refused():
    """A dark line one cell wide: the cubic through its logarithm gains mass between the cells."""
    grid = Grid((8, 8))
    values = torch.ones(8, 8, dtype=torch.float64)
    values[1] = 1e-2
    with pytest.raises(ConvergenceError):
        geonet.geodesic(*[Density(values, grid)] * 2, "monge-ampere")


def test_what_is_answered_holds_between_the_cells(generator):
    """Rough random fields: each is refused, or its path keeps mass and sign on a finer grid."""
    grid = Grid((24, 24))
    x = grid.axes()[0]
    waves = torch.stack([torch.cos(k * torch.pi * x + k) for k in range(5)], 1)
    answered = 0
    for strength in torch.linspace(0.5, 2.5, 16).tolist():
        noise = torch.randn(2, 5, 5, dtype=torch.float64, generator=generator)
        ends = [Density((strength / 5 * waves @ part @ waves.T).exp(), grid) for part in noise]
        try:
            path = geonet.geodesic(*ends, "monge-ampere")
        except ConvergenceError:
            continue
        answered += 1
        frames = path.density([0.0, 0.5, 1.0], grid.with_shape(72))
        assert float(mass_error(frames).max()) < 0.03
        assert float(frames.tensor.min()) > 0
    assert answered >= 4


def test_a_batch_names_the_pair_that_failed(pair_2d):
    hole = pair_2d[0].tensor.clone()
    hole[0, 0] = 0
    ends = [Density(torch.stack([end.tensor, hole]), end.grid) for end in pair_2d]
    with pytest.raises(DensityError, match="Pair 1 of the batch: The source is zero in 1 of 1024"):
        geonet.geodesic(*ends, "monge-ampere")


def test_gradients_of_a_linear_system_that_is_not_solved_are_refused(pair_2d, monkeypatch):
    ends = [Density(end.tensor.requires_grad_(), end.grid) for end in pair_2d]
    path = geonet.geodesic(*ends, "monge-ampere")
    monkeypatch.setattr(monge_ampere, "WORST_ADJOINT", 1e-30)
    with pytest.raises(ConvergenceError, match="The gradient of monge-ampere's potential stopped"):
        path.density(0.5).tensor[3, 4].backward()
    path.distance.backward()  # which needs none


def test_faces_stay_in_place(pair_2d):
    """No velocity through the faces, so no particle leaves the box."""
    path = geonet.geodesic(*pair_2d, "monge-ampere")
    along = torch.linspace(0, 5, 50, dtype=torch.float64)
    for face in (0.0, 5.0):
        points = torch.stack([torch.full_like(along, face), along], -1)
        assert float(path.velocity([0.0, 0.5], points)[..., 0].abs().max()) < 1e-6
    inside = path.grid.with_shape(100).points()
    carried = path.trajectories(1.0, inside)
    assert float(carried.min()) >= 0 and float(carried.max()) <= 5
