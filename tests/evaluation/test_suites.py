"""Test pairs: what solvers see, and the exact paths that they are compared with."""

import pytest
import torch

from geonet import Density, GaussianMixture, Grid
from geonet import evaluation as module
from geonet.evaluation import CASES, TIMES, Case, known_map_pairs, pairs_of, smooth_path
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d
from geonet.paths import QUARTERS
from geonet.solvers.registry import make_solver

SMALL_1D = [name for name in CASES if name.startswith("1D")]


def gaussians(means, spreads):
    """A family that gives these Gaussians, whatever the seed: the first half and the second."""

    def family(count, generator):
        assert count == len(means)
        where = torch.tensor(means, dtype=torch.float64).reshape(count, 1, -1)
        return GaussianMixture.isotropic(where, torch.tensor(spreads).reshape(count, 1))

    return family


def test_the_quarters_are_named():
    assert QUARTERS == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert TIMES == ("t = 0", "t = 0.25", "t = 0.5", "t = 0.75", "t = 1")


def test_cases_are_the_papers():
    cells = {"1D": [100, 100, 200, 100], "2D": [40, 40, 75, 40]}
    for d, box in ((1, BOX_1D), (2, BOX_2D)):
        names = [f"{d}D {kind}" for kind in ("identity", "random", "high-res", "OOD")]
        cases = [CASES[name] for name in names]
        assert [case.identity for case in cases] == [True, False, False, False]
        assert [case.grid for case in cases] == [box.with_shape(n) for n in cells[f"{d}D"]]
    assert len(CASES) == 8


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("1D random", (0.5, 0.6)),
        ("1D high-res", (0.5, 0.6)),
        ("1D identity", (0.5, 0.6)),
        ("1D OOD", (0.3, 0.4)),
        ("2D random", (0.35**0.5, 0.9**0.5)),
        ("2D high-res", (0.35**0.5, 0.9**0.5)),
        ("2D identity", (0.35**0.5, 0.9**0.5)),
        ("2D OOD", (0.25**0.5, 0.8**0.5)),
    ],
)
def test_components_are_narrower_out_of_distribution(name, bounds):
    """Standard deviations along the axes; the paper's."""
    mixture = CASES[name].family(200, torch.Generator().manual_seed(0))
    spread = mixture.covariances.diagonal(dim1=-2, dim2=-1).sqrt()
    low, high = bounds
    assert low <= float(spread.min()) < low + 0.02
    assert high - 0.02 < float(spread.max()) <= high


# ---- 1D


def test_a_gaussian_that_moves_and_widens_is_known():
    """Its path is Gaussian too, mean and standard deviation go straight."""
    case = Case(gaussians([3.0, 5.0, 6.5, 5.5], [0.4, 0.5, 0.8, 0.5]), BOX_1D)
    pairs = pairs_of(case, 2)
    for k, (first, last) in enumerate([((3.0, 0.4), (6.5, 0.8)), ((5.0, 0.5), (5.5, 0.5))]):
        for q, t in enumerate(QUARTERS):
            mean, spread = ((1 - t) * a + t * b for a, b in zip(first, last, strict=True))
            exact = GaussianMixture.isotropic(torch.tensor([[mean]]), torch.tensor([spread]))
            expected = exact.pdf(BOX_1D.points())
            assert float((pairs.truth.tensor[k, q] - expected).abs().max()) < 1e-3
        distance = sum((a - b) ** 2 for a, b in zip(first, last, strict=True)) ** 0.5
        assert float(pairs.distance[k]) == pytest.approx(distance, rel=1e-4)


@pytest.mark.parametrize("name", SMALL_1D)
def test_solvers_see_cells_alone(name):
    """The ends are the mixtures on the grid, without the formula that would help some of them."""
    case = CASES[name]
    pairs = pairs_of(case, 2, seed=5)
    mixture = case.family(4, torch.Generator().manual_seed(5))
    ends = (pairs.source, pairs.source if case.identity else pairs.target)
    for end, first in zip(ends, (0, 0 if case.identity else 2), strict=True):
        assert end.mixture is None and end.grid == case.grid and end.leading == (2,)
        for k in range(2):
            expected = mixture[first + k].on(case.grid).tensor
            assert torch.allclose(end.tensor[k], expected, rtol=1e-12)
    assert pairs.truth.tensor.shape == (2, 5, *case.grid.shape)
    assert pairs.distance.shape == (2,)


@pytest.mark.parametrize("name", [name for name in SMALL_1D if not CASES[name].identity])
def test_the_truth_begins_and_ends_with_the_pair(name):
    pairs = pairs_of(CASES[name], 3)
    for q, end in ((0, pairs.source), (-1, pairs.target)):
        off = (pairs.truth.tensor[:, q] - end.tensor).abs().amax(-1) / end.tensor.amax(-1)
        assert float(off.max()) < 2e-3


def test_the_truth_in_1d_is_that_of_another_solver():
    pairs = pairs_of(CASES["1D random"], 3)
    other = make_solver("quantile")(pairs.source, pairs.target)  # on the coarse cells
    assert float(l1(other.density(QUARTERS), pairs.truth).max()) < 0.01
    assert torch.allclose(other.distance, pairs.distance, rtol=2e-3)
    assert float(l1(pairs.frames("linear"), pairs.truth)[:, 2].min()) > 0.1  # it does not fade


# ---- identity, seeds, 2D


@pytest.mark.parametrize("d", [1, 2])
def test_identity_pairs_stand_still(d):
    pairs = pairs_of(CASES[f"{d}D identity"], 3)
    assert torch.equal(pairs.source.tensor, pairs.target.tensor)
    assert pairs.truth.tensor.shape == (3, 5, *pairs.source.grid.shape)
    for q in range(5):
        assert torch.allclose(pairs.truth.tensor[:, q], pairs.source.tensor, rtol=1e-12)
    assert torch.equal(pairs.distance, torch.zeros(3, dtype=torch.float64))
    assert not torch.allclose(pairs.source.tensor[0], pairs.source.tensor[1], rtol=0.1)


def test_the_seed_decides():
    first, again, other = (pairs_of(CASES["1D random"], 2, seed) for seed in (1, 1, 2))
    for name in ("source", "target", "truth"):
        ours, same, theirs = (getattr(p, name).tensor for p in (first, again, other))
        assert torch.equal(ours, same)
        assert not torch.allclose(ours, theirs, rtol=0.1)
    assert torch.equal(first.distance, again.distance)
    assert not torch.equal(first.source.tensor, first.target.tensor)


@pytest.fixture
def coarse_2d(monkeypatch):
    """Exact paths in 2D on fewer cells than 64×64, to save time."""
    monkeypatch.setattr(module, "BOX_2D", BOX_2D.with_shape(20))
    return Case(mixtures_2d, BOX_2D.with_shape(20))


def test_pairs_in_2d_have_exact_paths(coarse_2d):
    pairs = pairs_of(coarse_2d, 1)
    assert pairs.source.mixture is None and pairs.truth.tensor.shape == (1, 5, 20, 20)
    for q, end in ((0, pairs.source), (-1, pairs.target)):
        off = (pairs.truth.tensor[:, q] - end.tensor).abs().amax()
        assert float(off / end.tensor.amax()) < 0.02
    path = make_solver("monge-ampere")(pairs.source, pairs.target)
    assert float(pairs.distance[0]) == pytest.approx(float(path.distance[0]), rel=0.02)


def test_a_pair_without_an_exact_path_is_left_out(coarse_2d, monkeypatch):
    """With both of its ends, and no other's."""
    calls = []

    def every_second(first, second, grid):
        calls.append((first, second))
        return smooth_path(first, second, grid) if len(calls) % 2 else None

    whole = pairs_of(coarse_2d, 2)
    monkeypatch.setattr(module, "smooth_path", every_second)
    pairs = pairs_of(coarse_2d, 2)
    assert len(calls) == 2
    for name in ("source", "target", "truth"):
        some, every = (getattr(p, name).tensor for p in (pairs, whole))
        assert torch.equal(some, every[:1])
    assert torch.equal(pairs.distance, whole.distance[:1])


def test_known_maps_in_3d():
    """The pairs are cells alone; the truth begins and ends with them."""
    pairs = known_map_pairs(2)
    assert pairs.source.mixture is None and pairs.truth.tensor.shape == (2, 5, *BOX_3D.shape)
    for q, end in ((0, pairs.source), (-1, pairs.target)):
        frame = Density.as_computed(pairs.truth.tensor[:, q], BOX_3D)
        assert float(l1(frame, end).max()) < 1e-3
    assert float(pairs.distance.min()) > 0


# ---- what solvers give


def test_frames_of_a_solver():
    pairs = pairs_of(CASES["1D random"], 2)
    frames = pairs.frames("linear")
    assert frames.tensor.shape == (2, 5, 100)
    assert torch.allclose(frames.tensor[:, 0], pairs.source.tensor)
    assert torch.allclose(frames.tensor[:, -1], pairs.target.tensor)
    first = pairs.example("linear").density(QUARTERS).tensor
    assert torch.allclose(first, frames.tensor[0])


def test_options_reach_the_solver():
    pairs = pairs_of(Case(mixtures_1d, Grid(50, 0.0, 10.0)), 1)
    strong, weak = (
        pairs.solved("schrodinger", epsilon=epsilon).density(0.5).tensor for epsilon in (4.0, 0.4)
    )
    assert float(strong.max()) < float(weak.max())
