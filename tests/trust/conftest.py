"""Settings of hypothesis: the same examples in every run, and their number by test."""

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
    """Return a function that checks a property on a number of examples from strategies."""

    def hold(check: Callable[..., None], examples: int, **strategies: Any) -> None:
        hypothesis.settings(max_examples=examples)(hypothesis.given(**strategies)(check))()

    return hold
