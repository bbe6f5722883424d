"""How far a path is from another one."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from geonet.errors import GridError
from geonet.geodesics.base import QUARTERS, Geodesic, Times, check_path
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.metrics import l1
from geonet.plotting.checks import check
from geonet.plotting.look import Frames, entitle, error_scale, moment
from geonet.plotting.panels import draw


def plot_error(
    path: Geodesic, reference: Geodesic, times: Times = QUARTERS, grid: Grid | None = None
) -> Figure:
    """Path − reference at `times`, with the L1 error of each: laid out as in `plot_geodesic`.

    Args:
        path: the path that is judged.
        reference: what it should be, in the same box.
        times: of the curves or frames.
        grid: on which both are compared, the path's own by default.
    """
    moments, grid = check(path, times, grid)
    truth = _reference_on(reference, moments, grid)
    errors = l1(path.density(moments, grid), truth).tolist()
    between = ", " if grid.dimension == 1 else "\n"
    labels = [
        f"{moment(t)}{between}L1 = {100 * error:.2f} %"
        for t, error in zip(moments, errors, strict=True)
    ]

    def difference(asked: Sequence[float]) -> Frames:
        return path.density(asked, grid).numpy() - reference.density(asked, grid).numpy()

    unit = float(truth.numpy().max())
    figure = draw(difference, moments, labels, grid, lambda f: error_scale(f, unit), "error")
    entitle(figure, f"{path.solver} − {reference.solver}")
    return figure


def _reference_on(reference: Geodesic, moments: list[float], grid: Grid) -> Density:
    check_path(reference, "reference")
    try:
        check(reference, moments, grid)
    except GridError as error:
        raise GridError(
            f"The reference does not live on {grid}; give one in the same box."
        ) from error
    return reference.density(moments, grid)
