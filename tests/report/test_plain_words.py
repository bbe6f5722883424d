"""A report in words that need no mathematics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.report import Report, headline, in_plain_words, sentences


def report(**changes) -> Report:
    usual = Report(
        solver="midpoint",
        distance=0.4069,
        distance_lower_bound=0.40652,
        distance_upper_bound=0.40711,
        mass_error=0.0,
        negativity=0.0,
        source_error=0.0,
        target_error=0.0,
        notes={},
        error_estimate=0.02,
        source_mass=1.0,
        target_mass=1.0,
        cell=1 / 64,
        dimension=2,
    )
    return replace(usual, **changes)


WIDE = {"distance_lower_bound": 0.2, "distance_upper_bound": 0.6}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Distance within 0.14 %, certified"),
        ({"error_estimate": None}, "Distance within 0.14 %, certified"),
        ({"error_estimate": 0.3}, "Expect errors of about 30 %"),
        ({"error_estimate": 2.0}, "Not to be trusted: expect errors of about 200 %"),
        (WIDE, "Expect errors of about 2 %"),
        (WIDE | {"error_estimate": None}, "Moved 26 cells (rms)"),
        (WIDE | {"error_estimate": None, "solver": "quantile"}, "Exact"),
        ({"distance": 0.1, "error_estimate": 0.02}, "Expect errors of about 2 %"),
        (
            {"distance": 0.0, "distance_lower_bound": 0.0, "error_estimate": 0.0},
            "Nothing moves: both densities are the same",
        ),
        (
            {"solver": "linear", "distance": None},
            "This is no transport: one density fades into the other",
        ),
    ],
)
def test_headlines(changes, words):
    assert headline(report(**changes)) == words


def test_bounds_stay_bounds():
    """They are rounded away from each other."""
    assert sentences(report(), 1.0, None) == [
        "On average, mass moves 0.41 of the box's width.",
        "The distance is proven to lie between 0.4065 and 0.4072.",
        "Expect the frames in between to be off by about 2 %.",
    ]


def test_lengths_are_shares_of_the_box():
    assert "mass moves 0.081 of the box's width" in sentences(report(), 5.0, None)[0]


@pytest.mark.parametrize(
    ("changes", "tears", "sentence"),
    [
        ({}, 0.12, "This pair tears: 12 % of the mass has neighbours that end elsewhere."),
        ({"source_error": 0.03}, None, "The path misses the first density by 3 %."),
        ({"target_error": 0.03}, None, "The path misses the second density by 3 %."),
        ({"negativity": 0.03}, None, "Up to 3 % of the mass is below zero."),
        ({"in_distribution": False}, None, "The network was not trained on densities like these."),
        ({"notes": {"converged": False}}, None, "The solver stopped before it was done."),
        (
            {"target_mass": 3.0},
            None,
            "The second density has 3 times the mass of the first; both count as one.",
        ),
        (
            {"error_estimate": None, "blur": 0.031},
            None,
            "Noise blurs the frames halfway by 0.031 of the box's width; less ε means less blur.",
        ),
        (
            {"error_estimate": None, "mismatch": 0.09},
            None,
            "Seen from both ends, the frame halfway differs by 9 %.",
        ),
    ],
)
def test_what_is_said(changes, tears, sentence):
    assert sentence in sentences(report(**changes), 1.0, tears)
    assert sentence not in sentences(report(), 1.0, 0.001)


def test_a_distance_outside_its_bounds_is_not_said():
    assert "On average" not in " ".join(sentences(report(distance=0.1), 1.0, None))


@pytest.mark.parametrize("solver", ["midpoint", "schrodinger", "back-and-forth", "linear"])
def test_every_kind_of_path(solver):
    points = Grid((16, 16)).points()
    ends = [
        Density(torch.exp(-((points - c) ** 2).sum(-1) / 0.02), Grid((16, 16))) for c in (0.3, 0.7)
    ]
    path = geonet.geodesic(*ends, solver)
    found = in_plain_words(path, path.report)
    assert set(found) == {"headline", "sentences", "rows", "tears"}
    assert found["rows"] == path.report.rows() and found["sentences"]
    assert (found["tears"] is None) == (solver in ("linear", "schrodinger"))
