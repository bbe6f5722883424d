"""What a model form is: settings, a network, its objective, its path, and what can be exported.

A form subclasses `Model` in one file, beside its settings (`ModelSettings`), its loss (`Loss`) and,
where none of `geonet.geodesics` fits, its path. Training, files and export ask for nothing else and
know no form by name. A form whose solver does more than evaluate the network has a line in
`SOLVERS` of `geonet.solvers.neural.pretrained`.
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

from geonet._advice import setting
from geonet._files import atomic_write, wrap_read_errors
from geonet._toml import from_table, require, to_table
from geonet._utils import fork_rng, import_object
from geonet.density import Density
from geonet.errors import ConfigError, FileError, SolverError
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.solvers.neural.losses import Loss, LossSettings

# ---- The settings of networks: what has to be known to build them.


MAX_SIZE = 1 << 20  # of any width or count; a larger value is probably a typing error


@dataclass(frozen=True)
class Branch:
    """A branch: sensor values of one density to `rank` numbers.

    Attributes:
        modes: the cosine modes along each axis that it reads of the sensors; 0 for the sensors
            themselves.
    """

    network: Literal["mlp", "modified-mlp"] = "modified-mlp"
    width: int = 150
    depth: int = 7
    modes: int = 0

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)


@dataclass(frozen=True)
class Trunk:
    """A trunk: (x, t) in the unit box to `rank` numbers.

    Attributes:
        network: "mlp" and "modified-mlp" see x and t together; "separable" multiplies a stack for
            x with a stack for t (the paper's Fourier-feature trunk).
        features: what the network is given: "coordinates"; "cosines" cos(kπx_i), k ≤ `modes`, even
            at every face of the box; "fourier": cos and sin of `modes` random frequencies with
            standard deviation `sigma`, in periods per box, frozen.
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


@dataclass(frozen=True)
class ModelSettings:
    """What the settings of every model form share.

    A table in a file names its form by `kind`; `geonet._toml.from_table` asks `classes_by_kind` for it.

    Attributes:
        kind: the name of the form.
        dimension: d.
        sensors: cells along each axis where the densities are read.
    """

    kind: str
    dimension: int
    sensors: int

    def __post_init__(self) -> None:
        require(self.dimension in (1, 2, 3), f"dimension is {self.dimension}; give 1, 2 or 3.")
        require(2 <= self.sensors <= 4096, f"sensors is {self.sensors}; give 2 to 4096.")

    @classmethod
    def classes_by_kind(cls) -> dict[str, type[Any]]:
        """The settings of every form by its kind; the first is the default."""

        return {kind: model_class(kind).Settings for kind in FORMS}


def _check_size(network: str, width: int, depth: int) -> None:
    least = 2 if network == "mlp" else 3  # below, gates or stacks would be empty
    require(0 < width <= MAX_SIZE, f"width is {width}; give 1 to {MAX_SIZE}.")
    require(least <= depth <= 100, f"depth is {depth}; give {least} to 100 layers to {network}.")


Header = dict[str, Any]  # what is known of a trained model beside its weights
ANSWERS = ("density", "distance", "velocity", "potential", "trajectories")
CACHED_MODELS = 8
M = TypeVar("M", bound="Model")


class Model(Module, ABC):
    """A map from two densities to a path.

    Attributes:
        Settings: the class of its settings.
        settings: its own.
        provides: quantities that its paths can compute.
        typical: how many sample densities `prepare` is given.
        needs_endpoint_loss: whether the objective needs the ends at places of their own.
        needs_exact_paths: whether the objective compares with exact paths.
        uses_cell_means: whether its sensors read means over their cells, not values at their centres.
        later: how the names of tensors begin that files of earlier versions lack; zero there.
    """

    Settings: ClassVar[type[ModelSettings]]
    settings: Any  # an instance of Settings
    provides: ClassVar[tuple[str, ...]] = ANSWERS
    typical: ClassVar[int] = 0
    needs_endpoint_loss: ClassVar[bool] = False
    needs_exact_paths: ClassVar[bool] = False
    uses_cell_means: ClassVar[bool] = False
    later: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Any):
        super().__init__()
        self.settings = settings

    @abstractmethod
    def objective(self, settings: LossSettings, box: Grid) -> Loss:
        """What training minimises, for pairs on a box."""

    @abstractmethod
    def path(self, source: Density, target: Density, name: str, header: Header) -> Geodesic:
        """The path that the network alone gives for a pair or a batch.

        Args:
            source: μ_0.
            target: μ_1, on the same grid.
            name: of the solver.
            header: of the model's file; epsilon, in the unit box, and measured errors are used.
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
        """Refuse a training that makes no sense for this form, with `require`."""

    def prepare(self, densities: Tensor) -> None:
        """Fit the scaling of the inputs to sample densities at the sensors, (N, m)."""

    def calibration(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """What errors (B, times) of paths with a known answer tell, for the header of the file."""
        return {}

    def freeze(self) -> None:
        """Prepare for answering alone: no weight will change any more."""


class BasisModel(Model):
    """A model whose answer is a sum of functions of (x, t), as export needs it.

    Attributes:
        quantities: what the coefficients belong to: "density", "potential" or both.
        formula: how coefficients and basis make the answer, for users of exported files.
        basis_outputs: what `evaluate_basis` gives.
        is_time_independent: whether `evaluate_basis` takes points alone.
    """

    quantities: ClassVar[tuple[str, ...]]
    formula: ClassVar[str]
    basis_outputs: ClassVar[tuple[str, ...]]
    is_time_independent: ClassVar[bool] = False

    @abstractmethod
    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Unit-box densities at the sensors, (B, m) each, to (B, functions) of each quantity."""

    @abstractmethod
    def evaluate_basis(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """The functions at points (N, d) of the unit box and times (N,): `basis_outputs`."""


@lru_cache(CACHED_MODELS)
def to_float64(model: M) -> M:
    """A model in double precision, for gradients."""
    return deepcopy(model).double()


# ---- The model forms by name. A form is one file; adding it is adding a line here.


FORMS = {
    "geonet": "geonet.solvers.neural.geonet:GeONet",
    "transport": "geonet.solvers.neural.transport.network:TransportNet",
    "deeponet": "geonet.solvers.neural.deeponet:DensityNet",
    "cascade": "geonet.solvers.neural.cascade:CascadeNet",
}


def model_class(kind: str) -> type[Model]:
    """The class of all models of a kind."""
    return import_object(FORMS[kind])


def untrained(settings: ModelSettings) -> Model:
    """The model that the settings describe, with weights from torch's global generator."""
    return model_class(settings.kind)(settings)


def build_model(settings: ModelSettings, seed: int) -> Model:
    """A model with random weights, the same for the same seed; torch's stream stays as it was."""
    with fork_rng(seed):
        return untrained(settings)


# ---- Trained models in files: safetensors with a JSON header, no pickle, and a checksum over both.


FORMAT = 1
SUFFIX = ".safetensors"
MOST_LACKING = 1 << 24  # numbers that are filled in: a header alone cannot ask for much memory
M_MODEL_FILE = TypeVar("M", bound=torch.nn.Module)


def save_model(file: Path, model: Model, header: Header) -> Path:
    """Write the weights, and beside them the architecture and whatever `header` has to say."""
    header = {
        "format": FORMAT,
        "kind": model.settings.kind,
        "architecture": to_table(model.settings),
        **header,
    }
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return write_tensors(file, tensors, header)


def load_model(file: Path) -> tuple[Model, Header]:
    """The model that `save_model` wrote, and its header."""
    tensors, header = read_tensors(file, "a geonet model")
    if header.get("format") != FORMAT or str(header.get("kind")) not in FORMS:
        raise FileError(
            f"{file} has format {header.get('format')!r} and kind {header.get('kind')!r}, which "
            "this version does not know; load it with the version that wrote it."
        )
    try:
        settings = from_table(ModelSettings, _architecture(header))
    except ConfigError as error:
        raise FileError(f"{file} describes no model: {error}") from error
    epsilon = header.setdefault("epsilon", 0.0)
    if not isinstance(epsilon, int | float) or not 0 <= epsilon <= sys.float_info.max:
        raise FileError(f"{file} has epsilon = {epsilon!r}, which is no length²; get it again.")
    with torch.device("meta"):  # shapes only: a header cannot ask for more memory than its file has
        model = untrained(settings)
    header["file"] = str(file)
    return load_weights(model, tensors, file, model.later), header


def _architecture(header: Header) -> object:
    """The table of a model's settings; the kind stands beside it as well."""
    table = header.get("architecture")
    return {"kind": header["kind"], **table} if isinstance(table, dict) else table


def load_weights(
    model: M_MODEL_FILE, tensors: dict[str, Tensor], file: Path, later: tuple[str, ...] = ()
) -> M_MODEL_FILE:
    """A model with the weights that are in a file, for good; those that do not fit are refused.

    Weights whose names begin as one of `later` may be missing, and are zero then.
    """
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    lacking = {n: s for n, s in expected.items() if n.startswith(later) and n not in tensors}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    room = sum(math.prod(shape) for shape in lacking.values())
    if expected != found | lacking or room > MOST_LACKING:
        raise FileError(f"The weights in {file} do not fit its architecture; get the file again.")
    tensors = tensors | {name: torch.zeros(shape) for name, shape in lacking.items()}
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise FileError(f"The weights {name} in {file} are not finite; get the file again.")
    model.load_state_dict({k: v.float() for k, v in tensors.items()}, assign=True)
    return model.eval().requires_grad_(False)


def read_kind(file: Path) -> str:
    """The kind of model in a file, from its header alone, unchecked."""
    with wrap_read_errors(file, "a geonet model"), safe_open(file, "pt") as archive:
        header = json.loads((archive.metadata() or {}).get("geonet", "{}"))
    return str(header.get("kind")) if isinstance(header, dict) else "unknown"


def write_tensors(file: Path, tensors: dict[str, Tensor], header: Header) -> Path:
    """Tensors and a header with their checksum, whole or not at all."""
    tensors = {name: value.contiguous().cpu() for name, value in tensors.items()}
    text = json.dumps(header, ensure_ascii=False)
    with atomic_write(file) as temporary:
        temporary.write_bytes(save(tensors, {"geonet": text, "sha256": _digest(tensors, text)}))
    return file


def read_tensors(file: Path, what: str) -> tuple[dict[str, Tensor], Header]:
    """What `write_tensors` wrote; anything else is refused.

    The tensors are copies, row by row at addresses that torch chose, as those that were written:
    a product rounds otherwise where its factors lie otherwise, and a file may lie anywhere.
    """
    with wrap_read_errors(file, what), safe_open(file, "pt") as archive:
        metadata = archive.metadata() or {}
        if not {"geonet", "sha256"} <= set(metadata):
            raise FileError(f"{file} holds tensors but is not {what}; `geonet train` writes one.")
        tensors = {name: archive.get_tensor(name).clone() for name in archive.keys()}  # noqa: SIM118
        if _digest(tensors, metadata["geonet"]) != metadata["sha256"]:
            raise FileError(f"{file} was changed after it was written; get the file again.")
        header = json.loads(metadata["geonet"])
    if not isinstance(header, dict):
        raise FileError(f"The header of {file} is no table; get the file again.")
    return tensors, header


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# ---- Models from files, kept until their file changes.


PRETRAINED = Path(__file__).with_name("pretrained_models")


def load_cached(file: Path, dimension: int, form: str | None = None) -> tuple[Model, Header]:
    """The model in a file and its header; one of another form or dimension is refused."""
    try:
        state = file.stat()
        model, header = _opened(file, state.st_mtime_ns, state.st_size)
    except OSError:  # reading it says what is wrong
        model, header = load_model(file)
    settings = model.settings
    if form is not None and settings.kind != form:
        raise SolverError(
            f"The model {file} is of the kind {settings.kind!r}, which this solver does not "
            f"take; give the file itself as the solver, {setting('solver', str(file))}."
        )
    if settings.dimension != dimension:
        raise SolverError(
            f"The model {file} takes {settings.dimension}D densities, "
            f"these are {dimension}D; choose another model or {setting('solver', 'auto')}."
        )
    return model, header


@lru_cache(CACHED_MODELS)
def _opened(file: Path, changed: int, size: int) -> tuple[Model, Header]:
    model, header = load_model(file)
    model.freeze()
    return model, header
