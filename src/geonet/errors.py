"""Exceptions of geonet. Every message names the cause and the remedy."""


class GeonetError(Exception):
    """Base class of all errors that geonet raises."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # file names may contain line breaks


class InputError(GeonetError, ValueError):
    """An argument that cannot be used."""


class GridError(InputError):
    """An impossible grid, or two grids that do not fit together."""


class DensityError(InputError):
    """Values that are not a density."""


class FileError(InputError):
    """A file that cannot be read or written."""


class SolverError(InputError):
    """An unknown solver, a wrong option, or a problem that the solver does not take."""


class ConfigError(InputError):
    """A configuration with an unknown key, a wrong type or an impossible value."""


class UnavailableError(GeonetError, NotImplementedError):
    """A quantity that the solver of a geodesic does not provide."""


class ConvergenceError(GeonetError, RuntimeError):
    """A solver stopped before it reached its tolerance.

    Attributes:
        residual: the last residual, in the solver's own measure.
    """

    def __init__(self, message: str, residual: float):
        super().__init__(message)
        self.residual = residual


class TrainingError(GeonetError, RuntimeError):
    """A training run that cannot continue, for example because its loss is not finite."""


class ExportError(GeonetError, RuntimeError):
    """An export that failed, or whose results differ from the model's."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before its tolerance; its result is returned and the report says so."""
