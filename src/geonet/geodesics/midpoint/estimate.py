"""What a potential's mismatch and residual mean for the error of its frames.

The numbers are measured by `make midpoint` over pairs of every kind, and over pairs with exact
paths. Most of the mismatch is detail of the size of a half-cell, which cancels in cell means.
"""

from __future__ import annotations

from geonet.fields.elliptic import Totals

SLOPE = 0.35  # of the error over the mismatch
UNBALANCED = 3.0  # of the error over the residual


def expected_error(residual: float, totals: Totals) -> float:
    """The L1 error to expect between the ends."""
    return min(2.0, SLOPE * totals.mismatch + UNBALANCED * residual)
