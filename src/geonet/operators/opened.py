"""Models from files, kept until their file changes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from geonet.advice import setting
from geonet.errors import SolverError
from geonet.operators.model import CACHED_MODELS, Header, Model
from geonet.operators.model_file import load_model

PRETRAINED = Path(__file__).with_name("pretrained")


def opened(file: Path, dimension: int, form: str | None = None) -> tuple[Model, Header]:
    """The model in a file and its header; one of another form or dimension is refused."""
    try:
        state = file.stat()
        model, header = _opened(file, state.st_mtime_ns, state.st_size)
    except OSError:  # reading it says what is wrong
        model, header = load_model(file)
    settings = model.settings
    if form is not None and settings.kind != form:
        raise SolverError(
            f"The model {file} is of the kind {settings.kind!r}, which this solver does not "
            f"take; give the file itself as the solver, {setting('solver', str(file))}."
        )
    if settings.dimension != dimension:
        raise SolverError(
            f"The model {file} takes {settings.dimension}D densities, "
            f"these are {dimension}D; choose another model or {setting('solver', 'auto')}."
        )
    return model, header


@lru_cache(CACHED_MODELS)
def _opened(file: Path, changed: int, size: int) -> tuple[Model, Header]:
    model, header = load_model(file)
    model.freeze()
    return model, header
