"""`geonet app`: the web page on which densities are drawn."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def app(
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="PORT",
            help="Port of the server. Default: 8765 or a free one.",
        ),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the page in the browser.")
    ] = False,
) -> None:
    """Draw densities in the browser: two for a path, three or four for their barycenter.

    The page is available on this machine only. Ctrl-C stops the server.
    Example: geonet app --port 8080
    """
    from geonet.cli.output import show_status

    with show_status("starting"):  # importing torch takes seconds
        from geonet.app.server import serve

    if not serve(port, not no_browser):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a normal exit would free memory that the solver thread uses
