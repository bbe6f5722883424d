import math

import pytest
import torch

from geonet.solvers.neural.jets import variables
from geonet.solvers.neural.layers import (
    MLP,
    Cosines,
    JointTrunk,
    ModifiedMLP,
    RandomFourier,
    SeparableTrunk,
    make_trunk,
)
from geonet.solvers.neural.model import Trunk

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
    return make_trunk(Trunk(network, 4, depth, features, modes=2, sigma=0.5), d, RANK)


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
def test_jets_can_be_trained(network, features, randomised, check_weights):
    check_weights(randomised(trunk(network, features, 2)), 2)


@pytest.mark.parametrize(("network", "features"), TRUNKS)
def test_kinds_of_trunk(network, features):
    made = trunk(network, features, 2)
    assert isinstance(made, SeparableTrunk if network == "separable" else JointTrunk)
    assert made(torch.zeros(5, 3)).shape == (5, RANK)
    assert made.features(torch.zeros(5, 3)).shape == (5, 4)
    assert made.output.weight.shape == (RANK, 4)


def test_depth_counts_layers_with_weights():
    inputs, width, depth, outputs = 2, 5, 4, 3
    sides = [(inputs, width)] + [(width, width)] * (depth - 2) + [(width, outputs)]
    plain = sum(a * b + b for a, b in sides)
    gates = 2 * (inputs * width + width)
    for kind, expected in ((MLP, plain), (ModifiedMLP, plain + gates)):
        assert sum(p.numel() for p in kind(inputs, width, depth, outputs).parameters()) == expected


def test_modified_perceptron_by_its_formula(randomised, generator):
    network = randomised(ModifiedMLP(2, 4, 4, 3))
    x = torch.rand(6, 2, generator=generator)
    u, v, h = (torch.tanh(f(x)) for f in (network.gate_u, network.gate_v, network.first))
    for layer in network.layers:
        z = torch.tanh(layer(h))
        h = (1 - z) * u + z * v
    assert torch.allclose(network(x), network.output(h), atol=1e-14)


def test_separable_trunk_is_a_product_of_space_and_time(randomised, generator):
    made = randomised(trunk("separable", "fourier", 2))
    x, t = torch.rand(2, 5, 2, generator=generator), torch.rand(2, 5, 1, generator=generator)
    f = {(i, j): made.features(torch.cat([x[i], t[j]], 1)) for i in (0, 1) for j in (0, 1)}
    assert torch.allclose(f[0, 0] * f[1, 1], f[0, 1] * f[1, 0], atol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_cosines_are_flat_at_the_faces(d, generator):
    for axis in range(d):
        for face in (0.0, 1.0):
            points = torch.rand(4, d, generator=generator)
            points[:, axis] = face
            jet = Cosines(d + 1, 5)(variables(points, points[:, 0], "none"))
            assert jet.gradient[axis].abs().max() < 1e-12


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize(("features", "flat"), [("cosines", True), ("coordinates", False)])
def test_trunks_of_cosines_are_flat_at_the_faces(network, features, flat, randomised, generator):
    made = randomised(trunk(network, features, 2))
    for axis in (0, 1):
        for face in (0.0, 1.0):
            points = torch.rand(4, 2, generator=generator)
            points[:, axis] = face
            jet = made(variables(points, torch.full((4,), 0.3), "none"))
            assert bool(jet.gradient[axis].abs().max() < 1e-12) == flat


def test_cosines_by_their_formula():
    x = torch.tensor([[0.1, 0.7]])
    angles = [k * math.pi * x_i for x_i in (0.1, 0.7) for k in (1, 2, 3)]
    assert torch.allclose(Cosines(2, 3)(x), torch.tensor([angles]).cos())


def test_random_fourier_features(generator):
    features = RandomFourier(2, 500, sigma=2.5)
    x = torch.rand(4, 2, generator=generator)
    cosines, sines = features(x).chunk(2, dim=1)
    assert torch.allclose(cosines**2 + sines**2, torch.ones(4, 500))
    frequencies = features.phases.weight / math.tau
    assert frequencies.std().item() == pytest.approx(2.5, rel=0.15)


@pytest.mark.parametrize("features", ["coordinates", "cosines", "fourier"])
def test_features_are_frozen(features):
    made = trunk("mlp", features, 2)
    frozen = {name for name, p in made.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in made.named_parameters() if n.startswith(("space.", "time."))}
    assert frozen
