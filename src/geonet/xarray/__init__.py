"""Fields that change in time: `import geonet.xarray` adds `da.geonet` to every DataArray.

import xarray as xr
import geonet.xarray

rain = xr.open_dataset("rain.nc")["rain"]
fine = rain.geonet.interp(time=new_times)  # rain moves instead of fading as in rain.interp
"""

from __future__ import annotations

from geonet.errors import InputError

try:
    from geonet.xarray.accessor import FieldAccessor
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("xarray", "pandas"):
        raise
    raise InputError(
        f"geonet.xarray needs {missing}, which is not installed; "
        "install it: pip install 'geonet-ot[xarray]'."
    ) from error

from geonet.xarray.radar import open_radar
from geonet.xarray.sample_data import synthetic_rain
from geonet.xarray.two_fields import displacement_score, geodesic

__all__ = ["FieldAccessor", "displacement_score", "geodesic", "open_radar", "synthetic_rain"]
