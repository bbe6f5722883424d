"""Numbers, fields and blurs have the laws that their docstrings say."""

import pytest
import torch

from geonet.training.random_fields import (
    SHARP,
    blurred,
    chance,
    log_uniform,
    normalised,
    smooth_fields,
    uniform,
)


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def neighbours(fields):
    """The correlation of cells beside each other, (count,)."""
    return (fields[:, 1:] * fields[:, :-1]).mean((1, 2))


def test_uniform_and_log_uniform_numbers_fill_their_range():
    """A fifth of 10,000 lies below each fifth of the range, within five deviations of 0.004."""
    n, levels = 10_000, torch.arange(1, 5) / 5
    numbers = uniform(seeded(), -1, 3, n)
    assert float(numbers.min()) >= -1 and float(numbers.max()) < 3
    below = ((numbers[:, None] + 1) / 4 < levels).float().mean(0)
    assert float((below - levels).abs().max()) < 0.02
    logs = log_uniform(seeded(), 0.1, 10, n).log10()
    below = ((logs[:, None] + 1) / 2 < levels).float().mean(0)
    assert float((below - levels).abs().max()) < 0.02


def test_chance_takes_a_share_for_each():
    """Within five deviations, √(p(1 − p)/10,000) ≤ 0.005."""
    share = torch.tensor([[0.0], [0.3], [1.0]])
    found = chance(seeded(), share, 3, 10_000).float().mean(1)
    assert float(found[0]) == 0 and float(found[2]) == 1
    assert float(found[1]) == pytest.approx(0.3, abs=0.025)


@pytest.mark.parametrize("cells", [24, 64])
def test_fields_have_mean_zero_and_deviation_one(cells):
    fields = smooth_fields(seeded(), 20, cells)
    assert fields.shape == (20, cells, cells) and fields.dtype == torch.float32
    assert float(fields.mean((1, 2)).abs().max()) < 1e-4  # rounding: the constant has no amplitude
    assert torch.allclose(fields.std((1, 2), correction=0), torch.ones(20), atol=1e-4)


def test_fields_range_from_noise_to_slopes():
    """Without decay cells are independent: the correlation is within five times 1/64 of zero."""
    rough = neighbours(smooth_fields(seeded(), 20, 64, decay=(0, 0)))
    assert float(rough.abs().max()) < 5 / 64
    smooth = neighbours(smooth_fields(seeded(), 20, 64, (0.3, 0.6), (4, 6)))
    assert float(smooth.min()) > 0.95  # a cell is a twentieth of the length


def test_no_fields():
    """As when no density of a batch has empty regions; warnings are errors here."""
    assert smooth_fields(seeded(), 0, 8).shape == (0, 8, 8)


def test_a_blur_keeps_the_mean_and_leaves_some_as_they_are():
    values = uniform(seeded(), 0, 1, 200, 16, 16)
    after = blurred(seeded(), values, 2.0)
    same = (after == values).flatten(1).all(1)
    # five deviations of √(0.4·0.6/200)
    assert float(same.float().mean()) == pytest.approx(SHARP, abs=0.17)
    assert torch.allclose(after.mean((1, 2)), values.mean((1, 2)), rtol=1e-5)  # rounding
    assert bool((after[~same].std((1, 2)) < values[~same].std((1, 2))).all())


def test_a_blur_is_a_gaussian_of_its_width():
    """A point in the middle gets the variance of the blur; the walls are far away."""
    values = torch.zeros(100, 33, 33)
    values[:, 16, 16] = 1
    after = blurred(seeded(), values, 2.0)
    variance = (after.sum(2) * (torch.arange(33) - 16) ** 2).sum(1)
    width = 2 * uniform(seeded(), 0, 1, 100)  # drawn first
    # The waves of narrower ones, which cells cannot show, are clipped at zero.
    wide = (after[:, 16, 16] < 1) & (width > 1.3)
    assert int(wide.sum()) > 10
    assert torch.allclose(variance[wide], width[wide] ** 2, rtol=1e-2)


def test_normalised_values_have_mean_one_even_of_nothing():
    values = torch.stack([torch.rand(8, 8, generator=seeded()), torch.zeros(8, 8)])
    after = normalised(values)
    assert torch.equal(after[1], torch.ones(8, 8))
    assert torch.allclose(after[0], values[0] / values[0].mean())
