"""What a potential's mismatch and residual mean for the error of its frames."""

from __future__ import annotations

from geonet.fields.elliptic import Totals

SLOPE = 0.5  # of the error over the mismatch at half-cells
UNBALANCED = 3.0  # of the error over the residual


def expected_error(residual: float, totals: Totals) -> float:
    """The L1 error to expect between the ends."""
    return min(2.0, SLOPE * totals.mismatch + UNBALANCED * residual)
