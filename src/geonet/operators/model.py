"""What a model form is: settings, a network, its objective, its path, and what can be exported.

A form subclasses `Model` in one file, beside its settings (`ModelSettings`), its loss (`Loss`) and,
where none of `geonet.geodesics` fits, its path. Training, files and export ask for nothing else and
know no form by name. A form whose solver does more than evaluate the network has a line in
`SOLVERS` of `geonet.solvers.learned.shipped`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from torch import Tensor
from torch.nn import Module

from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.architecture import ModelSettings
from geonet.operators.objective import Loss, LossSettings

Header = dict[str, Any]  # what is known of a trained model beside its weights
ANSWERS = ("distance", "velocity", "potential", "trajectories")
CACHED_MODELS = 8
M = TypeVar("M", bound="Model")


class Model(Module, ABC):
    """A map from two densities to a path.

    Attributes:
        Settings: the class of its settings.
        settings: its own.
        gives: what its paths can answer beside the density.
        typical: how many sample densities `prepare` is given.
        compares_ends: whether the objective needs the ends at places of their own.
        needs_exact_paths: whether the objective compares with exact paths.
        sees_means: whether its sensors read means over their cells, not values at their centres.
        later: how the names of tensors begin that files of earlier versions lack; zero there.
    """

    Settings: ClassVar[type[ModelSettings]]
    settings: Any  # an instance of Settings
    gives: ClassVar[tuple[str, ...]] = ANSWERS
    typical: ClassVar[int] = 0
    compares_ends: ClassVar[bool] = False
    needs_exact_paths: ClassVar[bool] = False
    sees_means: ClassVar[bool] = False
    later: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Any):
        super().__init__()
        self.settings = settings

    @abstractmethod
    def objective(self, settings: LossSettings, box: Grid) -> Loss:
        """What training minimises, for pairs on a box."""

    @abstractmethod
    def path(self, source: Density, target: Density, name: str, header: Header) -> Geodesic:
        """The path that the network alone gives for a pair or a batch.

        Args:
            source: μ_0.
            target: μ_1, on the same grid.
            name: of the solver.
            header: of the model's file; epsilon, in the unit box, and measured errors are used.
        """

    @classmethod
    def check_training(
        cls,
        settings: Any,
        loss: LossSettings,
        *,
        scheme: str,
        family: str | None,
        floor: float,
        compiled: bool,
    ) -> None:
        """Refuse a training that makes no sense for this form, with `require`."""

    def prepare(self, densities: Tensor) -> None:
        """Fit the scaling of the inputs to sample densities at the sensors, (N, m)."""

    def calibration(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """What errors (B, times) of paths with a known answer tell, for the header of the file."""
        return {}

    def freeze(self) -> None:
        """Prepare for answering alone: no weight will change any more."""


class BasisModel(Model):
    """A model whose answer is a sum of functions of (x, t), as export needs it.

    Attributes:
        quantities: what the coefficients belong to: "density", "potential" or both.
        formula: how coefficients and basis make the answer, for users of exported files.
        basis_outputs: what `basis_at` gives.
        timeless: whether `basis_at` takes points alone.
    """

    quantities: ClassVar[tuple[str, ...]]
    formula: ClassVar[str]
    basis_outputs: ClassVar[tuple[str, ...]]
    timeless: ClassVar[bool] = False

    @abstractmethod
    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Unit-box densities at the sensors, (B, m) each, to (B, functions) of each quantity."""

    @abstractmethod
    def basis_at(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """The functions at points (N, d) of the unit box and times (N,): `basis_outputs`."""


@lru_cache(CACHED_MODELS)
def doubled(model: M) -> M:
    """A model in double precision, for gradients."""
    return deepcopy(model).double()
