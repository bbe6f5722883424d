"""What a mismatch at t = ½ means for the error of a path."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

CURVATURE = 0.35  # of the error over the mismatch, by experience
UNUSUAL = 4.0  # standard deviations


class Calibration(NamedTuple):
    """What a solver's mismatch means, as measured on pairs with a known answer.

    Attributes:
        slope: the largest L1 error along the path over the mismatch, where both are small.
        limit: the mismatch up to which a pair is like those the solver was made for.
    """

    slope: float
    limit: float

    def error(self, mismatch: Tensor) -> Tensor:
        """The L1 error to expect.

        Of small errors of both sides most cancels in their mean; of large ones nothing does.
        """
        return (self.slope * mismatch + CURVATURE * mismatch**2).clamp(max=2.0)


def calibrated(mismatch: Tensor, errors: Tensor) -> Calibration:
    """From mismatches (n,) and L1 errors (n, times) of pairs like those of the training.

    The slope is the median of the largest error along the path over the mismatch. The limit is four
    standard deviations above the mean of the mismatch's logarithm.
    """
    mismatch = mismatch.clamp(min=1e-12)  # equal ends have none
    logs = mismatch.log()
    slope = (errors.amax(1) / mismatch).median()
    limit = (logs.mean() + UNUSUAL * logs.std(correction=0)).exp()
    return Calibration(float(slope), float(limit))
