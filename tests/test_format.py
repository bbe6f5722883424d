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
        (1.24e-6, "0.00012 %"),
        (4e-13, "0.0001 %"),
        (0.0, "0 %"),
        (math.nan, "nan %"),
    ],
)
def test_format_percent(share: float, text: str):
    assert format_percent(share) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0.00012, "0.12 ms"),
        (0.0996, "0.1 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (200.0, "3 min 20 s"),
        (3599.8, "1 h"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_format_seconds(duration: float, text: str):
    assert format_seconds(duration) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "0"),
        (21.2249, "21.22"),
        (0.00012345, "0.0001234"),
        (0.000012345, "1.234e-5"),
        (999999.0, "1e6"),
        (math.nan, "nan"),
    ],
)
def test_format_number(value: float, text: str):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones((4, 4)), "an array of shape (4, 4)"),
        (list(range(100)), "a list"),
    ],
)
def test_short_repr(value: object, text: str):
    assert short_repr(value) == text
