"""``--to torch``: ``step0/rank0/<call>.<slot>.pt``, to be read with ``torch.load``."""

from __future__ import annotations

from pathlib import Path

import torch

from .selection import Selection, slots_of
from .tensor_files import TensorFiles


def write(selection: Selection, out: Path) -> None:
    """Write a file for each tensor."""
    for rank in selection.each_rank():
        files = TensorFiles(out / f"step{rank.step}" / f"rank{rank.rank}", ".pt", torch.save)
        for call in selection.calls(rank):
            for slot, value in selection.tensors(slots_of(call)):
                files.put(f"{call.name}.{slot}", value)
        files.close()
