import pytest
import torch

from geonet.solvers.neural.transport.network import ClassLinear, ImageGELU, SymmetricMLP, hadamard

pytestmark = pytest.mark.usefixtures("double_precision")

SYMMETRIES = [1, 2, 3, 4]


@pytest.fixture(autouse=True)
def double_matrices():
    """Matrices that were kept in single precision are made again."""
    hadamard.cache_clear()
    yield
    hadamard.cache_clear()


def reflected(z, symmetry):
    """Features (classes, ...) under one of the symmetries: its odd classes change their sign."""
    odd = torch.tensor([bool(c >> symmetry & 1) for c in range(len(z))])
    return torch.where(odd.reshape(-1, *(1,) * (z.ndim - 1)), -z, z)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_hadamard_matrices(size):
    matrix = hadamard(size)
    assert matrix.shape == (size, size)
    assert torch.equal(matrix, matrix.T)
    assert torch.allclose(matrix @ matrix, torch.eye(size), atol=1e-15)
    assert torch.allclose(matrix.abs(), torch.full((size, size), size**-0.5))


def test_hadamard_signs_count_shared_bits():
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert (2 * hadamard(4)).tolist() == signs


def test_every_class_has_a_matrix_of_its_own(generator):
    layer = ClassLinear(4, 3, 2)
    z = torch.randn(4, 5, 3, generator=generator)
    expected = [part @ weight for part, weight in zip(z, layer.weights, strict=True)]
    assert torch.allclose(layer(z), torch.stack(expected), atol=1e-15)
    assert len({tuple(weight.flatten().tolist()) for weight in layer.weights}) == 4


@pytest.mark.parametrize("training", [True, False])
def test_a_change_of_the_weights_counts_at_once(training, generator):
    layer = ClassLinear(4, 3, 2).train(training)
    z = torch.randn(4, 5, 3, generator=generator)
    with torch.no_grad():
        before = layer(z)
        layer.weights[1] *= 2
        after = layer(z)
    assert torch.allclose(after[1], 2 * before[1])
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert layer(z).requires_grad


@pytest.mark.parametrize("k", SYMMETRIES)
def test_the_activation_acts_alike_on_all_images(k, generator):
    """A feature whose images are known: every one goes through GELU by itself."""
    activation = ImageGELU(3)
    activation.bias.data = torch.randn(3, generator=generator)
    images = torch.randn(2**k, 5, 3, generator=generator)
    z = torch.einsum("ij, jbw -> ibw", hadamard(2**k), images)
    expected = torch.nn.functional.gelu(images + activation.bias)
    found = torch.einsum("ij, jbw -> ibw", hadamard(2**k), activation(z))
    assert torch.allclose(found, expected, atol=1e-14)


def network(k, randomised, kept=slice(None)):
    return randomised(SymmetricMLP(k, inputs=3, width=5, depth=2, outputs=4, output_classes=kept))


@pytest.mark.parametrize("k", SYMMETRIES)
def test_the_network_commutes_with_every_symmetry(k, randomised, generator):
    mlp = network(k, randomised)
    x = torch.randn(2**k, 6, 3, generator=generator)
    answer = mlp(x)
    for symmetry in range(k):
        assert torch.allclose(mlp(reflected(x, symmetry)), reflected(answer, symmetry), atol=1e-13)
        assert not torch.allclose(answer, reflected(answer, symmetry), atol=1e-2)


@pytest.mark.parametrize("k", SYMMETRIES)
def test_it_mixes_the_classes(k, randomised, generator):
    """Every input has a part in every output, else a symmetry would be stronger than asked for."""
    mlp = network(k, randomised)
    x = torch.randn(2**k, 1, 3, generator=generator)
    slopes = torch.autograd.functional.jacobian(mlp, x)  # (classes, 1, 4, classes, 1, 3)
    assert slopes.abs().amin() > 1e-9


def test_some_classes_can_be_kept(randomised, generator):
    mlp = network(3, randomised)
    x = torch.randn(8, 6, 3, generator=generator)
    upper = SymmetricMLP(3, 3, 5, 2, 4, slice(4, None))
    assert [len(layer.weights) for layer in (upper.output, upper.direct)] == [4, 4]
    state = mlp.state_dict()
    for name in ("output", "direct"):
        matrices = [state.pop(f"{name}.weights.{c}") for c in range(8)]
        state |= {f"{name}.weights.{c}": matrix for c, matrix in enumerate(matrices[4:])}
    upper.load_state_dict(state)
    assert torch.allclose(upper(x), mlp(x)[4:], atol=1e-14)


def test_the_linear_path_adds_to_the_others_and_starts_at_zero(randomised, generator):
    mlp = SymmetricMLP(2, 3, 5, 2, 4, slice(None))
    x = torch.randn(4, 6, 3, generator=generator)
    assert not any(weight.any() for weight in mlp.direct.weights)
    before = mlp(x)
    randomised(mlp.direct)
    assert torch.allclose(mlp(x), before + mlp.direct(x), atol=1e-14)
    assert mlp.direct(x).abs().max() > 0.1


def test_blocks_by_their_formula(randomised, generator):
    mlp = network(2, randomised)
    x = torch.randn(4, 6, 3, generator=generator)
    z = mlp.first(x)
    z = z + mlp.blocks[0](mlp.activations[0](z))
    z = z + mlp.blocks[1](mlp.activations[1](z))
    expected = mlp.output(mlp.activations[2](z)) + mlp.direct(x)
    assert len(mlp.blocks) == 2
    assert torch.allclose(mlp(x), expected, atol=1e-14)
