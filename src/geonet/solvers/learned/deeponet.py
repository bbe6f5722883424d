"""Trained DeepONets for the density as solvers: one pass through the branches, one matmul a frame.

What they share with GeONet, which has a potential besides, stands here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from geonet.errors import FileError
from geonet.geodesics.base import Geodesic
from geonet.geodesics.gradients import wanted
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.metrics import l1
from geonet.operators.build import build
from geonet.operators.deeponet import DensityNet, GeONet, cartesian
from geonet.operators.model_file import KINDS, Header
from geonet.operators.opened import CACHED_MODELS, PRETRAINED, doubled, opened
from geonet.operators.sensors import all_sensed
from geonet.settings import from_table, to_table
from geonet.solvers.base import Solver

CACHED_BYTES = 2**28  # of the bases on grids that a model keeps
UNUSUAL = 4.0
_keeping = Lock()  # of bases, which threads share; not in an Operator, which can be copied


class Operator:
    """A trained model on a box of any size, with the bases it was asked for lately.

    Attributes:
        model: C in the unit box, and H if it has one.
        epsilon: the entropic regularisation it was trained with, in the unit box.
    """

    def __init__(self, model: DensityNet | GeONet, epsilon: float = 0.0):
        self.model = model
        self.epsilon = epsilon
        self.dtype = next(model.parameters()).dtype
        self._bases: dict[tuple[Grid, float], Tensor] = {}

    def coefficients(self, source: Density, target: Density) -> tuple[Tensor, ...]:
        """Coefficients (B, functions) of C, and of H, for a batch of pairs."""
        with torch.set_grad_enabled(wanted(source, target)):  # in them, not in the weights
            ends = all_sensed([source, target], self.model.settings.sensors, self.dtype)
            return self.model.coefficients(*ends)

    @torch.inference_mode(False)  # what is kept may be needed for gradients later
    @torch.no_grad()
    def basis_on(self, grid: Grid, t: float) -> Tensor:
        """C's functions at all cells at time t, (cells, functions); the latest ones are kept."""
        with _keeping:
            basis = self._bases.pop((grid, t), None)
        if basis is None:
            points = unit_points(grid.points().reshape(-1, grid.dimension), grid).to(self.dtype)
            rows = torch.cat([points, torch.full_like(points[:, :1], t)], dim=1)
            basis = self.model.density.basis(rows)
        with _keeping:
            self._bases[grid, t] = basis  # the last place is the latest
            while sum(kept.nbytes for kept in self._bases.values()) > CACHED_BYTES:
                self._bases.pop(next(iter(self._bases)))
        return basis


@lru_cache(CACHED_MODELS)
def operator_of(model: DensityNet | GeONet, epsilon: float) -> Operator:
    """One for each model that is open: it keeps its bases."""
    return Operator(model, epsilon)


def tested_in(header: Header, file: str) -> dict[str, list[float]] | None:
    """Mean and sd of a model's own test errors at the quarters, in %, if it was tested."""
    try:
        tested = header.get("measured", {}).get("test")
        if tested is None:
            return None
        errors = {key: [float(number) for number in tested[key]] for key in ("mean", "sd")}
        if not all(errors.values()):
            raise ValueError("no errors")
        return errors
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"The header of {file} has odd test errors; get it again.") from error


def unit_points(points: Tensor, box: Grid) -> Tensor:
    """Points (N, d) of a box in the unit cube around it."""
    return (points - box.corner("lower")) / max(box.lengths)


class DeepONetPath(Geodesic):
    """C of a batch of pairs, given by its coefficients."""

    kind = "deeponet"
    parts: ClassVar[tuple[str, ...]] = ("density",)  # what `coefficients` belong to

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        operator: Operator,
        coefficients: tuple[Tensor, ...],
        tested: dict[str, list[float]] | None = None,
    ):
        super().__init__(source, target, solver, notes)
        self.operator = operator
        self.coefficients = coefficients
        self.tested = tested  # mean and sd of the model's own test errors at the quarters, in %

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """C on the grid; as the network has it, so mass and sign are only nearly right."""
        frames = [
            cartesian(self.coefficients[0], self.operator.basis_on(grid, t)) for t in times.tolist()
        ]
        values = torch.stack(frames, dim=1).to(torch.float64)  # which has room for any box
        values = values / max(grid.lengths) ** grid.dimension
        return values.reshape(*self.batch, len(times), *grid.shape)

    def _checks(self) -> dict[str, Tensor]:
        """Whether both ends, which are known, come out as well as in the model's own tests.

        As well: an L1 error of at most the mean and `UNUSUAL` standard deviations there, per pair.
        """
        if self.tested is None:
            return {}
        usual = torch.ones(self.batch, dtype=torch.bool)
        for t, end in ((0, self.source), (-1, self.target)):
            limit = (self.tested["mean"][t] + UNUSUAL * self.tested["sd"][t]) / 100
            usual &= l1(self.density(float(-t)), end) <= limit
        return {"in_distribution": usual}

    def _state(self) -> dict[str, np.ndarray]:
        """Coefficients and trunks: what is needed at any (x, t)."""
        model = self.operator.model
        weights = {k: v for k, v in model.state_dict().items() if ".trunk." in k}
        header = {
            "architecture": to_table(model.settings),
            "epsilon": self.operator.epsilon,
            "tested": self.tested,
        }
        return {
            "header": np.array(json.dumps(header)),
            **{
                part: own.detach().float().numpy()
                for part, own in zip(self.parts, self.coefficients, strict=True)
            },
            **{f"weights/{name}": value.float().numpy() for name, value in weights.items()},
        }

    @classmethod
    def _from_state(cls, source, target, solver, notes, state):
        header = json.loads(str(state["header"]))
        model = build(from_table(KINDS[cls.kind], header["architecture"]), seed=0)
        assert isinstance(model, DensityNet | GeONet)
        weights = {
            name.removeprefix("weights/"): torch.from_numpy(value)
            for name, value in state.items()
            if name.startswith("weights/")
        }
        model.load_state_dict(weights, strict=False)  # the branches have done their work
        coefficients = tuple(torch.from_numpy(state[name]) for name in cls.parts)
        operator = Operator(model.eval().requires_grad_(False), header["epsilon"])
        return cls(source, target, solver, notes, operator, coefficients, header.get("tested"))


@dataclass(frozen=True)
class DeepONetSolver(Solver):
    """A trained DeepONet for the density from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
    """

    name = "deeponet"
    summary = "a DeepONet for the density from a file that `geonet train` wrote"
    dimensions = (1, 2, 3)
    gives = ()
    differentiable = ("density",)

    file: str

    def _solve(self, source: Density, target: Density) -> DeepONetPath:
        model, header = opened(Path(self.file), DensityNet, source.grid.dimension)
        operator = operator_of(doubled(model) if wanted(source, target) else model, 0.0)
        notes = {"model": header.get("name", Path(self.file).stem)}
        tested = tested_in(header, self.file)
        coefficients = operator.coefficients(source, target)
        return DeepONetPath(source, target, self.name, notes, operator, coefficients, tested)

    _solve_pair = _solve


@dataclass(frozen=True)
class DeepONet1D(DeepONetSolver):
    """A neural operator without physics, trained on exact paths of 1D mixtures."""

    name = "deeponet-1d"
    summary = "1D, neural operator without physics, trained on exact paths; density only"
    dimensions = (1,)

    file: str = str(PRETRAINED / "deeponet-1d.safetensors")
