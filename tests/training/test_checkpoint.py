"""Checkpoints survive interruptions and are validated; references are solved once and checked."""

import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from geonet import Density, Grid
from geonet._progress import progress_callback
from geonet._toml import to_table, to_toml
from geonet.errors import ConfigError, FileError
from geonet.evaluation import reference_solution
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers.neural.model import read_tensors, write_tensors
from geonet.training import checkpoint as module
from geonet.training.checkpoint import (
    Progress,
    ReferenceCache,
    load_checkpoint,
    pair_digest,
    save_checkpoint,
)
from geonet.training.loop import Processes, Run, train

NAME = "checkpoint.safetensors"

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


def test_a_full_disk_keeps_the_last_checkpoint(tiny, saved):
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


# ---- invalid files


def _spoil(saved: Path, fault: str) -> None:
    """Write an invalid checkpoint; those after "a flipped bit" have a correct checksum."""
    whole = bytearray(saved.read_bytes())
    whole[-1000] ^= 1
    contents = {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "a flipped bit": whole,
        "a model": (saved.parent / "model.safetensors").read_bytes(),
        "foreign tensors": save({"weight": torch.zeros(3)}),
    }
    if fault in contents:
        saved.write_bytes(contents[fault])
        return
    tensors, header = read_tensors(saved, "a checkpoint")
    if fault in header:
        del header[fault]
    elif fault == "weights":
        del tensors[next(name for name in tensors if name.startswith("model/"))]
    else:
        tensors[fault] = torch.zeros(3)
    write_tensors(saved, tensors, header)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("empty", "is empty"),
        ("truncated", "Cannot read .* as a checkpoint"),
        ("a flipped bit", "was changed after it was written"),
        ("a model", "is not a checkpoint of this version"),
        ("foreign tensors", "holds tensors but is not a checkpoint"),
        ("config", "Cannot read .* as a checkpoint"),
        ("progress", "Cannot read .* as a checkpoint"),
        ("weights", "Cannot read .* as a checkpoint"),
        ("nameless", "Cannot read .* as a checkpoint"),
        ("optimizer/first/step", "Cannot read .* as a checkpoint"),
    ],
)
def test_an_invalid_checkpoint_is_rejected(tiny, saved, fault, message):
    _spoil(saved, fault)
    log = (saved.parent / "log.jsonl").read_bytes()
    with pytest.raises(FileError, match=message):
        train(tiny(), saved.parent, resume=True)
    assert (saved.parent / "log.jsonl").read_bytes() == log


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


def test_a_repeated_pair_is_solved_once(pairs, solved):
    """Also without a file."""
    twice = [end.take([0, 1, 0, 1]) for end in pairs]
    result = ReferenceCache(None).solve(*twice)
    assert len(solved) == 2 and result.solvers == {"quantile": 4}
    assert torch.equal(result.frames.tensor[0], result.frames.tensor[2])


def test_long_computations_are_written_regularly(pairs, tmp_path):
    """So that a kill costs no more than some seconds."""
    file, exists = tmp_path / "references.safetensors", []
    with progress_callback(lambda line: exists.append(file.exists())):
        ReferenceCache(file, write_every=-1.0).solve(*pairs)
    assert exists[0] is False and exists[-1] is True


def test_an_invalid_file_is_replaced(pairs, solved, tmp_path):
    file = tmp_path / "references.safetensors"
    expected = ReferenceCache(file).solve(*pairs)
    whole, (tensors, header) = file.read_bytes(), read_tensors(file, "exact paths")
    contents = [b"", b"nothing", whole[:-50], whole[:-1] + bytes([whole[-1] ^ 1])]
    for wrong in (
        (tensors, header | {"kind": "checkpoint"}),
        (tensors, header | {"format": 2}),
        (tensors, header | {"solvers": 3}),
        ({}, header),
        ({k: v[..., :50] if v.ndim else v for k, v in tensors.items()}, header),
        ({k: v.float() for k, v in tensors.items()}, header),
        ({k: v * float("nan") for k, v in tensors.items()}, header),
    ):
        write_tensors(file, *wrong)
        contents.append(file.read_bytes())
    for content in contents:
        solved.clear()
        file.write_bytes(content)
        for _ in range(2):  # the second time from the file that replaced it
            _assert_same(ReferenceCache(file).solve(*pairs), expected)
        assert len(solved) == 3


def test_the_key_depends_on_values_order_epsilon_formula_and_box(pairs):
    source, target = (end[0] for end in pairs)
    box = Grid(100, 0, 20)
    keys = {
        pair_digest(source, target, 0.0),
        pair_digest(target, source, 0.0),
        pair_digest(source, target, 0.5),
        pair_digest(Density(source.tensor, source.grid), target, 0.0),
        pair_digest(Density(source.tensor, box), Density(target.tensor, box), 0.0),
    }
    assert len(keys) == 5
