"""What a path says about its own trustworthiness."""

import json
from dataclasses import replace

import pytest
import torch

import geonet
from benchmarks.pairs import draw
from geonet import Density, GaussianMixture, Grid
from geonet.report import moment_bounds

KNOWN_TO_SOME = (
    "error_estimate",
    "in_distribution",
    "mismatch",
    "continuity",
    "hamilton_jacobi",
    "smallest_determinant",
)
LABELS = {
    "error_estimate": "L1 error, estimated",
    "in_distribution": "in distribution",
    "mismatch": "mismatch at t = ½",
    "continuity": "continuity residual",
    "hamilton_jacobi": "Hamilton–Jacobi residual",
    "smallest_determinant": "smallest determinant",
}


@pytest.fixture
def batch_1d(pair_1d):
    return tuple(Density(torch.stack([end.tensor] * 7), end.grid) for end in pair_1d)


def telling(path, **checks):
    """The path, with something to say about itself."""
    path._checks = lambda: {name: torch.tensor(value) for name, value in checks.items()}
    return path


def test_what_a_path_does_not_know_is_none_and_not_shown(pair_1d):
    report = geonet.geodesic(*pair_1d).report
    text = str(report)
    for name in KNOWN_TO_SOME:
        assert getattr(report, name) is None and report.to_dict()[name] is None
        assert LABELS[name] not in text
    assert "W2 at least" in text and "W2 at most" in text


@pytest.mark.parametrize("name", KNOWN_TO_SOME)
def test_what_a_path_knows_is_shown(pair_1d, batch_1d, name):
    values = [True, False] * 4 if name == "in_distribution" else [0.125 * k for k in range(8)]
    single = telling(geonet.geodesic(*pair_1d), **{name: values[1]}).report
    assert getattr(single, name) == values[1]
    assert f"{LABELS[name]}  " in str(single)
    assert dict(single.rows())[LABELS[name]] == str(values[1])
    many = telling(geonet.geodesic(*batch_1d), **{name: values[:7]}).report
    assert getattr(many, name) == values[:7]
    shown = ", ".join(str(v) if name == "in_distribution" else f"{v:.4g}" for v in values[:5])
    assert dict(many.rows())[LABELS[name]] == f"{shown}, …"
    for report in (single, many):
        assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_what_is_known_of_some_pairs_only(batch_1d):
    unknown = float("nan")
    checks = {
        "mismatch": [0.5, unknown, 0.25] + [unknown] * 4,
        "in_distribution": [1.0, unknown, 0.0] + [unknown] * 4,
        "distance_lower_bound": [unknown] * 7,
        "distance_upper_bound": [unknown] * 7,
    }
    path = geonet.geodesic(*batch_1d)
    before, report = path.report, telling(path, **checks).report
    assert report.mismatch == [0.5, None, 0.25] + [None] * 4
    assert report.in_distribution == [True, None, False] + [None] * 4
    assert report.distance_lower_bound == before.distance_lower_bound
    assert report.distance_upper_bound == before.distance_upper_bound
    assert dict(report.rows())[LABELS["in_distribution"]] == "True, –, False, –, –, …"
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_the_sharper_bound_is_reported(pair_1d):
    path = geonet.geodesic(*pair_1d)
    before = path.report
    assert before.distance_lower_bound < before.distance < before.distance_upper_bound
    wide, sharp = (0.0, 1e9), (before.distance - 1e-6, before.distance + 1e-6)
    for low, high in (wide, sharp):
        bounds = {"distance_lower_bound": low, "distance_upper_bound": high}
        report = telling(path, **bounds).report
        assert report.distance_lower_bound == pytest.approx(max(low, before.distance_lower_bound))
        assert report.distance_upper_bound == pytest.approx(min(high, before.distance_upper_bound))


def test_bounds_by_moments_hold(generator):
    grid = Grid(60, -1.0, 3.0)
    first, second = (
        Density(torch.rand(20, 60, dtype=torch.float64, generator=generator) ** 6, grid)
        for _ in range(2)
    )
    truth = geonet.geodesic(first, second, "quantile").distance
    lower, upper = moment_bounds(first, second)
    assert lower.shape == upper.shape == (20,)
    assert bool((lower <= truth).all()) and bool((truth <= upper).all())
    assert float(lower.min()) > 0


def test_bounds_by_moments_are_sharp_for_points_and_for_equal_ends():
    grid = Grid((9, 9))
    values = torch.zeros(2, 9, 9, dtype=torch.float64)
    values[0, 1, 2] = values[1, 7, 3] = 1
    lower, upper = moment_bounds(*(Density(v, grid) for v in values))
    assert float(lower) == pytest.approx((6**2 + 1) ** 0.5 / 9)
    assert float(upper) == pytest.approx((6**2 + 1) ** 0.5 / 9)
    spread = GaussianMixture.isotropic([[0.5, 0.5]], 0.1).on(Grid((60, 60)))
    lower, upper = moment_bounds(spread, spread)
    assert float(lower) < 1e-6
    assert float(upper) == pytest.approx(0.2, rel=1e-3)  # of independent draws: σ√(2d)


def test_bounds_by_moments_hold_where_an_atom_counts_as_a_cell():
    """Uniform to one cell: T shrinks along each axis, which is known for constant cells."""
    grid, values = Grid((16, 16)), torch.zeros(16, 16, dtype=torch.float64)
    values[12, 9] = 1
    ends = Density(torch.ones(16, 16, dtype=torch.float64), grid), Density(values, grid)
    shrunk = 15 / 16
    exact = sum(shrunk**2 / 3 - shrunk * c + c * c for c in (12 / 16, 9 / 16)) ** 0.5
    lower, upper = moment_bounds(*ends)
    assert float(lower) == pytest.approx(exact, rel=1e-9)  # Gelbrich's bound is sharp
    assert float(upper) > exact


def test_a_distance_outside_its_bounds_is_shown_as_what_it_is_between(batch_1d):
    path = geonet.geodesic(*batch_1d)
    bounds = {
        "distance_lower_bound": [0.0] * 5 + [1e3] * 2,
        "distance_upper_bound": [2e3, 0.5, *[2e3] * 5],
    }
    report = telling(path, **bounds).report
    own, low = report.distance[0], report.distance_lower_bound[1]
    assert report.doubtful
    assert dict(report.rows())["W2 distance"] == (
        f"{own:.4g}, between {low:.4g} and 0.5, {own:.4g}, {own:.4g}, {own:.4g}, …"
    )
    assert report.to_dict()["distance"][1] == own  # both are told


@pytest.mark.parametrize(("share", "doubtful"), [(0.01, False), (0.03, True)])
def test_an_uncertain_distance_is_shown_as_what_it_is_between(pair_1d, share, doubtful):
    report = geonet.geodesic(*pair_1d).report
    low, high = report.distance_lower_bound, report.distance_upper_bound
    unsure = replace(report, distance_uncertainty=share * report.distance)
    between = f"between {low:.4g} and {high:.4g}"
    assert unsure.doubtful == doubtful
    assert dict(unsure.rows())["W2 distance"] == (between if doubtful else f"{report.distance:.4g}")
    assert unsure.uncertain_share == pytest.approx(share)


def test_masses_are_shown_where_they_differ(pair_1d):
    source, target = (Density(end.tensor, end.grid) for end in pair_1d)
    ends = {f"{end}, integral over the box" for end in ("source", "target")}
    shown = {*ends, "target's mass over source's"}
    for factor in (1.0, 1.004, 1.006, 5.0):
        report = geonet.geodesic(source, Density(factor * target.tensor, target.grid)).report
        assert report.target_mass / report.source_mass == pytest.approx(factor)
        assert (shown <= set(dict(report.rows()))) == (factor > 1.005)
    assert dict(report.rows())["target's mass over source's"] == "5"


def test_blur_is_that_of_noise_or_of_coarse_cells(pair_2d):
    assert geonet.geodesic(*pair_2d, "midpoint").report.blur is None
    bridge = geonet.geodesic(*pair_2d, "schrodinger", epsilon=0.08).report
    assert bridge.blur == pytest.approx(0.2)
    coarse = [end.resample(end.grid.with_shape(12)) for end in pair_2d]
    assert geonet.geodesic(*coarse, "linear-program").report.blur is None
    plan = geonet.geodesic(*coarse, "linear-program", max_cells=36, coarsen=True)
    assert plan.report.blur == pytest.approx(max(plan.cells.spacing))
    assert plan.report.blur > 1.5 * max(coarse[0].grid.spacing)


def test_blur_of_a_barycenter_is_the_spread_it_gains():
    bump = GaussianMixture.isotropic([[5.0]], [0.8]).on(Grid(100, 0, 10))
    for solver, factor in (("barycenter", 1.0), ("debiased-barycenter", 0.0)):
        path = geonet.geodesic(bump, bump, solver, reg=0.002)
        gained = float(path.density(0.5).covariance() - bump.covariance())
        blur = path.report.blur or 0.0
        assert blur**2 == pytest.approx(factor * gained, rel=0.02)


@pytest.mark.parametrize("share", [1 - 9e-4, 1.0, 1 + 9e-4])
def test_a_distance_that_rounding_puts_outside_is_moved_to_its_bound(batch_1d, share):
    path = geonet.geodesic(*batch_1d)
    sharp = (share * path.distance).tolist()
    report = telling(path, distance_lower_bound=sharp, distance_upper_bound=sharp).report
    assert not report.doubtful
    assert report.distance_lower_bound == report.distance == report.distance_upper_bound
    assert report.distance == pytest.approx(sharp)


def test_the_distance_of_midpoint_is_within_its_bounds():
    """Its dual value is a sum over cells, here a little less than the bound by other sums."""
    report = geonet.geodesic(*draw("high-contrast", 24), "midpoint").report
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
    assert not report.doubtful


@pytest.mark.parametrize("solver", ["midpoint", "linear-program", "quantile"])
def test_equal_ends_have_a_distance_and_no_interval(pair_1d, solver):
    report = geonet.geodesic(pair_1d[0], pair_1d[0], solver).report
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
    assert not report.doubtful and float(dict(report.rows())["W2 distance"]) < 1e-6


def test_a_far_distance_between_equal_points_is_doubtful():
    report = geonet.geodesic(*2 * [Density([0.0, 1.0, 0.0], Grid(3))], "quantile").report
    assert report.distance_upper_bound < 1e-12
    assert not report.doubtful and replace(report, distance=0.1).doubtful


def test_lists_of_each_pair_are_told_apart(pair_1d):
    notes = {"cells": [None, [32, 32], [128, 128]], "steps": [[1] * 7], "iterations": [3, 4]}
    rows = dict(replace(geonet.geodesic(*pair_1d).report, notes=notes).rows())
    assert rows["cells"] == "–; 32, 32; 128, 128"
    assert rows["steps"] == "1, 1, 1, 1, 1, …"
    assert rows["iterations"] == "3, 4"
