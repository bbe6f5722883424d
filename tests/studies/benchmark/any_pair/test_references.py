"""References: the same pair on a finer grid, and by how much two grids differ."""

import numpy as np
import pytest

from geonet.evaluation.any_pairs import draw
from geonet.studies.benchmark.any_pair.references import (
    COARSE,
    Known,
    ReferenceJob,
    compared,
    solved_references,
)
from geonet.studies.benchmark.any_pair.result import Reference


def test_references_are_blocks_of_the_finer_grid(tiny, stub):
    found = solved_references(ReferenceJob(tiny, 64))
    assert list(found) == tiny.each()
    known = found["smooth", 1]
    assert known.frames.shape == (3, 16, 16) and known.reference.distance == pytest.approx(0.1)
    source, target = (end.resample(COARSE).numpy() for end in draw("smooth", 64, 1))
    assert np.allclose(known.frames[0], 0.75 * source + 0.25 * target)
    assert known.density().leading == (3,)


def test_without_the_solver_every_pair_has_the_reason(tiny):
    found = solved_references(ReferenceJob(tiny, 64))
    assert list(found) == tiny.each()
    assert all("There is no solver 'stub'" in reason for reason in found.values())


def test_the_coarser_reference_is_compared():
    def known(cells, distance, height):
        frames = np.ones((3, 16, 16))
        frames[1, :8], frames[1, 8:] = 1 - height, 1 + height
        return Known(Reference(cells, "smooth", 0, distance, 1.0), frames)

    pair, other = ("smooth", 0), ("smooth", 1)
    coarse = {pair: known(64, 0.101, 0.02), other: "No."}
    fine = {pair: known(128, 0.1, 0.0), other: known(128, 0.1, 0.0)}
    found = compared(fine, coarse)
    assert found[pair].reference.w2_percent == pytest.approx(1.0)
    assert found[pair].reference.l1_percent == pytest.approx(2.0)
    assert found[other] == fine[other] and compared(coarse, {}) == coarse
