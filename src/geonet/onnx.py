"""ONNX files of a trained model, which ONNX Runtime and others run without torch.

Every file is compared with torch before it is written.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
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
from geonet.errors import ExportError, SolverError
from geonet.solvers.base import Solver
from geonet.solvers.neural.model import BasisModel, Header, load_model
from geonet.solvers.registry import make_solver

if TYPE_CHECKING:
    from onnx import ModelProto


# ---- The two halves of a trained model, as networks of plain tensors with named inputs and outputs.
#
# The branch sees the densities and gives coefficients, once per pair; the basis sees points and gives
# functions there, the same for all pairs. A product of both is the answer.


class Branch(Module):
    """Densities at the sensors to coefficients, (B, functions) each."""

    name = "branch"
    axis = "batch"
    inputs = ("source", "target")

    def __init__(self, model: BasisModel):
        super().__init__()
        self.model = model
        self.outputs = tuple(f"{quantity}_coefficients" for quantity in model.quantities)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Densities relative to uniform, (B, sensors^d) each."""
        return self.model.coefficients(source, target)

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random inputs: rough densities of mean one."""
        settings = self.model.settings
        shape = (2, count, settings.sensors**settings.dimension)
        values = torch.randn(shape, generator=generator).exp()
        return tuple(values / values.mean(-1, keepdim=True))


class Basis(Module):
    """Points, and times where the model's functions depend on them, to the functions there."""

    name = "basis"
    axis = "points"

    def __init__(self, model: BasisModel):
        super().__init__()
        self.model = model
        self.inputs = ("points",) if model.timeless else ("points", "times")
        self.outputs = model.basis_outputs

    def forward(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """(N, d) in the unit box, and (N,) in [0, 1]."""
        return self.model.basis_at(points, times)

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random points, and times."""
        points = torch.rand(count, self.model.settings.dimension, generator=generator)
        return (points, torch.rand(count, generator=generator))[: len(self.inputs)]


Part = Branch | Basis


def parts_of(model: BasisModel) -> tuple[Branch, Basis]:
    """Branch and basis, ready to answer."""
    return Branch(model).eval(), Basis(model).eval()


TOLERANCE = 1e-5  # of the scale of an output
AS_EXACT = 4.0  # times torch's own distance from double precision, where that is more
Answers = Sequence[Sequence[np.ndarray | Tensor]]  # for each case, the outputs
COUNTS = (3, 1, 2, 64)  # of pairs or points; the first is what the exporter sees
SEED = 0


def export_onnx(model: str | Path | Solver, folder: str | Path) -> list[Path]:
    """Write NAME-branch.onnx and NAME-basis.onnx, both or none.

    Args:
        model: a trained solver, its name, or a model's file (*.safetensors); NAME is the
            model's own.
        folder: where to write; created if missing.

    Raises:
        ExportError: if the files would not answer as torch does, a library is missing, or the form
            of the model cannot be exported.
    """
    file, folder = model_file(model), as_path(folder, "folder")
    _require_libraries()
    network, header = load_model(file)
    if not isinstance(network, BasisModel):
        raise ExportError(
            f"The model {file.stem!r} looks at the densities again and again as it answers, which "
            "an ONNX file cannot; choose a model of another form, such as transport-2d."
        )
    network.freeze()  # one matrix in the file instead of many and their stacking
    where, name = ensure_dir(folder), str(header.get("name", file.stem))
    name = name if re.fullmatch(r"\w[\w.-]*", name) else file.stem  # no path into other folders
    made = {
        where / f"{name}-{part.name}.onnx": _exported(part, name, header)
        for part in parts_of(network)
    }
    with ExitStack() as stack:  # neither file gets its name until both are written
        for target, proto in made.items():
            temporary = stack.enter_context(atomic_write(target))
            temporary.write_bytes(proto.SerializeToString())
    return list(made)


def model_file(model: str | Path | Solver) -> Path:
    """The file of a trained solver; any other solver is refused."""
    solver = model if isinstance(model, Solver) else make_solver(model)
    file = getattr(solver, "file", None)
    if file is None:
        raise SolverError(
            f"The solver {solver.name!r} has no trained network to export; "
            "choose one that has, such as transport-2d, or give a model's file (*.safetensors)."
        )
    return Path(file)


def metadata(file: Path) -> dict[str, str]:
    """What a file that `export_onnx` wrote says about itself."""
    onnx = import_module("onnx")
    with wrap_read_errors(file, "an ONNX model"):
        return {entry.key: entry.value for entry in onnx.load(file).metadata_props}


def _require_libraries() -> None:
    try:
        with _quiet():  # some set filters for warnings, which are not theirs to set
            for name in ("onnx", "onnxscript", "onnxruntime"):
                import_module(name)
    except ImportError as error:
        raise ExportError(
            "The export needs onnx, onnxscript and onnxruntime, which are not all installed; "
            "run pip install 'geonet[export]'."
        ) from error


@torch.no_grad()
def _exported(part: Part, name: str, header: Header) -> ModelProto:
    """The part in ONNX, compared with torch."""
    generator = torch.Generator().manual_seed(SEED)
    cases = [part.drawn(count, generator) for count in COUNTS]
    # Before the export: otherwise the networks would compute what they cache as tensors that have
    # shapes but no values.
    answers = [part(*case) for case in cases]
    with _quiet():
        program = torch.onnx.export(
            part,
            cases[0],
            dynamo=True,
            verbose=False,
            input_names=part.inputs,
            output_names=part.outputs,
            dynamic_shapes=tuple({0: part.axis} for _ in part.inputs),
        )
    assert program is not None  # as it always is with dynamo=True
    proto = program.model_proto
    _tidy(proto, part)
    difference = _difference(_run(proto, part, cases), answers)
    # Thousands of terms are summed in an order of each library's and processor's own.
    limit = max(TOLERANCE, AS_EXACT * _difference(answers, _in_double(part, cases)))
    if not difference <= limit:
        raise ExportError(
            f"The exported {part.name} of {name} differs from torch by {difference:.1e} of its "
            f"scale, more than {limit:.1e}; nothing was written. Use other versions of "
            "onnxscript and onnxruntime."
        )
    _describe(proto, part, name, header, difference)
    return proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences messages of torch and onnxscript about their internals."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _tidy(proto: ModelProto, part: Part) -> None:
    """Drop the exporter's notes, which contain paths of this machine, and name the axes."""
    graph = proto.graph
    for noted in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del noted.metadata_props[:]
    del graph.value_info[:]  # shapes in between, which runtimes find by themselves
    for output in graph.output:
        for size in output.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = part.axis


def _in_double(part: Part, cases: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """What torch answers in double precision."""
    exact = deepcopy(part).double()
    return [exact(*(value.double() for value in case)) for case in cases]


def _difference(found: Answers, expected: Answers) -> float:
    """The largest difference between two lists of answers, relative to each output's scale.

    The scale of an output is the largest value it has in all cases. A small answer alone can be
    further off, relative to itself: single precision rounds sums of large terms.
    """
    worst = 0.0
    for outputs in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True):
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(*outputs, strict=True)]
        if any(a.shape != b.shape for a, b in pairs):
            return np.inf
        gap = np.max([np.abs(a - b).max() for a, b in pairs])
        scale = np.max([np.abs(b).max() for _, b in pairs])
        worst = float(np.maximum(worst, gap / scale))  # which keeps a NaN, unlike max
    return worst


def _run(
    proto: ModelProto, part: Part, cases: list[tuple[Tensor, ...]]
) -> list[Sequence[np.ndarray]]:
    """What ONNX Runtime answers, from the bytes that are going to be written."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        onnx.checker.check_model(proto, full_check=True)
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = [
            {name: value.numpy() for name, value in zip(part.inputs, case, strict=True)}
            for case in cases
        ]
        return [session.run(list(part.outputs), feed) for feed in feeds]  # pyright: ignore
    except Exception as error:  # both libraries have many kinds, without a common base
        raise ExportError(
            f"ONNX Runtime does not run the exported {part.name}: {error}; nothing was written. "
            "Use other versions of onnxscript and onnxruntime."
        ) from error


def _describe(proto: ModelProto, part: Part, name: str, header: Header, difference: float) -> None:
    """Put into the file what is needed to use it."""
    import onnx

    settings = part.model.settings
    proto.producer_name, proto.producer_version = "geonet", VERSION
    proto.graph.name = f"{name}-{part.name}"
    about = {
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
    onnx.helper.set_model_props(proto, {key: str(value) for key, value in about.items()})
