"""Laws that every registered solver obeys; new solvers are tested by their registration."""

import dataclasses
from functools import cache

import pytest
import torch

import geonet
from experiments.mnist import as_densities, sample_digits
from experiments.point_clouds import BOX_CLOUDS, cloud_mixtures
from geonet import Density, GaussianMixture, Grid
from geonet.errors import GridError, InputError, UnavailableError
from geonet.metrics import l1, mass_error, negativity
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.solvers.base import MixtureSolver, SolverInfo
from geonet.solvers.registry import load_solver_class, load_solver_classes

TIMES = [0.0, 0.3, 1.0]
FIELDS = ("velocity", "potential", "trajectories")


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Errors that a method has by its nature; by default rounding only."""

    ends: float = 1e-9
    mass: float = 1e-9
    swap: float = 1e-9
    equal_ends: float = 1e-9  # L1 change along the path between equal ends
    negative: float = 0.0  # negative mass
    density: float = 1e-9  # rounding of densities, absolute
    fields: float = 1e-9  # rounding of distance, velocity and potential, relative
    zero_distance: float = 1e-6
    particles: float = 5e-3  # difference of the means of particles and of the density


# Trained operators have errors of some percent, in single precision. A field is the gradient of a
# sum over 200 to 500 functions whose terms cancel by a factor of six, and each coefficient is
# itself such a sum, over up to 800 terms: √800 · 6 · 6 times the rounding error 6e-8.
NEURAL = Tolerance(
    ends=0.12,
    mass=0.05,
    swap=1e-5,
    equal_ends=0.2,
    negative=0.03,
    density=1e-5,
    fields=1e-4,
    zero_distance=0.1,
    particles=0.03,
)
# A trained potential, then straight lines: ends and symmetries are exact, in single precision.
TRANSPORT = Tolerance(ends=1e-6, mass=2e-3, swap=2e-5, equal_ends=1e-6, density=2e-5, fields=2e-5)
# Frames are summed in single precision, and rounding may change the number of Newton steps.
NEWTON = Tolerance(swap=0.01, equal_ends=1e-6)
TOLERANCES = {
    "auto": dataclasses.replace(TRANSPORT, swap=4e-4),
    "monge-ampere": Tolerance(mass=3e-4, swap=4e-4),
    "linear-program": Tolerance(swap=0.15),  # on a lattice many plans are optimal
    **dict.fromkeys(("midpoint", "universal-2d", "universal-3d"), NEWTON),
    "back-and-forth": Tolerance(swap=0.03),  # the ascent starts at one end and stops early
    **dict.fromkeys(("geonet-1d", "geonet-2d", "er-geonet-1d", "er-geonet-2d"), NEURAL),
    **dict.fromkeys(("deeponet-1d", "geonet-mnist"), NEURAL),
    # Cells are as wide as the standard deviation of a component.
    "geonet-cloud": dataclasses.replace(
        NEURAL, ends=0.5, mass=0.1, equal_ends=0.5, negative=0.1, particles=0.12
    ),
    **dict.fromkeys(("transport-1d", "transport-2d"), TRANSPORT),
    **dict.fromkeys(
        ("transport-cloud", "transport-mnist"),
        dataclasses.replace(TRANSPORT, mass=0.05, particles=0.05),
    ),
    # Twelve cells along an axis are few for this family.
    "transport-3d": dataclasses.replace(TRANSPORT, mass=0.01),
    "schrodinger": Tolerance(ends=1e-7, mass=1e-3, swap=1e-7, equal_ends=1e-3),
}
CASES = [
    (name, d)
    for name, cls in load_solver_classes().items()
    if cls.info.family != "neural" or "file" in {field.name for field in dataclasses.fields(cls)}
    if not cls.__module__.startswith("benchmarks.")  # baselines have tests of their own
    for d in (1, 2, 3)
    if cls.info.takes(d)
]
SHAPES = {1: (40,), 2: (16, 16), 3: (8, 8, 8)}
FAMILY = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}


def shape_for(name: str, d: int) -> tuple[int, ...]:
    """Return few cells, but at least as many along each axis as the solver requires."""
    fewest = getattr(load_solver_class(name), "fewest_cells", (1, 1, 1))[d - 1]
    return tuple(max(n, fewest) for n in SHAPES[d])


def sample_mixtures(family, box: Grid) -> torch.Tensor:
    """Return the values of two pairs of mixtures, (4, *cells)."""
    return family(4, torch.Generator().manual_seed(4)).to_density(box).tensor


def sample_images() -> torch.Tensor:
    """Return two pairs of digits on coarse cells."""
    images = as_densities(sample_digits().images[::300], blur=1.0, floor=0.05)
    return images.resample(images.grid.with_shape(SHAPES[2])).tensor


def sample_codes() -> torch.Tensor:
    """Return nearly uniform densities, like the codes of digits."""
    noise = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return 10 + noise.repeat_interleave(SHAPES[1][0] // 8, dim=1)


TRAINING_DATA = {
    **dict.fromkeys(
        ("geonet-cloud", "transport-cloud"),
        lambda: sample_mixtures(cloud_mixtures, BOX_CLOUDS.with_shape(SHAPES[2])),
    ),
    "transport-mnist": sample_images,
    "geonet-mnist": sample_codes,
}

every_solver = pytest.mark.parametrize(("name", "d"), CASES)


def info(name: str) -> SolverInfo:
    return load_solver_class(name).info


def solvers_with(*quantities: str, has_grid: bool = False, is_exact: bool = False):
    """Parametrise over the solvers that provide all quantities.

    Closed forms are left out with `has_grid`, and with `is_exact` solvers whose potential satisfies
    its equations only nearly: networks, the bridge (noise) and the linear program (kinks).
    """
    cases = [
        (name, d)
        for name, d in CASES
        if set(quantities) <= set(info(name).provides)
        and not (has_grid and issubclass(load_solver_class(name), MixtureSolver))
        and not (is_exact and (tolerance(name).negative or info(name).less_blur))
    ]
    return pytest.mark.parametrize(("name", "d"), cases)


def tolerance(name: str) -> Tolerance:
    return TOLERANCES.get(name, Tolerance())


def make_batch(
    name: str, d: int, corner: float = 0.0, scale: float = 1.0
) -> tuple[Density, Density]:
    """Return two pairs on corner + scale·[0, 2]^d: waves, or Gaussians for closed forms.

    Trained operators get densities of their training.
    """
    shape = shape_for(name, d)
    grid = Grid(shape, corner, corner + 2 * scale)
    if info(name).family == "neural":
        family, box = FAMILY[d]
        sample = TRAINING_DATA.get(name, lambda: sample_mixtures(family, box.with_shape(shape)))
        values = sample()
        return Density(values[:2], grid), Density(values[2:], grid)
    if issubclass(load_solver_class(name), MixtureSolver):
        centres = corner + scale * torch.tensor([[0.9, 1.1], [1.2, 0.9]], dtype=torch.float64)
        means = [end[:, None, None].expand(2, 1, d) for end in centres]
        source = GaussianMixture.isotropic(means[0], scale * 0.22).to_density(grid)
        return source, GaussianMixture.isotropic(means[1], scale * 0.18).to_density(grid)
    place = Grid(shape, 0.0, 2.0).points()
    waves = torch.cos(torch.pi / 2 * place).sum(-1)  # zero slope at the faces
    ripple = torch.cos(torch.pi * place).prod(-1)
    source = torch.stack([0.3 * waves, -0.5 * waves]).exp()
    target = torch.stack([-0.2 * waves + 0.3 * ripple, 0.4 * ripple]).exp()
    return Density(source, grid), Density(target, grid)


@pytest.fixture(scope="module")
def solve():
    """Solve the batch of a solver and dimension once."""
    return cache(lambda name, d: geonet.solver(name)(*make_batch(name, d)))


@every_solver
def test_shapes(name, d, solve):
    path = solve(name, d)
    shape = shape_for(name, d)
    assert path.density(0.3).tensor.shape == (2, *shape)
    assert path.density([0.3]).tensor.shape == (2, 1, *shape)
    assert path.density(TIMES).tensor.shape == (2, 3, *shape)
    finer = path.grid.with_shape([2 * n for n in shape])
    assert path.density(TIMES, grid=finer).tensor.shape == (2, 3, *finer.shape)
    points = torch.full((4, 5, d), 0.9)
    expected = {
        "velocity": (2, 3, 4, 5, d),
        "potential": (2, 3, 4, 5),
        "trajectories": (2, 3, 4, 5, d),
    }
    for quantity in set(FIELDS) & set(info(name).provides):
        assert getattr(path, quantity)(TIMES, points).shape == expected[quantity]
        assert getattr(path, quantity)(0.3, points).shape == (2, *expected[quantity][2:])
    if "distance" in info(name).provides:
        assert path.distance.shape == (2,)


@every_solver
def test_a_batch_equals_its_pairs(name, d, solve):
    path, (source, target), allowed = solve(name, d), make_batch(name, d), tolerance(name)
    single, last = geonet.solver(name)(source[1], target[1]), path[-1]
    assert (len(path), last.batch, last.solver) == (2, (), single.solver)
    assert torch.equal(last.source.tensor, source[1].tensor)
    frames = single.density(TIMES).tensor
    for other in (last.density(TIMES).tensor, path.density(TIMES).tensor[1]):
        assert torch.allclose(other, frames, rtol=0, atol=allowed.density)
    points = torch.full((3, d), 0.9)
    for quantity in set(FIELDS) & set(info(name).provides):
        values = getattr(last, quantity)(0.3, points), getattr(path, quantity)(0.3, points)[1]
        size = max(1.0, float(values[1].abs().max()))
        assert torch.allclose(*values, rtol=0, atol=allowed.fields * size)
    if "distance" in info(name).provides:
        assert single.distance.shape == ()
        for other in (last.distance, path.distance[1]):
            assert torch.allclose(other, single.distance, rtol=allowed.fields, atol=0)


def test_invalid_indices_raise(solve):
    path = solve("quantile", 1)
    for index in (2, -3, "first"):
        with pytest.raises(InputError, match="index"):
            path[index]
    for use in (len, lambda pair: pair[0]):
        with pytest.raises(InputError, match="single pair"):
            use(path[0])
    assert path[0]  # true although it has no length


@every_solver
def test_ends_mass_and_sign(name, d, solve):
    path, allowed = solve(name, d), tolerance(name)
    assert float(l1(path.density(0.0), path.source).max()) <= allowed.ends
    assert float(l1(path.density(1.0), path.target).max()) <= allowed.ends
    for grid in (path.grid, path.grid.with_shape([2 * n for n in path.grid.shape])):
        frames = path.density([0.0, 0.25, 0.5, 0.75, 1.0], grid)
        assert float(mass_error(frames).max()) <= allowed.mass
        assert float(negativity(frames).max()) <= allowed.negative


@every_solver
def test_the_given_mass_is_interpolated(name, d, solve):
    first, last = (end.mass[:, None] for end in make_batch(name, d))
    t = torch.tensor(TIMES, dtype=torch.float64)
    assert torch.allclose(solve(name, d).density(TIMES).mass, (1 - t) * first + t * last)


@every_solver
@pytest.mark.parametrize(("corner", "scale"), [(0.0, 1e-6), (-3e5, 1e6)])
def test_everything_scales_with_the_box(name, d, corner, scale, solve):
    """Check x → corner + scale·x: W2 and v scale with scale, u with scale², μ with scale^−d."""
    path, provides = solve(name, d), info(name).provides
    moved = geonet.solver(name)(*make_batch(name, d, corner, scale))
    if name != "linear-program":  # several plans may be optimal
        frames = [p.density(0.4).tensor for p in (path, moved)]
        assert torch.allclose(frames[0], frames[1] * scale**d, rtol=1e-4, atol=1e-6)
    if "distance" in provides:
        # The linear program ends if columns are missing that lower the cost by at most 1e-3.
        rounding = 5e-4 if name == "linear-program" else max(1e-5, tolerance(name).fields)
        assert torch.allclose(path.distance * scale, moved.distance, rtol=rounding, atol=0)
    point = torch.full((1, d), 0.9, dtype=torch.float64)
    there = corner + scale * point
    for quantity, power in (("velocity", 1), ("potential", 2)):
        if quantity in provides:
            here, scaled = getattr(path, quantity)(0.4, point), getattr(moved, quantity)(0.4, there)
            error = float((scaled / scale**power - here).abs().max())
            assert error <= max(1e-4, tolerance(name).fields) * float(here.abs().max()) + 1e-6


@solvers_with(has_grid=True)
def test_single_precision_and_mixed_inputs(name, d, solve):
    path = solve(name, d)
    single = Density(path.source.tensor.float(), path.grid)
    mixed = geonet.solver(name)(single, path.target)
    error = float(l1(mixed.density(0.3), path.density(0.3)).max())
    assert error <= (tolerance(name).swap if name == "linear-program" else 1e-4)  # plans may change
    if d < 3:  # bounds in 3D take seconds
        assert mixed.report.solver == path.solver


@solvers_with("velocity", has_grid=True)
def test_points_outside_the_box_raise(name, d, solve):
    path = solve(name, d)
    with pytest.raises(GridError, match="outside the box"):
        path.velocity(0.5, torch.full((1, d), 2.1))
    corner = torch.full((1, d), 2.0 + 1e-12)  # rounding is accepted
    assert bool(torch.isfinite(path.velocity(0.5, corner)).all())


@every_solver
def test_swapped_ends_are_time_reversed(name, d, solve):
    path = solve(name, d)
    back = geonet.solver(name)(path.target, path.source)
    assert float(l1(back.density(0.7), path.density(0.3)).max()) <= tolerance(name).swap
    if "distance" in info(name).provides:
        assert torch.allclose(back.distance, path.distance, rtol=tolerance(name).swap)


@every_solver
def test_equal_ends_stand_still(name, d):
    source, _ = make_batch(name, d)
    path = geonet.solver(name)(source[0], source[0])
    assert float(l1(path.density(0.5), source[0])) <= tolerance(name).equal_ends
    if "distance" in info(name).provides:
        assert float(path.distance) == pytest.approx(0, abs=tolerance(name).zero_distance)


@every_solver
def test_save_and_load(name, d, solve, tmp_path):
    path = solve(name, d)
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0, 0.5]))
    assert (loaded.solver, loaded.info) == (path.solver, path.info)
    assert torch.allclose(loaded.density(0.3).tensor, path.density(0.3).tensor, atol=1e-12)
    point = torch.full((1, d), 0.9)
    for quantity in set(FIELDS[:2]) & set(info(name).provides):
        again, before = (getattr(p, quantity)(0.3, point) for p in (loaded, path))
        assert torch.allclose(torch.as_tensor(again), before, atol=1e-9)


@every_solver
def test_provides_the_quantities_of_its_info(name, d, solve):
    path, point = solve(name, d), torch.full((1, d), 0.9)
    compute = {
        "density": lambda: path.density(0.5).tensor,
        "distance": lambda: path.distance,
        "velocity": lambda: path.velocity(0.5, point),
        "potential": lambda: path.potential(0.5, point),
        "trajectories": lambda: path.trajectories(0.5, point),
    }
    for quantity, evaluate in compute.items():
        if quantity in info(name).provides:
            assert bool(torch.isfinite(evaluate()).all())
        else:
            with pytest.raises(UnavailableError, match=name):
                evaluate()


@solvers_with("trajectories")
def test_particles_follow_the_density(name, d, solve):
    """Particles that start at the cells of the source have the mean of μ_t."""
    path = solve(name, d)
    start = path.grid.points().reshape(-1, d)
    particles = path.trajectories([0.0, 0.4], start)
    assert torch.allclose(particles[:, 0], start.expand(2, -1, -1), atol=1e-9)
    mass = path.source.tensor.reshape(2, -1, 1) * path.grid.cell_volume
    assert torch.allclose(
        (mass * particles[:, 1]).sum(1), path.density(0.4).mean(), atol=tolerance(name).particles
    )


@solvers_with("velocity", "potential", is_exact=True)
def test_velocity_is_the_potentials_gradient_and_hamilton_jacobi_holds(name, d, solve):
    path, step = solve(name, d), 1e-4
    points = 0.5 + torch.rand(
        20, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    velocity = path.velocity(0.4, points)
    for i in range(d):
        shift = step * torch.eye(d, dtype=torch.float64)[i]
        above, below = (path.potential(0.4, points + s * shift) for s in (1, -1))
        assert torch.allclose((above - below) / (2 * step), velocity[..., i], atol=2e-3)
    later, earlier = (path.potential(0.4 + s * step, points) for s in (1, -1))
    residual = (later - earlier) / (2 * step) + 0.5 * (velocity**2).sum(-1)
    assert float(residual.abs().max()) < 2e-3
