"""The list of commands, and how anything that goes wrong becomes one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from geonet._advice import at_the_command_line
from geonet.cli.demo import demo
from geonet.cli.geodesic import geodesic
from geonet.cli.interp import interp
from geonet.cli.models import evaluate, export
from geonet.cli.output import InterruptedWorkError, left_behind
from geonet.cli.serve import app as page
from geonet.cli.solvers import report, solvers
from geonet.cli.train import StoppedTraining, train
from geonet.errors import GeonetError

FAILED, INTERRUPTED = 2, 130
NOTHING_LEFT = "Interrupted; nothing was left half-written."

# typer has come with click beside it and with click inside it; this is the class in both.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Command(TyperCommand):
    """A command whose help names values as its options are named, and not by Python's types."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        for given in self.params:
            if given.metavar is None and not getattr(given, "is_flag", False):
                given.metavar = str(given.name).upper()

    def get_help(self, ctx: Any) -> str:
        """Without the types that typer puts behind arguments; columns stay in line."""
        return re.sub(r" <[\w\[\], ]+>", lambda found: " " * len(found[0]), super().get_help(ctx))


# Plain help: typer's panels give a type to every flag.
app = typer.Typer(name="geonet", pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (demo, page, geodesic, interp, report, solvers, train, evaluate, export):
    first_line = (command.__doc__ or "").partition("\n")[0]
    app.command(cls=Command, short_help=first_line)(command)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and which compiled loops are used.")
    ] = False,
) -> None:
    """Compute Wasserstein geodesics between densities."""
    if version:
        # It imports torch, for seconds: only torch knows which processor it takes this to be.
        from geonet import __version__
        from geonet.numerics.kernels import build

        typer.echo(f"geonet {__version__}, compiled loops: {build() or 'none (torch)'}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code.

    0; 1 where some of many pairs have no answer; 2 for what went wrong; 130 for Ctrl-C; 143 for
    SIGTERM where it is heard. Without arguments it is the program itself: it then ends at once
    where Ctrl-C left work behind.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the character shows ?
    code = _run(arguments)
    if arguments is None and left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python would free what the thread still computes with
    return code


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command; whatever goes wrong is one line and an exit code."""
    try:
        with at_the_command_line(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(arguments, prog_name="geonet", standalone_mode=False)
        sys.stdout.flush()
    except GeonetError as error:
        return _fail(str(error))
    except StoppedTraining as stopped:
        return stopped.code
    except UsageError as error:
        message: str = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        return _fail(f"{message}{'' if message[-1:] in '.?' else '.'} See geonet --help.")
    except MemoryError:
        return _fail("There is not enough memory; ask for fewer cells or times.")
    except (BrokenPipeError, SystemExit) as ended:
        if isinstance(ended, SystemExit) and _is_completion(arguments):
            return FAILED if ended.code else 0
        _close_output()  # typer and rich answer a closed pipe by SystemExit
        return _fail("The reader of the output went away before all was written.")
    except InterruptedWorkError as interrupt:
        return _fail(str(interrupt), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (OSError, RuntimeError) as error:  # a full disk, torch out of memory
        return _fail(str(error))
    if code == INTERRUPTED:
        return _fail(NOTHING_LEFT, INTERRUPTED)
    return code or 0


def _is_completion(arguments: Sequence[str] | None) -> bool:
    """Whether typer answers or installs tab completion; it then reports errors itself."""
    given = sys.argv[1:] if arguments is None else arguments
    return "_GEONET_COMPLETE" in os.environ or any(a.endswith("-completion") for a in given)


def _fail(message: str, code: int = FAILED) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object) -> None:
    """A warning as one line, without the place in the code that Python adds."""
    print("warning:", " ".join(str(message).split()), file=sys.stderr)


def _close_output() -> None:
    """Discard buffered output; the interpreter would complain about it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
