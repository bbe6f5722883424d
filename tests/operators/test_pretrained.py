"""The shipped models: small, whole, described, and as good as they say."""

import pytest
import torch

import geonet
from geonet.measures.metrics import l1
from geonet.measures.mnist import as_densities, sample_digits
from geonet.operators.model_file import load_model
from geonet.operators.opened import PRETRAINED
from geonet.training.problem import FAMILIES

TIMES = [0.0, 0.25, 0.5, 0.75, 1.0]
# What the authors' published weights reach on the same families, L1 in percent.
PUBLISHED = {1: [3.0, 6.5, 7.7, 6.8, 2.9], 2: [4.8, 5.5, 6.2, 5.8, 4.7]}
NAMES = (
    "geonet-1d",
    "geonet-2d",
    "er-geonet-1d",
    "deeponet-1d",
    "transport-1d",
    "transport-2d",
    "transport-3d",
)


@pytest.mark.parametrize("name", NAMES)
def test_files(name):
    file = PRETRAINED / f"{name}.safetensors"
    assert file.stat().st_size <= 5_000_000
    _, header = load_model(file)
    assert (header["name"], header["training"]["name"]) == (name, name)
    assert len(header["measured"]["test"]["mean"]) == len(TIMES)
    card = (PRETRAINED / f"{name}.md").read_text(encoding="utf-8")
    assert card.startswith(f"# {name}\n")
    assert all(str(error) in card for error in header["measured"]["test"]["mean"])


@pytest.mark.parametrize(("d", "pairs", "truth"), [(1, 50, "quantile"), (2, 4, "monge-ampere")])
def test_better_than_the_published_weights(d, pairs, truth):
    source, target = FAMILIES[f"mixtures-{d}d"]().densities(
        pairs, torch.Generator().manual_seed(31 + d)
    )
    exact = geonet.geodesic(source, target, truth).density(TIMES)
    answer = geonet.geodesic(source, target, f"geonet-{d}d").density(TIMES)
    errors = 100 * l1(answer, exact).mean(0)
    assert bool((errors <= torch.tensor(PUBLISHED[d])).all()), errors


def test_exact_paths_teach_more_than_equations():
    """On the pairs of the paper's family, at every quarter between the ends."""
    ends = FAMILIES["mixtures-1d"]().densities(50, torch.Generator().manual_seed(33))
    exact = geonet.geodesic(*ends, "quantile").density(TIMES)
    shown, solved = (
        100 * l1(geonet.geodesic(*ends, name).density(TIMES), exact).mean(0)
        for name in ("deeponet-1d", "geonet-1d")
    )
    assert bool((shown < 3).all()), shown
    assert bool((shown[1:-1] < 0.7 * solved[1:-1]).all()), (shown, solved)


def test_distance_is_near_the_exact_one():
    """H comes out somewhat flat, so the distance is low; docs/models.md has by how much."""
    source, target = FAMILIES["mixtures-1d"]().densities(20, torch.Generator().manual_seed(8))
    exact = geonet.geodesic(source, target, "quantile").distance
    learned = geonet.geodesic(source, target, "geonet-1d").distance
    assert float((learned - exact).abs().mean() / exact.mean()) < 0.12


def test_entropic_model_answers_with_a_bridge():
    """It is nearer to the bridge at its ε than to the geodesic."""
    source, target = FAMILIES["mixtures-1d"]().densities(10, torch.Generator().manual_seed(9))
    path = geonet.geodesic(source, target, "er-geonet-1d")
    bridge = geonet.geodesic(source, target, "schrodinger", epsilon=path.notes["epsilon"])
    exact = geonet.geodesic(source, target, "quantile").density(0.5)
    to_bridge, to_geodesic = (
        float(l1(path.density(0.5), end).mean()) for end in (bridge.density(0.5), exact)
    )
    assert to_bridge < 0.1 < to_geodesic


def test_the_report_says_where_a_density_is_unlike_those_of_training():
    source, target = FAMILIES["mixtures-1d"]().densities(10, torch.Generator().manual_seed(10))
    path = geonet.geodesic(source, target, "geonet-1d")
    assert sum(path.report.in_distribution) >= 9
    narrow = geonet.GaussianMixture.isotropic([[5.0]], 0.15).on(source.grid)
    odd = geonet.geodesic(source[0], narrow, "geonet-1d")
    assert odd.report.in_distribution is False
    assert "in distribution" in str(odd.report)


def test_digits_are_known_the_way_they_are_read():
    """With rows from the top: lying on their side they fit the network less well."""
    images = sample_digits().images[::50]
    solver = geonet.solver("transport-mnist", corrections=0)
    upright, lying = (
        solver(*(as_densities(end, 1.0, 0.05) for end in (some[:10], some[10:])))
        for some in (images, images.swapaxes(1, 2))
    )
    mismatch = [path.report.mismatch for path in (upright, lying)]
    assert sum(mismatch[0]) < 0.7 * sum(mismatch[1])
