"""One process or several: who writes, and what they have to agree on."""

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

PATIENCE = timedelta(days=1)  # the others wait while one solves the pairs of the validation


@dataclass(frozen=True)
class Processes:
    """This process's place among `count`, and its device; `torchrun` starts them."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def writes(self) -> bool:
        """Whether this is the one that logs, shows and saves."""
        return self.rank == 0

    def shared(self, module: Module) -> Module:
        """The module with gradients averaged over all processes, weights from the first."""
        return module if self.count == 1 else DistributedDataParallel(module)

    def any(self, *flags: bool) -> list[bool]:
        """Each flag, true if it is for any process."""
        if self.count == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.uint8, device=self.device)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return raised.bool().tolist()

    def first(self, value: str | None, values: Sequence[str]) -> str | None:
        """The first of `values` that is `value` in any process; None if none is."""
        flags = self.any(*(value == one for one in values))
        return next((one for one, flag in zip(values, flags, strict=True) if flag), None)

    def mean(self, values: Tensor) -> Tensor:
        """The average over processes."""
        if self.count > 1:
            dist.all_reduce(values)
            values /= self.count
        return values

    def gathered(self, state: Tensor) -> list[Tensor]:
        """Everyone's tensor, in the order of ranks."""
        if self.count == 1:
            return [state]
        state = state.to(self.device)
        states = [torch.empty_like(state) for _ in range(self.count)]
        dist.all_gather(states, state)
        return [s.cpu() for s in states]


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """The group that `torchrun` started, gloo on CPUs, NCCL on GPUs; else this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    graphics = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if graphics else "cpu"
    if count == 1:
        yield Processes(device=device)
        return
    dist.init_process_group("nccl" if graphics else "gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), count, device)
    finally:
        dist.destroy_process_group()
