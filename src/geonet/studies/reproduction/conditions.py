"""How an experiment is run: in full or quickly, with the shipped models or with new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a list of experiments must not wait for torch
    from geonet.evaluation.results import Result


@dataclass(frozen=True)
class Conditions:
    """What an experiment is told.

    Attributes:
        quick: few pairs, small budgets: a check, not a measurement.
        trained: files of models that were trained anew, by the name of the solver.
    """

    quick: bool = False
    trained: tuple[tuple[str, str], ...] = ()

    def count(self, full: int, quick: int) -> int:
        """How many of something."""
        return quick if self.quick else full

    def solver(self, name: str) -> str:
        """A solver, or the file of the model that was trained in its place."""
        return dict(self.trained).get(name, name)

    def file(self, name: str) -> Path:
        """The file of a model, the shipped one or the one trained in its place."""
        from geonet.operators.opened import PRETRAINED

        return Path(dict(self.trained).get(name, PRETRAINED / f"{name}.safetensors"))


@dataclass(frozen=True)
class Experiment:
    """One of the paper's tables or figures.

    Attributes:
        name: on the command line and of the files.
        title: one line.
        run: does it.
        models: shipped models it uses, which `--train` trains, in this order.
    """

    name: str
    title: str
    run: Callable[[Conditions], Result]
    models: tuple[str, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """Where its measurement begins, see `geonet.evaluation.sources`."""
        return (self.run.__module__,)

    def measured(self, conditions: Conditions) -> Result:
        """Run it, and stamp what it gives."""
        from geonet.evaluation.stamp import stamp

        stamped = stamp(self.modules)  # before: sources may change in the meantime
        return replace(self.run(conditions), stamp=stamped)
