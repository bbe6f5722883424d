"""Helpers without a module of their own: imports, warnings, random numbers, the version."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from geonet._validation import check_instance
from geonet.errors import InputError

if TYPE_CHECKING:
    import torch

VERSION = "0.1.0"


def import_object(location: str) -> Any:
    """Return the object at "module:attribute"."""
    module, attribute = location.split(":")
    return getattr(import_module(module), attribute)


def check_installed(feature: str, modules: Sequence[str], extra: str) -> None:
    """Raise InputError if a module of an optional dependency is not installed.

    Args:
        feature: what needs the modules, for the message.
        modules: names of the modules.
        extra: the extra of the distribution that installs them.
    """
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            missing = (getattr(error, "name", None) or module).partition(".")[0]
            raise InputError(
                f"{feature} needs {missing}, which is not installed; "
                f"install it: pip install 'geonet-ot[{extra}]'."
            ) from error


class _WarningFilter:
    """Thread-safe, reference-counted filter for warnings of Pillow and POT, and deprecations.

    `catch_warnings` alone is not thread-safe: of two that overlap, the last to exit restores the
    filters of the other one. Here the first thread to enter sets the filters, and the last one to
    leave restores them.
    """

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"(PIL|ot)(\.|$)")
                warnings.simplefilter("ignore", DeprecationWarning)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._filters.__exit__(None, None, None)


_warning_filter = _WarningFilter()


def suppress_warnings() -> _WarningFilter:
    """Return a context in which warnings of Pillow and POT, and deprecations, are hidden."""
    return _warning_filter


_pair_label: ContextVar[str | None] = ContextVar("pair_label", default=None)


@contextmanager
def label_pair(label: str) -> Iterator[None]:
    """Name the pair that is solved meanwhile, for warnings of the current thread."""
    token = _pair_label.set(label)
    try:
        yield
    finally:
        _pair_label.reset(token)


def pair_label() -> str | None:
    """Return the name of the pair that is solved, such as "rain at time 0 to rain at time 1"."""
    return _pair_label.get()


def user_stacklevel() -> int:
    """Return the `stacklevel` of a warning that points at the first caller outside geonet."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("geonet."):
        level, frame = level + 1, frame.f_back
    return level


_rng_lock = RLock()  # torch has one global generator for all threads


@contextmanager
def fork_rng(seed: int) -> Iterator[None]:
    """Seed torch's global generator and restore it afterwards; one thread at a time."""
    import torch  # takes seconds

    with _rng_lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_generator(generator: torch.Generator | None) -> None:
    """Raise InputError if `generator` is neither None nor a torch.Generator."""
    if generator is not None:
        import torch

        remedy = "give a torch.Generator, such as torch.Generator().manual_seed(0)"
        check_instance(generator, torch.Generator, "generator", remedy)
