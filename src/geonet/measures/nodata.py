"""The value that marks cells without data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from geonet.arguments import as_number


def check_nodata(nodata: float | None) -> None:
    """Refuse what is not a number."""
    if nodata is not None:
        as_number(nodata, "nodata", "give the number that marks cells without data")


def without_data(values: np.ndarray | Tensor, nodata: float) -> np.ndarray | Tensor:
    """Where an array of numbers says that there are no data, of the same shape."""
    missing: Any = values != values if math.isnan(nodata) else values == float(nodata)
    return missing
