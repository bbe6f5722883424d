"""Entry point of `geonet COMMAND`: the commands, and one line with an exit code for every error."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from geonet.cli.output import (
    CommandStop,
    GeonetCommand,
    InterruptedWorkError,
    has_orphans,
    name_options,
)
from geonet.errors import GeonetError

COMMANDS = {
    "demo": "geonet.cli.demo:demo",
    "app": "geonet.cli.app:app",
    "geodesic": "geonet.cli.geodesic:geodesic",
    "distances": "geonet.cli.distances:distances",
    "barycenter": "geonet.cli.barycenter:barycenter",
    "interp": "geonet.cli.interp:interp",
    "report": "geonet.cli.solvers:report",
    "solvers": "geonet.cli.solvers:solvers",
    "train": "geonet.cli.train:train",
    "evaluate": "geonet.cli.models:evaluate",
    "export": "geonet.cli.models:export",
}
# typer has been released with click beside it and with click inside it; this is the class in both.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class LazyGroup(TyperGroup):
    """Group whose commands are imported when they are used or listed."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)  # typer suggests these names

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        function = getattr(import_module(module), name)
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        about = (function.__doc__ or "").partition("\n")[0]
        single.command(cmd_name, cls=GeonetCommand, short_help=about)(function)
        return typer.main.get_command(single)


app = typer.Typer(
    name="geonet", cls=LazyGroup, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and the active compiled kernels.")
    ] = False,
) -> None:
    """Compute Wasserstein geodesics between densities."""
    if version:
        # Importing torch takes seconds, but only torch knows the capability of the processor.
        from geonet import __version__
        from geonet.numerics.kernels import active_build

        typer.echo(f"geonet {__version__}, compiled loops: {active_build() or 'none (torch)'}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: command line; by default the process's own. In this case the process exits at
            once if Ctrl-C left work in the background.

    Returns:
        0; 1 if pairs failed or did not converge; 2 for errors; 130 after Ctrl-C; 143 after SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the character shows ?
    code = _run(arguments)
    if arguments is None and has_orphans():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python would free memory with which the thread still computes
    return code


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command; every error becomes one line and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(arguments, prog_name="geonet", standalone_mode=False)
        sys.stdout.flush()
    except GeonetError as error:
        return _fail(name_options(str(error)))
    except CommandStop as stop:
        return stop.code
    except UsageError as error:
        return _fail(_describe_usage(error, sys.argv[1:] if arguments is None else arguments))
    except MemoryError:
        return _fail("There is not enough memory; choose fewer cells or times.")
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, SystemExit) and _is_completion(arguments):
            return 2 if end.code else 0
        _close_output()  # typer and rich raise SystemExit for a closed pipe
        return _fail("The output was closed before everything was written.")
    except InterruptedWorkError as interrupt:
        return _fail(str(interrupt), 130)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except (OSError, RuntimeError) as error:  # a full disk, torch out of memory
        return _fail(str(error))
    if code == 130:  # some versions of typer return it for Ctrl-C
        return _fail("Interrupted; no partial output was left.", 130)
    return code or 0


def _describe_usage(error: Any, words: Sequence[str]) -> str:
    """Return one line on a usage error, with the command whose help explains the options.

    The message of a wrong number depends on the version of typer and may not name the number.
    """
    command = error.ctx.command_path if error.ctx is not None else "geonet"
    message: str = error.format_message()
    match = re.fullmatch(r"Invalid value for '(--[\w-]+)'[^:]*: (.*)", message)
    value = None if match is None else _find_value(words, match[1])
    if match is not None and value is not None:
        rules = (
            (r"greater than or equal to (\S+)|in the range x>=(\S+)", "give {} or more"),
            (r"valid (?:integer|int)\b", "give a whole number"),
            (r"valid (?:number|float)\b", "give a number"),
        )
        for pattern, remedy in rules:
            if (found := re.search(pattern, match[2])) is not None:
                least = next((part for part in found.groups() if part), "").rstrip(".")
                message = f"{match[1]} is {value!r}; {remedy.format(least)}"
                break
    return f"{message}{'' if message[-1:] in '.?' else '.'} See {command} --help."


def _find_value(words: Sequence[str], option: str) -> str | None:
    """Return the last value of an option on the command line, None if there is none."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    values += [value for word, value in pairwise(words) if word == option]
    return values[-1] if values else None


def _is_completion(arguments: Sequence[str] | None) -> bool:
    """Return whether typer prints or installs tab completion, and so reports errors itself."""
    words = sys.argv[1:] if arguments is None else arguments
    return "_GEONET_COMPLETE" in os.environ or any(a.endswith("-completion") for a in words)


def _fail(message: str, code: int = 2) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object) -> None:
    """Print a warning as one line, without the position in the code that Python adds."""
    print("warning:", " ".join(name_options(str(message)).split()), file=sys.stderr)


def _close_output() -> None:
    """Discard buffered output, about which the interpreter would complain when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
