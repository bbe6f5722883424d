"""What a mismatch means, from pairs with a known answer."""

import math

import pytest
import torch

from geonet.solvers.midpoint.calibration import calibrated


def test_calibration_by_hand():
    """Ratios 0.2, 0.9 and 0.5; the logarithms are log 0.2 and that ± log 2."""
    largest = torch.tensor([0.02, 0.18, 0.2])
    errors = largest[:, None] * torch.tensor([[0.0, 0.5, 0.1, 1.0, 0.0]])
    found = calibrated(torch.tensor([0.1, 0.2, 0.4]), errors)
    assert found.slope == pytest.approx(0.5)
    assert found.limit == pytest.approx(0.2 * 2 ** (4 * math.sqrt(2 / 3)))


def test_calibration_with_one_pair_or_equal_ends():
    one = calibrated(torch.tensor([0.1]), torch.tensor([[0.0, 0.2, 0.0, 0.0, 0.0]]))
    assert (one.slope, one.limit) == pytest.approx((2.0, 0.1))
    none = calibrated(torch.zeros(2), torch.zeros(2, 5))
    assert none.slope == 0 and math.isfinite(none.limit)
