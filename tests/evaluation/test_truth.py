"""What errors are measured against: the exact path of any pair, as far as there is one."""

import pytest
import torch

from geonet import evaluation as module
from geonet._progress import progress_callback, report_progress
from geonet.density import Density
from geonet.errors import ConvergenceError
from geonet.evaluation import FINER, exact_path, smooth_path, truth_of
from geonet.metrics import l1
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.paths import QUARTERS
from geonet.solvers.registry import make_solver


def test_formulas_in_1d_are_solved_on_finer_cells():
    """Their middle ones are the cell's centre, so the first frame is the formula there."""
    ends = [mixtures_1d(2, torch.Generator().manual_seed(k)).on(BOX_1D) for k in (1, 2)]
    found = truth_of(*ends)
    assert FINER % 2 == 1 and found.solvers == {"quantile": 2}
    assert found.frames.tensor.shape == (2, len(QUARTERS), *BOX_1D.shape)
    first = Density.as_computed(found.frames.tensor[:, 0], BOX_1D)
    assert float(l1(first, ends[0]).max()) < 2e-3
    cells_alone = [Density(end.tensor, end.grid) for end in ends]
    assert torch.allclose(found.distance, truth_of(*cells_alone).distance, rtol=2e-3)


def test_noise_asks_for_the_bridge():
    ends = [mixtures_1d(1, torch.Generator().manual_seed(k))[0].on(BOX_1D) for k in (1, 2)]
    bridge = make_solver("schrodinger", epsilon=0.5)(*ends).density(QUARTERS)
    assert torch.allclose(exact_path(*ends, 0.5).tensor, bridge.tensor)
    assert torch.equal(exact_path(*ends, 0.0).tensor, truth_of(*ends).frames.tensor)


def test_the_path_of_mixtures_in_2d_is_that_of_monge_ampere():
    mixture, grid = mixtures_2d(2, torch.Generator().manual_seed(0)), BOX_2D.with_shape(20)
    path = smooth_path(mixture[0], mixture[1], grid)
    assert path is not None and path.solver == "monge-ampere" and path.grid == grid


def test_no_smooth_path_is_no_error(monkeypatch):
    def fails(name):
        def solve(source, target):
            raise ConvergenceError("not today", 1.0)

        return solve

    monkeypatch.setattr(module, "make_solver", fails)
    mixture = mixtures_2d(2, torch.Generator().manual_seed(0))
    assert smooth_path(mixture[0], mixture[1], BOX_2D) is None


@pytest.mark.parametrize("d", [1, 2])
def test_a_pair_and_a_batch_have_the_same_truth(d):
    family, grid = (mixtures_1d, BOX_1D) if d == 1 else (mixtures_2d, BOX_2D.with_shape(16))
    source, target = (family(2, torch.Generator().manual_seed(k)).on(grid) for k in (1, 2))
    batch, pair = truth_of(source, target), truth_of(source[1], target[1])
    assert torch.allclose(batch.frames.tensor[1], pair.frames.tensor, atol=1e-6)
    assert sum(batch.solvers.values()) == 2 and sum(pair.solvers.values()) == 1


def test_a_batch_tells_its_pair_and_what_the_solver_tells():
    source, target = (mixtures_1d(2, torch.Generator().manual_seed(k)).on(BOX_1D) for k in (1, 2))

    def of_pair(*pair):
        report_progress("residual 3 %")
        return module.truth_of_pair(*pair)

    heard = []
    with progress_callback(heard.append):
        found = truth_of(source, target, of_pair=of_pair)
        report_progress("done")
    expected = [f"exact path {k}/2{told}" for k in (1, 2) for told in ("", ", residual 3 %")]
    assert heard == [*expected, "done"]  # quantiles are found at once and tell nothing
    assert torch.equal(found.frames.tensor, truth_of(source, target, of_pair=of_pair).frames.tensor)
