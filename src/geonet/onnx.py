"""Export of trained models to ONNX files, which ONNX Runtime and others run without torch.

A model becomes two files. The branch maps densities to coefficients, once per pair; the basis maps
points to functions, the same for all pairs. The answer is a product of both. Every file is compared
with torch before it is written.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from geonet._files import atomic_write, ensure_dir, wrap_read_errors
from geonet._utils import VERSION
from geonet._validation import as_path
from geonet.errors import ExportError, FileError, SolverError
from geonet.solvers.base import Solver
from geonet.solvers.neural.model import PRETRAINED, BasisModel, Header, load_model
from geonet.solvers.registry import make_solver

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["ExportConfig", "export", "find_model_file", "read_metadata"]

# Warns of operators of torchvision, which no model uses, if torchvision is not installed.
_REGISTRATION_LOGGER = "torch.onnx._internal.exporter._registration"

Inputs = tuple[Tensor, ...]
Outputs = Sequence[np.ndarray | Tensor]


@dataclass(frozen=True)
class ExportConfig:
    """Settings of the comparison between ONNX Runtime and torch on random inputs."""

    tolerance: float = 1e-5  # largest difference, relative to the scale of an output
    rounding_factor: float = 4.0  # or relative to torch's rounding error, if that is larger
    batch_sizes: tuple[int, ...] = (3, 1, 2, 64)  # pairs or points; the first is used for tracing
    seed: int = 0


def export(
    model: str | Path | Solver, folder: str | Path, config: ExportConfig | None = None
) -> list[Path]:
    """Write NAME-branch.onnx and NAME-basis.onnx, both or none.

    Args:
        model: a trained solver, its name, or a model file (*.safetensors); NAME is the name in the
            model file.
        folder: folder of the files; created if missing. A name that ends in .onnx raises.
        config: limits of the comparison with torch.

    Returns:
        The paths of the two files.

    Raises:
        FileError: if the folder has the name of an ONNX file or cannot be created.
        ExportError: if the files do not reproduce torch, a library is missing, or the form of the
            model cannot be exported.
    """
    file, folder = find_model_file(model), as_path(folder, "folder")
    if folder.suffix.lower() == ".onnx" and not folder.is_dir():
        raise FileError(
            f"A model becomes two files, and {folder} is the name of one; give a folder, such as "
            f"{folder.with_suffix('')}."
        )
    network, header = load_model(file)
    if not isinstance(network, BasisModel):
        label = repr(file.stem) if file.parent == PRETRAINED else file
        raise ExportError(
            f"The model {label} is iterative and has no fixed basis, so it cannot be "
            "exported; choose another model, such as transport-2d, or train your own by geonet "
            "train --pairs FILE --exportable."
        )
    _import_libraries()
    network.freeze()  # one matrix in the file instead of many that are stacked
    folder, name = ensure_dir(folder), str(header.get("name", file.stem))
    name = name if re.fullmatch(r"\w[\w.-]*", name) else file.stem  # no path to another folder
    protos = {
        folder / f"{name}-{part.name}.onnx": _convert(part, name, header, config or ExportConfig())
        for part in split_model(network)
    }
    with ExitStack() as stack:  # both files are complete before either gets its name
        for target, proto in protos.items():
            temporary = stack.enter_context(atomic_write(target))
            temporary.write_bytes(proto.SerializeToString())
    return list(protos)


def find_model_file(model: str | Path | Solver) -> Path:
    """Return the file of a trained solver, or raise SolverError for any other solver."""
    solver = model if isinstance(model, Solver) else make_solver(model)
    file = getattr(solver, "file", None)
    if file is None:
        raise SolverError(
            f"The solver {solver.name!r} has no trained network to export; "
            "choose one with a network, such as transport-2d, or a model file (*.safetensors)."
        )
    return Path(file)


def read_metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a file that `export` wrote."""
    onnx = import_module("onnx")
    with wrap_read_errors(file, "an ONNX model"):
        return {entry.key: entry.value for entry in onnx.load(file).metadata_props}


def _import_libraries() -> None:
    try:
        with _suppress_messages():  # some of them change the warning filters when imported
            for name in ("onnx", "onnxscript", "onnxruntime"):
                import_module(name)
    except ImportError as error:
        raise ExportError(
            "The export needs onnx, onnxscript and onnxruntime, which are not all installed; "
            "run pip install 'geonet-ot[onnx]'."
        ) from error


@contextmanager
def _suppress_messages() -> Iterator[None]:
    """Suppress messages of torch and onnxscript about their internals."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", _REGISTRATION_LOGGER)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class Branch(Module):
    """Network from densities at the sensors to coefficients, (B, functions) per quantity."""

    name = "branch"
    axis = "batch"
    inputs = ("source", "target")

    def __init__(self, model: BasisModel):
        super().__init__()
        self.model = model
        self.outputs = tuple(f"{quantity}_coefficients" for quantity in model.quantities)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Map densities relative to uniform, (B, sensors^d) each, to coefficients."""
        return self.model.coefficients(source, target)

    def random_inputs(self, count: int, generator: torch.Generator) -> Inputs:
        """Return rough random densities of mean one."""
        settings = self.model.settings
        shape = (2, count, settings.sensors**settings.dimension)
        values = torch.randn(shape, generator=generator).exp()
        return tuple(values / values.mean(-1, keepdim=True))


class Basis(Module):
    """Network from points, and times if the basis depends on them, to basis functions."""

    name = "basis"
    axis = "points"

    def __init__(self, model: BasisModel):
        super().__init__()
        self.model = model
        self.inputs = ("points",) if model.is_time_independent else ("points", "times")
        self.outputs = model.basis_outputs

    def forward(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """Evaluate the basis at points (N, d) of the unit box and times (N,) in [0, 1]."""
        return self.model.evaluate_basis(points, times)

    def random_inputs(self, count: int, generator: torch.Generator) -> Inputs:
        """Return random points, and times."""
        points = torch.rand(count, self.model.settings.dimension, generator=generator)
        return (points, torch.rand(count, generator=generator))[: len(self.inputs)]


Part = Branch | Basis


def split_model(model: BasisModel) -> tuple[Branch, Basis]:
    """Return branch and basis in evaluation mode."""
    return Branch(model).eval(), Basis(model).eval()


@torch.no_grad()
def _convert(part: Part, name: str, header: Header, config: ExportConfig) -> ModelProto:
    """Convert a part to ONNX and compare it with torch."""
    generator = torch.Generator().manual_seed(config.seed)
    cases = [part.random_inputs(count, generator) for count in config.batch_sizes]
    # Before the export, because tracing would fill caches of the networks with fake tensors.
    expected = [part(*case) for case in cases]
    with _suppress_messages():
        program = torch.onnx.export(
            part,
            cases[0],
            dynamo=True,
            verbose=False,
            input_names=part.inputs,
            output_names=part.outputs,
            dynamic_shapes=tuple({0: part.axis} for _ in part.inputs),
        )
    assert program is not None  # always true with dynamo=True
    proto = program.model_proto
    _clean(proto, part)
    difference = _max_difference(_run(proto, part, cases), expected)
    # Sums of thousands of terms depend on the order, which differs by library and processor.
    exact = deepcopy(part).double()
    in_double = [exact(*(value.double() for value in case)) for case in cases]
    rounding = _max_difference(expected, in_double)
    limit = max(config.tolerance, config.rounding_factor * rounding)
    if not difference <= limit:
        raise ExportError(
            f"The exported {part.name} of {name} differs from torch by {difference:.1e} of its "
            f"scale, more than {limit:.1e}; nothing was written. Use other versions of "
            "onnxscript and onnxruntime."
        )
    _add_metadata(proto, part, name, header, difference)
    return proto


def _clean(proto: ModelProto, part: Part) -> None:
    """Remove the exporter's notes, which contain paths of this machine, and name the axes."""
    graph = proto.graph
    for entry in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del entry.metadata_props[:]
    del graph.value_info[:]  # intermediate shapes, which runtimes infer
    for output in graph.output:
        for size in output.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = part.axis


def _run(proto: ModelProto, part: Part, cases: list[Inputs]) -> list[Sequence[np.ndarray]]:
    """Run ONNX Runtime on the bytes of a model."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        onnx.checker.check_model(proto, full_check=True)
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = [dict(zip(part.inputs, (x.numpy() for x in case), strict=True)) for case in cases]
        return [session.run(list(part.outputs), feed) for feed in feeds]  # pyright: ignore
    except Exception as error:  # the errors of both libraries have no common base
        raise ExportError(
            f"ONNX Runtime does not run the exported {part.name}: {error}; nothing was written. "
            "Use other versions of onnxscript and onnxruntime."
        ) from error


def _max_difference(actual: Sequence[Outputs], expected: Sequence[Outputs]) -> float:
    """Return the largest difference between two lists of outputs, relative to their scales.

    The scale of an output is its largest value over all cases: single precision rounds sums of
    large terms, so small values alone can have a larger relative error.
    """
    worst = 0.0
    for outputs in zip(zip(*actual, strict=True), zip(*expected, strict=True), strict=True):
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(*outputs, strict=True)]
        if any(a.shape != b.shape for a, b in pairs):
            return np.inf
        gap = np.max([np.abs(a - b).max() for a, b in pairs])
        scale = np.max([np.abs(b).max() for _, b in pairs])
        worst = float(np.maximum(worst, gap / scale))  # keeps NaN, unlike max
    return worst


def _add_metadata(
    proto: ModelProto, part: Part, name: str, header: Header, difference: float
) -> None:
    """Store a description of the model in the file."""
    import onnx

    settings = part.model.settings
    proto.producer_name, proto.producer_version = "geonet", VERSION
    proto.graph.name = f"{name}-{part.name}"
    metadata = {
        "model": name,
        "kind": settings.kind,
        "part": part.name,
        "dimension": settings.dimension,
        "sensors": settings.sensors,
        "epsilon": header["epsilon"],
        "formula": part.model.formula,
        "geonet": VERSION,
        "largest_difference": f"{difference:.2e}",
    }
    onnx.helper.set_model_props(proto, {key: str(value) for key, value in metadata.items()})
