"""Every kind of density can be used as it is drawn, and looks like what it is called."""

import pytest
import torch

from geonet import Grid
from geonet.training import drawn_densities as drawn
from geonet.training.random_fields import LEAST, normalised
from geonet.training.synthetic import SQUARE

COUNT = 150


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def samples():
    """Many densities of every kind by name, as they are drawn."""
    return {name: kind(seeded(), COUNT, 64) for name, (kind, _) in SQUARE.kinds.items()}


@pytest.mark.parametrize("name", SQUARE.kinds)
def test_values_are_finite_and_not_negative(samples, name):
    values = samples[name]
    assert values.shape == (COUNT, 64, 64) and values.dtype == torch.float32
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0


@pytest.mark.parametrize("name", SQUARE.kinds)
def test_next_to_all_have_mass(samples, name):
    """The rest is outside the square, and is made uniform."""
    empty = samples[name].mean((1, 2)) < LEAST
    assert float(empty.float().mean()) < 0.02
    means = normalised(samples[name]).double().mean((1, 2))
    assert float((means - 1).abs().max()) < 1e-6  # some roundings of single precision


@pytest.mark.parametrize("name", SQUARE.kinds)
def test_all_are_different(samples, name):
    flat = normalised(samples[name]).flatten(1)
    assert float(torch.cdist(flat, flat).fill_diagonal_(torch.inf).min()) > 1e-2


@pytest.mark.parametrize("name", SQUARE.kinds)
@pytest.mark.parametrize("cells", [10, 96])
def test_any_number_of_cells(name, cells):
    values = SQUARE.kinds[name][0](seeded(), 3, cells)
    assert values.shape == (3, cells, cells)
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0


@pytest.mark.parametrize("name", SQUARE.kinds)
def test_the_seed_decides(name):
    kind, _ = SQUARE.kinds[name]
    first, again, other = (kind(seeded(seed), 4, 32) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["shapes", "strokes"])
def test_shapes_and_strokes_have_edges_and_empty_space(samples, name):
    """All but a few leave most cells below a thousandth of the brightest."""
    values = samples[name] / samples[name].amax((1, 2), keepdim=True)
    dark = (values < 1e-3).float().mean((1, 2))
    assert float((dark > 0.5).float().mean()) > 0.9
    rise = values.diff(dim=1).abs().amax((1, 2))  # in one cell; a blur of two cells makes it 0.2
    assert float(rise.min()) > 0.1


def test_cells_of_noise_are_independent(samples):
    values = samples["noise"]
    centred = (values - values.mean((1, 2), keepdim=True)) / values.std((1, 2), keepdim=True)
    beside = (centred[:, 1:] * centred[:, :-1]).mean((1, 2))
    assert float(beside.abs().max()) < 5 / 64  # five deviations of the mean of 64² products


def test_spots_are_small(samples):
    """Half of the mass lies in a fifth of the cells or less."""
    sorted_cells = normalised(samples["spots"]).flatten(1).sort(descending=True).values
    fifth = sorted_cells[:, : 4096 // 5].sum(1) / 4096
    assert float(fifth.min()) > 0.5


def test_bumps_are_gaussian_or_have_heavy_tails(monkeypatch):
    """The logarithm of one bump is a polynomial of degree 2 for half of them, and no other."""
    monkeypatch.setattr(drawn, "BUMPS", 1)
    x, y = Grid((64, 64)).points().reshape(-1, 2).unbind(1)
    terms = torch.stack([torch.ones_like(x), x, y, x * x, x * y, y * y], 1)
    off = []
    for values in drawn.mixtures(seeded(), 100, 64).flatten(1).double():
        seen = values > 1e-4
        if int(seen.sum()) > 100:  # else six terms fit anything
            logs = values[seen].log()[:, None]
            fit = torch.linalg.lstsq(terms[seen], logs).solution
            off.append(float((terms[seen] @ fit - logs).abs().max()))
    assert len(off) > 60
    gaussian = sum(value < 1e-3 for value in off) / len(off)  # single precision
    assert gaussian == pytest.approx(0.5, abs=5 * (0.25 / len(off)) ** 0.5)
    assert sum(value > 1e-2 for value in off) / len(off) > 0.9 * (1 - gaussian)
