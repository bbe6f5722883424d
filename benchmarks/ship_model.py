"""From a finished run to a shipped model: the weights with their card, and the curve of the loss.

    python benchmarks/ship_model.py runs/geonet-1d ["what to say about its training time"]

measures the errors on 50 pairs that neither training nor validation saw, and writes
src/geonet/solvers/learned/pretrained/NAME.safetensors and NAME.md, and docs/images/NAME-loss.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from learned_solvers import QUARTERS, TEST_SEED, errors_of
from pages import ROOT, machine, table

from geonet.files import written_atomically
from geonet.settings import read_toml, to_toml
from geonet.solvers.learned.geonet import PRETRAINED, GeONetSolver
from geonet.solvers.learned.model_file import load_model, save_model
from geonet.training.loop import MODEL
from geonet.training.run_log import SHORT, read_log

LARGEST = 5_000_000  # bytes
KEPT = 200  # entries of the log that go with the weights


def thinned(entries: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """At most `KEPT` entries that have `key`, evenly spread."""
    having = [entry for entry in entries if key in entry]
    stride = max(1, len(having) // KEPT)
    return having[::stride]


def config_of(name: str) -> str:
    """The config in experiments/ that has this name."""
    for file in sorted((ROOT / "experiments").glob("*.toml")):
        if read_toml(file)["name"] == name:
            return str(file.relative_to(ROOT))
    raise SystemExit(f"No config in experiments/ is named {name}; a shipped model needs one.")


def card(header: dict[str, Any], weights: int) -> str:
    """The model's card, in Markdown."""
    measured, training = header["measured"], header["training"]
    rows = [(t, *values) for t, *values in zip(QUARTERS, *measured["test"].values(), strict=True)]
    columns = ("t", *(f"L1 %, {name}" for name in measured["test"]))
    errors = table(columns, [tuple(str(cell) for cell in row) for row in rows])
    return f"""# {header["name"]}

{weights:,} weights, trained by `geonet train {config_of(training["name"])}`, seed
{training["seed"]}: {header["steps"]:,} steps in {header["seconds"] / 60:.0f} minutes,
{header["remark"]}. Measured on {header["machine"]}.

50 pairs that neither training nor validation saw (seed {TEST_SEED}), against exact solutions:

{errors}

## Configuration

```toml
{to_toml(training).strip()}
```
"""


def plot_losses(header: dict[str, Any], file: Path) -> None:
    """The weighted terms of the loss, and the validation error, over steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    losses, validations = header["history"], header["validations"]
    steps = [entry["step"] for entry in losses]
    for name in losses[0]["terms"]:
        left.semilogy(steps, [e["terms"][name] for e in losses], label=SHORT[name], lw=1)
    left.semilogy(steps, [e["loss"] for e in losses], "k", label="loss", lw=1)
    left.set(xlabel="step", title=f"{header['name']}: loss by term (unit box)")
    left.legend(ncols=2, fontsize=8)
    for k, t in enumerate(QUARTERS[:3]):
        curve = [e["validation"][k] for e in validations]
        right.semilogy([e["step"] for e in validations], curve, label=f"t = {t}", lw=1)
    right.set(xlabel="step", title="validation, L1 in %")
    right.legend(fontsize=8)
    with written_atomically(file) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def main(folder: Path, remark: str) -> None:
    """Measure, and write weights, card and picture."""
    model, header = load_model(folder / MODEL)
    log = read_log(folder / "log.jsonl")
    test = errors_of(GeONetSolver(str(folder / MODEL)), model.settings.dimension, header["epsilon"])
    header["measured"]["test"] = test
    header["machine"], header["remark"] = machine(), remark
    header["history"], header["validations"] = thinned(log, "terms"), thinned(log, "validation")
    name = header["name"]
    PRETRAINED.mkdir(exist_ok=True)
    weights = sum(p.numel() for p in model.parameters())
    file = save_model(PRETRAINED / f"{name}.safetensors", model, header)
    if file.stat().st_size > LARGEST:
        file.unlink()
        raise SystemExit(f"{file} would have more than {LARGEST:,} bytes; train a smaller model.")
    with written_atomically(PRETRAINED / f"{name}.md") as temporary:
        temporary.write_text(card(header, weights), encoding="utf-8")
    plot_losses(header, ROOT / "docs" / "images" / f"{name}-loss.png")
    print(card(header, weights))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "on an otherwise idle machine")
