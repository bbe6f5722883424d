"""Which densities are like those of a family, from samples of it alone."""

from functools import partial

import pytest
import torch

from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural.geonet import DIRECTIONS, RARE, GeONet, GeONetSettings, Usual
from geonet.training.problems import FAMILIES, Mixtures, sensor_points

SENSORS = 100
FAMILY = FAMILIES["mixtures-1d"]()


def drawn(count, seed, problem=FAMILY):
    """Densities at the sensors, (count, m)."""
    generator = torch.Generator().manual_seed(seed)
    return problem.draw(count, generator)[0](sensor_points(SENSORS, 1))


def lumps(spread):
    """The same family with lumps of other widths."""
    return Mixtures(partial(mixtures_1d, spread=spread), BOX_1D)


@pytest.fixture(scope="module")
def usual():
    """As a training of the family makes it."""
    made = Usual(SENSORS)
    made.learn(drawn(4096, 0))
    return made


def test_nothing_is_known_before_it_learns(usual):
    new = Usual(SENSORS)
    assert not new.known
    assert usual.known


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_new_densities_of_the_family_are_usual(usual, seed):
    """All but RARE; four times as many, 8 of 2000, may be so by chance."""
    unusual = ~usual(drawn(2000, seed))
    assert unusual.shape == (2000,)
    assert unusual.float().mean() <= 4 * RARE


def test_the_rarest_densities_of_the_family_are_unusual(usual):
    """The limit is no higher than needed: half of it is too low for one in a hundred."""
    distances = usual.distance(drawn(2000, 4))
    assert (distances > usual.limit / 2).float().mean() > 0.01


def test_narrower_lumps_are_unusual(usual):
    """The paper's test out of distribution."""
    assert not usual(drawn(400, 5, lumps((0.3, 0.4)))).any()


def test_wider_lumps_are_often_unusual(usual):
    """Not always: six narrow lumps may make a wide one."""
    assert usual(drawn(400, 5, lumps((0.8, 0.9)))).float().mean() < 0.5


@pytest.mark.parametrize("cells", [-25, 25])
def test_shifted_densities_are_unusual(usual, cells):
    """By a quarter of the box, across its face; but one cell is little."""
    densities = drawn(400, 6)
    assert usual(densities.roll(cells, 1)).float().mean() < 0.1
    assert usual(densities.roll(cells // 25, 1)).float().mean() > 0.9


def test_densities_of_other_kinds_are_unusual(usual, generator):
    x = sensor_points(SENSORS, 1)[:, 0]
    kinds = {
        "uniform": torch.ones(SENSORS),
        "noise": 2 * torch.rand(SENSORS, generator=generator),
        "steps": 2.0 * (x > 0.5),
        "wave": 1 + torch.cos(20 * torch.pi * x),
        "one cell": SENSORS * (torch.arange(SENSORS) == 50).float(),
    }
    for name, density in kinds.items():
        assert not usual(density[None]).any(), name


def test_a_little_noise_is_unusual_where_the_family_is_smooth(usual, generator):
    densities = drawn(100, 7)
    noise = torch.randn(densities.shape, generator=generator)
    assert usual(densities).all()
    assert not usual(densities + 0.05 * noise).any()


def test_each_density_is_judged_alone(usual):
    several = torch.cat([drawn(3, 8), drawn(3, 8, lumps((0.3, 0.4)))])
    assert usual(several).tolist() == [True] * 3 + [False] * 3
    alone = torch.cat([usual.distance(density[None]) for density in several])
    assert torch.allclose(usual.distance(several), alone)


def test_the_distance_by_hand():
    """Two directions with variances 4 and 1, of three: the rest counts by the faint one."""
    signs = torch.cartesian_prod(torch.tensor([-2.0, 2.0]), torch.tensor([-1.0, 1.0]))
    densities = 5 + torch.cat([signs, torch.zeros(4, 1)], dim=1)
    made = Usual(3)
    made.learn(densities.repeat(2, 1))
    asked = 5 + torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [2.0, 3.0, 0.0]])
    assert made.distance(asked).tolist() == pytest.approx([0, 1 / 3, 3, 10 / 3], abs=1e-5)
    aside = made.distance(torch.tensor([[5.0, 5.0, 5.1]]))
    assert aside.item() == pytest.approx(0.01 / 4e-5 / 3, rel=1e-4)  # 1e-5 of the largest, 4


def test_what_no_density_of_the_family_has_counts_as_faint():
    """One wave of random heights: another wave is off by its squares over that variance."""
    x = sensor_points(SENSORS, 1)[:, 0]
    heights = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    made = Usual(SENSORS)
    made.learn(1 + heights * torch.cos(torch.pi * x))
    variance = 50 * heights[:10].var(unbiased=False)  # Σ cos² = 50
    other = made.distance(made.mean + 0.1 * torch.cos(90 * torch.pi * x)[None])
    assert other.item() == pytest.approx((0.01 * 50 / (1e-5 * variance) / SENSORS).item(), rel=1e-3)


def test_fewer_densities_than_sensors():
    """What they do not vary in is faint, and densities of their own kind are usual still."""
    made = Usual(SENSORS)
    made.learn(drawn(60, 0))  # 30 for the directions
    assert made.known
    assert usable(made)
    assert made(drawn(1000, 1)).float().mean() > 0.9
    assert not made(torch.ones(1, SENSORS)).any()


def test_two_densities_are_enough():
    made = Usual(SENSORS)
    made.learn(drawn(2, 0))
    assert usable(made)


@pytest.mark.parametrize("sensors", [4, DIRECTIONS, DIRECTIONS + 1])
def test_any_number_of_sensors(sensors, generator):
    made = Usual(sensors)
    made.learn(torch.rand(4000, sensors, generator=generator))
    assert made.known
    assert made(torch.rand(2000, sensors, generator=generator)).float().mean() >= 1 - 4 * RARE
    assert not made(torch.full((1, sensors), 9.0)).any()


@pytest.mark.parametrize("height", [0.0, 1.0, 1.3])
def test_a_family_without_variety(height):
    """One density is all it has: no NaN, and nothing is known from it."""
    made = Usual(SENSORS)
    same = torch.full((40, SENSORS), height)
    made.learn(same)
    assert usable(made)
    assert not made.distance(same).any()
    assert made.distance(same + 0.1).min() > 1e6
    assert not made.known


def usable(made):
    """Whether all that it keeps and says is finite."""
    asked = torch.cat([drawn(3, 9), torch.ones(1, SENSORS), torch.zeros(1, SENSORS)])
    kept = [*made.buffers(), made.distance(asked)]
    return all(bool(torch.isfinite(value).all()) for value in kept)


def test_double_precision_does_not_change_the_answer(usual):
    """As in models for gradients."""
    both = torch.cat([drawn(50, 1), drawn(50, 2, lumps((0.4, 0.5)))])
    doubled = Usual(SENSORS)
    doubled.load_state_dict(usual.state_dict())
    doubled.double()
    assert torch.equal(doubled(both.double()), usual(both))
    assert torch.allclose(doubled.distance(both.double()), usual.distance(both), rtol=1e-4)


def test_a_geonet_learns_it_before_its_training():
    settings = GeONetSettings(sensors=SENSORS, rank=4)
    model = GeONet(settings)
    assert not model.usual.known
    assert not list(model.usual.parameters())
    model.prepare(drawn(model.typical, 0))
    assert model.usual.known
    assert {f"usual.{name}" for name in ("mean", "directions", "faint", "limit")} <= set(
        model.state_dict()
    )
