import pytest
import torch

from geonet.numerics import symmetric_matrices as packed

pytestmark = pytest.mark.usefixtures("double_precision")

DIMENSIONS = [1, 2, 3]
FORMS = {"tensor": lambda a: a, "list": list}


def packed_from(matrix, form="tensor"):
    """Matrices (..., d, d) by their upper triangles, (entries, ...)."""
    d = matrix.shape[-1]
    rows, columns = torch.triu_indices(d, d)
    return FORMS[form](matrix[..., rows, columns].movedim(-1, 0))


@pytest.fixture
def symmetric(generator):
    """Random symmetric matrices (5, 4, d, d)."""

    def drawn(d):
        matrix = torch.randn(5, 4, d, d, generator=generator)
        return matrix + matrix.mT

    return drawn


def close(computed, expected):
    return torch.allclose(computed, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_determinant_of_one_plus_s_times_a(form, d, symmetric, generator):
    a = symmetric(d)
    for s in (0.0, 1.0, -0.7, torch.randn(4, generator=generator)):
        expected = torch.linalg.det(torch.eye(d) + torch.as_tensor(s)[..., None, None] * a)
        assert close(packed.determinant(packed_from(a, form), s), expected)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_invariants_are_symmetric_functions_of_the_eigenvalues(form, d, symmetric):
    a = symmetric(d)
    values = torch.linalg.eigvalsh(a)
    trace, product = values.sum(-1), values.prod(-1)
    minors = (trace**2 - (values**2).sum(-1)) / 2
    expected = {1: [trace], 2: [trace, product], 3: [trace, minors, product]}[d]
    found = packed.invariants(packed_from(a, form))
    assert len(found) == d
    assert all(close(*both) for both in zip(found, expected, strict=True))


def test_characteristic_by_hand():
    """1 + 2s + 3s² + 4s³."""
    numbers = [torch.tensor(float(n)) for n in (2, 3, 4)]
    assert [packed.characteristic(numbers[:n], 10.0).item() for n in (1, 2, 3)] == [21, 321, 4321]


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_inverse_of_one_plus_s_times_a(form, d, symmetric, generator):
    a = 0.2 * symmetric(d)
    for s in (0.0, 1.0, -0.7, 0.5 * torch.randn(4, generator=generator)):
        whole = torch.eye(d) + torch.as_tensor(s)[..., None, None] * a
        found = packed.inverse(packed_from(a, form), s)
        for entry, expected in zip(found, packed_from(torch.linalg.inv(whole)), strict=True):
            assert torch.allclose(entry, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_solutions_with_one_plus_s_times_a(d, symmetric, generator):
    a, right = symmetric(d), torch.randn(5, 4, d, generator=generator)
    expected = torch.linalg.solve(torch.eye(d) + 0.3 * a, right)
    found = packed.solved(packed.entries(a), 0.3, right.unbind(-1))
    assert torch.allclose(torch.stack(found, -1), expected, rtol=1e-9)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_entries_are_packed(d, symmetric):
    a = symmetric(d)
    assert torch.equal(packed.unpacked(packed.entries(a), d), a)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_product_with_vectors(form, d, symmetric, generator):
    a, right = symmetric(d), torch.randn(5, 4, d, generator=generator)
    found = packed.product(packed_from(a, form), FORMS[form](right.movedim(-1, 0)))
    expected = (a @ right[..., None])[..., 0]
    assert len(found) == d
    assert close(torch.stack(found, -1), expected)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_spectral_radius(form, d, symmetric):
    a = symmetric(d)
    shifts = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])[:, None, None, None]  # either end wins
    a = a + shifts * torch.eye(d)
    expected = torch.linalg.eigvalsh(a).abs().amax(-1)
    assert close(packed.spectral_radius(packed_from(a, form)), expected)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("size", [0.0, 1.0, -1.0, 0.1, -1e-3, 7e5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spectral_radius_of_multiples_of_the_identity(dtype, size, d):
    a = packed_from(size * torch.eye(d, dtype=dtype))
    assert packed.spectral_radius(a).item() == pytest.approx(abs(size), rel=1e-6)


@pytest.mark.parametrize(
    "values", [(2.0, 2.0, -1.0), (1.0, -2.0, -2.0), (3.0, 3.0, 3.0 + 1e-9), (0.0, 0.0, -5.0)]
)
def test_spectral_radius_where_eigenvalues_meet(values, generator):
    """There the cosine of the angle is ±1, and rounding may carry it beyond."""
    turn, _ = torch.linalg.qr(torch.randn(20, 3, 3, generator=generator))
    a = turn @ torch.diag(torch.tensor(values)) @ turn.mT
    expected = torch.full((20,), max(abs(value) for value in values))
    assert torch.allclose(packed.spectral_radius(packed_from(a)), expected, rtol=1e-7)
