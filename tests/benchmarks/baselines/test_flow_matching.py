"""Flows learned for one pair: a shift is learned, optimal pairs go straight, random pairs cross."""

import dataclasses
from collections import Counter

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import geonet
from benchmarks.baselines.flow_matching import (
    FlowMatching,
    LearnedFlow,
    RectifiedFlow,
    fit_flow,
    pair_optimally,
    sample_on_lines,
    split_cells,
)
from geonet import Density, GaussianMixture, Grid
from geonet.errors import ConvergenceError, SolverError
from geonet.metrics import l1, mass_error

SMALL = {"steps": 200, "batch": 64, "width": 32, "depth": 2, "carried": 4000}
SOLVERS = (FlowMatching(**SMALL), RectifiedFlow(**SMALL))
BOX = Grid((12, 18), (-2.0, 1.0), (4.0, 10.0))  # cells of ½, longest side 9

both = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)


@pytest.fixture(scope="module")
def clouds():
    """Two lumps that move up by 3 side by side; random pairs cross, optimal ones do not."""
    generator = np.random.default_rng(3)
    sides = np.where(np.arange(500) % 2, 2.0, -2.0)[:, None] * [1.0, 0.0]
    source, target = (sides + 0.4 * generator.standard_normal((500, 2)) for _ in range(2))
    return source, target + np.array([0.0, 3.0])


@pytest.fixture(scope="module")
def shifted():
    """A Gaussian on a box that is neither at zero nor square, and the same one elsewhere."""
    ends = ([[0.0, 3.5]], [[1.5, 7.0]])
    return tuple(GaussianMixture.isotropic(mean, [0.8]).to_density(BOX) for mean in ends)


@pytest.fixture(scope="module")
def answers(shifted):
    return {solver.name: solver(*shifted) for solver in SOLVERS}


@both
def test_a_shift_is_learned(solver, answers, shifted):
    path = answers[solver.name]
    middle = path.density(0.5)
    assert np.allclose(middle.mean(), [0.75, 5.25], atol=0.12)
    truth = GaussianMixture.isotropic([[0.75, 5.25]], [0.8]).to_density(BOX)
    assert float(l1(middle, truth)) < 0.25  # the linear mixture is 1.9 away
    assert float(l1(path.density(1.0), path.target)) < 0.25
    velocity = path.velocity(0.5, [[0.75, 5.25]])
    assert np.allclose(velocity, torch.tensor([[1.5, 3.5]], dtype=torch.float64), atol=0.3)


@both
def test_the_density_starts_as_the_source_and_keeps_its_mass(solver, answers):
    path = answers[solver.name]
    assert float(l1(path.density(0.0), path.source)) < 1e-9
    frames = path.density([0.0, 0.4, 1.0], grid=BOX.with_shape((7, 31)))
    assert float(mass_error(frames).max()) < 1e-9


@both
def test_particles_move_with_the_velocity(solver, answers):
    path, step = answers[solver.name], 1e-3
    start = torch.tensor([[0.3, 3.0], [-0.5, 4.0]], dtype=torch.float64)
    before, now, after = path.trajectories([0.5 - step, 0.5, 0.5 + step], start)
    assert np.allclose((after - before) / (2 * step), path.velocity(0.5, now), rtol=1e-3)
    later, earlier = path.trajectories([0.5, 0.2], start)  # in the order they were asked for
    assert np.allclose(later, now, rtol=1e-6)
    assert np.allclose(earlier, path.trajectories(0.2, start), rtol=1e-6)


def test_notes_tell_loss_and_displacement(answers):
    for path in answers.values():
        assert set(path.info) == {"loss", "root mean square displacement"}
        moved = path.info["root mean square displacement"]
        assert moved == pytest.approx(np.hypot(1.5, 3.5), rel=0.03)


def test_optimal_pairs_cost_little_and_random_pairs_cross(clouds):
    """Random pairs give bent paths; a reflow straightens them, optimal pairs never bend them."""
    source, target = clouds
    cost = ot.emd2([], [], ot.dist(source, target))
    optimal = FlowMatching(**SMALL).fit(source, target)
    random = RectifiedFlow(**SMALL, rounds=0).fit(source, target)
    rectified = RectifiedFlow(**SMALL).fit(source, target)
    end = optimal.carry(source, [1.0])[0].numpy()
    assert ((end - source) ** 2).sum(1).mean() == pytest.approx(cost, rel=0.05)
    assert bend(optimal, source) < 0.5 * bend(random, source)
    assert bend(rectified, source) < 0.5 * bend(random, source)
    assert rectified.loss < 0.1 * random.loss  # the lines between own pairs do not cross


def bend(flow: LearnedFlow, points: np.ndarray) -> float:
    """Mean distance of the way's middle from the middle between its ends."""
    start, middle, end = flow.carry(points, [0.0, 0.5, 1.0])
    return float((middle - (start + end) / 2).norm(dim=1).mean())


@both
def test_seeds_decide_and_leave_the_callers_alone(solver, clouds):
    solver = dataclasses.replace(solver, steps=5)
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    first = solver.fit(*clouds)
    assert (torch.rand(1), np.random.rand()) == expected
    again, other = solver.fit(*clouds), dataclasses.replace(solver, seed=1).fit(*clouds)
    ends = [flow.carry(clouds[0], [1.0]) for flow in (first, again, other)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2])


@both
def test_save_and_load(solver, answers, tmp_path):
    path = answers[solver.name]
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0]))
    assert (type(loaded), loaded.solver, loaded.info) == (type(path), path.solver, path.info)
    assert torch.equal(loaded.density(0.3).tensor, path.density(0.3).tensor)
    assert np.array_equal(loaded.velocity(0.3, [[1.0, 5.0]]), path.velocity(0.3, [[1.0, 5.0]]))
    assert loaded.flow.loss == path.flow.loss


def test_fit_flow_takes_particles_of_any_dimension_and_number():
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(70, 5, generator=generator)
    target = torch.randn(40, 5, generator=generator) + 3
    for method in ("flow-matching", "rectified-flow"):
        flow = fit_flow(source, target, method, steps=200, batch=1000, width=16)
        moved = flow.carry(source, [0.0, 1.0])
        assert moved.shape == (2, 70, 5)
        assert torch.equal(moved[0], source.double())
        assert torch.allclose(moved[1].mean(0), target.double().mean(0), atol=0.5)


def test_a_single_point_does_not_move():
    flow = FlowMatching(steps=200, batch=8, width=8, depth=1).fit(np.ones((8, 2)), np.ones((8, 2)))
    assert torch.allclose(
        flow.carry(np.ones((1, 2)), [1.0]), torch.ones(1, 1, 2).double(), atol=0.05
    )


def test_cells_are_split_into_at_most_so_many_parts():
    values = torch.zeros(BOX.shape)
    values[2, 3], values[7, 0] = 3.0, 1.0
    centres, mass, size = split_cells(Density(values, BOX), 19)
    assert len(centres) == len(mass) == 2 * 3**2  # 4² of each would be 32
    assert size == pytest.approx((0.5 / 9 / 3,) * 2)
    assert float(mass.sum()) == pytest.approx(1)
    assert torch.allclose(centres[:9].mean(0) * 9, torch.tensor([1.25, 1.75]).double())
    assert len(split_cells(Density(values, BOX), 1)[0]) == 2  # a cell is never left out


def test_places_are_on_the_lines_of_pairs(generator):
    x0, x1 = torch.randn(2, 4000, 3, generator=generator)
    t, where, velocity = sample_on_lines(x0, x1, generator)
    assert torch.allclose(where, x0 + t[:, None] * velocity, atol=1e-5)
    assert torch.allclose(where, x1 - (1 - t[:, None]) * velocity, atol=1e-5)
    found = t.sort().values  # uniform: no further from the line than Kolmogorov has it
    assert float((found - (torch.arange(4000) + 0.5) / 4000).abs().max()) < 1.95 / 4000**0.5


def test_pairs_are_those_of_the_optimal_plan(generator):
    x0, x1 = torch.randn(2, 90, 2, generator=generator)
    rows, columns = linear_sum_assignment(ot.dist(x0.double().numpy(), x1.double().numpy()))
    found = drawn(x0, x1, 30, generator)
    assert set(found) == set(zip(rows.tolist(), columns.tolist(), strict=True))


def test_pairs_are_drawn_with_the_masses_of_the_plan(generator):
    """Of two particles each gives half, of three each takes a third; drawn anew every time."""
    x0, x1 = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [0.5], [1.0]])
    masses = {(0, 0): 1 / 3, (0, 1): 1 / 6, (1, 1): 1 / 6, (1, 2): 1 / 3}
    found = drawn(x0, x1, 3000, generator)
    assert set(found) == set(masses)
    for pair, mass in masses.items():
        assert found[pair] / found.total() == pytest.approx(mass, abs=0.03)  # 5 standard errors


def drawn(x0: torch.Tensor, x1: torch.Tensor, batches: int, generator) -> Counter:
    """How often each pair of rows came, as numbers of the rows."""
    found = Counter()
    for _ in range(batches):
        ends = zip((x0, x1), pair_optimally(x0, x1, generator), strict=True)
        rows = [(end == these[:, None]).all(-1).int().argmax(1).tolist() for end, these in ends]
        found.update(zip(*rows, strict=True))
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; give a positive number."),
        ({"batch": -1}, "batch is -1; give a positive number."),
        ({"rate": float("nan")}, "rate is nan; give a positive number."),
        ({"width": 0}, "width is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"seed": -1}, "seed is -1; give a whole number from 0"),
        ({"particles": 1}, "particles is 1 and carried 30000; give at least 2 and at least 1."),
        ({"carried": 0}, "particles is 3000 and carried 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    for solver in (FlowMatching, RectifiedFlow):
        with pytest.raises(SolverError, match=message):
            solver(**options)


def test_options_of_one_method_only():
    with pytest.raises(SolverError, match="reuse is 0; give a positive number."):
        FlowMatching(reuse=0)
    with pytest.raises(SolverError, match="has no option 'reuse'"):
        geonet.solver("rectified-flow", reuse=1)
    with pytest.raises(SolverError, match="rounds is -1; give 0 or more."):
        RectifiedFlow(rounds=-1)
    with pytest.raises(SolverError, match="has no option 'rounds'"):
        geonet.solver("flow-matching", rounds=1)


def test_a_diverged_training_is_an_error(clouds):
    with pytest.raises(ConvergenceError, match="The training diverged; lower its rate."):
        FlowMatching(steps=60, batch=16, rate=1e30).fit(*clouds)


def test_wrong_particles_are_refused(clouds):
    source, target = clouds
    solver = FlowMatching(steps=1)
    with pytest.raises(SolverError, match=r"shape \(500,\) are no cloud; give an array \(n, d\)"):
        solver.fit(source[:, 0], target)
    with pytest.raises(SolverError, match="are no cloud"):
        solver.fit(source, target[:1])
    with pytest.raises(SolverError, match="lie in 2D and target particles in 1D"):
        solver.fit(source, target[:, :1])
    with pytest.raises(SolverError, match="NaN or infinite"):
        solver.fit(source * np.nan, target)
    with pytest.raises(SolverError, match="'linear' learns no flow from particles"):
        fit_flow(source, target, "linear")
