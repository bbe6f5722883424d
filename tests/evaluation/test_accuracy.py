"""Errors of a solver over many pairs."""

from __future__ import annotations

import pytest
import torch

from geonet._progress import progress_callback
from geonet.evaluation import measure, truth_of
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.registry import make_solver


class Enough(BaseException):
    """What a listener may raise to stop the work."""


def test_it_tells_the_pair_that_it_is_at_and_can_be_stopped_there():
    source, target = (mixtures_1d(3, torch.Generator().manual_seed(k)).on(BOX_1D) for k in (1, 2))
    truth = truth_of(source, target)
    heard = []

    def hear(line: str) -> None:
        heard.append(line)
        if line == "linear 2/3":
            raise Enough

    with pytest.raises(Enough), progress_callback(hear):
        measure(make_solver("linear"), source, target, truth.frames, truth.distance)
    assert heard == ["linear 1/3", "linear 2/3"]
