import pytest
import torch

from geonet.solvers.neural.deeponet import DeepONetSettings, DensityNet
from geonet.solvers.neural.geonet import GeONet, GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build, untrained
from geonet.solvers.neural.transport.network import TransportNet, TransportSettings

pytestmark = pytest.mark.usefixtures("double_precision")

SMALL = {
    GeONet: GeONetSettings(sensors=3, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)),
    DensityNet: DeepONetSettings(
        sensors=3, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)
    ),
    TransportNet: TransportSettings(sensors=6, seen=4, modes=6, width=3, depth=2),
}


@pytest.mark.parametrize("kind", SMALL)
def test_settings_choose_the_model(kind):
    for model in (build(SMALL[kind], 0), untrained(SMALL[kind])):
        assert type(model) is kind
        assert model.settings == SMALL[kind]


@pytest.mark.parametrize("kind", SMALL)
def test_weights_depend_on_the_seed_alone(kind):
    first = build(SMALL[kind], 7).state_dict()
    torch.rand(3)  # moves torch's own stream
    again, other = build(SMALL[kind], 7).state_dict(), build(SMALL[kind], 8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("kind", SMALL)
def test_torchs_own_stream_stays_where_it_was(kind):
    before = torch.random.get_rng_state()
    build(SMALL[kind], 7)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", SMALL)
def test_untrained_weights_come_from_torchs_own_stream(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        found = untrained(SMALL[kind]).state_dict()
    expected = build(SMALL[kind], 7).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_transport_model_has_the_sizes_of_its_settings(d):
    settings = TransportSettings(dimension=d, sensors=8, seen=6, modes=4, width=5, depth=2)
    network = build(settings, 0).network
    inputs, outputs, swapped = 3**d, 2**d, 2**d
    assert [w.shape for w in network.first.weights] == [(inputs, 5)] * 2 * swapped
    assert [w.shape for b in network.blocks for w in b.weights] == [(5, 5)] * 4 * swapped
    assert [w.shape for w in network.output.weights] == [(5, outputs)] * swapped
    assert [w.shape for w in network.direct.weights] == [(inputs, outputs)] * swapped
