"""Tests of the loader of the compiled kernels."""

from importlib.machinery import ModuleSpec

import pytest
import torch

from geonet.errors import InputError
from geonet.numerics import kernels


@pytest.fixture
def uncached(monkeypatch):
    """Load builds again, with the changes of a test, and once more afterwards."""
    monkeypatch.delenv("GEONET_COMPILED", raising=False)
    caches = kernels._load_build, kernels._native_build
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def test_missing_builds(uncached):
    uncached.setattr(kernels, "find_spec", lambda name: None)
    with pytest.warns(
        UserWarning, match="without its compiled kernels.*install a C compiler"
    ) as seen:
        assert kernels.active_build() is kernels.library_name() is None
        assert kernels.active_build() is None
    assert len(seen) == 1
    assert kernels.available_builds() == [] and not kernels.is_available()
    assert kernels.compatible_library(lambda library: True) is None


def test_builds_that_do_not_load(tmp_path, uncached):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    uncached.setattr(kernels, "find_spec", lambda name: ModuleSpec(name, None, origin=str(broken)))
    with pytest.warns(UserWarning, match="GEONET_COMPILED=0"):
        assert kernels.active_build() is None


def test_incompatible_builds_are_not_used():
    if kernels.is_available():
        assert kernels.library(lambda library: True) is not None
    assert kernels.compatible_library(lambda library: False) is None


def test_builds_can_be_selected(monkeypatch):
    for name in kernels.available_builds():
        monkeypatch.setenv("GEONET_COMPILED", name)
        assert kernels.active_build() == name
        assert f"_kernels_{name}." in kernels.library_name()
    for usual in ("1", ""):
        monkeypatch.setenv("GEONET_COMPILED", usual)
        assert kernels.active_build() in (None, *kernels.available_builds()[-1:])
    monkeypatch.setenv("GEONET_COMPILED", "0")
    assert not kernels.is_available()


def test_builds_for_other_processors_are_rejected(uncached):
    uncached.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert kernels.available_builds() in ([], ["default"])
    uncached.setenv("GEONET_COMPILED", "avx2")
    with pytest.raises(InputError, match="does not run on this machine"):
        kernels.is_available()
    uncached.setenv("GEONET_COMPILED", "fast")
    with pytest.raises(InputError, match="GEONET_COMPILED is 'fast'"):
        kernels.is_available()


def test_arguments_for_c():
    values = torch.rand(4, 6, dtype=torch.float64).T
    single = kernels.as_f32(values)
    assert single.dtype == torch.float32 and single.is_contiguous()
    assert kernels.addresses(single, kernels.empty_f32(2, 3))[0] == single.data_ptr()
    with pytest.raises(AssertionError):
        kernels.addresses(values)
