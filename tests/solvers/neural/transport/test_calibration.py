"""What a mismatch means for the error."""

import math

import pytest
import torch

from geonet.solvers.neural.transport.certificate import UNUSUAL, Calibration, calibrated


def test_the_expected_error_is_the_slope_at_first_and_at_most_two():
    mismatch = torch.tensor([0.0, 1e-4, 0.1, 2.0], dtype=torch.float64)
    error = Calibration(0.2, 0.01).error(mismatch)
    assert float(error[0]) == 0
    assert float(error[1]) == pytest.approx(0.2e-4, rel=0.01)
    assert bool((error.diff() > 0).all()) and float(error[2]) > 0.2 * 0.1
    assert float(Calibration(5.0, 0.01).error(mismatch)[-1]) == 2


def test_slope_and_limit_from_pairs_with_a_known_answer():
    mismatch = torch.tensor([0.01, 0.02, 0.04], dtype=torch.float64)
    errors = torch.tensor([[0.0, 0.001, 0.0], [0.0, 0.003, 0.006], [0.04, 0.0, 0.0]])
    found = calibrated(mismatch, errors)
    assert found.slope == pytest.approx(0.3)  # of 0.1, 0.3 and 1 the middle one
    spread = math.log(2) * math.sqrt(2 / 3)
    assert found.limit == pytest.approx(0.02 * math.exp(UNUSUAL * spread))


def test_equal_ends_do_no_harm():
    found = calibrated(torch.zeros(3, dtype=torch.float64), torch.zeros(3, 5))
    assert found.slope == 0
    assert math.isfinite(found.limit) and found.limit > 0
