"""What training spends its time on: steps of the shipped configs, and the trunk's jets."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from geonet.solvers.neural.jets import make_variables
from geonet.solvers.neural.model import build_model
from geonet.training.config import read_config
from geonet.training.distributed import Processes
from geonet.training.loop import Run

EXPERIMENTS = Path(__file__).resolve().parents[1] / "configs"


@pytest.mark.parametrize("name", ["gaussian-2d", "transport-2d"])
def test_step(benchmark, name, tmp_path):
    """Take a step without torch.compile, since that takes longer than all of these."""
    config = read_config(EXPERIMENTS / f"{name}.toml")
    tiny = replace(config.validation, pairs=1)
    run = Run(replace(config, compile=False, validation=tiny), tmp_path, Processes())
    benchmark.pedantic(run.step, rounds=20, warmup_rounds=3)


def test_trunk_jet(benchmark):
    """Return values and derivatives to the Laplacian of geonet-2d's basis, and their gradient."""
    config = read_config(EXPERIMENTS / "gaussian-2d.toml")
    torch.manual_seed(0)
    potential = build_model(config.model, config.seed).potential
    count = config.sampling.points
    z = make_variables(torch.rand(count, 2), torch.rand(count), "laplacian")

    def jet() -> None:
        potential.zero_grad()
        potential.basis(z).data.square().mean().backward()

    benchmark.pedantic(jet, rounds=30, warmup_rounds=3)
