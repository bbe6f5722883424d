"""Ship the model of a finished run: weights with their card, and the curve of the loss.

    python -m experiments.ship_model runs/geonet-1d ["what to say about its training time"]

measures the errors on unseen pairs, calibrates the mismatch of a transport model, and writes
NAME.safetensors and NAME.md beside the pretrained models, and docs/images/NAME-loss.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from benchmarks.pages import ROOT, format_table
from benchmarks.results import describe_machine
from benchmarks.studies.learned_solvers import errors_of
from benchmarks.suites import prescribed_map_pairs
from benchmarks.timing import make_generator
from geonet._files import atomic_write
from geonet._toml import from_table, read_toml, to_toml
from geonet.evaluation import PAIRS, SEED, TEST_SETS, reference_frames, sample_pairs
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.cascade import CascadeNet
from geonet.solvers.neural.deeponet import DeepONetModel
from geonet.solvers.neural.model import Model, load_model, save_model
from geonet.solvers.neural.pretrained import PRETRAINED_MODELS, pretrained_file
from geonet.solvers.neural.transport.certificate import Calibration, fit_calibration
from geonet.solvers.neural.transport.network import TransportNet, predict_potential
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import scale_to_injective
from geonet.solvers.registry import make_solver
from geonet.training.checkpoint import ReferenceCache
from geonet.training.config import TrainingConfig
from geonet.training.log import RunLog, Validation, read_log
from geonet.training.loop import MODEL, load_problem

LARGEST = 5_000_000  # bytes
CALIBRATION_SEED = 8_000
KEPT = 200  # entries of the log that go with the weights


def thin(entries: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return at most `KEPT` evenly spaced entries that have `key`."""
    having = [entry for entry in entries if key in entry]
    stride = max(1, len(having) // KEPT)
    return having[::stride]


def config_of(name: str) -> str:
    """Return the config in experiments/configs/ that has this name."""
    for file in sorted((ROOT / "experiments" / "configs").glob("*.toml")):
        if read_toml(file)["name"] == name:
            return str(file.relative_to(ROOT))
    raise SystemExit(
        f"No config in experiments/configs/ is named {name}; a shipped model needs one."
    )


def card(header: dict[str, Any], weights: int) -> str:
    """Return the model's card, in Markdown."""
    measured, training = header["measured"], header["training"]
    rows = [(t, *values) for t, *values in zip(QUARTERS, *measured["test"].values(), strict=True)]
    columns = ("t", *(f"L1 %, {name}" for name in measured["test"]))
    errors = format_table(columns, [tuple(str(cell) for cell in row) for row in rows])
    shown = ""
    if "data_seconds" in header:
        pairs = training["sampling"]["pairs"] * header["steps"]
        minutes = f"{header['data_seconds'] / 60:.0f} of these minutes"
        shown = f"\nThe exact paths of {pairs:,} pairs, on which it was trained, took {minutes}."
    name, seed = header["name"], training["seed"]
    has_noise = header["epsilon"] > 0
    reference = "Schrödinger bridges at the same ε" if has_noise else "exact solutions"
    return f"""# {name}

Solver `{name}`: {PRETRAINED_MODELS[name].summary}.

{weights:,} weights, trained by `geonet train {config_of(training["name"])}` with seed {seed}: \
{header["steps"]:,} steps in {header["seconds"] / 60:.0f} minutes,
{header["remark"]}.{shown}
Measured on {header["machine"]}.

Errors of {header["tested_on"]} (seed {SEED}) that were used neither in training nor in
validation, compared with {reference}:

{errors}

## Configuration

```toml
{to_toml(training).strip()}
```
"""


def calibration_of(model: Model, config: TrainingConfig, cache: Path) -> dict[str, Any]:
    """Fit the calibration of a model on validation pairs.

    Few 3D mixtures have an exact path, so transport models in 3D use prescribed maps, with the
    limit from mixtures.
    """
    problem = load_problem(config)
    if config.validation.pairs:
        return Validation(config, problem, ReferenceCache(cache)).measure(model)
    assert isinstance(model, TransportNet)
    known = prescribed_map_pairs(seed=CALIBRATION_SEED)
    mixtures = problem.draw_densities(64, make_generator(CALIBRATION_SEED))
    paths = [
        CosineGeodesic(*ends, "transport", {}, scale_to_injective(predict_potential(model, *ends)))
        for ends in ((known.source, known.target), mixtures)
    ]
    errors = l1(paths[0].density(QUARTERS), known.truth)
    slope = fit_calibration(paths[0].certificate.mismatch, errors).slope
    limit = fit_calibration(paths[1].certificate.mismatch, torch.zeros(64, 1)).limit
    return {"calibration": Calibration(slope, limit)._asdict()}


def test_errors(
    file: Path, model: Model, config: TrainingConfig, epsilon: float
) -> tuple[dict[str, list[float]], str]:
    """Return mean and deviation of the L1 error in percent at the quarters, and the test set."""
    dimension, family = model.settings.dimension, config.problem.family
    corrected = isinstance(model, (CascadeNet, TransportNet))
    solver = make_solver(str(file), **({"max_iterations": 0} if corrected else {}))
    if dimension == 3:
        pairs, what = prescribed_map_pairs(), "20 mixtures with known maps, 24³ cells"
    elif not str(family).startswith("mixtures-"):
        source, target = load_problem(config).draw_densities(PAIRS, make_generator(SEED))
        answer, what = solver(source, target).density(QUARTERS), f"{PAIRS} pairs of {family}"
        return summary(l1(answer, reference_frames(source, target, epsilon))), what
    elif not isinstance(model, TransportNet):
        return errors_of(solver, dimension, epsilon), "50 pairs"
    else:
        pairs, what = sample_pairs(TEST_SETS[f"{dimension}D random"]), "50 pairs"
    answer = solver(pairs.source, pairs.target).density(QUARTERS)
    return summary(l1(answer, pairs.truth)), what


def summary(errors: torch.Tensor) -> dict[str, list[float]]:
    """Return mean and standard deviation over the pairs in percent, from (pairs, times)."""
    found = {"mean": 100 * errors.mean(0), "sd": 100 * errors.std(0)}
    return {name: [round(e, 3) for e in values.tolist()] for name, values in found.items()}


def plot_losses(header: dict[str, Any], file: Path) -> None:
    """Plot the weighted terms of the loss and the validation error over steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    losses, validations = header["history"], header["validations"]
    steps = [entry["step"] for entry in losses]
    for name in losses[0]["terms"]:
        left.semilogy(
            steps,
            [e["terms"][name] for e in losses],
            label=RunLog.short_names.get(name, name),
            lw=1,
        )
    left.semilogy(steps, [e["loss"] for e in losses], "k", label="loss", lw=1)
    left.set(xlabel="step", title=f"{header['name']}: loss by term (unit box)")
    left.legend(ncols=2, fontsize=8)
    for k, t in enumerate(QUARTERS[:3]):
        curve = [e["validation"][k] for e in validations]
        if any(curve):  # the transport form has no error at the ends, and 3D no validation
            right.semilogy([e["step"] for e in validations], curve, label=f"t = {t}", lw=1)
    right.set(xlabel="step", title="validation, L1 in %")
    if right.lines:
        right.legend(fontsize=8)
    with atomic_write(file) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def main(folder: Path, remark: str) -> None:
    """Measure, and write weights, card and picture."""
    model, header = load_model(folder / MODEL)
    log = read_log(folder / "log.jsonl")
    config = from_table(TrainingConfig, header["training"])
    if isinstance(model, DeepONetModel):  # errors of some percent: half precision will do
        for network in model.networks:
            network.half().float()
    if not isinstance(model, CascadeNet):
        header["measured"] |= calibration_of(model, config, folder / ReferenceCache.file_name)
    rounded = save_model(folder / "rounded.safetensors", model, header)
    test, header["tested_on"] = test_errors(rounded, model, config, header["epsilon"])
    header["measured"]["test"] = test
    header["machine"], header["remark"] = describe_machine(), remark
    header["history"], header["validations"] = thin(log, "terms"), thin(log, "validation")
    name = header["name"]
    weights = sum(p.numel() for p in model.parameters())
    if isinstance(model, DeepONetModel):
        for network in model.networks:
            network.half()
    file = save_model(pretrained_file(name), model, header)
    if file.stat().st_size > LARGEST:
        file.unlink()
        raise SystemExit(f"{file} would have more than {LARGEST:,} bytes; train a smaller model.")
    with atomic_write(file.with_suffix(".md")) as temporary:
        temporary.write_text(card(header, weights), encoding="utf-8")
    plot_losses(header, ROOT / "docs" / "images" / f"{name}-loss.png")
    print(card(header, weights))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "on an otherwise idle machine")
