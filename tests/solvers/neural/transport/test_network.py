"""The network of the transport form: symmetries, modes and loss."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from geonet.grid import Grid
from geonet.solvers.neural.jets import select_columns
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import build_model
from geonet.solvers.neural.transport.network import (
    ClassLinear,
    ImageGELU,
    SymmetricMLP,
    TransportLoss,
    TransportNet,
    TransportSettings,
    analysis_matrix,
    coefficient_scale,
    hadamard_matrix,
    parity_classes,
)
from geonet.training.problems import cartesian_batch, make_problem, sensor_points

DIMENSIONS = [1, 2, 3]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_symmetric_layers(k, randomised, generator):
    """One matrix per class, GELU of images; the network commutes with every symmetry."""
    matrix = hadamard_matrix(2**k)
    assert torch.equal(matrix, matrix.T)
    assert torch.allclose(matrix @ matrix, torch.eye(2**k), atol=1e-15)
    layer, activation = ClassLinear(2**k, 3, 2), ImageGELU(3)
    images = torch.randn(2**k, 5, 3, generator=generator)
    products = [part @ weight for part, weight in zip(images, layer.weights, strict=True)]
    assert torch.allclose(layer(images), torch.stack(products), atol=1e-15)
    activation.bias.data = torch.randn(3, generator=generator)
    z = torch.einsum("ij, jbw -> ibw", matrix, images)
    result = torch.einsum("ij, jbw -> ibw", matrix, activation(z))
    expected = torch.nn.functional.gelu(images + activation.bias)
    assert torch.allclose(result, expected, atol=1e-14)
    mlp = SymmetricMLP(k, inputs=3, width=5, depth=2, outputs=4, output_classes=slice(None))
    result = randomised(mlp)(images)
    for symmetry in range(k):
        flipped = flip_classes(result, symmetry)
        assert torch.allclose(mlp(flip_classes(images, symmetry)), flipped, atol=1e-13)
        assert not torch.allclose(result, flipped, atol=1e-2)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_potential_follows_swap_and_reflections(d, net, densities):
    """Odd under the swap of the ends; modes change their signs under reflections."""
    a, b = densities(net), densities(net)
    there = net.predict(a, b)
    assert there.shape == (4, 4**d) and there.abs().max() > 1e-3
    assert torch.allclose(net.predict(b, a), -there, rtol=0, atol=1e-14)
    for axis in range(d):
        flipped = (v.reshape(4, *(7,) * d).flip(axis + 1).flatten(1) for v in (a, b))
        mirrored = net.predict(*flipped)
        signs = (-1.0) ** frequencies(d, 4)[:, axis]
        assert torch.allclose(mirrored, signs * there, rtol=0, atol=1e-14)
        assert not torch.allclose(mirrored, there, rtol=0, atol=1e-3)


pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


def flip_classes(z, symmetry):
    """Features (classes, ...) under one of the symmetries: its odd classes change their sign."""
    odd = torch.tensor([bool(c >> symmetry & 1) for c in range(len(z))])
    return torch.where(odd.reshape(-1, *(1,) * (z.ndim - 1)), -z, z)


CACHED = (hadamard_matrix, analysis_matrix, parity_classes, coefficient_scale)


@pytest.fixture(autouse=True)
def double_matrices():
    """Matrices that were kept in single precision are made again."""
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


def settings_of(d, **changes):
    small = {"sensors": 7, "seen": 6, "modes": 4, "width": 3, "depth": 2}
    return TransportSettings(dimension=d, **(small | changes))


@pytest.fixture
def network(randomised):
    def made(d, **changes):
        return randomised(build_model(settings_of(d, **changes), 0)).requires_grad_(False)

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


@pytest.fixture(params=[False, True], ids=["new", "standardised"])
def net(request, d, network, densities):
    made = network(d)
    if request.param:
        made.prepare(densities(made, 50))
    return made


@pytest.mark.parametrize("d", DIMENSIONS)
def test_prepare_standardises_the_modes(d, network, densities):
    """Mean zero for even modes, spread one for those that are not faint."""
    net = network(d)
    typical = densities(net, 50)
    net.prepare(typical)
    modes = typical @ analysis_matrix(d, 7, 6, torch.float64)
    even = (frequencies(d, 6) % 2 == 0).all(1)
    seen = (modes - net.mean) * net.gain
    assert seen[:, even].mean(0).abs().max() < 1e-12
    assert not net.mean[~even].any()
    assert torch.allclose(seen.std(0), modes.std(0) / (modes.std(0) + TransportNet.min_spread))
    assert modes[:, ~even].mean(0).abs().max() > 1e-3


@pytest.mark.parametrize("d", DIMENSIONS)
def test_basis_and_modes(d, network, generator, check_jets):
    """Cosines and their jets; modes of a series, ∫cos² being ½ along each axis with k > 0."""
    net, k = network(d), frequencies(d, 4)

    def basis(z):
        if not isinstance(z, Tensor):
            return net.basis(z)
        return torch.cos(math.pi * k * z[..., None, :d]).prod(-1)

    check_jets(basis, d)
    series = torch.randn(3, len(k), generator=generator)
    x = Grid((6,) * d).points().reshape(-1, d)
    values = series @ torch.cos(math.pi * k[:, None] * x).prod(-1)
    expected = series * 0.5 ** (k > 0).sum(1)
    assert torch.allclose(values @ analysis_matrix(d, 6, 4, torch.float64), expected, atol=1e-14)
    order, back = parity_classes(d, 6)
    k = frequencies(d, 6)
    assert order.shape == (2**d, 3**d)
    for c, members in enumerate(order):
        for axis in range(d):
            assert (k[members, axis] % 2 == (c >> axis & 1)).all()
    assert torch.equal(order.flatten()[back], torch.arange(6**d))


# ---- loss


class Bowls(torch.nn.Module):
    """u(y) = ½cy² in 1D, one c for each pair: ∇u = cy and D²u = c."""

    def __init__(self, *c):
        super().__init__()
        self.c = torch.nn.Parameter(torch.tensor(c)[:, None])

    def predict(self, source, target):
        return self.c

    def basis(self, z):
        y = select_columns(z, 0, 1)
        return z.like(0.5 * (y * y).data)


def bowl_loss(*pairs, at=(0.5,), floor=0.25):
    """Return the loss of pairs (c, a) with μ0 = a + x and μ1 = 2 + x."""
    c, a = zip(*pairs, strict=True)
    start = torch.tensor(a)[:, None]
    ends = (lambda x: start + x[..., 0], lambda x: 2 + x[..., 0])
    points = torch.tensor(at)[:, None]
    none = torch.empty(len(c), 0)
    batch = Batch(none, none, points, points[:, 0], points[:0], none, none, ends, False)
    loss = TransportLoss(Bowls(*c), LossSettings(floor=floor))
    return loss, loss(batch)


@pytest.mark.parametrize(
    ("pair", "mismatch", "folds"),
    [
        # ρ0 = (1 + ¼)·½ = 0.625, ρ1 = (2 + ¾)·1½ = 4.125
        ((1.0, 1.0), 3.5**2 / (4.75 + 0.25), 0.0),
        # ρ0 = (1 − ¼)·(−½) = −0.375, ρ1 = (2 + 1¼)·2½ = 8.125
        ((3.0, 1.0), 8.5**2 / (7.75 + 0.25), 0.55**2),
        # ρ0 = (41 − ¼)·(−½) = −20.375, and the sum is negative
        ((3.0, 41.0), 28.5**2 / (12.25 + 0.25), 0.55**2),
        # determinants 0.03 and 1.97: no fold, but close
        ((1.94, 1.0), (1.015 * 0.03 - 2.985 * 1.97) ** 2 / (5.9109 + 0.25), 0.02**2),
        ((0.0, 2.0), 0.0, 0.0),
    ],
)
def test_loss_values(pair, mismatch, folds):
    loss, terms = bowl_loss(pair)
    assert terms["mismatch"].item() == pytest.approx(mismatch, rel=1e-9, abs=1e-14)
    assert terms["folds"].item() == pytest.approx(folds, rel=1e-9, abs=1e-14)
    assert torch.equal(loss.total(terms), terms["mismatch"] + terms["folds"])


def test_loss_gradients():
    """The denominator has none: with dρ0/dc = −¾ and dρ1/dc = 1¾ the slope is 2·3½·2½/5."""
    loss, terms = bowl_loss((1.0, 1.0))
    (slope,) = torch.autograd.grad(terms["mismatch"], loss.model.c)
    assert slope.item() == pytest.approx(3.5)
    loss, terms = bowl_loss((3.0, 1.0), (1.0, 1.0))
    (slope,) = torch.autograd.grad(terms["folds"], loss.model.c)
    assert slope.flatten().tolist() == pytest.approx([0.55 / 2, 0.0])  # 2·0.55·½, over two pairs


@pytest.mark.parametrize("d", DIMENSIONS)
def test_loss_of_equal_and_swapped_ends(d, network):
    torch.set_default_dtype(torch.float32)  # of trainings
    settings = settings_of(d, sensors=6, seen=4)
    model = build_model(settings, 1)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.5 * torch.randn(p.shape, generator=noise)
    problem, sensors = make_problem(f"mixtures-{d}d"), sensor_points(6, d)
    batch = cartesian_batch(problem, sensors, 3, 8, 0, torch.Generator().manual_seed(3))
    loss = model.build_loss(LossSettings(floor=0.3), problem.box)
    assert type(loss) is TransportLoss and loss.floor == 0.3
    same = loss(replace(batch, target=batch.source, ends=(batch.ends[0],) * 2))
    assert same["mismatch"] < 1e-9 and same["folds"] == 0
    swapped = replace(batch, source=batch.target, target=batch.source, ends=batch.ends[::-1])
    terms, back = loss(batch), loss(swapped)
    assert terms["mismatch"] > 1e-3
    assert all(torch.allclose(terms[name], back[name], rtol=1e-4) for name in terms)
    loss.total(terms).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.abs().max() > 1e-12, name
