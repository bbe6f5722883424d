"""The base class of trained models, their settings, model files and the cache of loaded models.

A model form subclasses `Model` in one file, together with its settings (`ModelSettings`), its loss
(`Loss`) and its path. Training, files and export use this interface only. To add a form, add a line
to `FORMS`; a form whose solver does more than evaluate the network is also named in
`geonet.solvers.neural.pretrained`.

A model file is a safetensors file with a JSON header and a SHA-256 checksum over both.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import Module

from geonet._files import atomic_write, wrap_read_errors
from geonet._toml import from_table, require, to_table
from geonet._utils import fork_rng, import_object
from geonet.density import Density
from geonet.errors import ConfigError, FileError, SolverError
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.solvers.neural.losses import Loss, LossSettings

FORMS = {
    "geonet": "geonet.solvers.neural.geonet:GeONet",
    "transport": "geonet.solvers.neural.transport.network:TransportNet",
    "deeponet": "geonet.solvers.neural.deeponet:DensityNet",
    "cascade": "geonet.solvers.neural.cascade:CascadeNet",
}
MAX_SIZE = 1 << 20  # of any width or count; a larger value is probably a typing error
PRETRAINED = Path(__file__).with_name("pretrained_models")

Header = dict[str, Any]  # metadata of a trained model: everything except the weights
M = TypeVar("M", bound=Module)


# ---- settings


@dataclass(frozen=True)
class Branch:
    """Settings of a branch network: sensor values of one density to `rank` numbers.

    Attributes:
        network: "mlp", or "modified-mlp", the paper's network with two gates.
        width: width of the hidden layers.
        depth: number of layers, with the last one.
        modes: number of cosine modes along each axis that replace the sensor values as input; 0
            for the sensor values themselves.
    """

    network: Literal["mlp", "modified-mlp"] = "modified-mlp"
    width: int = 150
    depth: int = 7
    modes: int = 0

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)


@dataclass(frozen=True)
class Trunk:
    """Settings of a trunk network: (x, t) in the unit box to `rank` numbers.

    Attributes:
        network: "mlp" and "modified-mlp" take x and t together; "separable" multiplies a network
            of x with a network of t (the paper's Fourier-feature trunk).
        width: width of the hidden layers.
        depth: number of layers, with the last one.
        features: the input: "coordinates"; "cosines" cos(kπx_i), k ≤ `modes`, whose normal
            derivative vanishes at the faces of the box; "fourier": cos and sin of `modes` fixed
            random frequencies with standard deviation `sigma`, in periods per box.
        modes: number of cosines along each axis, or of random frequencies.
        sigma: standard deviation of the random frequencies.
    """

    network: Literal["mlp", "modified-mlp", "separable"] = "modified-mlp"
    width: int = 100
    depth: int = 7
    features: Literal["coordinates", "cosines", "fourier"] = "coordinates"
    modes: int = 8
    sigma: float = 2.5

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)
        require(0 < self.modes <= MAX_SIZE, f"modes is {self.modes}; give 1 to {MAX_SIZE}.")
        require(self.sigma > 0, f"sigma is {self.sigma}; give a positive number.")


def _check_size(network: str, width: int, depth: int) -> None:
    least = 2 if network == "mlp" else 3  # below, gates or stacks would be empty
    require(0 < width <= MAX_SIZE, f"width is {width}; give 1 to {MAX_SIZE}.")
    require(least <= depth <= 100, f"depth is {depth}; give {least} to 100 layers for {network}.")


@dataclass(frozen=True)
class ModelSettings:
    """Settings that all model forms share.

    Attributes:
        kind: name of the form, a key of `FORMS`.
        dimension: dimension d of the densities.
        sensors: number of cells along each axis at which the densities are read.
    """

    kind: str
    dimension: int
    sensors: int

    def __post_init__(self) -> None:
        require(self.dimension in (1, 2, 3), f"dimension is {self.dimension}; give 1, 2 or 3.")
        require(2 <= self.sensors <= 4096, f"sensors is {self.sensors}; give 2 to 4096.")

    @classmethod
    def classes_by_kind(cls) -> dict[str, type[Any]]:
        """Return the settings class of each form, for `from_table`; the first is the default."""
        return {kind: model_class(kind).Settings for kind in FORMS}


# ---- models


class Model(Module, ABC):
    """A map from two densities to a path.

    Attributes:
        Settings: class of the settings.
        settings: the settings of this model.
        provides: quantities that its paths can compute.
        n_calibration_densities: number of sample densities that `prepare` needs.
        needs_endpoint_loss: whether the loss compares the endpoints at points of their own.
        needs_exact_paths: whether the loss compares with exact paths.
        uses_cell_means: whether the sensors read cell means instead of values at cell centres.
        optional_prefixes: prefixes of tensor names that older files lack; these are set to zero.
    """

    Settings: ClassVar[type[ModelSettings]]
    settings: Any  # an instance of Settings
    provides: ClassVar[tuple[str, ...]] = (
        "density",
        "distance",
        "velocity",
        "potential",
        "trajectories",
    )
    n_calibration_densities: ClassVar[int] = 0
    needs_endpoint_loss: ClassVar[bool] = False
    needs_exact_paths: ClassVar[bool] = False
    uses_cell_means: ClassVar[bool] = False
    optional_prefixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Any):
        super().__init__()
        self.settings = settings

    @abstractmethod
    def build_loss(self, settings: LossSettings, box: Grid) -> Loss:
        """Return the training loss for pairs on a box."""

    @abstractmethod
    def build_path(self, source: Density, target: Density, name: str, header: Header) -> Geodesic:
        """Return the path that the network alone predicts for a pair or a batch.

        Args:
            source: μ_0.
            target: μ_1, on the same grid.
            name: name of the solver.
            header: header of the model file, with epsilon (in the unit box) and measured errors.
        """

    @classmethod
    def check_training(
        cls,
        settings: Any,
        loss: LossSettings,
        *,
        scheme: str,
        family: str | None,
        floor: float,
        compiled: bool,
    ) -> None:
        """Raise ConfigError if this form cannot be trained with these settings."""

    def prepare(self, densities: Tensor) -> None:
        """Fit the input scaling to sample densities at the sensors, (N, m)."""

    def calibrate(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """Return header entries from errors (B, times) of paths with a known solution."""
        return {}

    def freeze(self) -> None:
        """Prepare for inference: the weights do not change any more."""


class BasisModel(Model):
    """A model whose output is a linear combination of functions of (x, t), as export needs it.

    Attributes:
        quantities: the quantities that the coefficients belong to: "density", "potential" or both.
        formula: formula of the output in coefficients and basis, for users of exported files.
        basis_outputs: names of the outputs of `evaluate_basis`.
        is_time_independent: whether `evaluate_basis` takes points alone.
    """

    quantities: ClassVar[tuple[str, ...]]
    formula: ClassVar[str]
    basis_outputs: ClassVar[tuple[str, ...]]
    is_time_independent: ClassVar[bool] = False

    @abstractmethod
    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Map unit-box densities at the sensors, (B, m) each, to (B, functions) per quantity."""

    @abstractmethod
    def evaluate_basis(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return `basis_outputs` at points (N, d) of the unit box and times (N,)."""


@lru_cache(maxsize=8)
def to_float64(model: M) -> M:
    """Return a copy of a model in double precision, for gradients."""
    return deepcopy(model).double()


def model_class(kind: str) -> type[Model]:
    """Return the class of a model form."""
    return import_object(FORMS[kind])


def build_model(settings: ModelSettings, seed: int | None = None) -> Model:
    """Return an untrained model.

    Args:
        settings: settings of the model.
        seed: seed of the random weights; None draws them from torch's global generator.
    """
    if seed is None:
        return model_class(settings.kind)(settings)
    with fork_rng(seed):
        return build_model(settings)


# ---- model files


def save_model(file: Path, model: Model, header: Header) -> Path:
    """Write the weights of a model, with its architecture and further entries in the header."""
    header = {
        "format": 1,
        "kind": model.settings.kind,
        "architecture": to_table(model.settings),
        **header,
    }
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return write_tensors(file, tensors, header)


def load_model(file: Path) -> tuple[Model, Header]:
    """Return the model in a file of `save_model`, and its header."""
    tensors, header = read_tensors(file, "a geonet model")
    if header.get("format") != 1 or str(header.get("kind")) not in FORMS:
        raise FileError(
            f"{file} has format {header.get('format')!r} and kind {header.get('kind')!r}, which "
            "this version does not support; load it with the version that wrote it."
        )
    table = header.get("architecture")
    if isinstance(table, dict):
        table = {"kind": header["kind"], **table}
    try:
        settings = from_table(ModelSettings, table)
    except ConfigError as error:
        raise FileError(f"{file} has an invalid architecture: {error}") from error
    epsilon = header.setdefault("epsilon", 0.0)
    if not isinstance(epsilon, int | float) or not 0 <= epsilon <= sys.float_info.max:
        raise FileError(f"{file} has epsilon = {epsilon!r}, not a length²; download it again.")
    with torch.device("meta"):  # shapes only: the file limits the memory, not its header
        model = build_model(settings)
    header["file"] = str(file)
    return load_weights(model, tensors, file, model.optional_prefixes), header


def load_weights(
    model: M,
    tensors: dict[str, Tensor],
    file: Path,
    optional_prefixes: tuple[str, ...] = (),
    max_missing: int = 1 << 24,
) -> M:
    """Load the weights of a file into a model for inference; raise FileError if they do not fit.

    Weights whose names start with one of `optional_prefixes` may be missing and are set to zero, up
    to `max_missing` numbers, so that a header cannot request more memory.
    """
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    missing = {
        name: shape
        for name, shape in expected.items()
        if name.startswith(optional_prefixes) and name not in tensors
    }
    stored = {name: tuple(value.shape) for name, value in tensors.items()}
    size = sum(math.prod(shape) for shape in missing.values())
    if expected != stored | missing or size > max_missing:
        raise FileError(f"The weights in {file} do not fit its architecture; download it again.")
    tensors = tensors | {name: torch.zeros(shape) for name, shape in missing.items()}
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise FileError(f"The weights {name} in {file} are not finite; download it again.")
    model.load_state_dict({k: v.float() for k, v in tensors.items()}, assign=True)
    return model.eval().requires_grad_(False)


def read_kind(file: Path) -> tuple[str, int | None]:
    """Return form and dimension of the model in a file, from its unchecked header.

    The dimension is None if the header has none from 1 to 3.
    """
    with wrap_read_errors(file, "a geonet model"), safe_open(file, "pt") as archive:
        header = json.loads((archive.metadata() or {}).get("geonet", "{}"))
    if not isinstance(header, dict):
        return "unknown", None
    table = header.get("architecture")
    dimension = table.get("dimension") if isinstance(table, dict) else None
    is_known = isinstance(dimension, int) and dimension in (1, 2, 3)
    return str(header.get("kind")), dimension if is_known else None


def write_tensors(file: Path, tensors: dict[str, Tensor], header: Header) -> Path:
    """Write tensors and a header with their checksum, atomically."""
    tensors = {name: value.contiguous().cpu() for name, value in tensors.items()}
    text = json.dumps(header, ensure_ascii=False)
    with atomic_write(file) as temporary:
        temporary.write_bytes(save(tensors, {"geonet": text, "sha256": _digest(tensors, text)}))
    return file


def read_tensors(file: Path, description: str) -> tuple[dict[str, Tensor], Header]:
    """Return tensors and header of a file of `write_tensors`; raise FileError for other files.

    The tensors are copied to addresses that torch chose, because the rounding of matrix products
    depends on the alignment of their factors, and a mapped file may have any alignment.
    """
    with wrap_read_errors(file, description), safe_open(file, "pt") as archive:
        metadata = archive.metadata() or {}
        if not {"geonet", "sha256"} <= set(metadata):
            raise FileError(
                f"{file} holds tensors but is not {description}; `geonet train` writes one."
            )
        tensors = {name: archive.get_tensor(name).clone() for name in archive.keys()}  # noqa: SIM118
        if _digest(tensors, metadata["geonet"]) != metadata["sha256"]:
            raise FileError(f"{file} was changed after it was written; download it again.")
        header = json.loads(metadata["geonet"])
    if not isinstance(header, dict):
        raise FileError(f"The header of {file} is not a table; download the file again.")
    return tensors, header


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# ---- cache


def load_cached(file: Path, dimension: int, form: str | None = None) -> tuple[Model, Header]:
    """Return the model in a file and its header; a loaded model is kept until its file changes.

    Raise SolverError if the model has another dimension, or another form than `form`.
    """
    try:
        state = file.stat()
        model, header = _load_frozen(file, state.st_mtime_ns, state.st_size)
    except OSError:
        model, header = load_model(file)  # which raises an error with the cause
    settings = model.settings
    if form is not None and settings.kind != form:
        raise SolverError(
            f"The model {file} is of the kind {settings.kind!r}, which this solver does not "
            f"support; choose the file itself as the solver, solver={str(file)!r}."
        )
    if settings.dimension != dimension:
        raise SolverError(
            f"The model {file} takes {settings.dimension}D densities, "
            f"these are {dimension}D; choose another model or solver='auto'."
        )
    return model, header


@lru_cache(maxsize=8)
def _load_frozen(file: Path, changed: int, size: int) -> tuple[Model, Header]:
    model, header = load_model(file)
    model.freeze()
    return model, header
