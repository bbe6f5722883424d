"""Exact paths are solved once, kept whatever happens, and trusted only if they fit."""

from __future__ import annotations

import shutil

import pytest
import torch

from geonet import Density, Grid
from geonet._progress import progress_callback
from geonet.evaluation import reference_solution
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.solvers.neural.model import read_tensors, write_tensors
from geonet.training import checkpoint as kept_truths
from geonet.training.checkpoint import ReferenceCache, pair_digest


@pytest.fixture
def pairs():
    """Three pairs of 1D mixtures."""
    return tuple(mixtures_1d(3, torch.Generator().manual_seed(k)).to_density(BOX_1D) for k in (1, 2))


@pytest.fixture
def solved(monkeypatch):
    """Counts the pairs that are solved, by their digests."""
    keys, whole = [], kept_truths.reference_for_pair

    def counted(*pair):
        keys.append(pair_digest(*pair))
        return whole(*pair)

    monkeypatch.setattr(kept_truths, "reference_for_pair", counted)
    return keys


def _assert_same(first, second) -> None:
    assert torch.equal(first.frames.tensor, second.frames.tensor)
    assert first.frames.grid == second.frames.grid
    assert torch.equal(first.distance, second.distance)
    assert first.solvers == second.solvers


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_what_is_kept_is_the_truth_to_the_bit(pairs, solved, tmp_path, epsilon):
    expected = reference_solution(*pairs, epsilon)
    for _ in range(2):
        found = ReferenceCache(tmp_path / "references.safetensors").solve(*pairs, epsilon)
        _assert_same(found, expected)
    assert len(solved) == 3


def test_pairs_in_2d_are_kept_with_their_solvers(solved, tmp_path):
    grid = BOX_2D.with_shape(16)
    pairs = [mixtures_2d(2, torch.Generator().manual_seed(k)).to_density(grid) for k in (1, 2)]
    first, second = (ReferenceCache(tmp_path / "references.safetensors").solve(*pairs) for _ in range(2))
    _assert_same(first, second)
    assert len(solved) == 2 and sum(first.solvers.values()) == 2


def test_a_pair_that_comes_twice_is_solved_once(pairs, solved):
    """Without a file, too: few held-out pairs are validated many times."""
    twice = [end.take([0, 1, 0, 1]) for end in pairs]
    found = ReferenceCache(None).solve(*twice)
    assert len(solved) == 2 and found.solvers == {"quantile": 4}
    assert torch.equal(found.frames.tensor[0], found.frames.tensor[2])


def test_every_pair_is_told(pairs):
    heard = []
    with progress_callback(heard.append):
        ReferenceCache(None).solve(*pairs)
    assert [line for line in heard if "," not in line] == [f"exact path {k}/3" for k in (1, 2, 3)]


class Enough(BaseException):
    """What a listener may raise."""


def test_what_was_solved_before_a_stop_is_kept(pairs, solved, tmp_path):
    def hear(line: str) -> None:
        if line.startswith("exact path 3"):
            raise Enough

    file = tmp_path / "references.safetensors"
    with pytest.raises(Enough), progress_callback(hear):
        ReferenceCache(file).solve(*pairs)
    assert len(solved) == 2
    _assert_same(ReferenceCache(file).solve(*pairs), reference_solution(*pairs))
    assert len(solved) == 3


def test_long_work_is_written_on_the_way(pairs, tmp_path, monkeypatch):
    """So that a kill, which nobody hears, costs no more than some seconds."""
    monkeypatch.setattr(kept_truths, "WRITE_EVERY", -1.0)
    file, there = tmp_path / "references.safetensors", []
    with progress_callback(lambda line: there.append(file.exists())):
        ReferenceCache(file).solve(*pairs)
    assert there[0] is False and there[-1] is True


def test_a_damaged_file_is_solved_anew(pairs, solved, tmp_path):
    file = tmp_path / "references.safetensors"
    ReferenceCache(file).solve(*pairs)
    whole = file.read_bytes()
    for damaged in (b"", b"nothing", whole[:-50], whole[:-1] + bytes([whole[-1] ^ 1])):
        solved.clear()
        file.write_bytes(damaged)
        for _ in range(2):  # the second time from the file that replaced it
            _assert_same(ReferenceCache(file).solve(*pairs), reference_solution(*pairs))
            assert len(solved) == 3


def test_a_foreign_file_is_not_trusted(pairs, solved, tmp_path):
    """Neither a file of another kind, nor truths that cannot be those of these pairs."""
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
    for what, content in wrong.items():
        solved.clear()
        write_tensors(file, *content)
        _assert_same(ReferenceCache(file).solve(*pairs), expected)
        assert len(solved) == 3, what


def test_only_the_same_pair_is_found(pairs, solved, tmp_path):
    """Other values, another order, another noise, no formula or another box: another truth."""
    source, target = pairs
    ReferenceCache(tmp_path / "kept.safetensors").solve(source, target)
    cells_alone = tuple(end.take([0, 1, 2]) for end in pairs)
    stretched = tuple(Density(end.tensor, Grid(100, 0, 20)) for end in pairs)
    others = {
        "swapped": ((target, source), 0.0),
        "noisy": ((source, target), 0.5),
        "cells alone": (cells_alone, 0.0),
        "in a larger box": (stretched, 0.0),
    }
    for what, (ends, epsilon) in others.items():
        solved.clear()
        file = tmp_path / "references.safetensors"
        shutil.copy(tmp_path / "kept.safetensors", file)
        _assert_same(ReferenceCache(file).solve(*ends, epsilon), reference_solution(*ends, epsilon))
        assert len(solved) == 3, what
