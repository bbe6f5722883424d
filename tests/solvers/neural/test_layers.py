"""Layers: perceptrons, features, cosine modes, sensors and DeepONets."""

from __future__ import annotations

import math

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.solvers.neural.deeponet import DeepONetSettings, DensityNet
from geonet.solvers.neural.geonet import GeONet, GeONetSettings
from geonet.solvers.neural.jets import make_variables
from geonet.solvers.neural.layers import (
    MLP,
    CosineModes,
    DeepONet,
    ModifiedMLP,
    build_trunk,
    combine_cartesian,
    combine_paired,
    read_sensors,
)
from geonet.solvers.neural.model import Branch, Trunk

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


TRUNKS = [
    (network, features)
    for network in ("mlp", "modified-mlp", "separable")
    for features in ("coordinates", "cosines", "fourier")
]


RANK = 3


def trunk(network, features, d, depth=3):
    return build_trunk(Trunk(network, 4, depth, features, modes=2, sigma=0.5), d, RANK)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("kind", [MLP, ModifiedMLP])
def test_jets_of_perceptrons(kind, depth, d, randomised, check_jets):
    check_jets(randomised(kind(d + 1, 4, depth, 2)), d)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize(("network", "features"), TRUNKS)
def test_jets_of_trunks(network, features, d, randomised, check_jets):
    check_jets(randomised(trunk(network, features, d)), d)


@pytest.mark.parametrize(("network", "features"), TRUNKS)
def test_jets_are_differentiable_in_the_weights(network, features, randomised, check_weights):
    check_weights(randomised(trunk(network, features, 2)), 2)


def test_modified_perceptron_formula(randomised, generator):
    network = randomised(ModifiedMLP(2, 4, 4, 3))
    x = torch.rand(6, 2, generator=generator)
    u, v, h = (torch.tanh(f(x)) for f in (network.gate_u, network.gate_v, network.first))
    for layer in network.layers:
        z = torch.tanh(layer(h))
        h = (1 - z) * u + z * v
    assert torch.allclose(network(x), network.output(h), atol=1e-14)


def test_separable_trunk_is_a_product(randomised, generator):
    made = randomised(trunk("separable", "fourier", 2))
    x, t = torch.rand(2, 5, 2, generator=generator), torch.rand(2, 5, 1, generator=generator)
    f = {(i, j): made.features(torch.cat([x[i], t[j]], 1)) for i in (0, 1) for j in (0, 1)}
    assert torch.allclose(f[0, 0] * f[1, 1], f[0, 1] * f[1, 0], atol=1e-14)


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize(("features", "flat"), [("cosines", True), ("coordinates", False)])
def test_cosine_trunks_are_flat_at_the_faces(network, features, flat, randomised, generator):
    made = randomised(trunk(network, features, 2))
    for axis in (0, 1):
        for face in (0.0, 1.0):
            points = torch.rand(4, 2, generator=generator)
            points[:, axis] = face
            jet = made(make_variables(points, torch.full((4,), 0.3), "none"))
            assert bool(jet.gradient[axis].abs().max() < 1e-12) == flat


@pytest.mark.parametrize("features", ["coordinates", "cosines", "fourier"])
def test_features_are_fixed(features):
    made = trunk("mlp", features, 2)
    frozen = {name for name, p in made.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in made.named_parameters() if n.startswith(("space.", "time."))}
    assert frozen


SENSORS = {1: 12, 2: 6, 3: 4}


def rows_of(grid):
    """The centres of cells at t = 0.3, (cells, d + 1)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cat([points, torch.full_like(points[:, :1], 0.3)], dim=1)


def cosine_wave(grid, *modes):
    """Π_i cos(k_i πx_i) at the centres of cells, (1, cells)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cos(math.pi * torch.tensor(modes) * points).prod(-1)[None]


@pytest.mark.parametrize("d", [1, 2, 3])
def test_series_interpolates_the_sensors(d, generator):
    n = SENSORS[d]
    values = torch.rand(3, n**d, generator=generator)
    series = CosineModes(d, n, n)
    coefficients = series(values)
    assert coefficients.shape == (3, n**d)
    found = coefficients @ series.evaluate_basis(rows_of(Grid((n,) * d))).T
    assert torch.allclose(found, values, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_jets_of_cosine_modes(d, check_jets):
    check_jets(CosineModes(d, SENSORS[d], 3).evaluate_basis, d)


@pytest.mark.parametrize(("d", "modes"), [(1, (3,)), (2, (2, 1)), (3, (1, 0, 2))])
def test_coefficient_of_a_wave(d, modes):
    n = SENSORS[d]
    coefficients = CosineModes(d, n, n)(cosine_wave(Grid((n,) * d), *modes)).reshape((n,) * d)
    expected = torch.zeros((n,) * d)
    expected[modes] = 1
    assert torch.allclose(coefficients, expected, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_truncation_keeps_low_modes(d):
    n = SENSORS[d]
    grid, cut = Grid((n,) * d), CosineModes(d, n, 3)
    low = 1 + 0.5 * cosine_wave(grid, *[2] * d) - 0.3 * cosine_wave(grid, *[1] * d)
    high = cosine_wave(grid, 3, *[0] * (d - 1))
    functions = cut.evaluate_basis(rows_of(grid))
    assert functions.shape == (n**d, 3**d)
    assert torch.allclose(cut(low + 0.7 * high) @ functions.T, low, rtol=0, atol=1e-13)
    assert cut(high).abs().max() < 1e-13


FEATURES = ("coordinates", "cosines", "fourier")


def deeponet_settings(d=1, symmetry="none", network="modified-mlp", features="coordinates"):
    branch = Branch("mlp" if network == "mlp" else "modified-mlp", width=5, depth=3)
    trunk = Trunk(network, 4, 3, features, modes=2, sigma=0.5)
    return GeONetSettings(
        dimension=d, sensors=3, rank=6, swap_symmetry=symmetry, branch=branch, trunk=trunk
    )


@pytest.fixture
def ends(generator):
    """Sensor values of 4 pairs in 1D."""
    return tuple(2 * torch.rand(4, 3, generator=generator) for _ in range(2))


@pytest.fixture
def rows(generator):
    """(x, t) with x in 1D."""
    return torch.rand(5, 2, generator=generator)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("parity", [0, 1, -1])
def test_jets_of_deeponets(parity, network, features, randomised, check_jets):
    settings = deeponet_settings(2, network=network, features=features)
    check_jets(randomised(DeepONet(settings, parity, 1.0)).basis, 2)


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("parity", [0, 1, -1])
def test_contraction_equals_the_sum_over_k(parity, network, randomised, ends, rows):
    operator = randomised(DeepONet(deeponet_settings(network=network), parity, scale=0.7))

    def unfolded(source, target, at):
        first, second = operator.branches
        products = first(source) * second(target)
        return 0.7 / math.sqrt(6) * torch.einsum("bk, nk -> bn", products, operator.trunk(at))

    expected = unfolded(*ends, rows)
    if parity:
        mirrored = torch.stack([rows[:, 0], 1 - rows[:, 1]], dim=1)
        expected = (expected + parity * unfolded(*ends[::-1], mirrored)) / 2
    folded = combine_cartesian(operator.coefficients(*ends), operator.basis(rows))
    assert expected.abs().max() > 0.01
    assert torch.allclose(folded, expected, atol=1e-14)


def test_scales_of_density_and_potential(ends):
    """The same weights in both: they differ by the constant in front alone."""
    model = GeONet(deeponet_settings())
    model.potential.load_state_dict(model.density.state_dict())
    c, h = model.coefficients(*ends)
    assert torch.allclose(h, model.settings.potential_scale * c)


@pytest.mark.parametrize(
    ("symmetry", "of_density", "of_potential"),
    [("none", False, False), ("density", True, False), ("both", True, True)],
)
@pytest.mark.parametrize("features", FEATURES)
def test_swap_symmetry(symmetry, of_density, of_potential, features, randomised, ends, rows):
    model = randomised(GeONet(deeponet_settings(1, symmetry, features=features)))
    mirrored = torch.stack([rows[:, 0], 1 - rows[:, 1]], dim=1)
    c, h = model.coefficients(*ends)
    c_swapped, h_swapped = model.coefficients(*ends[::-1])
    for operator, forth, back, sign, holds in (
        (model.density, c, c_swapped, 1, of_density),
        (model.potential, h, h_swapped, -1, of_potential),
    ):
        there = combine_cartesian(forth, operator.basis(rows))
        expected = sign * combine_cartesian(back, operator.basis(mirrored))
        assert there.abs().max() > 1e-3
        assert torch.allclose(there, expected, rtol=0, atol=1e-14) == holds


@pytest.mark.parametrize("symmetry", ["none", "density"])
def test_deeponet_equals_the_density_of_geonet(symmetry, randomised, ends, rows):
    full = deeponet_settings(1, symmetry)
    alone = DeepONetSettings(
        sensors=3, rank=6, swap_symmetry=symmetry, branch=full.branch, trunk=full.trunk
    )
    whole, part = randomised(GeONet(full)), DensityNet(alone)
    part.density.load_state_dict(whole.density.state_dict())
    assert {name.split(".")[0] for name in part.state_dict()} == {"density"}
    (coefficients,) = part.coefficients(*ends)
    assert torch.equal(coefficients, whole.coefficients(*ends)[0])
    assert torch.equal(part.density.basis(rows), whole.density.basis(rows))


@pytest.mark.parametrize("second", ["none", "laplacian", "hessian", "mixed"])
def test_paired_is_the_diagonal_of_cartesian(second, randomised, generator):
    operator = randomised(DeepONet(deeponet_settings(2), 1, 1.0))
    coefficients = operator.coefficients(*torch.rand(2, 4, 9, generator=generator))
    points, times = torch.rand(4, 2, generator=generator), torch.rand(4, generator=generator)
    basis = operator.basis(make_variables(points, times, second))
    every, own = combine_cartesian(coefficients, basis), combine_paired(coefficients, basis)
    assert every.data.shape == (len(basis.data), 4, 4)
    assert own.second == every.second == second
    assert torch.allclose(own.data, every.data.diagonal(dim1=1, dim2=2), atol=1e-14)


def test_cartesian_of_values_and_of_jets_agree(randomised, ends, rows):
    operator = randomised(DeepONet(deeponet_settings(), 0, 1.0))
    coefficients = operator.coefficients(*ends)
    values = combine_cartesian(coefficients, operator.basis(rows))
    jet = combine_cartesian(
        coefficients, operator.basis(make_variables(rows[:, :1], rows[:, 1], "laplacian"))
    )
    assert values.shape == (4, 5)
    assert torch.allclose(jet.value, values, atol=1e-14)
    stacked = combine_cartesian(coefficients, operator.basis(torch.stack([rows, rows.flip(0)])))
    assert torch.allclose(stacked, torch.stack([values, values.flip(1)]), atol=1e-14)


FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}


@pytest.mark.parametrize(("d", "sensors"), [(1, 60), (2, 24), (3, 10)])
def test_sensors_read_the_density_relative_to_uniform(d, sensors, generator):
    family, box = FAMILIES[d]
    density = family(2, generator).to_density(box)
    seen = read_sensors([density], sensors)[0]
    assert (seen.shape, seen.dtype) == ((2, sensors**d), torch.float32)
    places = box.with_shape(sensors).points().reshape(-1, d)
    expected = density.at(places) * box.volume
    assert torch.allclose(seen.double(), expected, atol=5e-3)
    assert torch.allclose(seen.double().mean(1), torch.ones(2), atol=0.02)


@pytest.mark.parametrize("corner", [0.0, -3.0])
def test_sensors_outside_a_rectangle_read_zero(corner):
    grid = Grid((20, 10), corner, (corner + 2.0, corner + 1.0))
    seen = read_sensors([Density(torch.ones(20, 10), grid)], 8)[0].reshape(8, 8)
    assert torch.allclose(seen[:, :4].double(), torch.tensor(2.0), atol=1e-5)
    assert bool((seen[:, 4:] == 0).all())


def test_sensors_are_independent_of_the_box(generator):
    density = mixtures_2d(1, generator).to_density(BOX_2D)
    moved = Density(density.tensor, Grid(BOX_2D.shape, 1e3, 1e3 + 1e-2))
    assert torch.allclose(*(read_sensors([end], 9)[0] for end in (density, moved)), atol=1e-4)
