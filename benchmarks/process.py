"""Calls of functions in separate processes, which import only the module of the function.

The system frees its memory afterwards, and other calls continue if it kills the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from geonet.errors import GeonetError, SolverError

Given = TypeVar("Given")
Found = TypeVar("Found")


def run_in_process(function: Callable[[Given], Found], given: Given) -> Found:
    """Return function(given), all picklable; raise its exceptions as `SolverError`."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, given))
    process.start()
    sender.close()  # the process has its own; with that one the pipe ends
    try:
        answer, failure = receiver.recv()
    except EOFError:
        failure = "The process was killed, possibly for lack of memory; free memory and retry."
        raise SolverError(failure) from None
    finally:
        process.kill()  # if this one was interrupted, the other would go on
        process.join()
    if failure is not None:
        raise SolverError(failure)
    return answer


def format_error(error: Exception) -> str:
    """Format an error in one line, with its type unless it is an error of geonet."""
    text = " ".join(str(error).split())
    return text if isinstance(error, GeonetError) else f"{type(error).__name__}: {text}"


def _run(sender: Connection, function: Callable[[Any], Any], given: Any) -> None:
    os.dup2(2, 1)  # standard output belongs to the command
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent handles Ctrl-C
    try:
        sender.send((function(given), None))
    except Exception as error:
        sender.send((None, format_error(error)))
