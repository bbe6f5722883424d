"""How values are shown in messages; what each function says of them is in trust/."""

import numpy as np
import pytest

from geonet._validation import LONGEST, short_repr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("a.png", "'a.png'"),
        (np.ones((4, 4)), "an array of shape (4, 4)"),
        (10**400, f"1{(LONGEST - 1) * '0'}…"),
        (list(range(100)), "a list"),
        (np.float64, "<class 'numpy.float64'>"),
    ],
)
def test_values_are_shown_in_short(value, text):
    assert short_repr(value) == text
