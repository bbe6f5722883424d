"""How many threads a piece of work takes."""

from __future__ import annotations

import torch

WORTH = 8192  # cells for which one more thread pays


def threads_for(cells: int) -> int:
    """One for small problems; else as many as torch may use."""
    return max(1, min(torch.get_num_threads(), cells // WORTH))
