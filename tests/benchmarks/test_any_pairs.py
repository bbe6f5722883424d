"""The pairs of the suite `any`: one pair on grids of all sizes, and what each kind promises."""

import pytest
import torch

from benchmarks.pairs import KINDS, NOISE_CELLS, draw
from geonet import Density, Grid
from geonet.errors import InputError
from geonet.metrics import l1


def test_there_are_eleven_kinds():
    assert len(KINDS) == 11


@pytest.mark.parametrize("kind", KINDS)
def test_grids_of_all_sizes_show_the_same_pair(kind):
    fine = draw(kind, 256)
    for cells in (64, 48):  # one that divides the fine grid and one that does not
        for end, finer in zip(draw(kind, cells), fine, strict=True):
            assert isinstance(end, Density) and end.grid == Grid((cells, cells))
            assert end.tensor.dtype == torch.float64 and bool((end.tensor >= 0).all())
            blocks = Grid((16, 16))
            assert float(l1(end.resample(blocks), finer.resample(blocks))) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_differ_and_come_again(kind):
    source, target = draw(kind, 32)
    assert float(l1(source, target)) > 0.05
    for end, again in zip((source, target), draw(kind, 32), strict=True):
        assert torch.equal(end.tensor, again.tensor)
    for other in (draw(kind, 32, 1), draw(kind, 32, 0, seed=5)):
        assert float(l1(source, other[0])) > 0.05


def test_roughness_rises_from_smooth_to_noise():
    """How much of a density lies within blocks of 4 × 4 cells."""
    found = []
    for kind in ("smooth", "moderate", "rough", "white-noise"):
        source = draw(kind, 64)[0]
        blocks = source.resample(Grid((16, 16))).resample(source.grid)
        found.append(float(l1(blocks, source)))
    assert found == sorted(found) and found[0] < 0.05 and found[-1] > 0.3


def test_shapes_spots_and_digits_lie_on_zero():
    for kind in ("shapes", "spots", "digits"):
        for end in draw(kind, 64):
            assert float((end.tensor == 0).double().mean()) > 0.5
    shape = draw("shapes", 256)[0].tensor
    inside = shape[(shape > 0)]
    assert float((inside > 0.999 * shape.max()).double().mean()) > 0.8  # but for its edge


def test_noise_is_constant_in_its_cells():
    source = draw("white-noise", 2 * NOISE_CELLS)[0].tensor
    blocks = source.reshape(NOISE_CELLS, 2, NOISE_CELLS, 2)
    assert torch.allclose(blocks, blocks[:, :1, :, :1].expand_as(blocks), rtol=1e-9)


def test_high_contrast_and_log_normal_are_positive():
    for kind, least in (("high-contrast", 1e3), ("log-normal", 50)):
        values = draw(kind, 64)[0].tensor
        assert float(values.min()) > 0 and float(values.max() / values.min()) > least


def test_what_is_not_there_is_refused():
    with pytest.raises(InputError, match="no kind 'cats'; choose from smooth, moderate"):
        draw("cats", 32)
    with pytest.raises(InputError, match="pair_index is -1; count from 0"):
        draw("smooth", 32, -1)
