"""Models from files, kept until their file changes."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from geonet.errors import SolverError
from geonet.operators.build import Model
from geonet.operators.model_file import Header, load_model
from geonet.operators.symmetric import ClassLinear

PRETRAINED = Path(__file__).with_name("pretrained")
CACHED_MODELS = 8
M = TypeVar("M", bound=Model)


def opened(file: Path, kind: type[M], dimension: int) -> tuple[M, Header]:
    """The model in a file and its header; one of another kind or dimension is refused."""
    try:
        state = file.stat()
        model, header = _opened(file, state.st_mtime_ns, state.st_size)
    except OSError:  # reading it says what is wrong
        model, header = load_model(file)
    if not isinstance(model, kind):
        raise SolverError(
            f"The model {file} is of the kind {model.settings.kind!r}, which this solver does not "
            f"take; give the file itself as the solver, solver={str(file)!r}."
        )
    if model.settings.dimension != dimension:
        raise SolverError(
            f"The model {file} takes {model.settings.dimension}D densities, "
            f"these are {dimension}D; choose another model or solver='auto'."
        )
    return model, header


@lru_cache(CACHED_MODELS)
def doubled(model: M) -> M:
    """A model in double precision, for gradients."""
    return deepcopy(model).double()


@lru_cache(CACHED_MODELS)
def _opened(file: Path, changed: int, size: int) -> tuple[Model, Header]:
    model, header = load_model(file)
    for part in model.modules():
        if isinstance(part, ClassLinear):
            part.freeze()
    return model, header
