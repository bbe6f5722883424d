"""What the property tests share: the same examples in every run, and as many as a test says."""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck

hypothesis.settings.register_profile(
    "geonet",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
hypothesis.settings.load_profile("geonet")


@pytest.fixture
def hold() -> Callable[..., None]:
    """Checks a property on so many examples, drawn from strategies by the names of arguments."""

    def hold(check: Callable[..., None], examples: int, **strategies: Any) -> None:
        hypothesis.settings(max_examples=examples)(hypothesis.given(**strategies)(check))()

    return hold
