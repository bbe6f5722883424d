"""Tables of cosines and sines against autograd, and their inverse."""

import math

import pytest
import torch

from geonet.numerics.cosine import centres, cosine_transform, faces, frequencies, waves


def test_places_and_frequencies():
    assert centres(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert faces(4).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert torch.allclose(frequencies(3, 2.0), math.pi * torch.tensor([0.0, 0.5, 1.0]).double())
    assert torch.equal(frequencies(2, first=1), frequencies(3)[1:])


@pytest.mark.parametrize("odd", [False, True])
def test_waves_and_their_derivatives(odd, generator):
    x = torch.rand(9, dtype=torch.float64, generator=generator).requires_grad_()
    kappa = frequencies(6, 1.5)
    table = waves(x, kappa, 5, odd)
    assert table.shape == (5, 9, 6)
    for k in range(6):
        value = (torch.sin if odd else torch.cos)(kappa[k] * x) + 0 * x
        for found in table[..., k]:
            assert torch.allclose(found, value, atol=1e-9)
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("odd", [False, True])
def test_the_transform_inverts_the_table(n, odd):
    (table,) = waves(centres(n), frequencies(n, first=int(odd)), 1, odd)
    identity = torch.eye(n, dtype=torch.float64)
    assert torch.allclose(cosine_transform(n, odd) @ table, identity, atol=1e-12)
