"""The command line: `geonet COMMAND`."""

from geonet.cli.main import main

__all__ = ["main"]
