import math

import pytest
import torch

from geonet.solvers.neural.deeponet import DeepONetSettings, DensityNet
from geonet.solvers.neural.geonet import GeONet, GeONetSettings
from geonet.solvers.neural.jets import variables
from geonet.solvers.neural.layers import DeepONet, cartesian, paired
from geonet.solvers.neural.model import Branch, Trunk, build

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

FEATURES = ("coordinates", "cosines", "fourier")


def architecture(d=1, symmetry="none", network="modified-mlp", features="coordinates"):
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


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("parity", [0, 1, -1])
def test_jets_of_the_basis(parity, d, randomised, check_jets):
    check_jets(randomised(DeepONet(architecture(d), parity, 1.0)).basis, d)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("parity", [0, 1, -1])
def test_jets_of_the_basis_of_every_trunk(parity, network, features, randomised, check_jets):
    settings = architecture(2, network=network, features=features)
    check_jets(randomised(DeepONet(settings, parity, 1.0)).basis, 2)


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("parity", [0, 1, -1])
def test_folding_is_the_sum_over_k(parity, network, randomised, ends, rows):
    operator = randomised(DeepONet(architecture(network=network), parity, scale=0.7))

    def unfolded(source, target, at):
        first, second = operator.branches
        products = first(source) * second(target)
        return 0.7 / math.sqrt(6) * torch.einsum("bk, nk -> bn", products, operator.trunk(at))

    expected = unfolded(*ends, rows)
    if parity:
        mirrored = torch.stack([rows[:, 0], 1 - rows[:, 1]], dim=1)
        expected = (expected + parity * unfolded(*ends[::-1], mirrored)) / 2
    folded = cartesian(operator.coefficients(*ends), operator.basis(rows))
    assert expected.abs().max() > 0.01
    assert torch.allclose(folded, expected, atol=1e-14)


def test_density_and_potential_have_their_scales(ends):
    """The same weights in both: they differ by the constant in front alone."""
    model = GeONet(architecture())
    model.potential.load_state_dict(model.density.state_dict())
    c, h = model.coefficients(*ends)
    assert torch.allclose(h, model.settings.potential_scale * c)


def test_the_branches_see_the_uniform_density_as_zero(randomised):
    model = randomised(GeONet(architecture()))
    uniform, zero = torch.ones(1, 3), torch.zeros(1, 3)
    c, h = model.coefficients(uniform, uniform)
    assert torch.equal(c, model.density.coefficients(zero, zero))
    assert torch.equal(h, model.potential.coefficients(zero, zero))


@pytest.mark.parametrize(
    ("symmetry", "of_density", "of_potential"),
    [("none", False, False), ("density", True, False), ("both", True, True)],
)
@pytest.mark.parametrize("features", FEATURES)
def test_swap_symmetry(symmetry, of_density, of_potential, features, randomised, ends, rows):
    model = randomised(GeONet(architecture(1, symmetry, features=features)))
    mirrored = torch.stack([rows[:, 0], 1 - rows[:, 1]], dim=1)
    c, h = model.coefficients(*ends)
    c_swapped, h_swapped = model.coefficients(*ends[::-1])
    for operator, forth, back, sign, holds in (
        (model.density, c, c_swapped, 1, of_density),
        (model.potential, h, h_swapped, -1, of_potential),
    ):
        there = cartesian(forth, operator.basis(rows))
        expected = sign * cartesian(back, operator.basis(mirrored))
        assert there.abs().max() > 1e-3
        assert torch.allclose(there, expected, rtol=0, atol=1e-14) == holds


@pytest.mark.parametrize("symmetry", ["none", "density"])
def test_the_density_alone_is_that_of_geonet(symmetry, randomised, ends, rows):
    full = architecture(1, symmetry)
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
    operator = randomised(DeepONet(architecture(2), 1, 1.0))
    coefficients = operator.coefficients(*torch.rand(2, 4, 9, generator=generator))
    points, times = torch.rand(4, 2, generator=generator), torch.rand(4, generator=generator)
    basis = operator.basis(variables(points, times, second))
    every, own = cartesian(coefficients, basis), paired(coefficients, basis)
    assert every.data.shape == (len(basis.data), 4, 4)
    assert own.second == every.second == second
    assert torch.allclose(own.data, every.data.diagonal(dim1=1, dim2=2), atol=1e-14)


def test_cartesian_of_values_and_of_jets_agree(randomised, ends, rows):
    operator = randomised(DeepONet(architecture(), 0, 1.0))
    coefficients = operator.coefficients(*ends)
    values = cartesian(coefficients, operator.basis(rows))
    jet = cartesian(coefficients, operator.basis(variables(rows[:, :1], rows[:, 1], "laplacian")))
    assert values.shape == (4, 5)
    assert torch.allclose(jet.value, values, atol=1e-14)
    stacked = cartesian(coefficients, operator.basis(torch.stack([rows, rows.flip(0)])))
    assert torch.allclose(stacked, torch.stack([values, values.flip(1)]), atol=1e-14)


@pytest.mark.parametrize("features", FEATURES)
def test_building_depends_on_the_seed_alone(features):
    settings = architecture(2, "both", features=features)
    first = build(settings, 7).state_dict()
    torch.rand(3)  # moves torch's own stream
    again, other = build(settings, 7).state_dict(), build(settings, 8).state_dict()
    moving = "density.trunk.network.output.weight"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[moving], other[moving])


def test_building_leaves_the_global_stream_alone():
    before = torch.random.get_rng_state()
    build(architecture(), 7)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_density_and_potential_share_no_weights():
    state = dict(build(architecture(), 0).named_parameters())
    assert {name.split(".")[0] for name in state} == {"density", "potential"}
    random = [n for n in state if n.endswith("weight") and ".space." not in n and ".time." not in n]
    for name in random:
        other = name.replace("density", "potential")
        assert other == name or not torch.equal(state[name], state[other]), name
