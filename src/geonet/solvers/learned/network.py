"""Trained models of any form as solvers: the path that the network gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.operators.opened import opened
from geonet.progress import tell
from geonet.solvers.base import EVERY_ANSWER, Solver


@dataclass(frozen=True)
class NetworkSolver(Solver):
    """A trained model from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
    """

    name = "network"
    summary = "a trained model from a file that `geonet train` wrote"
    dimensions = (1, 2, 3)
    differentiable = EVERY_ANSWER
    form: ClassVar[str | None] = None  # that the model must have; None for any

    file: str

    def _solve(self, source: Density, target: Density) -> Geodesic:
        model, header = opened(Path(self.file), source.grid.dimension, self.form)
        name = header.get("name", Path(self.file).stem)
        tell(f"asking {name}")
        path = model.path(source, target, self.name, header)
        path.notes["model"] = name
        return path

    _solve_pair = _solve
