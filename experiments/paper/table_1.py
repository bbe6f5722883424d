"""Table 1: properties, errors and costs of the kinds of method."""

from __future__ import annotations

from time import perf_counter

import torch

from benchmarks.results import Cell, Result, Table, make_spreads
from experiments.paper.experiments import Conditions
from geonet.evaluation import PAIRS, TEST_SETS, TIME_LABELS, ReferencePairs, sample_pairs
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import Header, read_tensors
from geonet.solvers.registry import make_solver

PINN_PAIRS, QUICK_PINN_STEPS = 2, 300
# operator learning, satisfies the equations, needs no known geodesics, output on any mesh
PROPERTIES = {
    "deeponet-1d": ("yes", "as its data do", "no", "yes"),
    "pinn": ("no", "trained to", "yes", "yes"),
    "barycenter": ("no", "no: entropic", "yes", "no"),
    "quantile": ("no", "yes", "yes", "yes"),
    "geonet-1d": ("yes", "trained to", "yes", "yes"),
    "transport-1d": ("yes", "Hamilton–Jacobi by construction", "yes", "yes"),
}
KINDS = {
    "deeponet-1d": "neural operator without physics",
    "pinn": "physics-informed network, one pair",
    "barycenter": "classical, POT",
    "quantile": "classical, exact",
    "geonet-1d": "GeONet",
    "transport-1d": "transport form",
}


def table_1(conditions: Conditions) -> Result:
    """Measure errors and costs on the random 1D pairs of Table 2, beside properties."""
    columns = (
        "kind",
        "solver",
        "operator learning",
        "satisfies the equations",
        "needs no known geodesics",
        "output on any mesh",
    )
    properties = [[KINDS[name], f"`{name}`", *has] for name, has in PROPERTIES.items()]
    pairs = sample_pairs(TEST_SETS["1D random"], conditions.count(PAIRS, 3))
    rows = []
    for name in PROPERTIES:
        rows.append(_measure(name, pairs, conditions))
    costs = ("solver", "pairs", *TIME_LABELS, "training, s", "ms a pair")
    tables = [
        Table("Properties", columns, properties),
        Table("L1 to exact truth in %, and costs on this machine", costs, rows),
    ]
    _, header = _header("deeponet-1d", conditions)
    remarks = [
        "The exact geodesics that `deeponet-1d` was shown took "
        f"{header.get('data_seconds', 0):g} s of its training. `pinn` trains anew for every pair: "
        "its training is its cost per pair."
    ]
    return Result("table-1", "Four kinds of method", conditions.quick, tables, remarks)


def _measure(name: str, pairs: ReferencePairs, conditions: Conditions) -> list[Cell]:
    options = {}
    if name == "pinn":
        count = conditions.count(PINN_PAIRS, 1)
        options = {"steps": QUICK_PINN_STEPS} if conditions.quick else {}
    else:
        count = len(pairs.source)
    solver = make_solver(conditions.solver(name), **options)
    if name != "pinn":
        solver(pairs.source[0], pairs.target[0]).density(QUARTERS)  # imports, caches
    frames, began = [], perf_counter()
    for k in range(count):
        frames.append(solver(pairs.source[k], pairs.target[k]).density(QUARTERS))
    each = (perf_counter() - began) / count
    errors = torch.stack([l1(f, pairs.truth[k]) for k, f in enumerate(frames)])
    trained, _ = _header(name, conditions)
    return [f"`{name}`", count, *make_spreads(errors), trained, 1000 * each]


def _header(name: str, conditions: Conditions) -> tuple[Cell, Header]:
    """Return seconds of training and the header of the model file; None if there is no file."""
    file = conditions.file(name)
    if not file.is_file():
        return None, {}
    _, header = read_tensors(file, "a geonet model")
    return header["seconds"], header
