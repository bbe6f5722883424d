"""What workers of Dask do with freed memory."""

from __future__ import annotations

import pytest

from geonet.xarray import pairs as kept_memory
from geonet.xarray.pairs import KEPT, LARGEST, MMAP, SETTING, TRIM, USUAL, memory_kept


class Library:
    """Notes what is asked of glibc."""

    def __init__(self):
        self.asked: list[tuple[int, ...]] = []

    def mallopt(self, name: int, value: int) -> None:
        self.asked.append((name, value))

    def malloc_trim(self, pad) -> None:
        self.asked.append((pad.value,))


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", lambda name: found)
    return found


def test_memory_is_kept_while_somebody_works_and_then_given_back(library, monkeypatch):
    monkeypatch.setenv(SETTING, "65536")
    with memory_kept():
        with memory_kept():
            assert library.asked == [(TRIM, KEPT), (MMAP, LARGEST)]
        assert len(library.asked) == 2
    assert library.asked[2:] == [(TRIM, 65536), (MMAP, USUAL), (0,)]


@pytest.mark.parametrize("setting", [None, "", "much"])
def test_nothing_is_changed_where_dask_changed_nothing(library, monkeypatch, setting):
    monkeypatch.delenv(SETTING, raising=False)
    if setting is not None:
        monkeypatch.setenv(SETTING, setting)
    with memory_kept():
        pass
    assert library.asked == []
