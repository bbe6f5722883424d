"""How good a path is: metrics, exact truths, and errors over many pairs.

Names are imported when they are first used, as in `geonet` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geonet.locations import located

if TYPE_CHECKING:
    from geonet.evaluation.accuracy import Accuracy, measure
    from geonet.evaluation.metrics import constant_speed_defect, end_point_errors, w2
    from geonet.evaluation.truth import Truth, truth_of
    from geonet.measures.metrics import block_l1, l1, l2, mass_error, negativity, sliced_w1, w1

__all__ = [
    "Accuracy",
    "Truth",
    "block_l1",
    "constant_speed_defect",
    "end_point_errors",
    "l1",
    "l2",
    "mass_error",
    "measure",
    "negativity",
    "sliced_w1",
    "truth_of",
    "w1",
    "w2",
]

_HOMES = {
    "geonet.evaluation.accuracy": ("Accuracy", "measure"),
    "geonet.evaluation.metrics": ("constant_speed_defect", "end_point_errors", "w2"),
    "geonet.evaluation.truth": ("Truth", "truth_of"),
    "geonet.measures.metrics": (
        "block_l1",
        "l1",
        "l2",
        "mass_error",
        "negativity",
        "sliced_w1",
        "w1",
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = located(f"{home}:{name}")
            return value
    raise AttributeError(f"module 'geonet.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
