"""Flow matching and rectified flow for one pair; comparison with `torchcfm` (slow)."""

import dataclasses
from collections import Counter

import numpy as np
import ot
import pytest
import torch

import geonet
from benchmarks.baselines.flow_matching import (
    FlowMatching,
    LearnedFlow,
    RectifiedFlow,
    fit_flow,
    pair_optimally,
    sample_on_lines,
)
from geonet import GaussianMixture, Grid
from geonet.errors import ConvergenceError, SolverError
from geonet.metrics import l1, mass_error

SMALL = {"steps": 200, "batch": 64, "width": 32, "depth": 2, "carried": 4000}
SOLVERS = (FlowMatching(**SMALL), RectifiedFlow(**SMALL))
BOX = Grid((12, 18), (-2.0, 1.0), (4.0, 10.0))  # cells of ½, longest side 9

every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)


@pytest.fixture(scope="module")
def clouds():
    """Return two clusters side by side that move up by 3; random pairs cross."""
    generator = np.random.default_rng(3)
    sides = np.where(np.arange(300) % 2, 2.0, -2.0)[:, None] * [1.0, 0.0]
    source, target = (sides + 0.4 * generator.standard_normal((300, 2)) for _ in range(2))
    return source, target + np.array([0.0, 3.0])


@pytest.fixture(scope="module")
def paths():
    """Return the paths of a shift in a box that is neither at zero nor square."""
    means = ([[0.0, 3.5]], [[1.5, 7.0]])
    ends = [GaussianMixture.isotropic(mean, [0.8]).to_density(BOX) for mean in means]
    return {solver.name: solver(*ends) for solver in SOLVERS}


@every_solver
def test_shift_is_learned(solver, paths):
    path = paths[solver.name]
    middle = path.density(0.5)
    assert np.allclose(middle.mean(), [0.75, 5.25], atol=0.12)
    exact = GaussianMixture.isotropic([[0.75, 5.25]], [0.8]).to_density(BOX)
    assert float(l1(middle, exact)) < 0.25  # the linear blend has 1.9
    assert float(l1(path.density(1.0), path.target)) < 0.25
    assert float(l1(path.density(0.0), path.source)) < 1e-9
    assert np.allclose(path.velocity(0.5, [[0.75, 5.25]]), [[1.5, 3.5]], atol=0.3)
    end, start = path.trajectories([1.0, 0.0], [[0.0, 3.5]])
    assert np.allclose(start, [[0.0, 3.5]]) and np.allclose(end, [[1.5, 7.0]], atol=0.3)
    frames = path.density([0.0, 0.4, 1.0], grid=BOX.with_shape((7, 31)))
    assert float(mass_error(frames).max()) < 1e-9
    assert set(path.info) == {"loss", "root mean square displacement"}
    displacement = path.info["root mean square displacement"]
    assert displacement == pytest.approx(np.hypot(1.5, 3.5), rel=0.03)


def test_optimal_pairs_and_reflow_straighten_paths(clouds):
    source, target = clouds
    cost = ot.emd2([], [], ot.dist(source, target))
    optimal = FlowMatching(**SMALL).fit(source, target)
    random = RectifiedFlow(**SMALL, rounds=0).fit(source, target)
    rectified = RectifiedFlow(**SMALL).fit(source, target)
    end = optimal.carry(source, [1.0])[0].numpy()
    assert ((end - source) ** 2).sum(1).mean() == pytest.approx(cost, rel=0.05)
    assert measure_bend(optimal, source) < 0.5 * measure_bend(random, source)
    assert measure_bend(rectified, source) < 0.5 * measure_bend(random, source)
    assert rectified.loss < 0.1 * random.loss  # the lines between own pairs do not cross


def measure_bend(flow: LearnedFlow, points: np.ndarray) -> float:
    """Return the mean distance of paths at t = ½ from the midpoint of their ends."""
    start, middle, end = flow.carry(points, [0.0, 0.5, 1.0])
    return float((middle - (start + end) / 2).norm(dim=1).mean())


@every_solver
def test_seed_determines_the_flow(solver, clouds):
    solver = dataclasses.replace(solver, steps=5)
    state = torch.get_rng_state()
    flows = [dataclasses.replace(solver, seed=seed).fit(*clouds) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = (flow.carry(clouds[0], [1.0]) for flow in flows)
    assert torch.equal(first, again) and not torch.allclose(first, other)


@every_solver
def test_save_and_load(solver, paths, tmp_path):
    path = paths[solver.name]
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0]))
    assert (type(loaded), loaded.solver, loaded.info) == (type(path), path.solver, path.info)
    assert torch.equal(loaded.density(0.3).tensor, path.density(0.3).tensor)
    assert np.array_equal(loaded.velocity(0.3, [[1.0, 5.0]]), path.velocity(0.3, [[1.0, 5.0]]))


def test_fit_flow_in_five_dimensions():
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(70, 5, generator=generator)
    target = torch.randn(40, 5, generator=generator) + 3
    flow = fit_flow(source, target, "flow-matching", steps=200, batch=1000, width=16)
    positions = flow.carry(source, [0.0, 1.0])
    assert torch.equal(positions[0], source.double())
    assert torch.allclose(positions[1].mean(0), target.double().mean(0), atol=0.5)
    with pytest.raises(SolverError, match="'linear' learns no flow"):
        fit_flow(source, target, "linear")


def test_samples_lie_on_the_lines_between_pairs(generator):
    x0, x1 = torch.randn(2, 4000, 3, generator=generator)
    t, x, velocity = sample_on_lines(x0, x1, generator)
    assert torch.allclose(x, x0 + t[:, None] * velocity, atol=1e-5)
    assert torch.allclose(velocity, x1 - x0)
    quantiles = (torch.arange(4000) + 0.5) / 4000
    assert float((t.sort().values - quantiles).abs().max()) < 1.95 / 4000**0.5  # Kolmogorov


def test_pairs_have_the_frequencies_of_the_optimal_plan(generator):
    x0, x1 = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [0.5], [1.0]])
    plan = {(0.0, 0.0): 1 / 3, (0.0, 0.5): 1 / 6, (1.0, 0.5): 1 / 6, (1.0, 1.0): 1 / 3}
    counts = Counter()
    for _ in range(1000):
        rows = torch.cat(pair_optimally(x0, x1, generator), 1).tolist()
        counts.update(map(tuple, rows))
    assert set(counts) == set(plan)
    for pair, mass in plan.items():
        assert counts[pair] / counts.total() == pytest.approx(mass, abs=0.05)  # 5 standard errors


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        *((FlowMatching, {name: 0}) for name in ("steps", "batch", "rate", "carried", "reuse")),
        (FlowMatching, {"seed": -1}),
        (FlowMatching, {"particles": 1}),
        (RectifiedFlow, {"rounds": -1}),
    ],
)
def test_wrong_options_raise(solver, options):
    with pytest.raises(SolverError, match=next(iter(options))):
        solver(**options)


def test_wrong_particles_and_divergence_raise(clouds):
    source, target = clouds
    solver = FlowMatching(steps=1)
    for wrong in (target[:, 0], target[:1], target[:, :1], target * np.nan):
        with pytest.raises(SolverError, match="articles"):
            solver.fit(source, wrong)
    with pytest.raises(ConvergenceError, match="lower its rate"):
        FlowMatching(steps=60, batch=16, rate=1e30).fit(source, target)


@pytest.mark.slow
def test_pairs_and_lines_agree_with_torchcfm(generator):
    """Compare with the authors' own code."""
    torchcfm = pytest.importorskip("torchcfm")
    sampler = torchcfm.ExactOptimalTransportConditionalFlowMatcher(sigma=0.0).ot_sampler
    matcher = torchcfm.ConditionalFlowMatcher(sigma=0.0)
    batch = torch.randn(64, 2, generator=generator), 2 * torch.rand(64, 2, generator=generator)
    t, x, velocity = sample_on_lines(*batch, generator)
    _, their_x, their_velocity = matcher.sample_location_and_conditional_flow(*batch, t)
    assert torch.equal(x, their_x) and torch.equal(velocity, their_velocity)
    pairs = []
    for draw in (lambda: pair_optimally(*batch, generator), lambda: sampler.sample_plan(*batch)):
        rows = [tuple(row) for _ in range(200) for row in torch.cat(draw(), 1).tolist()]
        pairs.append(set(rows))
    assert pairs[0] == pairs[1] and len(pairs[0]) == 64
