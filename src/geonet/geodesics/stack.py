"""Paths of single pairs, answered side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.geodesics.base import ENDS, Geodesic
from geonet.geodesics.gradients import wanted
from geonet.measures.density import Density
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.threads import shared_out


class Stack(Geodesic):
    """Paths of single pairs, answered side by side: for solvers that take one pair at a time."""

    kind = "stack"

    def __init__(self, paths: Sequence[Geodesic]):
        self.paths = list(paths)
        source, target = (_stack_densities([getattr(p, end) for p in paths]) for end in ENDS)
        names = ", ".join(dict.fromkeys(path.solver for path in paths))
        super().__init__(source, target, names, _stack_notes([p.notes for p in paths]))

    def _pair(self, k: int) -> Geodesic:
        return self.paths[k]

    def _distance(self) -> Tensor:
        return torch.stack([path._distance() for path in self.paths])

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        def frames(k: int) -> Tensor:
            with torch.set_grad_enabled(traced):  # which other threads do not know
                return self.paths[k]._density(times, grid)

        traced = torch.is_grad_enabled()
        cells = [path._loops_over() for path in self.paths]
        if wanted(self.source, self.target) or not all(cells):
            return torch.stack([frames(k) for k in range(len(self.paths))])
        return torch.stack(list(shared_out(frames, len(self.paths), max(cells))))

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._velocity(times, points) for path in self.paths])

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._potential(times, points) for path in self.paths])

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([path._trajectories(times, points) for path in self.paths])

    def _checks(self) -> dict[str, Tensor]:
        found = [path._checks() for path in self.paths]
        names = dict.fromkeys(name for checks in found for name in checks)
        unknown = torch.tensor(torch.nan, dtype=torch.float64)
        return {
            name: torch.stack([checks.get(name, unknown).to(torch.float64) for checks in found])
            for name in names
        }

    def _state(self) -> dict[str, np.ndarray]:
        state = {}
        for i, path in enumerate(self.paths):
            state[f"{i}/kind"] = np.array(path.kind)
            state[f"{i}/solver"] = np.array(path.solver)
            state |= {f"{i}/{key}": value for key, value in path._state().items()}
        return state

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> Stack:
        paths = []
        for i in range(len(source)):
            own = {k.split("/", 1)[1]: v for k, v in state.items() if k.startswith(f"{i}/")}
            kind, name = Geodesic.kinds[str(own.pop("kind"))], str(own.pop("solver"))
            note = {key: values[i] for key, values in notes.items() if values[i] is not None}
            paths.append(kind._from_state(source[i], target[i], name, note, own))
        return cls(paths)


def _stack_densities(densities: Sequence[Density]) -> Density:
    values, mass = (torch.stack([getattr(d, key) for d in densities]) for key in ("values", "mass"))
    parts = [d.mixture.parts() for d in densities if d.mixture is not None]
    mixture = None
    if len(parts) == len(densities):
        mixture = GaussianMixture(**{key: torch.stack([p[key] for p in parts]) for key in parts[0]})
    return Density._of(values, densities[0].grid, mass, mixture)


def _stack_notes(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for note in notes for key in note)
    return {key: [note.get(key) for note in notes] for key in keys}
