"""Data-parallel training in one or several processes, which `torchrun` starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Processes:
    """Rank of this process, number of processes, and device."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """True for the process that logs, displays and saves."""
        return self.rank == 0

    def parallelize(self, module: Module) -> Module:
        """Return a module whose gradients are averaged over all processes."""
        return module if self.count == 1 else DistributedDataParallel(module)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true in any process."""
        return self._reduce_flags([flag])[0]

    def broadcast_first(self, value: str | None, values: Sequence[str]) -> str | None:
        """Return the first of `values` that is the `value` of any process, or None."""
        flags = self._reduce_flags([value == option for option in values])
        return next((option for option, flag in zip(values, flags, strict=True) if flag), None)

    def mean(self, values: Tensor) -> Tensor:
        """Return the average over processes."""
        if self.count > 1:
            dist.all_reduce(values)
            values /= self.count
        return values

    def gather(self, state: Tensor) -> list[Tensor]:
        """Return the tensors of all processes in the order of ranks."""
        if self.count == 1:
            return [state]
        state = state.to(self.device)
        states = [torch.empty_like(state) for _ in range(self.count)]
        dist.all_gather(states, state)
        return [s.cpu() for s in states]

    def _reduce_flags(self, flags: list[bool]) -> list[bool]:
        if self.count == 1:
            return flags
        tensor = torch.tensor(flags, dtype=torch.uint8, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.bool().tolist()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the group that `torchrun` started: gloo on CPUs, NCCL on GPUs; otherwise run alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    has_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if has_gpu else "cpu"
    if count == 1:
        yield Processes(device=device)
        return
    # The others wait while the main process solves the validation pairs.
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=timedelta(days=1))
    try:
        yield Processes(dist.get_rank(), count, device)
    finally:
        dist.destroy_process_group()
