"""Packed symmetric matrices against torch.linalg."""

import pytest
import torch

from geonet.numerics import symmetric_matrices as packed

pytestmark = pytest.mark.usefixtures("double_precision")
every_dimension = pytest.mark.parametrize("d", [1, 2, 3])


def random_matrices(d, generator):
    """Return random symmetric matrices (5, 4, d, d)."""
    matrix = torch.randn(5, 4, d, d, generator=generator)
    return matrix + matrix.mT


def is_close(computed, expected):
    return torch.allclose(computed, expected, rtol=1e-9, atol=1e-10)


@every_dimension
def test_pack_and_unpack(d, generator):
    a = random_matrices(d, generator)
    rows, columns = torch.triu_indices(d, d)
    assert torch.equal(torch.stack(packed.pack(a)), a[..., rows, columns].movedim(-1, 0))
    assert torch.equal(packed.unpack(packed.pack(a), d), a)


@every_dimension
def test_determinant_and_inverse_of_identity_plus_s_times_a(d, generator):
    a = 0.2 * random_matrices(d, generator)
    for s in (0.0, 1.0, -0.7, 0.5 * torch.randn(4, generator=generator)):
        whole = torch.eye(d) + torch.as_tensor(s)[..., None, None] * a
        for form in (packed.pack(a), torch.stack(packed.pack(a))):  # a list or a tensor
            assert is_close(packed.determinant(form, s), torch.linalg.det(whole))
            assert is_close(packed.unpack(packed.inverse(form, s), d), torch.linalg.inv(whole))


@every_dimension
def test_products_and_solutions(d, generator):
    a, right = random_matrices(d, generator), torch.randn(5, 4, d, generator=generator)
    found = torch.stack(packed.multiply(packed.pack(a), right.unbind(-1)), -1)
    assert is_close(found, (a @ right[..., None])[..., 0])
    found = torch.stack(packed.solve(packed.pack(a), 0.3, right.unbind(-1)), -1)
    assert is_close(found, torch.linalg.solve(torch.eye(d) + 0.3 * a, right))


@every_dimension
def test_invariants_are_symmetric_functions_of_the_eigenvalues(d, generator):
    a = random_matrices(d, generator)
    values = torch.linalg.eigvalsh(a)
    trace, product = values.sum(-1), values.prod(-1)
    minors = (trace**2 - (values**2).sum(-1)) / 2
    expected = {1: [trace], 2: [trace, product], 3: [trace, minors, product]}[d]
    found = packed.invariants(packed.pack(a))
    assert all(is_close(*both) for both in zip(found, expected, strict=True))


def test_characteristic_polynomial_has_the_invariants_as_coefficients():
    numbers = [torch.tensor(float(n)) for n in (2, 3, 4)]
    values = [packed.characteristic_polynomial(numbers[:n], 10.0).item() for n in (1, 2, 3)]
    assert values == [21, 321, 4321]


@every_dimension
def test_spectral_radius(d, generator):
    shifts = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])[:, None, None, None]
    a = random_matrices(d, generator) + shifts * torch.eye(d)  # largest or smallest eigenvalue
    expected = torch.linalg.eigvalsh(a).abs().amax(-1)
    assert is_close(packed.spectral_radius(packed.pack(a)), expected)


@pytest.mark.parametrize(
    "values", [(2.0, 2.0, -1.0), (1.0, -2.0, -2.0), (3.0, 3.0, 3.0 + 1e-9), (0.0, 0.0, -5.0)]
)
def test_spectral_radius_of_multiple_eigenvalues(values, generator):
    """The cosine of the angle is ±1, and rounding may exceed it."""
    rotation, _ = torch.linalg.qr(torch.randn(20, 3, 3, generator=generator))
    a = rotation @ torch.diag(torch.tensor(values)) @ rotation.mT
    expected = torch.full((20,), max(abs(value) for value in values))
    assert torch.allclose(packed.spectral_radius(packed.pack(a)), expected, rtol=1e-7)
