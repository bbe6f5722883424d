"""Shared by all tests: random generators and the paper's pairs."""

import pytest
import torch

from geonet.measures.families import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20261115)


@pytest.fixture
def pair_1d(generator):
    return tuple(mixtures_1d(1, generator)[0].on(BOX_1D) for _ in range(2))


@pytest.fixture
def pair_2d(generator):
    return tuple(mixtures_2d(1, generator)[0].on(BOX_2D.with_shape(32)) for _ in range(2))
