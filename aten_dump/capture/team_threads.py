"""How many of torch's threads take a part in what a C file does."""

from __future__ import annotations

from typing import Final

import torch

TEAM_BYTES: Final = 1 << 18  # of which other threads take a part: with fewer, that costs more than it saves


def team_threads(nbytes: int) -> int:
    """Return how many threads are to copy or hash so many bytes."""
    return torch.get_num_threads() if nbytes >= TEAM_BYTES else 1
