"""What a report says in sentences: the situations, and all that each is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import geonet
from benchmarks.pairs import draw
from geonet import Density, GaussianMixture, Grid
from geonet._advice import at_the_command_line
from geonet.report import Report

LINE, SQUARE = Grid(60, 0, 10), Grid((24, 24), 0, 5)


def bump(grid: Grid, *mean: float, mass: float = 1.0) -> Density:
    values = GaussianMixture.isotropic([list(mean)], [0.7]).on(grid).tensor
    return Density(mass * values, grid)


def report(solver: str = "midpoint", **entries: Any) -> Report:
    """Of a sound path that moved by twelve cells, unless `entries` say something else."""
    sound: dict[str, Any] = {
        "distance": 12.0,
        "distance_lower_bound": 11.99,
        "distance_upper_bound": 12.05,
        "mass_error": 0.0,
        "negativity": 0.0,
        "source_error": 0.0,
        "target_error": 0.0,
        "notes": {},
        "source_mass": 1.0,
        "target_mass": 1.0,
        "cell": 1.0,
    }
    return Report(solver=solver, **sound | entries)


def solved(*ends: Density, **options: Any) -> Report:
    return geonet.geodesic(*ends, **options).report


def batch(*ends: Density) -> Density:
    return Density(torch.stack([end.tensor for end in ends]), ends[0].grid)


def noise() -> tuple[Density, Density]:
    return draw("white-noise", 24)


ESTIMATED = {"error_estimate": 0.016}
EXACT = "The path is exact for cells of constant density."
BLUR = "Blur both ends by about a cell, density.blurred(1), or take solver='schrodinger'."
BRIDGE = "The path is the exact bridge with noise, and not the geodesic."

# ---- real solves

SOLVED: dict[str, tuple[Callable[[], Report], str]] = {
    "quantile": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 7.0)),
        f"Moved 24 cells (rms). {EXACT}",
    ),
    "equal ends": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 3.0)),
        f"Nothing moves: the ends are equal, or as good as equal. {EXACT}",
    ),
    "equal ends of midpoint": (
        lambda: solved(*2 * [bump(SQUARE, 1.5, 1.5)], solver="midpoint"),
        "Nothing moves: the ends are equal, or as good as equal. "
        "Expect an L1 error of 0 % against the exact geodesic.",
    ),
    "less than a cell": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 3.1)),
        f"Moved less than a cell (rms). {EXACT}",
    ),
    "linear": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 7.0), solver="linear"),
        "Nothing moves: the mixture fades one density into the other; it is not a geodesic. "
        "Take solver='auto' for the geodesic.",
    ),
    "five times the mass": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 7.0, mass=5.0)),
        f"Moved 24 cells (rms). {EXACT} "
        "The target has 5 times the source's mass; the path is that of the normalised densities.",
    ),
    "a fifth of the mass": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 7.0, mass=0.2)),
        f"Moved 24 cells (rms). {EXACT} "
        "The target has 0.2 times the source's mass; the path is that of the normalised densities.",
    ),
    "a bridge": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 7.0), solver="schrodinger", epsilon=0.4),
        f"Moved 24 cells (rms); blurred by 2.7 cells. {BRIDGE}",
    ),
    "a bridge that is mostly blur": (
        lambda: solved(*noise(), solver="schrodinger"),
        "Moved less than a cell (rms); blurred by less than a cell. "
        "The blur is larger than the motion: the path shows little but blur. "
        f"{BRIDGE} Give a smaller epsilon, or take solver='midpoint'.",
    ),
    "a batch of bridges": (
        lambda: solved(
            *(batch(a, b) for a, b in zip(_smooth(), noise(), strict=True)), solver="schrodinger"
        ),
        "Of 2 pairs path[1] is the worst: moved less than a cell (rms); blurred by less than "
        "a cell. "
        "The blur is larger than the motion: the path shows little but blur. "
        f"{BRIDGE} Give a smaller epsilon, or take solver='midpoint'.",
    ),
    "a plan": (
        lambda: solved(bump(SQUARE, 1.5, 1.5), bump(SQUARE, 3.5, 3.0), solver="linear-program"),
        "Moved 12 cells (rms). The path is grainy between the ends. "
        "For smooth frames take solver='midpoint'.",
    ),
    "a barycenter": (
        lambda: solved(bump(LINE, 3.0), bump(LINE, 7.0), solver="barycenter", reg=0.01),
        "Blurred by 4.2 cells. "
        "The path misses its source by 92 % and misses its target by 92 %. "
        "Nothing is known between the ends. Take solver='quantile'.",
    ),
}


def _smooth() -> tuple[Density, Density]:
    ends = bump(SQUARE, 1.5, 1.5), bump(SQUARE, 3.5, 3.0)
    first, second = (Density(end.tensor, Grid((24, 24))) for end in ends)
    return first, second


@pytest.mark.parametrize("situation", SOLVED)
def test_what_is_said_of_answers(situation: str):
    found, words = SOLVED[situation]
    assert found().verdict() == words


# ---- reports

TOLD: dict[str, tuple[Report, str]] = {
    "an estimate": (
        report(**ESTIMATED),
        "Moved 12 cells (rms). Expect an L1 error of 1.6 % against the exact geodesic.",
    ),
    "cells of another size": (
        report(cell=12.0, **ESTIMATED),
        "Moved 1 cell (rms). Expect an L1 error of 1.6 % against the exact geodesic.",
    ),
    "a large estimate": (
        report(error_estimate=0.31),
        f"Moved 12 cells (rms). Expect an L1 error of 31 % against the exact geodesic. {BLUR}",
    ),
    "not converged": (
        report(error_estimate=0.4, notes={"converged": False}),
        "Moved 12 cells (rms). Expect an L1 error of 40 % against the exact geodesic; "
        f"the solver did not reach its tolerance. {BLUR}",
    ),
    "stopped by its time limit": (
        report(
            error_estimate=0.4,
            notes={"converged": False, "stopped after": "time_limit, 3 s"},
        ),
        "Moved 12 cells (rms). Expect an L1 error of 40 % against the exact geodesic; "
        "the solver did not reach its tolerance. Give a larger time_limit.",
    ),
    "not converged in 1D": (
        report(dimension=1, notes={"converged": False}),
        "Moved 12 cells (rms). The solver did not reach its tolerance. Take solver='quantile'.",
    ),
    "back-and-forth": (
        report("back-and-forth", mismatch=0.35, notes={"converged": True}),
        "Moved 12 cells (rms). Both ends disagree on the density halfway by 35 %. "
        "Compare with solver='midpoint'.",
    ),
    "back-and-forth, not converged": (
        report("back-and-forth", mismatch=1.6, notes={"converged": False}),
        "Moved 12 cells (rms). Both ends disagree on the density halfway by 160 %; "
        "the solver did not reach its tolerance. Give more max_iterations.",
    ),
    "a learned path": (
        report("transport-2d", error_estimate=0.00081, in_distribution=True, mismatch=0.002),
        "Moved 12 cells (rms). Expect an L1 error of 0.081 % against the exact geodesic.",
    ),
    "a learned path of a foreign pair": (
        report("transport-2d", error_estimate=0.47, in_distribution=False),
        "Moved 12 cells (rms). Expect an L1 error of 47 % against the exact geodesic; "
        "the pair is unlike those of the training. Take solver='midpoint'.",
    ),
    "an operator that misses much": (
        report(
            "geonet-2d",
            source_error=0.28,
            target_error=0.17,
            mass_error=0.018,
            negativity=0.0083,
            in_distribution=False,
        ),
        "The path misses its source by 28 %, misses its target by 17 %, "
        "is off in mass by 1.8 % and falls below zero by 0.83 %. "
        "The pair is unlike those of the training. Take solver='midpoint'.",
    ),
    "one end is missed": (
        report("flow-matching", target_error=0.031, distance=None),
        "Moved at least 12 cells (rms). The path misses its target by 3.1 %. "
        "Nothing is known between the ends. Take solver='midpoint'.",
    ),
    "both ends are missed": (
        report("flow-matching", source_error=1.9, target_error=1.9),
        "The path misses its source by 190 % and misses its target by 190 %. "
        "Nothing is known between the ends. Take solver='midpoint'.",
    ),
    "an end is missed by less than a fifth": (
        report("flow-matching", target_error=0.19),
        "Moved 12 cells (rms). The path misses its target by 19 %. "
        "Nothing is known between the ends. Take solver='midpoint'.",
    ),
    "nothing is known in 1D": (
        report("pinn", dimension=1),
        "Moved 12 cells (rms). Nothing is known between the ends. Compare with solver='quantile'.",
    ),
    "nothing is known in 4D": (
        report("flow-matching", dimension=4),
        "Moved 12 cells (rms). Nothing is known between the ends. "
        "Compare with solver='linear-program'.",
    ),
    "a plan in 4D": (
        report("linear-program", dimension=4, notes={"plan entries": 20}),
        "Moved 12 cells (rms). The path is grainy between the ends.",
    ),
    "coarse cells in 4D": (
        report("linear-program", dimension=4, blur=15.0, notes={"plan entries": 20}),
        "Moved 12 cells (rms); blurred by 15 cells. "
        "The blur is larger than the motion: the path shows little but blur. "
        "The path is grainy between the ends. Give a larger max_cells.",
    ),
    "a mixture in 4D": (
        report("linear", dimension=4),
        "Nothing moves: the mixture fades one density into the other; it is not a geodesic. "
        "Take solver='linear-program' for the geodesic.",
    ),
    "many doubts and unequal masses": (
        report("schrodinger", blur=20.0, target_mass=3.0, target_error=0.1),
        "Moved 12 cells (rms); blurred by 20 cells. "
        "The blur is larger than the motion: the path shows little but blur. "
        "The path misses its target by 10 %. "
        "The target has 3 times the source's mass; the path is that of the normalised densities. "
        "Give a smaller epsilon, or take solver='midpoint'.",
    ),
    "a distance of rounding": (
        report(
            distance=2e-8,
            distance_lower_bound=1e-8,
            distance_upper_bound=3e-8,
            distance_uncertainty=1e-8,
            **ESTIMATED,
        ),
        "Nothing moves: the ends are equal, or as good as equal. "
        "Expect an L1 error of 1.6 % against the exact geodesic.",
    ),
    "nothing is known": (
        report("pinn"),
        "Moved 12 cells (rms). Nothing is known between the ends. Compare with solver='midpoint'.",
    ),
    "Monge and Ampère": (
        report("monge-ampere"),
        "Moved 12 cells (rms). The solver met its equation within its tolerance.",
    ),
    "Gaussians": (
        report("bures"),
        "Moved 12 cells (rms). The path is exact for Gaussians in all of space.",
    ),
    "below its bound": (
        report(distance=11.8, **ESTIMATED),
        "Moved 12 cells (rms). Expect an L1 error of 1.6 % against the exact geodesic. "
        "W2 is between 11.99 and 12.05.",
    ),
    "above its bound": (
        report("pinn", distance=14.0),
        "Moved 12 cells (rms). Nothing is known between the ends. "
        "W2 is between 11.99 and 12.05. Compare with solver='midpoint'.",
    ),
    "an uncertain distance": (
        report("schrodinger", distance_upper_bound=13.5, distance_uncertainty=1.5, blur=3.0),
        f"Moved 12 cells (rms); blurred by 3 cells. {BRIDGE} W2 is between 11.99 and 13.5. "
        "Give a smaller epsilon, or take solver='midpoint'.",
    ),
    "a certain distance": (
        report("schrodinger", distance_uncertainty=0.05, blur=3.0),
        f"Moved 12 cells (rms); blurred by 3 cells. {BRIDGE}",
    ),
    "coarse cells": (
        report("linear-program", blur=15.0, notes={"plan entries": 20, "solved on": "4×4 cells"}),
        "Moved 12 cells (rms); blurred by 15 cells. "
        "The blur is larger than the motion: the path shows little but blur. "
        "The path is grainy between the ends. Give a larger max_cells, or take solver='midpoint'.",
    ),
    "a barycenter that stopped early": (
        report("debiased-barycenter", distance=None, notes={"stopped early at t": [0.5]}),
        "Moved at least 12 cells (rms). The solver stopped early at some times. "
        "Give more max_iterations.",
    ),
    "masses that hardly differ": (
        report(target_mass=1.04, **ESTIMATED),
        "Moved 12 cells (rms). Expect an L1 error of 1.6 % against the exact geodesic.",
    ),
    "a batch": (
        report(
            distance=[12.0, 3.0, 7.0],
            distance_lower_bound=[11.99, 2.99, 6.99],
            distance_upper_bound=[12.05, 3.05, 7.05],
            mass_error=[0.0] * 3,
            negativity=[0.0] * 3,
            source_error=[0.0] * 3,
            target_error=[0.0] * 3,
            source_mass=[1.0] * 3,
            target_mass=[1.0] * 3,
            error_estimate=[0.01, 0.31, None],
        ),
        "Of 3 pairs path[1] is the worst: moved 3 cells (rms). "
        f"Expect an L1 error of 31 % against the exact geodesic. {BLUR}",
    ),
}


@pytest.mark.parametrize("situation", TOLD)
def test_what_is_said_of_reports(situation: str):
    found, words = TOLD[situation]
    assert found.verdict() == words


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        (
            report(notes={"converged": False}),
            "Blur both ends by about a cell, --blur 1, or take --solver schrodinger.",
        ),
        (
            report(notes={"converged": False, "stopped after": "time_limit, 3 s"}),
            "Give a larger time_limit (--option time_limit=…).",
        ),
        (report("pinn"), "Compare with --solver midpoint."),
        (
            report("schrodinger", blur=20.0),
            "Give a smaller epsilon (--option epsilon=…), or take --solver midpoint.",
        ),
        (report("linear"), "Take --solver auto for the geodesic."),
    ],
)
def test_advice_on_the_command_line_names_its_options(found: Report, advice: str):
    with at_the_command_line():
        assert found.verdict().endswith(advice)


def test_there_are_forty_situations_of_five_sentences_at_most():
    assert len(SOLVED) + len(TOLD) >= 40
    for _, words in [*SOLVED.values(), *TOLD.values()]:
        assert words.count(". ") < (5 if "normalised" in words else 4)


def test_a_batch_of_several_solvers_is_told_what_its_worst_pair_is_told():
    """Lonely cells go to the linear program, spots to midpoint."""
    spots = draw("spots", 24)
    cells = torch.zeros(2, 24, 24, dtype=torch.float64)
    cells[0, 3, 4] = cells[1, 20, 11] = 1
    source, target = (
        batch(Density(cell, spot.grid), spot) for cell, spot in zip(cells, spots, strict=True)
    )
    path = geonet.geodesic(source, target, learned=False)
    assert path.report.solvers == ["linear-program", "midpoint"]
    said = path[1].report.verdict()
    assert path.report.verdict() == f"Of 2 pairs path[1] is the worst: {said[0].lower()}{said[1:]}"
    assert said.endswith(BLUR)
