"""Numbers and values in messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from geonet._format import format_number, format_percent, format_seconds
from geonet._validation import short_repr


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.6, "160 %"),
        (0.00081, "0.081 %"),
        (0.0123, "1.2 %"),
        (0.05, "5 %"),
        (0.0999, "10 %"),
        (12.34, "1200 %"),
        (0.0, "0 %"),
        (1.24e-8, "0.0000012 %"),
        (16_000.0, "1600000 %"),
        (-0.031, "-3.1 %"),
        (math.nan, "nan %"),
    ],
)
def test_format_percent(share: float, text: str):
    assert format_percent(share) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0.0, "0 ms"),
        (0.00012, "0.12 ms"),
        (0.015, "15 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (0.8, "0.8 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (34.4, "34 s"),
        (59.7, "1 min"),
        (200.0, "3 min 20 s"),
        (3599.8, "1 h"),
        (7500.0, "2 h 5 min"),
        (7199.0, "2 h"),
        (200_000.0, "55 h 33 min"),
    ],
)
def test_format_seconds(duration: float, text: str):
    assert format_seconds(duration) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (3.0, "3"),
        (21.2249, "21.22"),
        (0.1, "0.1"),
        (0.00012345, "0.0001234"),
        (0.000012345, "1.234e-5"),
        (123456.7, "123500"),
        (999999.0, "1e6"),
        (1234567.0, "1.235e6"),
        (-0.5, "-0.5"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_format_number(value: float, text: str):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("a.png", "'a.png'"),
        (np.ones((4, 4)), "an array of shape (4, 4)"),
        (10**400, f"1{59 * '0'}…"),
        (list(range(100)), "a list"),
    ],
)
def test_short_repr(value: object, text: str):
    assert short_repr(value) == text
