"""Which rank this process is."""

from __future__ import annotations

import os
from typing import Final

import torch

# What launchers set: torchrun, Slurm, Open MPI, MPICH and its kin.
_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def rank_and_world_size() -> tuple[int, int]:
    """Return rank and world size from the process group, else from the launcher's variables, else (0, 1)."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, size in _LAUNCHERS:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
