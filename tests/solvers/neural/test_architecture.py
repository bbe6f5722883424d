import pytest

from geonet.errors import ConfigError
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import LARGEST
from geonet.solvers.neural.transport.network import TransportSettings

EVEN = "give an even number of modes, at most 2^20 in all."


def test_defaults_are_allowed():
    assert TransportSettings().kind == "transport"
    assert GeONetSettings().kind == "geonet"
    assert DeepONetSettings().kind == "deeponet"


@pytest.mark.parametrize(
    "settings",
    [
        {"sensors": 32, "seen": 32},
        {"dimension": 3, "sensors": 2, "seen": 2, "modes": 100},
        {"dimension": 2, "sensors": 2048, "seen": 1024, "modes": 1024},
        {"modes": LARGEST},
        {"width": 1, "depth": 1},
        {"width": LARGEST, "depth": 100},
    ],
)
def test_the_largest_and_smallest_are_allowed(settings):
    made = TransportSettings(**settings)
    assert all(getattr(made, name) == value for name, value in settings.items())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dimension": 0}, "dimension is 0; give 1, 2 or 3."),
        ({"dimension": 4}, "dimension is 4; give 1, 2 or 3."),
        ({"sensors": 1}, "sensors is 1; give 2 to 4096."),
        ({"sensors": 4097}, "sensors is 4097; give 2 to 4096."),
        ({"seen": 0}, f"seen is 0; {EVEN}"),
        ({"seen": -2}, f"seen is -2; {EVEN}"),
        ({"seen": 31}, f"seen is 31; {EVEN}"),
        ({"dimension": 3, "sensors": 200, "seen": 102}, f"seen is 102; {EVEN}"),
        ({"modes": 0}, f"modes is 0; {EVEN}"),
        ({"modes": -2}, f"modes is -2; {EVEN}"),
        ({"modes": 47}, f"modes is 47; {EVEN}"),
        ({"modes": LARGEST + 2}, f"modes is {LARGEST + 2}; {EVEN}"),
        ({"dimension": 2, "modes": 1026}, f"modes is 1026; {EVEN}"),
        (
            {"sensors": 30},
            "30 sensors cannot tell 32 modes apart; give seen ≤ 30.",
        ),
        ({"width": 0}, f"width is 0; give 1 to {LARGEST}."),
        ({"width": LARGEST + 1}, f"width is {LARGEST + 1}; give 1 to {LARGEST}."),
        ({"depth": 0}, "depth is 0; give 1 to 100 blocks."),
        ({"depth": 101}, "depth is 101; give 1 to 100 blocks."),
    ],
)
def test_impossible_transport_models_are_refused(settings, expected):
    with pytest.raises(ConfigError) as error:
        TransportSettings(**settings)
    assert str(error.value) == expected


@pytest.mark.parametrize("kind", [GeONetSettings, DeepONetSettings])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dimension": 4}, "dimension is 4; give 1, 2 or 3."),
        ({"sensors": 1}, "sensors is 1; give 2 to 4096."),
        ({"rank": 0}, f"rank is 0; give 1 to {LARGEST}."),
        ({"rank": LARGEST + 1}, f"rank is {LARGEST + 1}; give 1 to {LARGEST}."),
    ],
)
def test_impossible_operators_are_refused(kind, settings, expected):
    with pytest.raises(ConfigError) as error:
        kind(**settings)
    assert str(error.value) == expected
