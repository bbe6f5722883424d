"""`python -m geonet` is the command `geonet`."""

import sys

from geonet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
