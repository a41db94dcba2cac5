"""Which rank this process is, and which attempt of its program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch

from ..store.objects.url_path import place_of

# What launchers set: torchrun, Slurm, Open MPI, MPICH and its kin.
_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


RESTART: Final = "{restart}"  # in DumpConfig.path
_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"  # torchrun's


def folder_of_attempt(path: str | os.PathLike[str]) -> tuple[Path, int]:
    """Return the folder that this attempt of the program writes to, and how often a launcher has restarted it.

    An attempt that crashed is what one wants to look at, so the next one never writes over it: ``{restart}`` in the
    path becomes ``restart0``, ``restart1``, ...; without it a restart writes to ``restart1``, ... inside the folder.
    """
    text = os.environ.get(_RESTARTS, "")
    restarts = int(text) if text.isascii() and text.isdigit() else 0
    given = os.fspath(path)
    if RESTART in given:
        folder = place_of(given.replace(RESTART, f"restart{restarts}"))
    else:
        folder = place_of(given) / f"restart{restarts}" if restarts else place_of(given)
    return folder.absolute(), restarts  # the program may change its folder later


def attempts_before(folder: Path, restarts: int) -> list[Path]:
    """Return the folders of the attempts before one that writes to `folder`, the last first, if it lies in theirs."""
    if folder.name != f"restart{restarts}":
        return []
    return [folder.with_name(f"restart{number}") for number in range(restarts - 1, 0, -1)] + [folder.parent]


def rank_and_world_size() -> tuple[int, int]:
    """Return rank and world size from the process group, else from the launcher's variables, else (0, 1)."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, size in _LAUNCHERS:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
