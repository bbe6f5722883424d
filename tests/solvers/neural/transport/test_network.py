import itertools
import math

import pytest
import torch
from torch import Tensor

from geonet.grid import Grid
from geonet.solvers.neural.jets import variables
from geonet.solvers.neural.layers import cartesian
from geonet.solvers.neural.model import build
from geonet.solvers.neural.transport.network import (
    FAINT,
    POTENTIAL_SCALE,
    TransportSettings,
    analysis,
    classes,
    cosine_products,
    decay,
    hadamard,
    softening,
)

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

DIMENSIONS = [1, 2, 3]
KEPT = (hadamard, analysis, classes, decay, softening)


@pytest.fixture(autouse=True)
def double_matrices():
    """Matrices that were kept in single precision are made again."""
    for function in KEPT:
        function.cache_clear()
    yield
    for function in KEPT:
        function.cache_clear()


def settings_of(d, **changes):
    small = {"sensors": 7, "seen": 6, "modes": 4, "width": 3, "depth": 2}
    return TransportSettings(dimension=d, **(small | changes))


@pytest.fixture
def network(randomised):
    def made(d, **changes):
        return randomised(build(settings_of(d, **changes), 0)).requires_grad_(False)

    return made


@pytest.fixture
def densities(generator):
    """Values at the sensors, of mean one and far from any symmetry."""

    def drawn(net, count=4):
        s = net.settings
        tilt = torch.linspace(0.2, 1.8, s.sensors**s.dimension)
        values = tilt * torch.rand(count, s.sensors**s.dimension, generator=generator)
        return values / values.mean(1, keepdim=True)

    return drawn


def frequencies(d, modes):
    """All k, the last axis fastest."""
    return torch.tensor(list(itertools.product(range(modes), repeat=d)))


def centres(sensors, d):
    """Where the sensors are, (m, d)."""
    return Grid((sensors,) * d).points().reshape(-1, d)


def reflected(values, d, axis):
    """Sensor values (B, m) of the box reflected along an axis."""
    side = round(values.shape[1] ** (1 / d))
    return values.reshape(-1, *(side,) * d).flip(axis + 1).flatten(1)


@pytest.fixture(params=[False, True], ids=["new", "standardised"])
def net(request, d, network, densities):
    made = network(d)
    if request.param:
        made.prepare(densities(made, 50))
    return made


@pytest.mark.parametrize("d", DIMENSIONS)
def test_odd_under_the_swap_of_the_ends(d, net, densities):
    a, b = densities(net), densities(net)
    there, back = net.potential(a, b), net.potential(b, a)
    assert there.shape == (4, 4**d)
    assert there.abs().max() > 1e-3
    assert torch.allclose(back, -there, rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_zero_between_equal_ends(d, net, densities):
    a = densities(net)
    assert net.potential(a, a).abs().max() < 1e-15
    assert net.potential(a, a.roll(1, 0)).abs().max() > 1e-3


@pytest.mark.parametrize("d", DIMENSIONS)
def test_commutes_with_reflections(d, net, densities):
    a, b = densities(net), densities(net)
    straight = net.potential(a, b)
    for axis in range(d):
        mirrored = net.potential(reflected(a, d, axis), reflected(b, d, axis))
        signs = (-1.0) ** frequencies(d, 4)[:, axis]
        assert torch.allclose(mirrored, signs * straight, rtol=0, atol=1e-14)
        assert not torch.allclose(mirrored, straight, rtol=0, atol=1e-3)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_reflections_move_the_potential_with_the_densities(d, net, densities, generator):
    """u at reflected points, where nothing is said about modes."""
    a, b = densities(net), densities(net)
    points, times = torch.rand(5, d, generator=generator), torch.zeros(5)

    def potential(a, b, points):
        return cartesian(net.potential(a, b), net.basis(variables(points, times, "none"))).value

    for axis in range(d):
        there = points.clone()
        there[:, axis] = 1 - there[:, axis]
        mirrored = potential(reflected(a, d, axis), reflected(b, d, axis), there)
        assert torch.allclose(mirrored, potential(a, b, points), rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_standardised_modes_of_typical_densities(d, network, densities):
    """Mean zero for even modes, spread one for those that are not faint."""
    net = network(d)
    typical = densities(net, 50)
    net.prepare(typical)
    modes = typical @ analysis(d, 7, 6, torch.float64)
    even = (frequencies(d, 6) % 2 == 0).all(1)
    seen = (modes - net.mean) * net.gain
    assert seen[:, even].mean(0).abs().max() < 1e-12
    assert not net.mean[~even].any()
    assert torch.allclose(seen.std(0), modes.std(0) / (modes.std(0) + FAINT))
    assert modes[:, ~even].mean(0).abs().max() > 1e-3


@pytest.mark.parametrize("d", DIMENSIONS)
def test_jets_of_the_basis(d, network, check_jets):
    net = network(d)

    def basis(z):
        if not isinstance(z, Tensor):
            return net.basis(z)
        return torch.cos(math.pi * frequencies(d, 4) * z[..., None, :d]).prod(-1)

    check_jets(basis, d)


def test_the_basis_has_as_many_modes_as_asked_for():
    z = variables(torch.tensor([[0.3, 0.6]]), torch.zeros(1), "hessian")
    assert cosine_products(z, 5).data.shape == (7, 1, 25)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_analysis_takes_series_to_their_coefficients(d, generator):
    """∫cos² is ½ along each axis where k > 0."""
    k = frequencies(d, 4)
    series = torch.randn(3, len(k), generator=generator)
    x = centres(6, d)
    values = series @ torch.cos(math.pi * k[:, None] * x).prod(-1)
    expected = series * 0.5 ** (k > 0).sum(1)
    assert torch.allclose(values @ analysis(d, 6, 4, torch.float64), expected, atol=1e-14)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_classes_sort_modes_by_their_parities(d):
    order, back = classes(d, 6)
    k = frequencies(d, 6)
    assert order.shape == (2**d, 3**d)
    for c, members in enumerate(order):
        for axis in range(d):
            assert (k[members, axis] % 2 == (c >> axis & 1)).all()
    assert torch.equal(order.flatten()[back], torch.arange(6**d))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_the_linear_path_takes_every_mode_to_itself(d, densities):
    """With the identity for every class, and nothing else, nothing is out of its place."""
    net = build(settings_of(d, seen=4, modes=4), 0).requires_grad_(False)
    net.prepare(densities(net, 50))
    for parameter in net.parameters():
        parameter.zero_()
    for weight in net.network.direct.weights:
        weight.copy_(torch.eye(2**d))
    a, b = densities(net), densities(net)
    difference = (a - b) @ analysis(d, 7, 4, torch.float64) / 2
    size = POTENTIAL_SCALE / (1 + (frequencies(d, 4) ** 2).sum(1)) ** 1.5
    assert torch.allclose(net.potential(a, b), net.gain * difference * size, atol=1e-15)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_blur_is_a_heat_flow(d, network):
    """Gaussians inside the box become wider ones."""
    net = network(d, sensors=24, seen=6)
    points = centres(24, d)

    def gaussian(middle, std):
        offsets = (points - middle) / std
        return torch.exp(-0.5 * (offsets**2).sum(1) - d * math.log(std * math.tau**0.5))[None]

    narrow = [gaussian(middle, 0.048) for middle in (0.45, 0.55)]
    wide = [gaussian(middle, 0.08) for middle in (0.45, 0.55)]
    blurred, expected = net.potential(*narrow, blur=0.064), net.potential(*wide)
    assert torch.allclose(blurred, expected, rtol=0, atol=1e-6 * expected.abs().max().item())
    plain = net.potential(*narrow)
    assert not torch.allclose(plain, expected, rtol=0, atol=1e-2 * expected.abs().max().item())


@pytest.mark.parametrize("d", DIMENSIONS)
def test_blur_multiplies_the_modes_before_they_are_standardised(d, network, densities):
    net = network(d, sensors=6)  # as many modes as sensors, so that modes give the values
    net.prepare(densities(net, 50))
    a, b = densities(net), densities(net)
    matrix = analysis(d, 6, 6, torch.float64)
    soft = torch.exp(-0.5 * (0.1 * math.pi) ** 2 * (frequencies(d, 6) ** 2).sum(1))
    smooth = [(end @ matrix * soft) @ torch.linalg.inv(matrix) for end in (a, b)]
    assert torch.allclose(net.potential(a, b, blur=0.1), net.potential(*smooth), atol=1e-12)
    assert not torch.allclose(net.potential(a, b), net.potential(*smooth), atol=1e-3)


def test_no_blur_changes_nothing():
    assert torch.equal(softening(2, 5, 0.0), torch.ones(25))


def test_mean_and_gain_are_kept_but_not_trained(network):
    net = network(1)
    assert {"mean", "gain"} < set(net.state_dict())
    assert not {"mean", "gain"} & {name for name, _ in net.named_parameters()}


def test_one_pair_is_answered_as_in_a_batch(network, densities):
    net = network(2)
    a, b = densities(net), densities(net)
    alone = torch.cat([net.potential(a[n : n + 1], b[n : n + 1]) for n in range(4)])
    assert torch.allclose(net.potential(a, b), alone, rtol=0, atol=1e-15)


def test_matrices_are_made_once():
    assert analysis(2, 6, 4, torch.float64) is analysis(2, 6, 4, torch.float64)
    assert analysis(2, 6, 4, torch.float32).dtype == torch.float32


def test_matrices_made_in_inference_mode_serve_training(densities):
    net = build(settings_of(2), 0)
    a, b = densities(net), densities(net)
    with torch.inference_mode():
        expected = net.potential(a, b, blur=0.1)
    with torch.no_grad():
        assert torch.equal(net.potential(a, b, blur=0.1), expected)
    found = net.potential(a, b, blur=0.1)
    found.square().sum().backward()
    # With gradients GELU is torch's own, another formula that rounds otherwise (6e-8).
    assert torch.allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert all(p.grad is not None for p in net.parameters())
