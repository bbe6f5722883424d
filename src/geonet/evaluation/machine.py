"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from geonet.fields.compiled.loops import library_name

PACKAGES = ("torch", "numpy", "scipy", "POT", "jax", "ott-jax")


def machine() -> dict[str, Any]:
    """Processor, memory, system and versions; None for what is not there or not known."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory(),
        "os": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "compiled_loops": library_name(),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    with suppress(AttributeError, ValueError, OSError):  # not on every system
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return None


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None
