"""Rain between radar images by three methods: runs tutorials/radar.py and publishes its table.

    python studies/pages/radar_fields.py

Prints the table, writes it into docs/fields.md and the picture into docs/images/radar.png. Run it
by `make radar`, which installs pysteps.
"""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from pages import ROOT, table
from published import begun, publish

import geonet.xarray  # what the tutorial measures, so that figures are stale when it changes

WAYS = {
    "truth": "truth",
    "fade": "`rain.interp`, which fades",
    "geodesic": "`rain.geonet.interp`",
    "advection": "advection along pysteps' motion",
}


def main() -> None:
    """Run, print and publish."""
    assert geonet.xarray.__all__
    stamped = begun("radar")
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        found = runpy.run_path(str(ROOT / "tutorials" / "radar.py"))["table"]
        shutil.copy(Path(folder) / "radar.png", ROOT / "docs" / "images" / "radar.png")
        os.chdir(ROOT)
    rows = [
        (WAYS[way], *(f"{100 * value:.1f} %" for value in row.values()))
        for way, row in found.items()
    ]
    text = table(("", *found["truth"]), rows)
    print(text)
    publish("radar", stamped, {"docs/fields.md": {"radar": text}})


if __name__ == "__main__":
    main()
