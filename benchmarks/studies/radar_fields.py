"""Rain between radar images by three methods: runs tutorials/radar.py and publishes its table.

Then it measures the error again for rain that does not grow or decay, and for rain that does so
twice as fast.

    python -m benchmarks.studies.radar_fields

Prints the tables, writes them into docs/fields.md and the picture into docs/images/radar.png. Run
it by `make radar`, which installs pysteps.
"""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pages import ROOT, format_table, publish
from benchmarks.results import record_provenance
from geonet.xarray import synthetic_rain

WAYS = {
    "truth": "truth",
    "fade": "`rain.interp`, which fades",
    "geodesic": "`rain.geonet.interp`",
    "advection": "advection along pysteps' motion",
}
GROWTH = {0.0: "none", 1.0: "as above", 2.0: "twice as fast"}


def by_growth(tutorial: dict[str, Any]) -> str:
    """Return the errors of all ways, for rain that grows and decays more or less."""
    rows = []
    for growth, name in GROWTH.items():
        rain = synthetic_rain(growth=growth)
        kept, left_out = rain[::2], rain[1::2]
        carried = tutorial["advected"](kept, left_out.time.values)
        ways = (
            kept.interp(time=left_out.time),
            kept.geonet.interp(time=left_out.time),
            left_out.copy(data=carried),
        )
        errors = (tutorial["compared"](way, left_out)["error"] for way in ways)
        rows.append((name, *(f"{100 * error:.1f} %" for error in errors)))
    return format_table(("growth and decay", "fade", "geodesic", "advection"), rows)


def main() -> None:
    """Run, print and publish."""
    provenance = record_provenance()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        tutorial = runpy.run_path(str(ROOT / "tutorials" / "radar.py"))
        shutil.copy(Path(folder) / "radar.png", ROOT / "docs" / "images" / "radar.png")
        os.chdir(ROOT)
    found = tutorial["table"]
    rows = [
        (WAYS[way], *(f"{100 * value:.1f} %" for value in row.values()))
        for way, row in found.items()
    ]
    text = format_table(("", *found["truth"]), rows)
    growth = by_growth(tutorial)
    print(text, growth, sep="\n\n")
    publish("radar", provenance, {"docs/fields.md": {"radar": text, "growth": growth}})


if __name__ == "__main__":
    main()
