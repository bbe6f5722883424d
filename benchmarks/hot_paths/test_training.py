"""Training: steps of the shipped configs, and the jets of the trunk."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from geonet.solvers.neural.jets import make_variables
from geonet.solvers.neural.model import build_model
from geonet.training.config import read_config
from geonet.training.loop import Processes, Run

CONFIGS = Path(__file__).resolve().parents[2] / "experiments" / "configs"


@pytest.mark.parametrize("name", ["gaussian-2d", "transport-2d"])
def test_step(benchmark, name, tmp_path):
    """Take a step without torch.compile, which takes longer than all benchmarks."""
    config = read_config(CONFIGS / f"{name}.toml")
    tiny = replace(config.validation, pairs=1)
    run = Run(replace(config, compile=False, validation=tiny), tmp_path, Processes())
    benchmark.pedantic(run.step, rounds=20, warmup_rounds=3)


def test_trunk_jet(benchmark):
    """Differentiate the basis of geonet-2d up to its Laplacian, and backpropagate."""
    config = read_config(CONFIGS / "gaussian-2d.toml")
    torch.manual_seed(0)
    potential = build_model(config.model, config.seed).potential
    count = config.sampling.points
    z = make_variables(torch.rand(count, 2), torch.rand(count), "laplacian")

    def jet() -> None:
        potential.zero_grad()
        potential.basis(z).data.square().mean().backward()

    benchmark.pedantic(jet, rounds=30, warmup_rounds=3)
