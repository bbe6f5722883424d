"""Accuracy of solvers, reference solutions, prescribed maps and test sets."""

import pytest
import torch

from geonet import Density, GaussianMixture, Grid, evaluation
from geonet._progress import progress_callback
from geonet.errors import ConvergenceError, DensityError, InputError
from geonet.evaluation import (
    TEST_SETS,
    TestSet,
    measure,
    prescribed_map_geodesic,
    random_potential,
    reference_frames,
    reference_solution,
    sample_pairs,
)
from geonet.metrics import l1, mass_error
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.paths import QUARTERS
from geonet.solvers.quantile import Quantile
from geonet.solvers.registry import make_solver


def draw_1d(count):
    return [mixtures_1d(count, torch.Generator().manual_seed(k)).to_density(BOX_1D) for k in (1, 2)]


# ---- measure


def test_failures_are_counted_and_the_others_are_measured(monkeypatch):
    solve, calls = Quantile.__call__, []

    def fail_sometimes(self, source, target):
        calls.append(1)
        if len(calls) % 2:
            raise DensityError("too odd")
        return solve(self, source, target)

    monkeypatch.setattr(Quantile, "__call__", fail_sometimes)
    pairs = sample_pairs(TEST_SETS["1D identity"], 4)
    accuracy = measure(Quantile(), pairs.source, pairs.target, pairs.truth, pairs.distance)
    assert (accuracy.pairs, accuracy.failures) == (2, ["too odd", "too odd"])
    assert max(accuracy.worst) < 1e-9
    assert accuracy.distance is None  # equal ends have no relative error


# ---- reference solutions


def test_reference_with_noise_is_the_bridge_and_progress_names_the_pair():
    ends = draw_1d(2)
    lines = []
    with progress_callback(lines.append):
        exact = reference_frames(*ends, 0.0)
    assert lines == ["exact path 1/2", "exact path 2/2"]
    assert torch.equal(exact.tensor, reference_solution(*ends).frames.tensor)
    bridge = make_solver("schrodinger", epsilon=0.5)(*ends).density(QUARTERS)
    assert torch.allclose(reference_frames(*ends, 0.5).tensor, bridge.tensor)


def test_rough_pairs_are_solved_by_midpoint_on_finer_cells():
    grid = Grid((12, 12))
    blocks = torch.zeros(2, 12, 12)
    blocks[0, :4, :4] = blocks[1, 6:10, 6:10] = 1
    reference = reference_solution(Density(blocks[0], grid), Density(blocks[1], grid))
    assert reference.solvers == {"midpoint": 1}
    assert reference.frames.tensor.shape == (5, 12, 12)
    assert float(reference.distance) == pytest.approx(0.5 * 2**0.5, rel=1e-2)


@pytest.mark.parametrize("d", [1, 2])
def test_a_pair_and_a_batch_have_the_same_reference(d):
    family, grid = (mixtures_1d, BOX_1D) if d == 1 else (mixtures_2d, BOX_2D.with_shape(16))
    ends = (family(2, torch.Generator().manual_seed(k)).to_density(grid) for k in (1, 2))
    source, target = ends
    batch, pair = reference_solution(source, target), reference_solution(source[1], target[1])
    assert torch.allclose(batch.frames.tensor[1], pair.frames.tensor, atol=1e-6)
    assert sum(batch.solvers.values()) == 2 and sum(pair.solvers.values()) == 1


# ---- prescribed maps


def make_prescribed(d, generator, n=None):
    grid = Grid((n or {1: 200, 2: 64, 3: 24}[d],) * d, 0.0, 2.0)
    means = 0.4 + 1.2 * torch.rand(3, d, dtype=torch.float64, generator=generator)
    source = GaussianMixture.isotropic(means, 0.5).to_density(grid)
    return prescribed_map_geodesic(source, random_potential(grid, generator))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_target_is_the_push_forward_of_the_source(d, generator):
    """∫g(T(x)) dμ_0 = ∫g dμ_1 for a test function g."""
    path = make_prescribed(d, generator)
    points = path.grid.points().reshape(-1, d)
    image = path.trajectories(1.0, points)

    def g(x):
        return torch.sin(2 * x).sum(-1) + (x**2).prod(-1)

    pushed = float((g(image) * path.source.tensor.reshape(-1)).sum())
    expected = float((g(points) * path.target.tensor.reshape(-1)).sum())
    assert pushed == pytest.approx(expected, rel=2e-3)
    assert float(mass_error(path.density([0.3, 0.7])).max()) < 1e-3


def test_random_potentials_have_the_given_strength(generator):
    grid = Grid((16, 16))
    _, hessian = random_potential(grid, generator, strength=0.8).derivatives_on(grid.with_shape(50))
    eigenvalues = torch.linalg.eigvalsh(hessian.reshape(2, 2, -1).movedim(-1, 0))
    assert 0.7 < float(eigenvalues.abs().max()) < 0.85


def test_invalid_prescribed_maps_are_an_error(generator):
    grid = Grid((8, 8))
    potential = random_potential(grid, generator)
    with pytest.raises(InputError, match="strength is 1"):
        random_potential(grid, generator, strength=1.0)
    with pytest.raises(InputError, match="on the same box"):
        prescribed_map_geodesic(Density(torch.ones(8, 8), Grid((8, 8), 0, 2)), potential)
    with pytest.raises(InputError, match="positive source"):
        prescribed_map_geodesic(Density(torch.eye(8), grid), potential)


# ---- test sets


@pytest.mark.parametrize(
    ("name", "cells", "bounds"),
    [
        ("1D random", (100,), (0.5, 0.6)),
        ("1D OOD", (100,), (0.3, 0.4)),
        ("2D identity", (40, 40), (0.35**0.5, 0.9**0.5)),
        ("2D high-res", (75, 75), (0.35**0.5, 0.9**0.5)),
        ("2D OOD", (40, 40), (0.25**0.5, 0.8**0.5)),
    ],
)
def test_sets_have_the_grids_and_widths_of_the_paper(name, cells, bounds):
    test_set = TEST_SETS[name]
    assert test_set.identity == ("identity" in name) and test_set.grid.shape == cells
    mixture = test_set.family(200, torch.Generator().manual_seed(0))
    spread = mixture.covariances.diagonal(dim1=-2, dim2=-1).sqrt()
    low, high = bounds
    assert low <= float(spread.min()) < low + 0.02
    assert high - 0.02 < float(spread.max()) <= high


def test_truth_of_gaussians_in_1d_is_gaussian():
    means, widths = [3.0, 5.0, 6.5, 5.5], [0.4, 0.5, 0.8, 0.5]

    def family(count, generator):
        points = torch.tensor(means, dtype=torch.float64).reshape(count, 1, 1)
        return GaussianMixture.isotropic(points, torch.tensor(widths).reshape(count, 1))

    pairs = sample_pairs(TestSet(family, BOX_1D), 2)
    for k in range(2):
        shift, growth = means[k + 2] - means[k], widths[k + 2] - widths[k]
        for q, t in enumerate(QUARTERS):
            mean = torch.tensor([[means[k] + t * shift]])
            exact = GaussianMixture.isotropic(mean, torch.tensor([widths[k] + t * growth]))
            expected = exact.pdf(BOX_1D.points())
            assert float((pairs.truth.tensor[k, q] - expected).abs().max()) < 1e-3
        assert float(pairs.distance[k]) == pytest.approx((shift**2 + growth**2) ** 0.5, rel=1e-4)


def test_solvers_on_pairs():
    pairs = sample_pairs(TEST_SETS["1D random"], 3)
    path = pairs.solve("quantile")  # on the coarse cells
    assert float(l1(path.density(QUARTERS), pairs.truth).max()) < 0.01
    assert torch.allclose(path.distance, pairs.distance, rtol=2e-3)
    frames = pairs.solve_frames("linear")
    assert float(l1(frames, pairs.truth)[:, 2].min()) > 0.1  # blending is not transport
    first = pairs.solve_first("linear").density(QUARTERS).tensor
    assert torch.allclose(first, frames.tensor[0])


def test_pairs_in_2d_without_a_smooth_map_are_left_out(monkeypatch):
    monkeypatch.setattr(evaluation, "BOX_2D", BOX_2D.with_shape(20))
    test_set = TestSet(mixtures_2d, BOX_2D.with_shape(20))
    whole = sample_pairs(test_set, 2)
    for q, end in ((0, whole.source), (-1, whole.target)):
        error = (whole.truth.tensor[:, q] - end.tensor).abs().amax()
        assert float(error / end.tensor.amax()) < 0.02
    path = make_solver("monge-ampere")(whole.source, whole.target)
    assert torch.allclose(whole.distance, path.distance, rtol=0.02)
    calls = []

    def fail_at_the_second(name, **options):
        solver = make_solver(name, **options)

        def solve(source, target):
            calls.append(name)
            if len(calls) == 2:
                raise ConvergenceError("no smooth map", 1.0)
            return solver(source, target)

        return solve

    monkeypatch.setattr(evaluation, "make_solver", fail_at_the_second)
    pairs = sample_pairs(test_set, 2)
    assert calls == ["monge-ampere"] * 2
    for name in ("source", "target", "truth"):
        assert torch.equal(getattr(pairs, name).tensor, getattr(whole, name).tensor[:1])
    assert torch.equal(pairs.distance, whole.distance[:1])
