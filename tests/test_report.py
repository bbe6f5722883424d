"""Reports: bounds and errors of paths, and their summary in words."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.metrics import measure_discontinuity
from geonet.report import Report
from geonet.solvers.bures import moment_bounds

LINE, SQUARE = Grid(60, 0, 10), Grid((24, 24), 0, 5)
DIAGNOSTICS = {
    "error_estimate": "L1 error, estimated",
    "in_distribution": "in distribution",
    "mismatch": "mismatch at t = ½",
    "continuity": "continuity residual",
    "hamilton_jacobi": "Hamilton–Jacobi residual",
    "smallest_determinant": "smallest determinant",
}


def solve(*ends: Density, **options: Any) -> Report:
    return geonet.geodesic(*ends, **options).report


@pytest.fixture
def batch_1d(pair_1d):
    return tuple(Density(torch.stack([end.tensor] * 7), end.grid) for end in pair_1d)


def report_with(ends, **diagnostics) -> Report:
    """Return the report of a path with these diagnostics."""
    path = geonet.geodesic(*ends)
    path._diagnostics = lambda: {key: torch.tensor(value) for key, value in diagnostics.items()}
    return path.report


# ---- Entries


def test_unknown_entries_are_none_and_have_no_row(pair_1d):
    report = geonet.geodesic(*pair_1d).report
    for name, label in DIAGNOSTICS.items():
        assert getattr(report, name) is None and report.to_dict()[name] is None
        assert label not in str(report)
    assert "W2 at least" in str(report) and "W2 at most" in str(report)


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_diagnostics_of_the_path_are_entries_and_rows(pair_1d, batch_1d, name):
    values = [True, False] * 4 if name == "in_distribution" else [0.125 * k for k in range(8)]
    single = report_with(pair_1d, **{name: values[1]})
    assert getattr(single, name) == values[1]
    assert dict(single.rows())[DIAGNOSTICS[name]] == str(values[1])
    many = report_with(batch_1d, **{name: values[:7]})
    assert getattr(many, name) == values[:7]
    assert dict(many.rows())[DIAGNOSTICS[name]].endswith(", …")
    for report in (single, many):
        assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_blur_of_noise_and_of_coarse_cells(pair_2d):
    assert solve(*pair_2d, solver="midpoint").blur is None
    assert solve(*pair_2d, solver="schrodinger", epsilon=0.08).blur == pytest.approx(0.2)
    coarse = [end.resample(end.grid.with_shape(12)) for end in pair_2d]
    plan = geonet.geodesic(*coarse, "linear-program", max_cells=36, coarsen=True)
    assert plan.report.blur == pytest.approx(max(plan.cells.spacing))


def test_a_path_without_a_grid_has_no_report():
    path = geonet.geodesic(*(GaussianMixture.isotropic([[m]], 0.1) for m in (0.0, 1.0)), "bures")
    with pytest.raises(geonet.errors.InputError, match="grid"):
        _ = path.report


# ---- Bounds of W2


def test_moment_bounds_hold(generator):
    grid = Grid(60, -1.0, 3.0)
    first, second = (
        Density(torch.rand(20, 60, dtype=torch.float64, generator=generator) ** 6, grid)
        for _ in range(2)
    )
    truth = geonet.geodesic(first, second, "quantile").distance
    lower, upper = moment_bounds(first, second)
    assert bool((lower <= truth).all()) and bool((truth <= upper).all()) and float(lower.min()) > 0


def test_moment_bounds_are_sharp_for_points_and_for_equal_ends():
    values = torch.zeros(2, 9, 9, dtype=torch.float64)
    values[0, 1, 2] = values[1, 7, 3] = 1
    lower, upper = moment_bounds(*(Density(v, Grid((9, 9))) for v in values))
    assert float(lower) == pytest.approx(37**0.5 / 9) == float(upper)
    spread = GaussianMixture.isotropic([[0.5, 0.5]], 0.1).to_density(Grid((60, 60)))
    lower, upper = moment_bounds(spread, spread)
    assert float(lower) < 1e-6 and float(upper) == pytest.approx(0.2, rel=1e-3)  # σ√(2d)


def test_a_distance_outside_its_bounds_is_shown_as_an_interval(batch_1d):
    low, high = [0.0] * 5 + [1e3] * 2, [2e3, 0.5, *[2e3] * 5]
    report = report_with(batch_1d, distance_lower_bound=low, distance_upper_bound=high)
    own, bound = report.distance[0], report.distance_lower_bound[1]
    assert report.is_distance_uncertain and report.to_dict()["distance"][1] == own
    rounded = math.floor(1e4 * bound) / 1e4  # bounds are rounded outwards
    start = f"{own:.4g}, between {rounded:.4g} and 0.5, {own:.4g}"
    assert dict(report.rows())["W2 distance"].startswith(start)


@pytest.mark.parametrize(("share", "is_uncertain"), [(0.005, False), (0.01, True)])
def test_an_uncertain_distance_is_shown_as_an_interval(pair_1d, share, is_uncertain):
    report = geonet.geodesic(*pair_1d).report
    report = replace(report, distance_uncertainty=share * report.distance)
    assert report.is_distance_uncertain == is_uncertain
    assert dict(report.rows())["W2 distance"].startswith("between") == is_uncertain


@pytest.mark.parametrize("factor", [1 - 9e-4, 1.0, 1 + 9e-4])
def test_a_distance_outside_by_rounding_is_moved_to_its_bound(batch_1d, factor):
    sharp = (factor * geonet.geodesic(*batch_1d).distance).tolist()
    report = report_with(batch_1d, distance_lower_bound=sharp, distance_upper_bound=sharp)
    assert not report.is_distance_uncertain
    assert report.distance_lower_bound == report.distance == report.distance_upper_bound


@pytest.mark.parametrize("solver", ["midpoint", "linear-program", "quantile"])
def test_equal_ends_have_a_certain_distance(pair_1d, solver):
    report = solve(pair_1d[0], pair_1d[0], solver=solver)
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
    assert not report.is_distance_uncertain and float(dict(report.rows())["W2 distance"]) < 1e-6
    point = solve(*2 * [Density([0.0, 1.0, 0.0], Grid(3))], solver="quantile")
    assert not point.is_distance_uncertain and replace(point, distance=0.1).is_distance_uncertain


# ---- Discontinuity


def discs(n, *circles):
    """Discs (row, column, radius) on n × n cells."""
    points = Grid((n, n)).points()
    inside = [((points - torch.tensor([y, x])) ** 2).sum(-1) < r**2 for y, x, r in circles]
    return Density(torch.stack(inside).any(0).double(), Grid((n, n)))


def discontinuity(source, target, solver="midpoint"):
    return measure_discontinuity(geonet.geodesic(source, target, solver))


@pytest.mark.parametrize("n", [32, 64])
def test_discontinuity_of_a_disc_that_splits(n):
    """The cut occupies two of 32 columns: 2 · 0.4/32 / (π · 0.2²)."""
    share = discontinuity(discs(n, (0.5, 0.5, 0.2)), discs(n, (0.5, 0.2, 0.14), (0.5, 0.8, 0.14)))
    assert float(share) == pytest.approx(2 * 0.4 / 32 / (torch.pi * 0.04), rel=0.35)


def test_continuous_maps():
    move = discontinuity(discs(64, (0.3, 0.3, 0.2)), discs(64, (0.7, 0.6, 0.2)))
    grow = discontinuity(discs(64, (0.5, 0.5, 0.07)), discs(64, (0.5, 0.5, 0.42)))
    parts = discs(64, (0.5, 0.2, 0.14), (0.5, 0.8, 0.14))
    assert move == 0 and grow < 0.02 and discontinuity(parts, discs(64, (0.5, 0.5, 0.2))) < 0.02


def test_discontinuity_in_1d_and_without_trajectories():
    x = Grid(128).points()[..., 0]
    box = Density((abs(x - 0.5) < 0.125).double(), Grid(128))
    parts = Density((abs(abs(x - 0.5) - 0.35) < 0.1).double(), Grid(128))
    assert float(discontinuity(box, parts, "quantile")) == pytest.approx(2 / 16, rel=0.01)
    assert discontinuity(box, parts, "linear") is None
    batch = [Density(torch.stack([a.tensor, box.tensor]), box.grid) for a in (box, parts)]
    assert discontinuity(*batch, "quantile").tolist() == pytest.approx([2 / 16, 0.0], rel=0.01)
    atoms = torch.zeros(2, 16, 16)
    atoms[0, 2, 2] = atoms[1, 12, 12] = 1.0
    assert discontinuity(*(Density(a, Grid((16, 16))) for a in atoms), "back-and-forth") == 0.0


# ---- Summary


def report(solver: str = "midpoint", **entries: Any) -> Report:
    """Return the report of an accurate path that moves mass by twelve cells, with changes."""
    accurate: dict[str, Any] = {
        "distance": 12.0,
        "distance_lower_bound": 11.99,
        "distance_upper_bound": 12.05,
        "mass_error": 0.0,
        "negativity": 0.0,
        "source_error": 0.0,
        "target_error": 0.0,
        "info": {},
        "source_mass": 1.0,
        "target_mass": 1.0,
        "cell": 1.0,
        "dimension": 2,
    }
    return Report(solver=solver, **accurate | entries)


WIDE = {"distance_lower_bound": 6.0, "distance_upper_bound": 18.0}
UNCONVERGED = {"info": {"converged": False}}
GROWING = {
    "cost": 3.0,
    "cost_lower_bound": 2.99,
    "cost_upper_bound": 3.0,
    "transported_share": 0.8,
}
STAGNATED = {"converged": False, "stagnated": True}
NOISY = {
    "solver": "schrodinger",
    "blur": 20.0,
    "info": {"epsilon": 1e-3, "smaller epsilon": 5e-4},
}
WFR = {"growth": "wfr", "reach": 1.2}


@pytest.mark.parametrize(
    ("entries", "headline"),
    [
        ({}, "Distance certified within 0.5 %"),
        ({"error_estimate": 0.3}, "Expect an L1 error of 30 % between the ends"),
        ({"error_estimate": 2.0}, "Not reliable: expect an L1 error of 200 % between the ends"),
        (WIDE | UNCONVERGED | {"error_estimate": 4e-3}, "Not converged: W2 is between 6 and 18"),
        (GROWING | UNCONVERGED, "Not converged: the cost is between 2.99 and 3"),
        (WIDE, "The error between the ends is unknown"),
        ({"solver": "quantile"}, "The path is exact for densities"),
        ({"distance": 0.0, "distance_lower_bound": 0.0, "error_estimate": 0.0}, "Nothing moves"),
        ({"solver": "linear", "distance": None}, "No transport"),
    ],
)
def test_headline(entries, headline):
    assert report(**entries).summary().headline.startswith(headline)


@pytest.mark.parametrize(
    "entries",
    [{"error_estimate": 0.3}, {"error_estimate": 2.0}, UNCONVERGED, GROWING | UNCONVERGED],
)
def test_sentences_do_not_repeat_the_headline(entries):
    text = str(report(**entries).summary())
    assert len(re.findall("errors? of", text)) <= 1 and text.count(" is between ") == 1


def test_nothing_else_is_written_if_nothing_moves():
    still = {"distance": 1e-7, "distance_lower_bound": 0.0, "distance_upper_bound": 4.473e-7}
    assert str(report(**still).summary()) == "Nothing moves: both densities are equal."


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"cell": 24.0}, "Mass moves less than a cell (rms)."),
        ({"distance": None}, "Mass moves at least 12 cells (rms)."),
        ({"distance_upper_bound": 12.0571}, "W2 is between 11.99 and 12.06."),  # rounded upwards
        ({"error_estimate": 0.016}, "Expect an L1 error of 1.6 % between the ends."),
        ({"blur": 30.0}, "The frame halfway is blurred by 30 cells, more than the mass moves."),
        ({"target_error": 0.03}, "The path misses the target by 3 %."),
        ({"negativity": 0.03}, "Up to 3 % of the mass is negative."),
        ({"negativity": 1.9}, "Up to 100 % of the mass is negative."),
        ({"mismatch": 0.09}, "The densities pushed from both ends differ by 9 % halfway."),
        ({"in_distribution": False}, "The pair differs from the training data of the network."),
        ({"info": {"plan entries": 9}}, "The frames between the ends are grainy."),
        (
            {"target_mass": 3.0},
            "The target has 3 times the mass of the source; both are normalised.",
        ),
        (GROWING | {"target_mass": 3.0}, "source; the total grows along the path."),
        (GROWING | {"target_mass": 0.91}, "source; the total shrinks along the path."),
        (GROWING | {"target_mass": 3.0, "info": WFR}, "the total first falls, then grows."),
        (GROWING | {"target_mass": 0.9, "info": WFR}, "the total first falls, then rises again."),
        (GROWING | {"target_mass": 9.0, "info": WFR}, "the total grows along the path."),
        ({"discontinuous_mass": 0.12}, "The map is discontinuous: 12 % of the mass"),
        ({"solver": "monge-ampere"}, "The residual of the Monge–Ampère equation"),
    ],
)
def test_sentences(entries, sentence):
    assert sentence in str(report(**entries).summary())
    assert sentence not in str(report().summary())


def test_rows_round_bounds_outwards():
    pair = {"distance_lower_bound": 2.22987, "distance_upper_bound": 2.25012}
    rows = dict(report(**pair | {"distance": 2.24}).rows())
    assert (rows["W2 at least"], rows["W2 at most"]) == ("2.229", "2.251")
    assert dict(report(**pair).rows())["W2 distance"] == "between 2.229 and 2.251"
    cost = GROWING | {"cost_lower_bound": [1.99996, None], "cost_upper_bound": [2.00011, None]}
    rows = dict(report(**cost | {"mass_error": [0.0, 0.0]}).rows())
    assert (rows["cost at least"], rows["cost at most"]) == ("1.999, –", "2.001, –")


@pytest.mark.parametrize(
    ("entries", "advice"),
    [
        ({}, None),
        ({"error_estimate": 0.31}, "gaussian_blur"),
        ({"info": {"converged": False, "stopped after": "3 s"}}, "a larger time_limit"),
        (UNCONVERGED | {"dimension": 1}, "'quantile'"),
        (UNCONVERGED | {"solver": "back-and-forth"}, "a larger max_iterations"),
        ({"solver": "back-and-forth", "mismatch": 0.35}, "Compare with solver='midpoint'"),
        ({"solver": "transport-2d", "error_estimate": 0.47}, "Choose solver='midpoint'"),
        ({"solver": "schrodinger", "blur": 20.0}, "a smaller epsilon"),
        ({"solver": "schrodinger", "blur": 3.0, "distance_uncertainty": 1.5}, "a smaller epsilon"),
        ({"solver": "schrodinger", "blur": 20.0, "info": {"epsilon": 1e-3}}, "'midpoint'"),
        (NOISY, "a smaller epsilon such as 0.0005, on the command line --option epsilon=0.0005."),
        ({"solver": "linear-program", "blur": 20.0}, "a larger max_cells"),
        (WIDE | UNCONVERGED | {"program_uncertainty": 0.0}, "'linear-program'"),
        (WIDE | UNCONVERGED | {"program_uncertainty": 5.9}, "'linear-program'"),
        (WIDE | UNCONVERGED | {"program_uncertainty": 6.1}, "gaussian_blur"),
        ({"solver": "linear-program", "info": {"plan entries": 9}}, None),
        ({"solver": "back-and-forth", "info": STAGNATED}, "'midpoint'"),
        ({"solver": "another-package", "dimension": 4}, "'linear-program'"),
        ({"solver": "monge-ampere"}, None),
        ({"info": {"reach": 0.06}}, "a longer reach: it is 0.06 cells, so mass can hardly move"),
        ({"info": {"reach": 2.0}}, None),
    ],
)
def test_at_most_one_recommendation(entries, advice):
    verbs = ("Choose", "Give", "Compare", "Blur")
    sentences = [s for s in report(**entries).summary().sentences if s.startswith(verbs)]
    assert len(sentences) == (advice is not None)
    assert advice is None or advice in sentences[0]


def _draw_atoms(shape, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.zeros(shape, dtype=torch.float64).flatten()
    values[torch.randperm(len(values), generator=generator)[:count]] = 1.0
    return values.reshape(shape)


def _make_hard_pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs on which `midpoint` does not converge, or hardly does."""
    n, plane, generator = 48, (48, 48), torch.Generator().manual_seed(0)
    noise = [torch.rand(plane, dtype=torch.float64, generator=generator) for _ in range(2)]
    row, column, rows = (torch.zeros(plane, dtype=torch.float64) for _ in range(3))
    row[10], column[:, 40], rows[5], rows[40] = 1.0, 1.0, 0.789, 0.211
    board = torch.tensor([[(i + j) % 2.0 for j in range(20)] for i in range(20)])
    islands = torch.zeros(2, n, n, dtype=torch.float64)
    islands[:, :6, 18:30] = islands[:, 36:42, 18:30] = 1.0
    islands[0, :6] *= 1.003
    spikes = torch.where(noise[0] < 0.05, 1.0, 0.0)
    return {
        "a few atoms": (_draw_atoms(plane, 15, 0), _draw_atoms(plane, 15, 1)),
        "many atoms": (_draw_atoms(plane, 200, 2), _draw_atoms(plane, 200, 3)),
        "one atom": (_draw_atoms(plane, 1, 4), _draw_atoms(plane, 40, 5)),
        "lines": (row, column),
        "a row that splits": (row, rows),
        "checkerboards": (board, 1 - board),
        "islands": (islands[0], islands[1]),
        "spikes": (spikes, spikes.roll(1, 0)),
        "contrast": (noise[0] ** 30, noise[1] ** 30),
        "atoms in 3D": (_draw_atoms((9, 9, 9), 12, 6), _draw_atoms((9, 9, 9), 12, 7)),
    }


def _follow_advice(ends: tuple[Density, ...], solver: str) -> Report:
    """Return the report after the steps that the summaries recommend, at most eight."""
    options: dict[str, Any] = {"solver": solver}
    widths, tried, visited = iter((1, 2, 4)), ends, [solver]
    for _ in range(8):
        report = solve(*tried, **options)
        advice = report.summary().sentences[-1]
        choice = re.match(r"Choose solver='([\w-]+)'( with coarsen=True)?", advice)
        if choice:
            assert choice[1] not in visited  # advice leads to a solver once
            visited.append(choice[1])
            options = {"solver": choice[1]} | ({"coarsen": True} if choice[2] else {})
        elif "Blur" in advice:
            width = next(widths)
            tried = tuple(end.gaussian_blur(width) for end in ends)
        elif value := re.match(r"Give a smaller epsilon.* epsilon=([\d.e-]+)\.$", advice):
            options["epsilon"] = float(value[1])
        elif "a larger max_iterations" in advice:
            options["max_iterations"] = 10 * options.get("max_iterations", 100)
        else:
            return report
    raise AssertionError(f"the advice does not end: {advice}")


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "solver"),
    [(name, "midpoint") for name in _make_hard_pairs()]
    + [(name, "schrodinger") for name in ("many atoms", "lines", "islands", "spikes", "contrast")]
    + [(name, "back-and-forth") for name in ("a few atoms", "islands", "contrast")]
    + [(name, "auto") for name in ("one atom", "islands", "contrast", "atoms in 3D")],
)
def test_advice_leads_to_an_answer(name, solver):
    pair = _make_hard_pairs()[name]
    ends = tuple(Density(values, Grid(values.shape)) for values in pair)
    report = _follow_advice(ends, solver)
    assert report.distance_upper_bound <= 1.1 * report.distance_lower_bound
    if report.solver == "midpoint":
        assert report.info["converged"] and report.error_estimate <= 0.05


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
def test_a_program_on_coarser_cells_is_not_recommended_if_it_widens_the_bounds():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(2, 128, 128, dtype=torch.float64, generator=generator) ** 200
    path = geonet.geodesic(*(Density(one, Grid((128, 128))) for one in values), "midpoint")
    report = path.report
    assert report.info["converged"] is False
    assert report.program_uncertainty == pytest.approx(2 * (2 / 3) ** 0.5 / 48)
    assert report.program_uncertainty > report.distance_upper_bound - report.distance_lower_bound
    assert "Blur" in report.summary().sentences[-1]


def test_a_batch_is_summarised_by_its_worst_pair():
    names = ("mass_error", "negativity", "source_error", "target_error")
    entries = {name: [0.0] * 3 for name in names} | {"error_estimate": [0.01, 0.31, None]}
    summary = report(**entries).summary()
    error = "expect an L1 error of 31 % between the ends"
    assert summary.headline == f"Worst of 3 pairs is path[1]: {error}"
