"""The pretrained models: small, complete, described, and as accurate as they state."""

from __future__ import annotations

import pytest
import torch

import geonet
from geonet.evaluation import TEST_SETS, sample_pairs
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.layers import read_sensors
from geonet.solvers.neural.model import load_model
from geonet.solvers.neural.pretrained import pretrained_file
from geonet.training.problems import make_problem

TIMES = [0.0, 0.25, 0.5, 0.75, 1.0]

# What the authors' published weights reach on the same families, L1 in percent.
PUBLISHED = {1: [3.0, 6.5, 7.7, 6.8, 2.9], 2: [4.8, 5.5, 6.2, 5.8, 4.7]}
NAMES = [f"{form}-{d}d" for form in ("geonet", "er-geonet", "transport") for d in (1, 2)]
NAMES += ["deeponet-1d", "transport-3d"]


@pytest.mark.parametrize("name", NAMES)
def test_files_and_model_cards(name):
    file = pretrained_file(name)
    assert file.stat().st_size <= 5_000_000
    _, header = load_model(file)
    assert (header["name"], header["training"]["name"]) == (name, name)
    assert len(header["measured"]["test"]["mean"]) == len(TIMES)
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert card.startswith(f"# {name}\n")
    assert all(str(error) in card for error in header["measured"]["test"]["mean"])


@pytest.mark.parametrize(
    ("name", "pairs", "truth"),
    [
        ("geonet-1d", 50, "quantile"),
        ("deeponet-1d", 50, "quantile"),
        ("geonet-2d", 4, "monge-ampere"),
    ],
)
def test_more_accurate_than_the_published_weights(name, pairs, truth):
    """In 1D within 3 %, trained on the equations or on exact paths; so is the distance."""
    d = int(name[-2])
    generator = torch.Generator().manual_seed(31 + d)
    ends = make_problem(f"mixtures-{d}d").draw_densities(pairs, generator)
    exact, path = geonet.geodesic(*ends, truth), geonet.geodesic(*ends, name)
    errors = 100 * l1(path.density(TIMES), exact.density(TIMES)).mean(0)
    limits = torch.tensor(PUBLISHED[d]).clamp(max=3 if d == 1 else 100)
    assert bool((errors <= limits).all()), errors
    if name != "deeponet-1d":
        assert float((path.distance / exact.distance - 1).abs().mean()) < 0.03


@pytest.mark.parametrize(("d", "pairs", "truth"), [(1, 10, "quantile"), (2, 3, "monge-ampere")])
def test_entropic_models_return_a_bridge(d, pairs, truth):
    """They are nearer to the bridge at their ε than to the geodesic."""
    ends = make_problem(f"mixtures-{d}d").draw_densities(pairs, torch.Generator().manual_seed(9))
    path = geonet.geodesic(*ends, f"er-geonet-{d}d")
    bridge = geonet.geodesic(*ends, "schrodinger", epsilon=path.info["epsilon"])
    exact = geonet.geodesic(*ends, truth).density(0.5)
    to_bridge, to_geodesic = (
        float(l1(path.density(0.5), end).mean()) for end in (bridge.density(0.5), exact)
    )
    assert to_bridge < 0.1 and to_bridge < 0.7 * to_geodesic


@pytest.mark.parametrize("d", [1, 2])
def test_narrower_densities_are_out_of_distribution(d):
    """At least 95 % of the paper's densities out of distribution, and hardly any of its own."""
    model, _ = load_model(pretrained_file(f"geonet-{d}d"))
    for name, least, most in ((f"{d}D random", 0.95, 1.0), (f"{d}D OOD", 0.0, 0.05)):
        case = TEST_SETS[name]
        density = case.family(40, torch.Generator().manual_seed(10)).to_density(case.grid)
        usual = model.usual(read_sensors([density], model.settings.sensors)[0])
        assert least <= float(usual.double().mean()) <= most


@pytest.mark.slow
def test_error_estimate_is_calibrated():
    """On average, in and out of distribution; for a single pair up to a factor of two."""
    for name in ("1D random", "1D OOD"):
        known = sample_pairs(TEST_SETS[name], 20, seed=77)
        path = known.solve("geonet-1d")
        error = l1(path.density(QUARTERS), known.truth).amax(-1)
        ratio = torch.tensor(path.report.error_estimate) / error
        assert 0.7 < float(ratio.median()) < 1.4
        assert float(((ratio > 0.5) & (ratio < 2)).double().mean()) >= 0.9
