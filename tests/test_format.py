"""Numbers in sentences."""

from __future__ import annotations

import math

import pytest

from geonet._format import format_number, format_percent, format_seconds


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
def test_percentages_have_two_digits_and_no_exponent(share: float, text: str):
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
def test_durations_are_in_the_units_of_a_clock(duration: float, text: str):
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
def test_numbers_have_four_digits_and_no_exponent_between_a_ten_thousandth_and_a_million(
    value: float, text: str
):
    assert format_number(value) == text
