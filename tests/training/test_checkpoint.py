"""Checkpoints: complete, whole through a kill, and refused if they are anything else."""

from __future__ import annotations

import math
import resource
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from geonet._toml import to_table, to_toml
from geonet.errors import ConfigError, FileError
from geonet.solvers.neural import model as model_file
from geonet.solvers.neural.model import read_tensors, write_tensors
from geonet.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from geonet.training.distributed import Processes
from geonet.training.loop import Run, train

NAME = "checkpoint.safetensors"
ALIGNED = 64  # bytes: where torch's allocator begins a tensor

# Half of the third checkpoint gets to its temporary name, then the process is killed.
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
    """The checkpoint of a training that was stopped half-way."""
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
    """Strides of every tensor of model and optimizer, and the address modulo torch's alignment."""
    tensors = dict(run.model.state_dict())
    for index, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"{index}/{key}": value for key, value in state.items()}
    assert all(value.is_contiguous() for value in tensors.values())
    return {name: (value.stride(), value.data_ptr() % ALIGNED) for name, value in tensors.items()}


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("form", ["tiny", "tiny_transport", "tiny_supervised"])
@pytest.mark.parametrize("optimizer", ["soap", "adam"])
def test_tensors_lie_in_memory_as_after_a_break(tmp_path, request, form, optimizer, aligned):
    """Row by row, at aligned addresses: a product rounds otherwise where its factors lie otherwise.

    That is why a training that goes on has the same bits, on any machine.
    """
    if not aligned:
        request.getfixturevalue("misaligned_files")
    config = request.getfixturevalue(form)(optimizer={"name": optimizer})
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


def test_what_is_read_is_aligned_wherever_the_file_lies(run, tmp_path, misaligned_files):
    run.save()
    with model_file.safe_open(tmp_path / NAME, "pt") as archive:
        lying = {archive.get_tensor(name).data_ptr() % ALIGNED for name in archive.keys()}  # noqa: SIM118
    assert 0 not in lying
    tensors, _ = read_tensors(tmp_path / NAME, "a checkpoint")
    assert {value.data_ptr() % ALIGNED for value in tensors.values()} == {0}


def test_progress_is_kept_to_the_last_bit(tiny, tmp_path, run):
    for best in (math.inf, 1 / 3):
        progress = Progress(7, best, 0.1 + 0.2, {"source": 2 / 3})
        save_checkpoint(tmp_path / NAME, tiny(), progress, run.model, run.optimizer, [])
        assert load_checkpoint(tmp_path / NAME, tiny(), run.model, run.optimizer)[0] == progress


def test_streams_of_all_processes_are_kept(tiny, tmp_path, run):
    streams = [torch.Generator().manual_seed(seed).get_state() for seed in range(12)]
    save_checkpoint(tmp_path / NAME, tiny(), run.progress, run.model, run.optimizer, streams)
    loaded = load_checkpoint(tmp_path / NAME, tiny(), run.model, run.optimizer)[1]
    assert len(loaded) == 12
    assert all(torch.equal(a, b) for a, b in zip(streams, loaded, strict=True))
    with pytest.raises(ConfigError, match="was written by 12 processes, now there are 1"):
        run.load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, "^seed is 3, but .* was trained with 0; resume with the config it has"),
        ({"loss": {"epsilon": 0.5}}, "^loss.epsilon is 0.5, but .* was trained with 0.0"),
        ({"problem": {"file": "a.npz"}}, "^problem.family is None, but .* with 'mixtures-1d'"),
        (
            {"model": {"trunk": {"width": 8, "depth": 4}}},
            "^model.trunk.depth is 4, but .* was trained with 3",
        ),
    ],
)
def test_another_config_is_refused_by_the_key(tiny, run, tmp_path, changes, message):
    run.save()
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(tmp_path / NAME, tiny(**changes), run.model, run.optimizer)


# ---- a kill, a full disk


def test_a_kill_inside_a_save_loses_only_the_steps_since_the_last(
    tiny, tmp_path, assert_same_state, logged
):
    """`kill -9` while the third checkpoint is half-written: the second, of step 6, is whole."""
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


def test_a_full_disk_leaves_the_last_checkpoint(tiny, saved, assert_same_state, tmp_path):
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


# ---- what is no checkpoint


def _refused(tiny, saved, message: str) -> None:
    log = (saved.parent / "log.jsonl").read_bytes()
    with pytest.raises(FileError, match=message):
        train(tiny(), saved.parent, resume=True)
    assert (saved.parent / "log.jsonl").read_bytes() == log


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.02, 0.5, 0.999])
def test_a_checkpoint_that_is_cut_off(tiny, saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    _refused(tiny, saved, "is empty" if share == 0 else "Cannot read .* as a checkpoint")


def test_a_checkpoint_with_a_flipped_bit(tiny, saved):
    whole = bytearray(saved.read_bytes())
    whole[-1000] ^= 1
    saved.write_bytes(whole)
    _refused(tiny, saved, "was changed after it was written")


def test_a_model_is_no_checkpoint(tiny, saved):
    saved.write_bytes((saved.parent / "model.safetensors").read_bytes())
    _refused(tiny, saved, "is no checkpoint of this version")


def test_tensors_of_someone_else_are_no_checkpoint(tiny, saved):
    save_file({"weight": torch.zeros(3)}, saved)
    _refused(tiny, saved, "holds tensors but is not a checkpoint")


@pytest.mark.parametrize("odd", ["config", "progress", "weights", "name", "optimizer"])
def test_a_checkpoint_that_was_made_up(tiny, saved, odd):
    """Its checksum is right, but something is missing or does not fit."""
    tensors, header = read_tensors(saved, "a checkpoint")
    if odd in header:
        del header[odd]
    elif odd == "weights":
        del tensors[next(name for name in tensors if name.startswith("model/"))]
    else:
        tensors["nameless" if odd == "name" else "optimizer/first/step"] = torch.zeros(3)
    write_tensors(saved, tensors, header)
    _refused(tiny, saved, "Cannot read .* as a checkpoint")
