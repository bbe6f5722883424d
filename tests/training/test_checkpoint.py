"""Checkpoints survive interruptions and are validated; references are solved once and checked."""

from __future__ import annotations

import math
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from geonet import Density, Grid
from geonet._progress import progress_callback
from geonet._toml import to_table, to_toml
from geonet.errors import ConfigError, FileError
from geonet.evaluation import reference_solution
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.solvers.neural.model import read_tensors, write_tensors
from geonet.training import checkpoint as module
from geonet.training.checkpoint import (
    Progress,
    ReferenceCache,
    load_checkpoint,
    pair_digest,
    save_checkpoint,
)
from geonet.training.distributed import Processes
from geonet.training.loop import Run, train

NAME = "checkpoint.safetensors"
ALIGNED = 64  # bytes: where torch's allocator begins a tensor

# The process is killed when half of the third checkpoint is written.
KILLED = """
import os, signal, sys
from pathlib import Path
from geonet.training.config import read_config
from geonet.training.loop import train

write, saved = Path.write_bytes, []

def cut_off(file, content):
    if "checkpoint" in file.name:
        saved.append(file)
    if len(saved) < 3:
        return write(file, content)
    write(file, content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

Path.write_bytes = cut_off
train(read_config(Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.fixture
def run(tiny, tmp_path):
    run = Run(tiny(), tmp_path, Processes())
    for _ in range(3):
        run.step()
    return run


@pytest.fixture
def saved(tiny, tmp_path):
    """The checkpoint of a run that was stopped halfway."""
    train(tiny(), tmp_path / "run", stop_at=6)
    return tmp_path / "run" / NAME


def test_round_trip(tiny, tmp_path, run):
    run.save()
    other = Run(tiny(), tmp_path, Processes())
    other.load()
    for ours, theirs in zip(run.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    ours, theirs = (r.optimizer.state_dict()["state"] for r in (run, other))
    assert ours.keys() == theirs.keys() and len(ours) > 0
    for index, state in ours.items():
        assert state.keys() == theirs[index].keys()
        for key in state:
            assert torch.equal(state[key], theirs[index][key])
            assert state[key].dtype == theirs[index][key].dtype
    assert torch.equal(run.generator.get_state(), other.generator.get_state())
    assert other.progress == run.progress
    assert run.step() == other.step()


def layout(run) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return strides and address modulo torch's alignment of all tensors of a run."""
    tensors = dict(run.model.state_dict())
    for index, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"{index}/{key}": value for key, value in state.items()}
    assert all(value.is_contiguous() for value in tensors.values())
    return {name: (value.stride(), value.data_ptr() % ALIGNED) for name, value in tensors.items()}


@pytest.mark.parametrize(("form", "aligned"), [("tiny", True), ("tiny_transport", False)])
def test_memory_layout_is_the_same_after_a_resume(tmp_path, request, form, aligned):
    """Contiguous at aligned addresses, because the rounding of products depends on both."""
    if not aligned:
        request.getfixturevalue("misaligned_files")
    config = request.getfixturevalue(form)()
    run = Run(config, tmp_path, Processes())
    for _ in range(12):  # SOAP's bases are new after ten
        run.step()
        before = layout(run)
        assert {address for _, address in before.values()} == {0}
    run.save()
    other = Run(config, tmp_path, Processes())
    other.load()
    assert layout(other) == before
    assert run.step() == other.step()
    assert layout(other) == layout(run)


def test_progress_is_stored_exactly(tiny, tmp_path, run):
    for best in (math.inf, 1 / 3):
        progress = Progress(7, best, 0.1 + 0.2, {"source": 2 / 3})
        save_checkpoint(tmp_path / NAME, tiny(), progress, run.model, run.optimizer, [])
        assert load_checkpoint(tmp_path / NAME, tiny(), run.model, run.optimizer)[0] == progress


def test_random_states_of_all_processes_are_stored(tiny, tmp_path, run):
    states = [torch.Generator().manual_seed(seed).get_state() for seed in range(12)]
    save_checkpoint(tmp_path / NAME, tiny(), run.progress, run.model, run.optimizer, states)
    loaded = load_checkpoint(tmp_path / NAME, tiny(), run.model, run.optimizer)[1]
    assert len(loaded) == 12
    assert all(torch.equal(a, b) for a, b in zip(states, loaded, strict=True))
    with pytest.raises(ConfigError, match="was written by 12 processes, now there are 1"):
        run.load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, "^seed is 3, but .* was trained with 0"),
        ({"loss": {"epsilon": 0.5}}, "^loss.epsilon is 0.5, but .* was trained with 0.0"),
        ({"problem": {"file": "a.npz"}}, "^problem.family is None, but .* with 'mixtures-1d'"),
        (
            {"model": {"trunk": {"width": 8, "depth": 4}}},
            "^model.trunk.depth is 4, but .* was trained with 3",
        ),
    ],
)
def test_another_config_is_rejected_with_the_key(tiny, run, tmp_path, changes, message):
    run.save()
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(tmp_path / NAME, tiny(**changes), run.model, run.optimizer)


# ---- interruptions


def test_a_kill_during_a_save_loses_only_the_steps_since_the_last_one(
    tiny, tmp_path, assert_same_state, logged
):
    """SIGKILL while the third checkpoint is half written leaves the second one, of step 6."""
    (tmp_path / "tiny.toml").write_text(to_toml(to_table(tiny())))
    folder = tmp_path / "run"
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "tiny.toml"), str(folder)]
    assert subprocess.run(arguments, capture_output=True).returncode == -9
    (half,) = folder.glob(".checkpoint*")
    with pytest.raises(FileError, match="Cannot read .* as a checkpoint"):
        read_tensors(half, "a checkpoint")
    assert read_tensors(folder / NAME, "a checkpoint")[1]["progress"]["step"] == 6
    assert logged(folder)[-1]["step"] == 9
    train(tiny(), folder, resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(folder, tmp_path / "whole")
    assert logged(folder) == logged(tmp_path / "whole")


def test_a_full_disk_keeps_the_last_checkpoint(tiny, saved, assert_same_state, tmp_path):
    before = saved.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(FileError, match=f"Cannot write {saved}: .*File too large"):
            train(tiny(), saved.parent, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert saved.read_bytes() == before
    assert not list(saved.parent.glob(".*"))
    train(tiny(), saved.parent, resume=True)
    train(tiny(), tmp_path / "whole")
    assert_same_state(saved.parent, tmp_path / "whole")


# ---- invalid files


def _assert_rejected(tiny, saved, message: str) -> None:
    log = (saved.parent / "log.jsonl").read_bytes()
    with pytest.raises(FileError, match=message):
        train(tiny(), saved.parent, resume=True)
    assert (saved.parent / "log.jsonl").read_bytes() == log


@pytest.mark.parametrize("share", [0.0, 0.02, 0.999])
def test_a_truncated_checkpoint(tiny, saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    _assert_rejected(tiny, saved, "is empty" if share == 0 else "Cannot read .* as a checkpoint")


def test_a_checkpoint_with_a_flipped_bit(tiny, saved):
    whole = bytearray(saved.read_bytes())
    whole[-1000] ^= 1
    saved.write_bytes(whole)
    _assert_rejected(tiny, saved, "was changed after it was written")


def test_a_model_is_not_a_checkpoint(tiny, saved):
    saved.write_bytes((saved.parent / "model.safetensors").read_bytes())
    _assert_rejected(tiny, saved, "is not a checkpoint of this version")


def test_foreign_tensors_are_not_a_checkpoint(tiny, saved):
    save_file({"weight": torch.zeros(3)}, saved)
    _assert_rejected(tiny, saved, "holds tensors but is not a checkpoint")


@pytest.mark.parametrize("odd", ["config", "progress", "weights", "name", "optimizer"])
def test_an_inconsistent_checkpoint(tiny, saved, odd):
    """The checksum is right, but an entry is missing or does not fit."""
    tensors, header = read_tensors(saved, "a checkpoint")
    if odd in header:
        del header[odd]
    elif odd == "weights":
        del tensors[next(name for name in tensors if name.startswith("model/"))]
    else:
        tensors["nameless" if odd == "name" else "optimizer/first/step"] = torch.zeros(3)
    write_tensors(saved, tensors, header)
    _assert_rejected(tiny, saved, "Cannot read .* as a checkpoint")


# ---- reference cache


@pytest.fixture
def pairs():
    """Three pairs of 1D mixtures."""
    return tuple(
        mixtures_1d(3, torch.Generator().manual_seed(k)).to_density(BOX_1D) for k in (1, 2)
    )


@pytest.fixture
def solved(monkeypatch):
    """The digests of the pairs that are solved."""
    keys, original = [], module.reference_for_pair

    def record(*pair):
        keys.append(pair_digest(*pair))
        return original(*pair)

    monkeypatch.setattr(module, "reference_for_pair", record)
    return keys


def _assert_same(first, second) -> None:
    assert torch.equal(first.frames.tensor, second.frames.tensor)
    assert first.frames.grid == second.frames.grid
    assert torch.equal(first.distance, second.distance)
    assert first.solvers == second.solvers


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_stored_references_are_exact(pairs, solved, tmp_path, epsilon):
    expected = reference_solution(*pairs, epsilon)
    for _ in range(2):
        result = ReferenceCache(tmp_path / "references.safetensors").solve(*pairs, epsilon)
        _assert_same(result, expected)
    assert len(solved) == 3


def test_solvers_of_2d_pairs_are_stored(solved, tmp_path):
    grid = BOX_2D.with_shape(16)
    pairs = [mixtures_2d(2, torch.Generator().manual_seed(k)).to_density(grid) for k in (1, 2)]
    first, second = (
        ReferenceCache(tmp_path / "references.safetensors").solve(*pairs) for _ in range(2)
    )
    _assert_same(first, second)
    assert len(solved) == 2 and sum(first.solvers.values()) == 2


def test_a_repeated_pair_is_solved_once(pairs, solved):
    """Also without a file."""
    twice = [end.take([0, 1, 0, 1]) for end in pairs]
    result = ReferenceCache(None).solve(*twice)
    assert len(solved) == 2 and result.solvers == {"quantile": 4}
    assert torch.equal(result.frames.tensor[0], result.frames.tensor[2])


def test_pairs_solved_before_an_interruption_are_stored(pairs, solved, tmp_path):
    def interrupt(line: str) -> None:
        if line.startswith("exact path 3"):
            raise KeyboardInterrupt

    file = tmp_path / "references.safetensors"
    with pytest.raises(KeyboardInterrupt), progress_callback(interrupt):
        ReferenceCache(file).solve(*pairs)
    assert len(solved) == 2
    _assert_same(ReferenceCache(file).solve(*pairs), reference_solution(*pairs))
    assert len(solved) == 3


def test_long_computations_are_written_regularly(pairs, tmp_path):
    """So that a kill costs no more than some seconds."""
    file, exists = tmp_path / "references.safetensors", []
    with progress_callback(lambda line: exists.append(file.exists())):
        ReferenceCache(file, write_every=-1.0).solve(*pairs)
    assert exists[0] is False and exists[-1] is True


def test_a_damaged_file_is_replaced(pairs, solved, tmp_path):
    file = tmp_path / "references.safetensors"
    ReferenceCache(file).solve(*pairs)
    whole = file.read_bytes()
    for damaged in (b"", b"nothing", whole[:-50], whole[:-1] + bytes([whole[-1] ^ 1])):
        solved.clear()
        file.write_bytes(damaged)
        for _ in range(2):  # the second time from the file that replaced it
            _assert_same(ReferenceCache(file).solve(*pairs), reference_solution(*pairs))
            assert len(solved) == 3


def test_a_file_that_does_not_match_is_replaced(pairs, solved, tmp_path):
    file = tmp_path / "references.safetensors"
    expected = ReferenceCache(file).solve(*pairs)
    tensors, header = read_tensors(file, "exact paths")
    wrong = {
        "of another kind": (tensors, header | {"kind": "checkpoint"}),
        "of another format": (tensors, header | {"format": 2}),
        "of no solver": (tensors, header | {"solvers": 3}),
        "with nothing in it": ({}, header),
        "on fewer cells": ({k: v[..., :50] if v.ndim else v for k, v in tensors.items()}, header),
        "in single precision": ({k: v.float() for k, v in tensors.items()}, header),
        "not finite": ({k: v * float("nan") for k, v in tensors.items()}, header),
    }
    for name, content in wrong.items():
        solved.clear()
        write_tensors(file, *content)
        _assert_same(ReferenceCache(file).solve(*pairs), expected)
        assert len(solved) == 3, name


def test_the_key_depends_on_values_order_epsilon_formula_and_box(pairs, solved, tmp_path):
    source, target = pairs
    ReferenceCache(tmp_path / "first.safetensors").solve(source, target)
    cells_alone = tuple(end.take([0, 1, 2]) for end in pairs)
    stretched = tuple(Density(end.tensor, Grid(100, 0, 20)) for end in pairs)
    others = {
        "swapped": ((target, source), 0.0),
        "noisy": ((source, target), 0.5),
        "cells alone": (cells_alone, 0.0),
        "in a larger box": (stretched, 0.0),
    }
    for name, (ends, epsilon) in others.items():
        solved.clear()
        file = tmp_path / "references.safetensors"
        shutil.copy(tmp_path / "first.safetensors", file)
        _assert_same(ReferenceCache(file).solve(*ends, epsilon), reference_solution(*ends, epsilon))
        assert len(solved) == 3, name
