"""References: the same pair, with every cell cut into smaller ones."""

import numpy as np
import pytest

from benchmarks.any_pair.suite import COARSE, ReferenceJob, solve_references
from benchmarks.pairs import draw


def test_references_are_blocks_of_the_finer_grid(tiny, stub):
    found = solve_references(ReferenceJob(tiny, 16))
    assert list(found) == tiny.each()
    known = found["smooth", 1]
    assert (known.reference.cells, known.reference.finer) == (16, 64)
    assert known.frames.shape == (3, 16, 16) and known.reference.distance == pytest.approx(0.1)
    source, target = (end.resample(COARSE).numpy() for end in draw("smooth", 16, 1))
    assert np.allclose(known.frames[0], 0.75 * source + 0.25 * target)
    assert known.density().batch_shape == (3,)


def test_without_the_solver_every_pair_has_the_reason(tiny):
    found = solve_references(ReferenceJob(tiny, 16))
    assert list(found) == tiny.each()
    assert all("There is no solver 'stub'" in reason for reason in found.values())
