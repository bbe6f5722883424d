"""Newton's method for the potential halfway."""

import pytest
import torch

from geonet.fields.cosine_series import CosineSeries
from geonet.fields.potential import STEEPEST, steepness, unfolded
from geonet.geodesics.midpoint import correction
from geonet.geodesics.midpoint.correction import cells_per_axis, corrected
from geonet.geodesics.midpoint.ends import ends_of
from geonet.geodesics.midpoint.halfway import both_sides
from geonet.geodesics.midpoint.path import MidpointGeodesic
from geonet.measures.density import Density
from geonet.measures.families import BOX_2D, mixtures_2d
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid

MODES = {1: 16, 2: 10, 3: 6}
DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def padded(coefficients, modes):
    """The same series with room for more modes."""
    d = coefficients.ndim - 1
    larger = torch.zeros(len(coefficients), *(modes,) * d)
    larger[(slice(None), *(slice(n) for n in coefficients.shape[1:]))] = coefficients
    return larger


def tables(source: Density, target: Density):
    shape = (-1, *source.grid.shape)
    return ends_of(source.values.reshape(shape), target.values.reshape(shape), source.grid)


def mismatch(coefficients, ends):
    return both_sides(coefficients, ends, cells_per_axis(coefficients)).mismatch()


def steepest(coefficients, ends):
    return steepness(both_sides(coefficients, ends, cells_per_axis(coefficients)).hessian)


@pytest.fixture
def perturbed(known_pair, potentials):
    """A pair with its potential and one that is off."""

    def make(d):
        known = known_pair(d)
        right = padded(known.coefficients, MODES[d])
        wrong = right + padded(potentials(d, radius=0.3, seed=7), MODES[d])
        return known, right, wrong, tables(known.source, known.target)

    return make


@DIMENSIONS
def test_first_steps_are_newtons(perturbed, d):
    """The first squares the mismatch; the floor of A slows down the later ones."""
    _, right, wrong, ends = perturbed(d)
    first, second, third = (
        float(mismatch(corrected(wrong, ends, steps), ends)) for steps in (0, 1, 2)
    )
    assert first > 0.1
    assert second < first**2
    assert third < second / 10
    rest = float(mismatch(corrected(wrong, ends, 5), ends))
    assert rest < max(1e-4, float(mismatch(right, ends)))


@DIMENSIONS
def test_the_potential_is_found_again(perturbed, d):
    known, right, wrong, ends = perturbed(d)
    found = corrected(wrong, ends, 5)
    path = MidpointGeodesic(known.source, known.target, "by hand", {}, found)
    assert float(path.distance) == pytest.approx(known.distance, rel=1e-3)
    frame, expected = path.density(0.3).values, known.density(0.3, path.grid)
    assert float((frame - expected).abs().mean() / expected.mean()) < 1e-3
    off, before = ((c - right).flatten()[1:].abs().max() for c in (found, wrong))
    assert float(off) < 0.05 * float(before)


def test_no_steps_change_nothing(perturbed):
    _, _, wrong, ends = perturbed(2)
    assert torch.equal(corrected(wrong, ends, 0), wrong)


@DIMENSIONS
def test_equal_ends_stay(known_pair, d):
    known = known_pair(d)
    still = torch.zeros(1, *(MODES[d],) * d)
    assert torch.equal(corrected(still, tables(known.source, known.source), 3), still)


@pytest.fixture
def hard():
    """Pairs of a plane far from any of the potentials: mixtures, narrow bumps, jumps."""
    grid = BOX_2D.with_shape(32)
    family = mixtures_2d(2, torch.Generator().manual_seed(1)).on(grid).values
    bumps = torch.stack(
        [GaussianMixture.isotropic([[c, 2.0]], 0.25).on(grid).values for c in (1.0, 3.8)]
    )
    blocks = torch.zeros(2, 32, 32, dtype=torch.float64)
    blocks[0, 4:12, 4:12] = blocks[1, 14:30, 20:24] = 1.0
    first, second = zip(family, bumps, blocks, strict=True)
    return Density(torch.stack(first), grid), Density(torch.stack(second), grid)


def test_the_mismatch_never_grows_and_the_map_never_folds(hard, potentials):
    ends = tables(*hard)
    for radius in (0.0, 1.0, 6.0):
        found = unfolded(potentials(2, count=3, radius=radius, modes=8))
        before = mismatch(found, ends)
        for _ in range(4):
            found = corrected(found, ends, 1)
            after = mismatch(found, ends)
            assert bool((after <= before).all())
            assert float(steepest(found, ends).max()) <= STEEPEST + 1e-6
            before = after
    assert bool(torch.isfinite(found).all())


def test_a_step_that_folds_is_refused_though_it_would_be_better(perturbed, monkeypatch):
    """The way to the right potential, but with a limit that it would break."""
    _, right, wrong, ends = perturbed(2)
    monkeypatch.setattr(correction, "_newton_direction", lambda *_: right - wrong)
    assert torch.allclose(corrected(wrong, ends, 1), right, atol=1e-6)
    limit = float(steepest(right, ends)) - 1e-3
    gentle = 0.8 * right
    monkeypatch.setattr(correction, "_newton_direction", lambda *_: right - gentle)
    monkeypatch.setattr(correction, "STEEPEST", limit)
    found = corrected(gentle, ends, 1)
    assert torch.allclose(found, (right + gentle) / 2, atol=1e-6)  # half of the step
    assert float(steepest(found, ends)) <= limit


def test_a_step_that_is_worse_is_halved_and_at_last_not_taken(perturbed, monkeypatch):
    _, right, wrong, ends = perturbed(1)
    too_far = 2.4 * (right - wrong)
    monkeypatch.setattr(correction, "_newton_direction", lambda *_: too_far)
    assert torch.allclose(corrected(wrong, ends, 1), wrong + too_far / 2, atol=1e-6)
    monkeypatch.setattr(correction, "_newton_direction", lambda *_: wrong - right)
    assert torch.equal(corrected(wrong, ends, 1), wrong)


def test_what_is_no_number_is_not_taken(perturbed, monkeypatch):
    _, _, wrong, ends = perturbed(2)
    monkeypatch.setattr(correction, "_newton_direction", lambda *_: torch.full_like(wrong, 1e30))
    assert torch.equal(corrected(wrong, ends, 1), wrong)
    folded = 40 * wrong  # nothing can be solved for, and it does not fail
    assert bool(torch.isfinite(corrected(folded, ends, 2)).all())


def test_it_stops_where_nothing_is_gained(perturbed, monkeypatch):
    _, _, wrong, ends = perturbed(1)
    asked, whole = [], correction._newton_direction

    def count(*arguments):
        asked.append(arguments)
        return whole(*arguments)

    monkeypatch.setattr(correction, "_newton_direction", count)
    corrected(wrong, ends, 50)
    assert 3 <= len(asked) < 20


def test_systems_that_are_too_large_are_left(perturbed, monkeypatch):
    _, _, wrong, ends = perturbed(2)
    monkeypatch.setattr(correction, "LARGEST", wrong[0].numel() - 1)
    assert torch.equal(corrected(wrong, ends, 2), wrong)
    monkeypatch.setattr(correction, "LARGEST", wrong[0].numel())
    assert not torch.allclose(corrected(wrong, ends, 1), wrong, atol=1e-4)


@pytest.mark.parametrize("steps", [3, 20])
def test_pairs_of_a_batch_are_damped_and_stop_each_for_itself(hard, potentials, steps):
    coefficients = unfolded(potentials(2, count=3, radius=1.0, modes=8))
    source, target = hard
    together = corrected(coefficients, tables(source, target), steps)
    for k in range(3):
        alone = corrected(coefficients[k : k + 1], tables(source[k], target[k]), steps)
        assert torch.allclose(together[k], alone[0], atol=1e-4)
    assert not torch.allclose(together, coefficients, atol=1e-3)


@DIMENSIONS
def test_the_direction_solves_its_equation(d, potentials, known_pair):
    """∫∇φ·A∇δ = ∫φ(ρ1 − ρ0) for every cosine φ, with A from matrices in double precision."""
    known = known_pair(d)
    wrong = potentials(d, radius=1.8, seed=3)  # so far off that A is no multiple of the identity
    cells, modes = cells_per_axis(wrong), wrong.shape[-1]
    sides = both_sides(wrong, tables(known.source, known.target), cells)
    delta = correction._newton_direction(sides, cells, wrong.shape[1:])
    assert float(delta.flatten()[0]) == 0
    identity = torch.eye(d, dtype=torch.float64)
    hessian = torch.empty(cells**d, d, d, dtype=torch.float64)
    for k, (i, j) in enumerate(torch.triu_indices(d, d).T.tolist()):
        hessian[:, i, j] = hessian[:, j, i] = sides.hessian[k][0].double()
    before, after = (torch.linalg.inv(identity + s * hessian) for s in (-0.5, 0.5))
    masses = sides.source[0, :, None, None] * before + sides.target[0, :, None, None] * after
    matrix = masses / 2 + correction.FLOOR * identity
    assert d == 1 or float(matrix[:, 0, 1].abs().max()) > 0.1
    points = Grid((cells,) * d).points().reshape(-1, d)
    slope = CosineSeries(delta[0].double(), Grid((2,) * d)).at(points)[1]
    flux = torch.einsum("nij,nj->ni", matrix, slope)
    right = sides.target[0] - sides.source[0]
    for place in torch.cartesian_prod(*[torch.arange(modes)] * d).reshape(-1, d)[1:].tolist():
        phi = torch.zeros(*wrong.shape[1:], dtype=torch.float64)
        phi[tuple(place)] = 1
        value, gradient, _ = CosineSeries(phi, Grid((2,) * d)).at(points)
        left = float((gradient * flux).sum(-1).mean())
        assert left == pytest.approx(float((value * right).mean()), abs=1e-4)
