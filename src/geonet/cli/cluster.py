"""A Dask cluster that somebody else runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from geonet.errors import InputError

PATIENCE = 10  # seconds until a scheduler has to answer


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Dask's client for the scheduler at this address; None for no address."""
    if address is None:
        yield None
        return
    try:
        from distributed import CancelledError, Client, KilledWorker
    except ModuleNotFoundError as error:
        raise InputError(
            "--scheduler needs distributed, which is not installed; "
            "install it: pip install 'geonet[xarray]'."
        ) from error
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"No scheduler answers at {address}; start one, `dask scheduler`, and workers, "
            f"`dask worker {address}`."
        ) from error
    with client:
        if not client.nthreads():
            raise InputError(
                f"The scheduler at {address} has no workers; start some: dask worker {address}."
            )
        try:
            yield client
        except (ImportError, KilledWorker, CancelledError) as error:
            said = " ".join(str(error).split())[:200].rstrip(".")
            raise InputError(
                f"The cluster failed: {said}; check that its workers have the same geonet and "
                "enough memory. The same command goes on."
            ) from error
