"""What can go wrong, as a small tree. Every message names the cause and the remedy."""


class GeonetError(Exception):
    """Base of every error that geonet raises on purpose."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # names of files and keys may hold any


class InputError(GeonetError, ValueError):
    """The caller gave something that cannot be used."""


class GridError(InputError):
    """A grid that cannot exist, or two grids that do not fit together."""


class DensityError(InputError):
    """Values that are not a density."""


class FileError(InputError):
    """A file that cannot be read or written."""


class SolverError(InputError):
    """An unknown solver, a wrong option, or a problem the solver does not take."""


class ConfigError(InputError):
    """A configuration with an unknown key, a wrong type or a value that makes no sense."""


class UnavailableError(GeonetError):
    """A quantity that the solver behind a geodesic cannot give."""


class ConvergenceError(GeonetError, RuntimeError):
    """A solver stopped before it reached its tolerance.

    Attributes:
        residual: the residual it stopped at, in the solver's own measure.
    """

    def __init__(self, message: str, residual: float):
        super().__init__(message)
        self.residual = residual


class TrainingError(GeonetError, RuntimeError):
    """A training that cannot go on, such as one whose loss is no longer finite."""


class ExportError(GeonetError, RuntimeError):
    """An export that cannot be made, or that would not answer as the model does."""


class ConvergenceWarning(UserWarning):
    """A third-party solver stopped early; its answer is returned and the report says so."""
