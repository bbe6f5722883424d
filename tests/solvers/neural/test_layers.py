"""Layers: perceptrons, features, cosine modes, sensors and DeepONets."""

from __future__ import annotations

import math

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.solvers.neural.geonet import GeONet, GeONetSettings
from geonet.solvers.neural.jets import make_variables
from geonet.solvers.neural.layers import (
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


@pytest.mark.parametrize(("network", "features"), TRUNKS)
def test_jets_of_trunks(network, features, randomised, check_jets, check_weights):
    """In x, t and the weights; features have no trainable weights."""
    made = randomised(trunk(network, features, 2))
    check_jets(made, 2)
    check_weights(made, 2)
    frozen = {name for name, p in made.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in made.named_parameters() if n.startswith(("space.", "time."))}


@pytest.mark.parametrize("d", [1, 2, 3])
def test_cosine_series(d, generator, check_jets):
    """All modes interpolate the sensors; a truncated series keeps the low modes."""
    n = SENSORS[d]
    grid, cut, series = Grid((n,) * d), CosineModes(d, n, 3), CosineModes(d, n, n)
    values = torch.rand(3, n**d, generator=generator)
    assert series(values).shape == (3, n**d)
    result = series(values) @ series.evaluate_basis(rows_of(grid)).T
    assert torch.allclose(result, values, rtol=0, atol=1e-13)
    low = 1 + 0.5 * cosine_wave(grid, *[2] * d) - 0.3 * cosine_wave(grid, *[1] * d)
    high = cosine_wave(grid, 3, *[0] * (d - 1))
    functions = cut.evaluate_basis(rows_of(grid))
    assert functions.shape == (n**d, 3**d)
    assert torch.allclose(cut(low + 0.7 * high) @ functions.T, low, rtol=0, atol=1e-13)
    assert cut(high).abs().max() < 1e-13
    check_jets(cut.evaluate_basis, d)


def test_modified_perceptron_formula(randomised, generator):
    network = randomised(ModifiedMLP(2, 4, 4, 3))
    x = torch.rand(6, 2, generator=generator)
    u, v, h = (torch.tanh(f(x)) for f in (network.gate_u, network.gate_v, network.first))
    for layer in network.layers:
        z = torch.tanh(layer(h))
        h = (1 - z) * u + z * v
    assert torch.allclose(network(x), network.output(h), atol=1e-14)


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


SENSORS = {1: 12, 2: 6, 3: 4}


def rows_of(grid):
    """The centres of cells at t = 0.3, (cells, d + 1)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cat([points, torch.full_like(points[:, :1], 0.3)], dim=1)


def cosine_wave(grid, *modes):
    """Π_i cos(k_i πx_i) at the centres of cells, (1, cells)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cos(math.pi * torch.tensor(modes) * points).prod(-1)[None]


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


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("parity", [0, 1, -1])
def test_contraction_equals_the_sum_over_k(parity, network, randomised, ends, rows, check_jets):
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
    check_jets(operator.basis, 1)


@pytest.mark.parametrize(
    ("symmetry", "of_density", "of_potential"),
    [("none", False, False), ("density", True, False), ("both", True, True)],
)
def test_swap_symmetry(symmetry, of_density, of_potential, randomised, ends, rows):
    model = randomised(GeONet(deeponet_settings(1, symmetry, features="fourier")))
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
    if symmetry == "none":  # with the same weights, only the scale differs
        model.potential.load_state_dict(model.density.state_dict())
        c, h = model.coefficients(*ends)
        assert torch.allclose(h, model.settings.potential_scale * c)


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
    rows = torch.cat([points, times[:, None]], 1)
    values = combine_cartesian(coefficients, operator.basis(torch.stack([rows, rows.flip(0)])))
    expected = torch.stack([every.value, every.value.flip(1)])
    assert torch.allclose(values, expected, atol=1e-14)


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
