"""The command line: `geonet COMMAND`."""

from geonet.cli.app import main

__all__ = ["main"]
