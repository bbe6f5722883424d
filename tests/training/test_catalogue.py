"""Every family that a config may name can be trained on, and has the dimension that is said."""

from typing import get_args, get_type_hints

import pytest
import torch

from experiments import problems as digits
from experiments.autoencoder import Autoencoder
from experiments.mnist import Digits, sample_digits
from geonet._toml import from_table
from geonet.errors import ConfigError, FileError
from geonet.solvers.neural.model import write_tensors
from geonet.training.config import DIMENSIONS, ProblemSettings, TrainingConfig
from geonet.training.loop import CATALOGUE, make_problem


def config(problem, dimension=1):
    model = {"dimension": dimension, "sensors": 8}
    return from_table(
        TrainingConfig, {"name": "some", "steps": 1, "problem": problem, "model": model}
    )


@pytest.fixture
def small_mnist(monkeypatch):
    """A world in which MNIST's training set has 40 digits."""
    images = sample_digits().images[::25]
    monkeypatch.setattr(digits, "mnist", lambda part: {"train": Digits(images, images)}[part])
    return images


def test_families_are_those_of_the_settings():
    literal, _ = get_args(get_type_hints(ProblemSettings)["family"])
    assert set(get_args(literal)) == set(CATALOGUE) == set(DIMENSIONS)


@pytest.mark.parametrize("family", DIMENSIONS)
def test_a_family_has_the_dimension_that_is_said(family, small_mnist):
    d = DIMENSIONS[family]
    problem = make_problem(config({"family": family}, d))
    assert problem.box.dimension == d
    assert max(problem.box.lengths) == min(problem.box.lengths)  # training asks for a cube
    generator = torch.Generator().manual_seed(3)
    points = torch.rand(6, d, generator=generator)
    for end in problem.draw(4, generator):
        for read in (end(points), problem.sensed(end, points)):
            assert read.shape == (4, 6) and read.dtype == torch.float32
            assert bool(torch.isfinite(read).all())
    for density in problem.densities(2, generator):
        assert density.grid == problem.box and density.leading == (2,)


@pytest.mark.parametrize("family", DIMENSIONS)
def test_a_family_makes_a_problem_of_its_own(family, small_mnist):
    """Two families that had the same maker would have the same pairs."""

    def first(name):
        problem = CATALOGUE[name]()
        return problem.densities(1, torch.Generator().manual_seed(3))[0]

    ours = first(family)
    for other in DIMENSIONS.keys() - {family}:
        theirs = first(other)
        same_grid = theirs.grid == ours.grid
        assert not (same_grid and torch.allclose(theirs.tensor, ours.tensor))


def test_another_autoencoder_can_be_named(small_mnist, tmp_path):
    weights, kind = Autoencoder(width=5).state_dict(), {"kind": "autoencoder"}
    file = write_tensors(tmp_path / "other.safetensors", weights, kind)
    named = make_problem(config({"family": "digit-codes", "autoencoder": str(file)}))
    assert torch.equal(named.pool, digits.digit_codes(file).pool)
    assert not torch.allclose(named.pool, CATALOGUE["digit-codes"]().pool, rtol=1e-2)


def test_an_autoencoder_that_is_not_there(small_mnist, tmp_path):
    file = tmp_path / "nowhere.safetensors"
    with pytest.raises(FileError) as error:
        make_problem(config({"family": "digit-codes", "autoencoder": str(file)}))
    assert str(error.value) == f"There is no file {file}; check the path."


@pytest.mark.parametrize(
    ("problem", "dimension"),
    [
        *(({"family": f}, d) for f, d in DIMENSIONS.items() if f != "digit-codes"),
        ({"file": "pairs.npz"}, 1),
    ],
)
def test_only_codes_take_an_autoencoder(problem, dimension):
    with pytest.raises(ConfigError) as error:
        config(problem | {"autoencoder": "a.safetensors"}, dimension)
    expected = 'problem: autoencoder belongs to family = "digit-codes"; remove it.'
    assert str(error.value) == expected
