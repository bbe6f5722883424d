"""Frames between the ends: mass, sign, sharpness, gradients."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from geonet.solvers.newton import compiled
from geonet.solvers.newton.path import carried, plainly_carried

TIMES = torch.tensor([0.02, 0.3, 0.5, 0.77, 1.0]).double()


@pytest.fixture(params=["1", "0"], ids=["compiled", "plain"])
def either_way(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    if request.param == "1" and not compiled.available():
        pytest.skip("the loops were not compiled here")


def noise(*shape, seed=7):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sides_of(shape):
    return [1.0 - 0.25 * axis for axis in range(len(shape))]


def ends(shape):
    both = noise(2, *shape) ** 4
    return tuple(end / end.mean() / math.prod(sides_of(shape)) for end in both)


def potential(shape, bend):
    least = min(side / n for side, n in zip(sides_of(shape), shape, strict=True))
    return 0.25 * bend * least**2 * (noise(*shape, seed=9) - 0.5)


@pytest.mark.parametrize("bend", [0.0, 0.5, 8.0])
@pytest.mark.parametrize(
    ("shape", "out"),
    [((9,), (9,)), ((9,), (4,)), ((6, 7), (13, 20)), ((6, 7), (1, 2)), ((4, 3, 5), (3, 7, 2))],
    ids=str,
)
def test_mass_is_one_and_nothing_is_negative(either_way, shape, out, bend):
    """Also where maps fold."""
    sides = sides_of(shape)
    frames = carried(potential(shape, bend), ends(shape), sides, TIMES, out, 1)
    assert frames.shape == (5, *out) and frames.dtype == torch.float64
    assert float(frames.min()) >= 0
    masses = frames.flatten(1).sum(1) * math.prod(sides) / math.prod(out)
    assert torch.allclose(masses, torch.ones(5).double(), atol=1e-12)


def test_what_stays_is_itself(either_way):
    """Equal ends and no potential, on the same cells and on finer ones."""
    end = ends((6, 5))[0]
    still = torch.zeros(6, 5).double()
    for k in (1, 3):
        fine = end.repeat_interleave(k, 0).repeat_interleave(k, 1)
        frames = carried(still, (end, end), sides_of((6, 5)), TIMES, fine.shape, 1)
        assert torch.allclose(frames, fine.expand(5, *fine.shape), rtol=1e-5)


def test_what_moves_by_whole_cells_is_as_sharp(either_way):
    """A linear potential where the mass is: frames are shifts, at the quarters by whole cells."""
    n, k = 32, 8
    block = noise(6, 5) + 0.1
    grids = torch.zeros(5, n, n).double()
    for quarter in range(5):
        grids[quarter, 4 + 2 * quarter : 10 + 2 * quarter, 12:17] = block
    grids = grids / grids[0].mean()
    slope = torch.zeros(n).double()
    slope[5:18] = k / n
    c = (slope.cumsum(0) / n)[:, None].expand(n, n)
    frames = carried(c, (grids[0], grids[-1]), (1.0, 1.0), torch.arange(5) / 4, (n, n), 1)
    # Single precision rounds a place of up to 32 cells by 2e-6 of a cell.
    assert float((frames - grids).abs().max()) < 1e-5 * float(grids.max())


def test_a_frame_does_not_depend_on_the_others(either_way):
    known = potential((8, 6), 0.5), ends((8, 6)), sides_of((8, 6))
    together = carried(*known, TIMES, (8, 6), 1)
    for k in range(5):
        assert torch.equal(carried(*known, TIMES[k : k + 1], (8, 6), 1)[0], together[k])


def test_autograd_follows_the_potential_and_both_ends():
    """Where nothing folds; away from the times at which a box ends on a face."""
    first, second = (end.requires_grad_() for end in ends((4, 3)))
    c = potential((4, 3), 0.5).requires_grad_()

    def frames(c, first, second):
        return carried(c, (first, second), (1.0, 0.75), TIMES[1:4], (5, 4), 1)

    assert gradcheck(frames, (c, first, second), eps=1e-7, atol=1e-4)


def test_the_compiled_frames_are_used_unless_gradients_are_wanted(monkeypatch):
    if not compiled.available():
        pytest.skip("the loops were not compiled here")
    calls, loop = [], compiled.carried
    monkeypatch.setattr(compiled, "carried", lambda *a: (calls.append(1), loop(*a))[1])
    first, second = ends((8, 6))
    first.requires_grad_()
    known = potential((8, 6), 0.5), (first, second), sides_of((8, 6)), TIMES, (8, 6), 1
    followed = carried(*known)
    assert not calls and followed.requires_grad
    with torch.no_grad():
        plain = carried(*known)
    assert calls == [1]
    assert torch.allclose(plain, followed.detach(), atol=1e-4 * float(plain.max()))


def test_one_end_alone_counts_where_the_other_folds():
    """Without it, a fold at one end would leave a hole in every frame."""
    shape, sides = (20,), (1.0,)
    c = torch.zeros(20).double()
    c[10:] = 4 * 0.05**2  # D²u = ±4: one map folds where the other stretches
    frames = plainly_carried(c, (torch.ones(20).double(),) * 2, sides, TIMES, shape)
    assert bool(torch.isfinite(frames).all()) and float(frames.min()) >= 0
